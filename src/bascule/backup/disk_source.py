"""The streams in the data directory of a node that does not run, for example of a lost cluster.

Nothing in the directory is changed. Everything in the logs is read, committed or not, since this
node alone cannot know what was: what it had acknowledged is among it. What was synced and is gone,
or cannot be read, is named, as the node itself would refuse it; what is behind it is read as well.
"""

from __future__ import annotations

import errno
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from bascule.backup.places import file_chunks
from bascule.backup.sources import ReadExtent
from bascule.controller.cluster.image_files.stored_image import read_stored_image
from bascule.controller.directories import StreamDirectories
from bascule.errors import CorruptData, PayloadDamaged, PayloadMissing
from bascule.host.api import File, Files
from bascule.host.real import DirectoryLock, RealFiles
from bascule.model import StreamDefinition
from bascule.record.header import BatchHeader
from bascule.record.payload_links import PayloadLink
from bascule.replica import log_identity
from bascule.replica.log_identity import read_identity
from bascule.storage import checkpoint
from bascule.storage.appended_batches import GAPS_FILE_NAME
from bascule.storage.checkpoint import Checkpoint, decode_checkpoint
from bascule.storage.compaction import clean_offset, replacement_manifest
from bascule.storage.epochs import OFFSET_END, LeaderEpochs, read_epochs
from bascule.storage.payloads.payload_files import whole_paths
from bascule.storage.recovery import scan_epochs
from bascule.storage.scan import (
    check_epoch,
    check_offset,
    find_batch,
    scan_batches,
    walk_headers,
)
from bascule.storage.segment import LogPosition, base_offset_of, segment_path
from bascule.storage.synced_mark import known_synced, recovery_point_of

RAFT_DIRECTORY: Final = "raft"
BLOCK_BYTES: Final = 4 << 20


class DiskSource:
    """One data directory, which it locks until it is closed."""

    def __init__(self, data: str) -> None:
        """Raises: DataDirectoryInUse, ConfigError where no node has run there, CorruptData,
        OSError."""
        self.address = str(Path(data).absolute())
        self.failure = ""
        self.names_all_streams = False  # the cluster may have made others since
        self._files = RealFiles()
        self._directories = StreamDirectories(self._files, self.address)
        if not self._files.exists(f"{self.address}/{RAFT_DIRECTORY}"):
            read_stored_image(Path(self.address))  # raises: a directory of others gets no lock file
        self._lock = _lock(self.address)
        try:
            self._image = read_stored_image(Path(self.address), self._on_damage)
        except BaseException:
            self.close()
            raise
        self.cluster_id = self._image.cluster_id

    def _on_damage(self, error: CorruptData) -> None:
        self.failure = f"{error}; streams that were made or changed last may be missing"

    def close(self) -> None:
        """Release the lock."""
        if self._lock is not None:
            self._lock.release()

    def streams(self) -> list[StreamDefinition]:
        return [each for _, each in sorted(self._image.streams.items())]

    def partitions(self, definition: StreamDefinition) -> list[int]:
        """Also those whose identity cannot be read: `open` says why."""
        found = []
        for index in range(definition.partition_count):
            directory = self._directories.partition(definition.name, index)
            try:
                identity = read_identity(self._files, directory)
                if identity is None:
                    is_known = self._has_segments(directory)
                else:
                    is_known = identity.place == (definition.id, index)
            except (CorruptData, OSError):
                is_known = True
            if is_known:
                found.append(index)
        return found

    def _has_segments(self, directory: str) -> bool:
        """Raises: OSError."""
        if not self._files.exists(directory):
            return False
        return any(base_offset_of(name) is not None for name in self._files.list_dir(directory))

    @contextmanager
    def open(self, definition: StreamDefinition, partition: int) -> Iterator[StoredPartition]:
        directory = self._directories.partition(definition.name, partition)
        path = f"{directory}/{log_identity.FILE_NAME}"
        with _readable(path):
            if read_identity(self._files, directory) is None:
                raise CorruptData(path, 0, "a file that says whose log this is", "no such file")
        yield StoredPartition(self._files, directory)


