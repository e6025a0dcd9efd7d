"""Take a backup: read what the one before it does not have, and write it into the repository."""

from __future__ import annotations

import hashlib
import threading
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final

import msgspec

from bascule.backup.batch_checks import BatchChecker
from bascule.backup.manifest import (
    NOT_COMPACTED,
    BackedUpFile,
    BackedUpPartition,
    BackedUpPayload,
    Manifest,
    backed_up,
    known_partitions,
    tombstones_ms,
)
from bascule.backup.payload_copying import PayloadCopier
from bascule.backup.places import Place
from bascule.backup.repository import STREAMS, id_order
from bascule.backup.sources import OtherHistory, PartitionRead, Source
from bascule.backup.verifying import read_file
from bascule.errors import (
    BasculeError,
    Broken,
    CorruptData,
    UnexpectedEpoch,
    UnexpectedOffset,
    UnknownStream,
)
from bascule.model import StreamDefinition
from bascule.record.payload_links import PayloadLink, links_of
from bascule.storage.payloads.payload_log import have_links
from bascule.wire.offsets import OFFSETS_STREAM

FILE_BYTES_MAX: Final = 32 << 20
"""A file ends at the first block that reaches it; it is in memory until it is written."""
TOMBSTONE_SHARE: Final = 2
"""A compacted partition is read anew after a half of its tombstone retention, the smallest that was
in force since it was read: a tombstone that came and went between two backups would leave its key
in them."""

HISTORIES_MAX: Final = 3
"""How often a partition is read from its start where an unclean election comes between."""


@dataclass(frozen=True, slots=True)
class Progress:
    """What has happened since the last report."""

    bytes_read: int = 0
    partitions: int = 0


@dataclass(slots=True)
class Taken:
    """The result of a backup."""

    manifest: Manifest
    bytes_written: int = 0
    files_written: int = 0
    read_anew: list[tuple[str, int, str]] = field(default_factory=list)
    """(stream, partition, why) of what an earlier backup has and was read from its start."""
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, count: int, *, files: int = 1) -> None:
        """`files` with `count` bytes have been written, by any thread."""
        with self._lock:
            self.bytes_written += count
            self.files_written += files


