"""Make a new data directory from backups: a node that starts in it is a cluster of its own.

The streams have the ids, offsets, leader epochs and times that they had. The cluster has a new id.
What several backups have is taken from the one whose log is most complete, by partition: the
latest leader epoch, and then the largest end offset, as an unclean election would choose. Where
that one is damaged, another one is taken.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

from bascule.backup.batch_checks import BatchChecker, split
from bascule.backup.manifest import (
    BackedUpPartition,
    BackedUpPayload,
    Manifest,
    lacking_text,
)
from bascule.backup.places import Place, naming
from bascule.backup.verifying import (
    OnBytes,
    verified_behind,
    verified_files,
    verified_payload,
)
from bascule.controller.cluster.image_files.earlier_image import FILE_NAME as IMAGE_FILE_NAME
from bascule.controller.directories import StreamDirectories
from bascule.errors import ConfigError, CorruptData, UnexpectedEpoch
from bascule.host.api import Clock, Files, Random
from bascule.metadata.codec import encode_cluster_id, encode_image
from bascule.model import StreamDefinition
from bascule.node.cluster_id import (
    CLUSTER_ID_BYTES,
    INTERRUPTED_RESTORE,
    RESTORING_FILE_NAME,
)
from bascule.node.cluster_id import FILE_NAME as CLUSTER_ID_FILE_NAME
from bascule.record.payload_links import Payload
from bascule.replica.log_identity import LogIdentity, write_identity
from bascule.replica.opening import MESSAGE_IDS_FILE
from bascule.storage.appended_batches import read_first_header
from bascule.storage.checkpoint import replace_file
from bascule.storage.partition_log import PartitionLog
from bascule.storage.payloads.payload_files import PayloadFiles
from bascule.storage.retention import log_config

APPEND_BYTES_MAX: Final = 1 << 20
"""Of one write, which goes to one segment; less where segments are smaller."""


@dataclass(slots=True)
class Restored:
    """The result of a restore."""

    cluster_id: str
    accepts_loss: bool
    streams: int = 0
    partitions: int = 0
    bytes: int = 0
    payloads: int = 0
    incomplete: list[tuple[str, int, str]] = field(default_factory=list)
    """(stream, partition, why) of what was restored only in part, or is empty now."""


class _Chosen(NamedTuple):
    place: Place
    partition: BackedUpPartition


def _rank(chosen: _Chosen) -> tuple[int, int]:
    """(leader epoch, end) of a log: the largest one is the most complete."""
    return chosen.partition.leader_epoch, chosen.partition.end_offset


def _above(data: bytes, offset: int) -> memoryview:
    """Those of the batches in `data` that begin at `offset` or above."""
    left = memoryview(data)
    while len(left):
        header = read_first_header(left, "a backup")
        if header.base_offset >= offset:
            break
        left = left[header.total_bytes :]
    return left


class _Copy(NamedTuple):
    payload: BackedUpPayload
    place: Place


class Restorer:
    """Writes one data directory."""

    def __init__(
        self,
        backups: Sequence[tuple[Place, Manifest]],
        files: Files,
        *,
        clock: Clock,
        dice: Random,
        on_bytes: OnBytes = lambda _: None,
    ) -> None:
        self._backups = sorted(backups, key=lambda each: each[1].at_ms, reverse=True)
        self._files = files
        self._clock = clock
        self._dice = dice
        self._on_bytes = on_bytes

    def streams(self, names: Collection[str] = ()) -> list[StreamDefinition]:
        """The streams of all backups, or those with these names, as the newest backup has them.

        Raises: ConfigError for an unknown name, or where a name is that of two streams.
        """
        found: dict[str, StreamDefinition] = {}
        for place, manifest in self._backups:
            for stream in manifest.streams:
                definition = stream.decoded()
                known = found.setdefault(definition.name, definition)
                if known.id != definition.id:
                    raise ConfigError(
                        f"stream {definition.name!r} of {place.address} is not that of the "
                        "other backups: restore it from one of them, with --stream"
                    )
        if unknown := sorted(set(names) - found.keys()):
            raise ConfigError(f"no backup has stream {unknown[0]!r}; there are {sorted(found)}")
        return [each for name, each in sorted(found.items()) if not names or name in names]

    def incomplete(self, streams: Collection[StreamDefinition]) -> list[tuple[str, int, str]]:
        """(stream, partition, why) of what the backups have only in part, or not at all."""
        found = []
        for stream in streams:
            for index in range(stream.partition_count):
                chosen = self._choose(stream, index)
                if chosen is None:
                    found.append((stream.name, index, "no backup has it"))
                elif why := (
                    chosen.partition.log_failure
                    or self._beyond(stream, index, chosen)
                    or lacking_text(
                        copies[0].payload if copies else payload
                        for payload, copies in self._payloads(stream, chosen)
                    )
                ):
                    found.append((stream.name, index, why))
        return found

    def restore(
        self, data: str, streams: Collection[StreamDefinition], *, accept_loss: bool = False
    ) -> Restored:
        """Write `data`, which does not exist, or is empty.

        What is interrupted leaves a directory in which no node starts: the file `restoring` is
        there until the end. `accept_loss`: a partition ends before a
        damaged file, a payload whose files are all damaged is left out, and the result names them.
        Raises: ConfigError; CorruptData where a file of the backup is damaged; OSError.
        """
        data = str(Path(data).absolute())
        begun = f"{data}/{RESTORING_FILE_NAME}"
        if self._files.exists(begun):
            raise ConfigError(f"{data} {INTERRUPTED_RESTORE}")
        if self._files.exists(data) and self._files.list_dir(data):
            raise ConfigError(f"{data} is not empty: name a new directory with --data DIR")
        self._files.make_dirs(data)
        with naming(begun):
            replace_file(self._files, begun, b"")
        cluster_id = self._dice.bytes(CLUSTER_ID_BYTES).hex()
        restored = Restored(cluster_id, accept_loss, incomplete=self.incomplete(streams))
        directories = StreamDirectories(self._files, data)
        for stream in streams:
            restored.streams += 1
            for index in range(stream.partition_count):
                directory = directories.partition(stream.name, index)
                with naming(directory):
                    self._restore_log(directory, stream, index, restored)
        directories.require_identities()
        # The image comes last: a node without it and with streams does not start.
        replace_file(self._files, f"{data}/{CLUSTER_ID_FILE_NAME}", encode_cluster_id(cluster_id))
        replace_file(self._files, f"{data}/{IMAGE_FILE_NAME}", encode_image(streams))
        self._files.remove(begun)
        self._files.sync_dir(data)
        return restored

    def _beyond(self, stream: StreamDefinition, index: int, chosen: _Chosen) -> str:
        """How far a log of another place went on, which has it only in part; empty: no one did."""
        end = chosen.partition.end_offset
        for place, partition in self._found(stream, index):
            # A log whose latest epoch is an earlier one may have had records that nobody committed.
            if partition.log_end_offset > end and partition.log_epoch >= _rank(chosen)[0]:
                return (
                    f"it ends at offset {end} in {chosen.place.address}, and went on to "
                    f"{partition.log_end_offset} in {place.address}, which has it in part: "
                    f"{partition.log_failure}"
                )
        return ""

    def _choose(self, stream: StreamDefinition, index: int) -> _Chosen | None:
        return max(self._found(stream, index), key=_rank, default=None)

    def _found(self, stream: StreamDefinition, index: int) -> list[_Chosen]:
        return [
            _Chosen(place, partition)
            for place, manifest in self._backups
            for each in manifest.streams
            if each.decoded().id == stream.id
            for partition in each.partitions
            if partition.partition == index
        ]

    def _payloads(
        self, stream: StreamDefinition, chosen: _Chosen
    ) -> Iterator[tuple[BackedUpPayload, list[_Copy]]]:
        """Each payload of the records of a partition, and its files: first that of the place of the
        log, then those of the other ones."""
        if not chosen.partition.payloads:
            return
        known: dict[Payload, list[_Copy]] = {}
        found = self._found(stream, chosen.partition.partition)
        for other in sorted(found, key=lambda each: each.place is not chosen.place):
            for each in other.partition.payloads:
                if each.name:
                    known.setdefault(each.link.payload, []).append(_Copy(each, other.place))
        for payload in chosen.partition.payloads:
            yield payload, known.get(payload.link.payload, [])

    def _restore_log(
        self, directory: str, stream: StreamDefinition, index: int, restored: Restored
    ) -> None:
        log = self._new_log(directory, stream, index)
        chosen = self._choose(stream, index)
        start = 0
        if chosen is not None:
            log, chosen = self._write_log(log, directory, stream, chosen, restored)
            if restored.accepts_loss:
                self._append_behind(log, stream, chosen, restored)
            start = chosen.partition.start_offset
        end = log.sync().offset
        if start > log.start_offset:
            log.advance_start(min(start, end), high_watermark=end)
        log.close(high_watermark=end)
        if chosen is not None:
            self._restore_payloads(directory, stream, chosen, end, restored)
        restored.partitions += 1

    def _new_log(self, directory: str, stream: StreamDefinition, index: int) -> PartitionLog:
        files = self._files
        files.make_dirs(directory)
        write_identity(files, directory, LogIdentity(stream.id, index))
        # Whether there are message ids is not known: the node looks for them.
        replace_file(files, f"{directory}/{MESSAGE_IDS_FILE}", b"")
        return PartitionLog.open(files, directory, log_config(stream.config), self._clock)

    def _write_log(
        self,
        log: PartitionLog,
        directory: str,
        stream: StreamDefinition,
        chosen: _Chosen,
        restored: Restored,
    ) -> tuple[PartitionLog, _Chosen]:
        """Fill the empty `log`; where `chosen` is damaged, from the place that has most of it. The
        log, which may be another one then, and where it comes from. Raises: CorruptData."""
        index, bytes_before = chosen.partition.partition, restored.bytes
        try:
            self._append_files(log, chosen, restored)
            return log, chosen
        except CorruptData as error:
            reached, other = self._best_of_others(
                stream, chosen, (log.epochs.latest, log.end.offset)
            )
            if reached < _rank(chosen):
                self._accept(error, stream, index, restored)
            if other is None:
                return log, chosen
        log.close()
        self._files.remove_tree(directory)
        log = self._new_log(directory, stream, index)
        restored.bytes = bytes_before
        try:
            self._append_files(log, other, restored)
        except CorruptData as error:
            self._accept(error, stream, index, restored)
        return log, other

    def _best_of_others(
        self, stream: StreamDefinition, chosen: _Chosen, reached: tuple[int, int]
    ) -> tuple[tuple[int, int], _Chosen | None]:
        """(leader epoch, end) up to where a log can be read, and where; None: nobody has more of it
        than was `reached`."""
        best: _Chosen | None = None
        for each in self._found(stream, chosen.partition.partition):
            if each.place is chosen.place or _rank(each) <= reached:
                continue
            checker = BatchChecker(each.place.address)
            with suppress(CorruptData):
                for data in verified_files(each.place, each.partition):
                    checker.check(memoryview(data))
            found = (checker.epochs.latest, checker.offset)
            if found > reached:
                reached, best = found, each
        return reached, best

    def _append_files(self, log: PartitionLog, chosen: _Chosen, restored: Restored) -> None:
        """Raises: CorruptData, after everything before it."""
        partition = chosen.partition
        # The first batch may begin on either side of the start: a start within a batch keeps the
        # whole batch, and compaction removes batches above the start.
        first = min([partition.start_offset, *(each.first_offset for each in partition.files[:1])])
        if first:
            log.start_at(first, epoch=0)
        for data in verified_files(chosen.place, partition, on_bytes=self._on_bytes):
            self._append(log, data, restored)

    def _append_behind(
        self, log: PartitionLog, stream: StreamDefinition, chosen: _Chosen, restored: Restored
    ) -> None:
        """What the places have behind damage, as far as it continues the log."""
        found = self._found(stream, chosen.partition.partition)
        for each in sorted(found, key=lambda each: each.place is not chosen.place):
            behind = verified_behind(each.place, each.partition, on_bytes=self._on_bytes)
            try:
                for file, data in zip(each.partition.behind, behind, strict=True):
                    if file.end_offset > log.end.offset:
                        self._append(log, _above(data, log.end.offset), restored)
            except CorruptData as error:
                self._accept(error, stream, each.partition.partition, restored)
            except UnexpectedEpoch:
                continue  # it is of another history

    def _append(self, log: PartitionLog, data: bytes | memoryview, restored: Restored) -> None:
        for part in split(memoryview(data), min(APPEND_BYTES_MAX, log.config.segment_bytes_max)):
            log.append_as_follower(part)
        restored.bytes += len(data)

    def _restore_payloads(
        self,
        directory: str,
        stream: StreamDefinition,
        chosen: _Chosen,
        end: int,
        restored: Restored,
    ) -> None:
        """Those of the records below offset `end`."""
        # Nobody else knows of the directory yet.
        payloads = PayloadFiles(self._files, directory, nullcontext())
        for each, copies in self._payloads(stream, chosen):
            if not copies or each.offset >= end:
                continue
            if not payloads.has(each.link.payload):  # else it has several records
                try:
                    self._restore_payload(payloads, copies)
                except CorruptData as error:
                    payloads.discard(each.id)
                    self._accept(error, stream, chosen.partition.partition, restored)
                    continue
                restored.bytes += each.bytes
                restored.payloads += 1
            payloads.link([each.link])
        payloads.settle()
        payloads.close()

    def _restore_payload(self, payloads: PayloadFiles, copies: Sequence[_Copy]) -> None:
        """Write the first good one of `copies`. Raises: CorruptData of the last one if none is."""
        *others, last = copies
        for each in others:
            with suppress(CorruptData):
                self._write_payload(payloads, each)
                return
        self._write_payload(payloads, last)

    def _write_payload(self, payloads: PayloadFiles, copy: _Copy) -> None:
        file = payloads.create(copy.payload.id)
        file.truncate(0)  # what a damaged copy has left
        for chunk in verified_payload(copy.place, copy.payload, on_bytes=self._on_bytes):
            file.append(chunk)
        payloads.finish(file, copy.payload.link.payload)

    def _accept(
        self, error: CorruptData, stream: StreamDefinition, index: int, restored: Restored
    ) -> None:
        """Go on without what is damaged, where the user has said so."""
        if not restored.accepts_loss:
            raise error
        restored.incomplete.append((stream.name, index, str(error)))