def _lock(address: str) -> DirectoryLock | None:
    """None on a file system that is mounted to be read only: no node runs there."""
    try:
        return DirectoryLock(address)
    except OSError as error:
        if error.errno == errno.EROFS:
            return None
        raise


@contextmanager
def _readable(path: str) -> Iterator[None]:
    """A file of the source that cannot be read counts as a damaged one: the others can be."""
    try:
        yield
    except OSError as error:
        raise _unreadable(path, error) from error


def _unreadable(path: str, error: OSError) -> CorruptData:
    why = error.strerror or str(error)
    return CorruptData(str(error.filename or path), 0, "a file that can be read", why)


class StoredPartition:
    """One log, read from its files."""

    def __init__(self, files: Files, directory: str) -> None:
        """Raises: CorruptData where nothing of it can be read."""
        self._files = files
        self._directory = directory
        self._payloads: dict[tuple[str, int], str] | None = None
        """The files of the payloads, by id; None: not looked yet."""
        self._damaged: LogPosition | None = None
        """Where the last `read` has ended at damage within a segment."""
        self._whole_from: dict[int, LogPosition] = {}
        """Where whole batches begin again in damaged segments, by base offset."""
        with _readable(directory):
            names = files.list_dir(directory)
        self._paths, damage = _segment_paths(files, directory, names)
        self._bases = sorted(self._paths)
        is_compacted = clean_offset.FILE_NAME in names
        self._has_gaps = is_compacted or GAPS_FILE_NAME in names
        stored, stored_damage = self._read_checkpoint()
        self._damage = stored_damage or damage
        """Of a file that is not a segment: `read` raises it at its end."""
        self._contiguous_from = -1
        """Each segment with a larger base offset begins where the one before it ends, also where
        offsets are missing: only compaction removes segments, and below the recovery point."""
        if is_compacted:
            self._contiguous_from = OFFSET_END if stored is None else stored.recovery_segment
        start = 0 if stored is None else stored.start_offset
        if stored_damage is not None and self._bases:
            start = self._bases[0]
        self._synced = self._read_synced(stored)
        """Everything below it was synced, and may have been acknowledged."""
        end = self._find_end() if self._bases else max(start, self._synced.offset)
        self._extent = ReadExtent(min(start, end), end)
        self._epochs, self._epochs_are_known = self._read_epochs()

    def _read_checkpoint(self) -> tuple[Checkpoint | None, CorruptData | None]:
        """The checkpoint, None if there is none, and its damage."""
        path = f"{self._directory}/{checkpoint.FILE_NAME}"
        try:
            with _readable(path):
                if not self._files.exists(path):
                    return None, None
                return decode_checkpoint(self._files.read_bytes(path), path=path), None
        except CorruptData as error:
            return None, error

    def _read_synced(self, stored: Checkpoint | None) -> LogPosition:
        try:
            return known_synced(self._files, self._directory, stored)
        except OSError:  # as without a mark: the log ends where its files end
            return LogPosition(0, 0, 0) if stored is None else recovery_point_of(stored)

    def _find_end(self) -> int:
        """Where the log ends: what was synced, and what the last segment has."""
        base = end = self._bases[-1]
        position = 0
        is_torn = True
        try:
            with self._opened(base) as file:
                try:
                    for at, header in walk_headers(file, start=0, end=file.size()):
                        position, end = at + header.total_bytes, header.end_offset
                except CorruptData:
                    is_torn = self._is_torn_tail(file, LogPosition(end, base, position))
        except CorruptData:
            is_torn = False
        if self._lacks_synced(LogPosition(end, base, position)):
            return self._synced.offset
        # There is more: `read` says what is wrong with it.
        return end if is_torn else end + 1

    def _lacks_synced(self, end: LogPosition) -> bool:
        """Whether the log had synced batches above `end`."""
        if end.offset >= self._synced.offset:
            return False
        # The end of a log with gaps can be above that of its last batch.
        return not self._has_gaps or end[1:] < self._synced[1:]

    def _read_epochs(self) -> tuple[LeaderEpochs, bool]:
        """The leader epochs, and whether all are known: else the batches are damaged as well."""
        with suppress(OSError):
            if (epochs := read_epochs(self._files, self._directory)) is not None:
                return epochs, True
        sizes = []
        try:
            for base in self._bases:
                with self._opened(base) as file:
                    end = 0
                    for at, header in walk_headers(file, start=0, end=file.size()):
                        end = at + header.total_bytes
                    sizes.append((base, end))
            return scan_epochs(self._files, self._directory, sizes), True
        except (CorruptData, OSError):
            return LeaderEpochs(), False

    @contextmanager
    def _opened(self, base: int) -> Iterator[File]:
        """A segment's file. Raises: CorruptData where it cannot be opened or read."""
        path = self._paths[base]
        with _readable(path):
            file = self._files.open(path, write=False)
            try:
                yield file
            finally:
                file.close()

    @property
    def start_offset(self) -> int:
        return self._extent.start

    @property
    def end_offset(self) -> int:
        return self._extent.end

    @property
    def latest_epoch(self) -> int:
        return self._epochs.latest

    def end_of_epoch(self, epoch: int) -> tuple[int, int]:
        return self._epochs.end_of(epoch, end_offset=self._extent.end)

    def read(self, offset: int, *, epoch: int = -1) -> Iterator[memoryview]:
        """Raises: CorruptData at the first damage, after all blocks before it."""
        if self._bases and self._bases[0] > offset:
            path, base = self._paths[self._bases[0]], self._bases[0]
            raise CorruptData(path, 0, f"a segment that begins at {offset} at most", str(base))
        for number, base in enumerate(self._bases):
            later = self._bases[number + 1] if number + 1 < len(self._bases) else None
            if later is not None and later <= offset:
                continue
            with self._opened(base) as file:
                end = yield from self._blocks(file, base, offset, later)
                if later is not None and end < later and later > self._contiguous_from:
                    raise CorruptData(
                        file.path, file.size(), f"batches up to offset {later}",
                        f"the last one to end at {end}",
                    )  # fmt: skip
        if self._damage is not None:
            raise self._damage

    def behind_damage(self, offset: int) -> int | None:
        """In the segment that `read` has found damaged, or the next one."""
        damaged, self._damaged = self._damaged, None
        found = None if damaged is None else self._find_whole(damaged)
        if found is not None and found > offset:
            return found
        return next((base for base in self._bases if base > offset), None)

    def _find_whole(self, damaged: LogPosition) -> int | None:
        """The offset behind damage from which on a segment has whole batches up to its end; None:
        it has none. A batch may be the value of a record: only its followers tell it apart."""
        segment, position, size = damaged.segment_base, damaged.position, 0
        later = next((base for base in self._bases if base > segment), None)
        try:
            with self._opened(segment) as file:
                size = file.size()
                last = damaged.offset + size if later is None else later - 1
                while last > damaged.offset and (
                    found := find_batch(
                        file, start=position + 1, end=size,
                        offset=damaged.offset + 1, offset_max=last,
                    )
                ):  # fmt: skip
                    position, first = found
                    start = LogPosition(first.base_offset, segment, position)
                    end = self._end_of_whole(file, start, later)
                    if end.position == size or (later is None and self._is_torn_tail(file, end)):
                        self._whole_from[segment] = start
                        return start.offset
                    position = max(position, end.position)
        except CorruptData:
            pass  # the next segment may be readable
        return None

    def _end_of_whole(self, file: File, start: LogPosition, later: int | None) -> LogPosition:
        """The end of the batches from `start` on. Raises: OSError."""
        end = start
        with suppress(CorruptData):
            for at, header in scan_batches(file, start=start.position, end=file.size()):
                self._check(header, file.path, at, end.offset, later)
                end = LogPosition(header.end_offset, start.segment_base, at + header.total_bytes)
        return end

    @property
    def copies(self) -> int:
        return 1

    def read_payload(self, link: PayloadLink) -> Generator[bytes, None, None]:
        id = link.payload.id
        path = self._directory
        try:
            if self._payloads is None:
                self._payloads = whole_paths(self._files, self._directory)
            found = self._payloads.get((id, link.payload.crc))
            if found is None:
                raise PayloadMissing(id, self._directory)
            path = found
            yield from file_chunks(self._files, path)
        except OSError as error:
            raise PayloadDamaged(id, "file", f"{path}: {error}", "one that can be read") from error

    def _blocks(
        self, file: File, segment: int, offset: int, later: int | None
    ) -> Generator[memoryview, None, int]:
        """The batches of a segment that begins at `segment`, from `offset` on; the next one begins
        at `later`, None: it is the last. Returns the end of the last batch."""
        base, begin = segment, 0
        if segment in self._whole_from and offset >= self._whole_from[segment].offset:
            base, _, begin = self._whole_from[segment]
        end = begin
        damage: CorruptData | None = None
        batches = scan_batches(file, start=begin, end=file.size())
        while True:
            try:
                at, header = next(batches)
                self._check(header, file.path, at, base, later)
            except StopIteration:
                break
            except CorruptData as error:
                damage = error
                break
            except OSError as error:
                damage = _unreadable(file.path, error)
                break
            base = header.end_offset
            if header.end_offset <= offset:
                begin = end = at + header.total_bytes
                continue
            if end > begin and at + header.total_bytes - begin > BLOCK_BYTES:
                yield memoryview(file.read_at(begin, end - begin))
                begin = at
            end = at + header.total_bytes
        if end > begin:
            yield memoryview(file.read_at(begin, end - begin))
        if damage is not None and (
            later is not None or not self._is_torn_tail(file, LogPosition(base, segment, end))
        ):
            self._damaged = LogPosition(base, segment, end)
            raise damage
        return base

    def _check(self, header: BatchHeader, path: str, at: int, base: int, later: int | None) -> None:
        """Check what the CRC does not cover. Raises: CorruptData."""
        check_offset(header, path, at, offset=base, gaps_allowed=self._has_gaps)
        if later is not None and header.end_offset > later:
            end = header.end_offset
            raise CorruptData(path, at, f"a batch that ends at {later} at most", f"end {end}")
        if self._epochs_are_known:
            check_epoch(header, path, at, epoch=self._epochs.at(header.base_offset))

    def _is_torn_tail(self, file: File, end: LogPosition) -> bool:
        """Whether nothing above `end` was synced, and no valid batch follows: a write that the end
        of the process has cut."""
        if self._lacks_synced(end):
            return False
        size = file.size()
        found = find_batch(
            file, start=end.position + 1, end=size, offset=end.offset, offset_max=end.offset + size
        )
        return found is None


def _segment_paths(
    files: Files, directory: str, names: Sequence[str]
) -> tuple[dict[int, str], CorruptData | None]:
    """The files of the segments by base offset; where the node was killed while compaction replaced
    segments, the new ones. And damage of the file that says which these are."""
    found = {
        base: f"{directory}/{name}" for name in names if (base := base_offset_of(name)) is not None
    }
    if replacement_manifest.FILE_NAME not in names:
        return found, None
    path = f"{directory}/{replacement_manifest.FILE_NAME}"
    try:
        with _readable(path):
            swap = replacement_manifest.decode_manifest(files.read_bytes(path), path=path)
    except CorruptData as error:
        return found, error
    for base in swap.removed:
        found.pop(base, None)
    for base, _ in swap.added:
        new = replacement_manifest.cleaned_path(directory, base)
        found[base] = new if files.exists(new) else segment_path(directory, base)
    return found, None