class BackupTaker:
    """Takes one backup."""

    def __init__(
        self,
        source: Source,
        place: Place,
        *,
        now_ms: Callable[[], int],
        on_progress: Callable[[Progress], None] = lambda _: None,
    ) -> None:
        """`now_ms` is the Unix time in milliseconds."""
        self._source = source
        self._place = place
        self._now_ms = now_ms
        self._on_progress = on_progress
        self._is_stopped = False
        self._is_full = False
        """Everything is read and written again; what fails keeps what the last backup has."""

    def take(
        self,
        streams: Collection[StreamDefinition],
        before: Manifest | None,
        *,
        known_ids: Collection[str] = (),
        names_all_streams: bool = False,
        is_full: bool = False,
        jobs: int = 4,
    ) -> Taken:
        """Read `streams`; `before` is the backup whose files are used again, unless it `is_full`.
        `names_all_streams`: others that an earlier backup has were deleted.

        A partition that cannot be read keeps what `before` has of it, and says so. The manifest is
        not written yet. Raises: OSError where the place cannot be written.
        """
        began = self._now_ms()
        self._is_full = is_full
        configs = {each.id: each.config for each in streams}
        earlier = {
            (id, each.partition): each
            for stream in (before.streams if before else ())
            if (id := stream.decoded().id) in configs
            for each in known_partitions(stream, configs[id])
        }
        taken = Taken(
            Manifest(
                id=new_id(began, known_ids),
                at_ms=began,
                cluster_id=self._source.cluster_id,
                source=self._source.address,
                streams=(),
                failure=self._source.failure,
                names_all_streams=names_all_streams,
            )
        )
        wanted = [
            (each, index, earlier.get((each.id, index)))
            for each in streams
            for index in self._source.partitions(each)
        ]
        # Offsets that consumers have committed first: those of records that are read later.
        offsets = [each for each in wanted if each[0].name == OFFSETS_STREAM]
        others = [each for each in wanted if each[0].name != OFFSETS_STREAM]
        found = self._take_partitions(offsets, taken, jobs)
        found += self._take_partitions(others, taken, jobs)
        unknown = {each.name for each, _, result in found if result is None}
        gone = unknown - self._existing(streams) if unknown else unknown
        by_stream: dict[str, list[BackedUpPartition]] = {each.name: [] for each in streams}
        for each, kept, result in found:
            by_stream[each.name].append(result or _failed(kept, str(UnknownStream(each.name))))
        named = (each for each in streams if each.name not in gone)
        taken.manifest = msgspec.structs.replace(
            taken.manifest,
            streams=tuple(backed_up(each, tuple(by_stream[each.name])) for each in named),
        )
        return taken

    def _take_partitions(
        self,
        wanted: Sequence[tuple[StreamDefinition, int, BackedUpPartition | None]],
        taken: Taken,
        jobs: int,
    ) -> list[tuple[StreamDefinition, BackedUpPartition, BackedUpPartition | None]]:
        """(stream, what the backup before has, what this one has) of each partition; the last is
        None where there is no such stream, it was told."""
        with ThreadPoolExecutor(jobs, thread_name_prefix="backup") as pool:
            futures = [pool.submit(self._take_partition, *each, taken) for each in wanted]
            try:
                for future in wait(futures, return_when=FIRST_EXCEPTION).done:
                    future.result()
            except BaseException:
                # The pool waits for its threads, and a payload may have any size.
                self._is_stopped = True
                pool.shutdown(wait=False, cancel_futures=True)
                raise
            found = [future.result() for future in futures]
        return [
            (each, before or _nothing_of(index), result)
            for (each, index, before), result in zip(wanted, found, strict=True)
        ]

    def _existing(self, streams: Collection[StreamDefinition]) -> set[str]:
        """The names of those that are not deleted: a node may say that it knows no such stream
        where it only closes its replica. All of them if the source cannot tell."""
        every = {each.name for each in streams}
        try:
            ids = {each.id for each in self._source.streams()}
        except BasculeError:
            return every
        if not self._source.names_all_streams:
            return every
        return {each.name for each in streams if each.id in ids}

    def _take_partition(
        self,
        definition: StreamDefinition,
        index: int,
        before: BackedUpPartition | None,
        taken: Taken,
    ) -> BackedUpPartition | None:
        """What the new manifest says of a partition; None: there is no such stream, it was told."""
        try:
            with self._source.open(definition, index) as read:
                return self._read(definition, index, read, before, taken)
        except UnknownStream:
            return None
        except BasculeError as error:
            return _failed(before or _nothing_of(index), str(error))
        finally:
            self._on_progress(Progress(partitions=1))

    def _read(
        self,
        definition: StreamDefinition,
        index: int,
        read: PartitionRead,
        before: BackedUpPartition | None,
        taken: Taken,
    ) -> BackedUpPartition:
        began = self._now_ms()
        if before is None:
            return self._read_anew(definition, index, read, (), began, taken)
        why = "" if self._is_full else self._why_anew(read, before, began)
        if not why and not self._is_full:
            try:
                return self._append(definition, read, before, before.payloads, began, taken)
            except (UnexpectedOffset, UnexpectedEpoch, OtherHistory) as error:
                why = str(error)
        copied = () if self._is_full else before.payloads
        anew = self._read_anew(definition, index, read, copied, began, taken)
        if not anew.read_ms and anew.end_offset < before.end_offset and before.files:
            return _failed(before, anew.failure)
        if why:
            taken.read_anew.append((definition.name, index, why))
        return anew

    def _read_anew(
        self,
        definition: StreamDefinition,
        index: int,
        read: PartitionRead,
        copied: Sequence[BackedUpPayload],
        began: int,
        taken: Taken,
    ) -> BackedUpPartition:
        """Read from the log start, again where the log gets another history meanwhile. Raises:
        Broken where it does so each time."""
        changes: list[str] = []
        while len(changes) < HISTORIES_MAX:
            start = read.start_offset
            empty = BackedUpPartition(partition=index, start_offset=start, end_offset=start)
            try:
                return self._append(definition, read, empty, copied, began, taken)
            except OtherHistory as error:
                changes.append(str(error))
        raise Broken(changes[-1])

    def _why_anew(self, read: PartitionRead, before: BackedUpPartition, now_ms: int) -> str:
        """Why what the earlier backup has cannot be continued; empty: it can."""
        if before.failure and not before.files:
            return before.failure
        if before.tombstones_ms not in (None, NOT_COMPACTED):
            limit_ms = before.tombstones_ms // TOMBSTONE_SHARE
            if not 0 <= now_ms - before.read_ms <= limit_ms:
                return f"compacted, and was last read to its end more than {limit_ms // 1000} s ago"
        if before.files:
            epoch, end = read.end_of_epoch(before.leader_epoch)
            if epoch != before.leader_epoch or end < before.end_offset:
                had = before.leader_epoch, before.end_offset
                return str(OtherHistory(had=had, has=(epoch, end)))
        if before.end_offset > read.end_offset:
            return f"the log ends at {read.end_offset}, and ended at {before.end_offset}"
        return ""

    def _append(
        self,
        definition: StreamDefinition,
        read: PartitionRead,
        before: BackedUpPartition,
        copied: Sequence[BackedUpPayload],
        began: int,
        taken: Taken,
    ) -> BackedUpPartition:
        """Read from the end of `before` on; the payloads of `copied` are there already.

        Raises: UnexpectedOffset where a batch has offsets of both sides of that end; OtherHistory.
        """
        start, index = read.start_offset, before.partition
        files = [file for file in before.files if file.end_offset > start]
        links = [link for file in files for link in self._links(file, before)]
        first = max(before.end_offset, start)
        checker = BatchChecker(
            f"stream {definition.name!r} partition {index}", offset=first if files else 0
        )
        directory = f"{STREAMS}/{definition.id.hex()}/{index}"
        blocks: Iterator[memoryview] = iter(())
        if read.end_offset > first:
            epoch = before.leader_epoch if files else -1
            blocks = self._counted(read.read(first, epoch=epoch))

        def write(data: bytearray, from_offset: int) -> None:
            file = self._write(directory, data, from_offset, checker.offset, taken)
            files.append(file)
            if file.has_payloads:
                links.extend(links_of(data))

        failure = _write_all(blocks, checker, write)
        end = files[-1].end_offset if files else first
        if end < read.end_offset and not failure:
            failure = f"the batches end at offset {end}, and the log at {read.end_offset}"
        latest = checker.epochs.latest
        whole = len(files)
        if failure:
            self._read_behind(read, end, checker, write)
        files, behind = files[:whole], files[whole:]
        read_ms = before.read_ms if failure else began
        copier = PayloadCopier(
            read, self._place, directory, taken.manifest.id,
            on_bytes=self._on_bytes,
        )  # fmt: skip
        payloads = copier.copy(
            [link for link in links if link.offset >= start], copied, new_from=first
        )
        taken.add(copier.bytes_written, files=copier.files_written)
        start = copier.log_start
        files = [file for file in files if file.end_offset > start]
        return BackedUpPartition(
            partition=index,
            start_offset=min(start, end),
            end_offset=end,
            leader_epoch=latest if latest >= 0 else before.leader_epoch if files else -1,
            read_ms=read_ms,
            tombstones_ms=before.tombstones_ms if failure else tombstones_ms(definition.config),
            files=tuple(files),
            failure=failure,
            behind=tuple(behind),
            log_end_offset=read.end_offset if failure else 0,
            log_epoch=read.latest_epoch if failure else -1,
            payloads=payloads,
        )

    def _read_behind(
        self, read: PartitionRead, end: int, checker: BatchChecker, write: _Write
    ) -> None:
        """Write what can be read behind damage at offset `end`, as far as it is of one history."""
        at = read.behind_damage(end)
        while at is not None:
            try:
                _write_all(self._counted(read.read(at)), checker, write)
            except (CorruptData, UnexpectedEpoch, UnexpectedOffset):
                return
            at = read.behind_damage(max(at, checker.offset))

    def _links(self, file: BackedUpFile, before: BackedUpPartition) -> list[PayloadLink]:
        """Those in a file of an earlier backup. Raises: CorruptData, OSError."""
        if not file.has_payloads:
            return []
        # There may be many files and many payloads.
        begin, end = (
            bisect_left(before.payloads, offset, key=lambda each: each.offset)
            for offset in (file.first_offset, file.end_offset)
        )
        known = [each.link for each in before.payloads[begin:end]]
        # The first versions of backups did not say which there are.
        return known or links_of(read_file(self._place, file))

    def _counted(self, blocks: Iterable[memoryview]) -> Iterator[memoryview]:
        for block in blocks:
            self._on_bytes(len(block))
            yield block

    def _on_bytes(self, count: int) -> None:
        """Raises: _Stopped."""
        if self._is_stopped:
            raise _Stopped
        self._on_progress(Progress(bytes_read=count))

    def _write(
        self, directory: str, data: bytes | bytearray, first: int, end: int, taken: Taken
    ) -> BackedUpFile:
        digest = hashlib.sha256(data).hexdigest()
        name = f"{directory}/{first:020d}-{end:020d}-{digest[:16]}.batches"
        self._place.write(name, bytes(data))
        taken.add(len(data))
        return BackedUpFile(
            name=name,
            first_offset=first,
            end_offset=end,
            bytes=len(data),
            sha256=digest,
            has_payloads=have_links(data),
        )


class _Stopped(Exception):
    """Another partition has failed for good, or the user has interrupted the backup."""


class _Interrupted(Exception):
    """Reading ended at damage or where the node does not answer; what came before it is good."""

    def __init__(self, data: bytearray, first: int, cause: BasculeError) -> None:
        super().__init__(str(cause))
        self.data = data
        self.first = first
        self.cause = cause


_Write = Callable[[bytearray, int], None]
"""Writes a file of batches, from this offset on."""


def _write_all(blocks: Iterable[memoryview], checker: BatchChecker, write: _Write) -> str:
    """Write files of all of `blocks`; what has ended the reading, empty: nothing."""
    try:
        for data, first in _collect(blocks, checker):
            write(data, first)
    except _Interrupted as interrupted:
        if interrupted.data:
            write(interrupted.data, interrupted.first)
        return str(interrupted.cause)
    return ""


def _collect(
    blocks: Iterable[memoryview], checker: BatchChecker
) -> Iterator[tuple[bytearray, int]]:
    """(bytes of one file, its first offset); `checker` is then at the file's end."""
    data = bytearray()
    checker.first_offset = -1
    reading = iter(blocks)
    while True:
        try:
            block = next(reading, None)
        except BasculeError as error:
            raise _Interrupted(data, checker.first_offset, error) from error
        if block is None:
            break
        checker.check(block)
        data += block
        if len(data) >= FILE_BYTES_MAX:
            yield data, checker.first_offset
            data = bytearray()
            checker.first_offset = -1
    if data:
        yield data, checker.first_offset


def new_id(at_ms: int, known: Collection[str]) -> str:
    """The id of a backup that begins at a Unix time, milliseconds. It comes after the known ones,
    also where the clock has been set back."""
    text = datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%Y%m%dT%H%M%SZ")
    newest, number = max(map(id_order, known), default=("", 0))
    return text if text > newest else f"{newest}-{number + 1}"


def _nothing_of(index: int) -> BackedUpPartition:
    return BackedUpPartition(partition=index, start_offset=0, end_offset=0)


def _failed(before: BackedUpPartition, why: str) -> BackedUpPartition:
    return msgspec.structs.replace(before, failure=why)
