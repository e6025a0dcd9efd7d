"""One segment: a file of batches and its two sparse indexes, which are in memory while in use."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Protocol

from bascule.errors import CorruptData
from bascule.host.api import File, Files
from bascule.record.header import HEADER_BYTES
from bascule.storage import _hot
from bascule.storage.epochs import LeaderEpochs
from bascule.storage.index.offset_index import OffsetIndex
from bascule.storage.index.sparse_index import Covered, Decoded, IndexT
from bascule.storage.index.time_index import TimeIndex
from bascule.storage.index.trusted_file import Trust, TrustedFile, unchecked
from bascule.storage.scan import SCAN_BYTES, check_epoch, check_offset, scan_batches, walk_headers

LOG_SUFFIX: Final = ".log"
INDEX_SUFFIXES: Final = (OffsetIndex.SUFFIX, TimeIndex.SUFFIX)
NAME_DIGITS: Final = 20
INDEX_INTERVAL_BYTES: Final = 4096
"""From Kafka's index.interval.bytes."""
ENTRIES_MAX: Final = 3 * 4_096
"""Numbers that one call of compiled code returns at most. More entries take another call."""


Observer = Callable[[memoryview], None]
"""Gets whole batches, back to back; of the last one perhaps only the header."""


def segment_path(directory: str, base_offset: int, suffix: str = LOG_SUFFIX) -> str:
    return f"{directory}/{base_offset:0{NAME_DIGITS}d}{suffix}"


def base_offset_of(name: str, suffixes: Collection[str] = (LOG_SUFFIX,)) -> int | None:
    """The base offset in the name of a segment's file with one of `suffixes`, or None for the name
    of another file."""
    digits, dot, suffix = name.partition(".")
    if dot + suffix not in suffixes or len(digits) != NAME_DIGITS:
        return None
    return int(digits) if digits.isascii() and digits.isdigit() else None


@dataclass(frozen=True, slots=True)
class LogConfig:
    """The sizes of a log's segments and indexes."""

    segment_bytes_max: int = 256 << 20
    segment_age_ms_max: int = 7 * 24 * 3_600_000
    segment_messages_max: int = 1 << 62
    index_interval_bytes: int = INDEX_INTERVAL_BYTES
    gaps_allowed: bool = False
    """Whether offsets may be missing between batches, as after compaction. Once a log has allowed
    gaps, it always allows them."""

    def is_roll_due(self, end: LogPosition, size: int, end_offset: int, age_ms: int) -> bool:
        """Whether `size` bytes up to `end_offset` must go to a new segment where a log ends at
        `end`. Its active segment is `age_ms` older than they are."""
        return end.position > 0 and (
            end.position + size > self.segment_bytes_max
            or end_offset - end.segment_base > self.segment_messages_max
            or age_ms >= self.segment_age_ms_max
        )


class Check(Protocol):
    """Checks the headers of the batches that begin in bytes [start, end)."""

    def __call__(self, *, start: int, end: int) -> object: ...


@dataclass(frozen=True, slots=True)
class FileSlice:
    """A range of bytes in a segment file, for sendfile."""

    file: File
    position: int
    length: int
    following: int = -1
    """The base offset of the next segment if the range ends with its own, and records are there."""
    check: Check | None = field(default=None, compare=False, repr=False)
    """Checks the batch headers of a part of it, on a thread, where that left the page cache before
    it was sent. Raises: CorruptData, OSError."""

    def load(self, start: int, end: int) -> None:
        """Read bytes [start, end) of the file into the page cache, and check them. Waits for the
        disk.

        Raises: CorruptData, OSError.
        """
        self.file.load(start, end)
        if self.check is not None:
            self.check(start=start, end=end)


@dataclass(frozen=True, slots=True)
class FileSlices:
    """Ranges that follow each other in a log: the end of a segment, whole ones, part of one."""

    slices: tuple[FileSlice, ...]

    @property
    def length(self) -> int:
        """Bytes of all."""
        return sum(piece.length for piece in self.slices)


class LogPosition(NamedTuple):
    """A batch boundary in a log; later positions compare greater."""

    offset: int
    """The offset of the batch at this position, or the next offset at the end of the log."""
    segment_base: int
    """Base offset of the segment that holds it."""
    position: int
    """Byte position in that segment's file."""


class Tail(NamedTuple):
    """The end of a log and its largest timestamps up to there, published as one value."""

    end: LogPosition
    timestamp_max: int
    segment_timestamp_max: int

    def advanced(self, position: int, end_offset: int, timestamp_max: int) -> Tail:
        """The tail after batches that end at `position` and `end_offset` of the same segment."""
        end, log_max, segment_max = self
        return Tail(
            LogPosition(end_offset, end.segment_base, position),
            max(log_max, timestamp_max),
            max(segment_max, timestamp_max),
        )


class SegmentInfo(NamedTuple):
    """The state of one segment."""

    base_offset: int
    end_offset: int
    bytes: int
    timestamp_max: int | None
    """None if it is not loaded; see `PartitionLog.load_timestamps`."""
    is_active: bool
    """Whether it is the segment that appends write to."""


class Scanned(NamedTuple):
    """The end of the valid batches, and the damage of the next batch, if any."""

    position: int
    offset: int
    damage: CorruptData | None


class TornBatch(Exception):
    """The next batch is incomplete or damaged. Never raised to another module."""

    def __init__(self, damage: CorruptData) -> None:
        super().__init__(str(damage))
        self.damage = damage


class Contents:
    """An open segment: its file, its indexes and what they cover.

    The appending thread alone calls `index_batch`, the checkpointing thread alone `save_indexes`.
    """

    __slots__ = (
        "_next_entry_at", "_saved", "file", "index_interval_bytes", "offsets", "times",
        "timestamp_max", "used",
    )  # fmt: skip

    def __init__(self, file: File, index_interval_bytes: int) -> None:
        self.file = file
        self.index_interval_bytes = index_interval_bytes
        self.offsets = OffsetIndex()
        self.times = TimeIndex()
        self.timestamp_max = -1
        """Largest timestamp of the indexed batches."""
        self.used = True
        """Set by readers. Cleared by the search for segments to unload."""
        self._next_entry_at = 0
        self._saved: Covered | None = None
        """What the index files cover; None if they must be written again from the beginning."""

    def index_batch(
        self, position: int, base_offset: int, timestamp_max: int, *, after_gap: bool = False
    ) -> None:
        """Add a batch that was written at `position` to the indexes."""
        if position >= self._next_entry_at or after_gap:
            self._add_entry(base_offset, position, self.timestamp_max)
            self._next_entry_at = position + self.index_interval_bytes
        if timestamp_max > self.timestamp_max:
            self.timestamp_max = timestamp_max

    @property
    def next_entry_at(self) -> int:
        """The position from which the next batch gets an entry in the indexes."""
        return self._next_entry_at

    def index_checked_batches(
        self, entries: Sequence[int], timestamp_max: int, next_entry_at: int
    ) -> None:
        """Add batches to the indexes that compiled code has checked.

        `entries` has `ENTRY_FIELDS` numbers for each index entry: see `_hot.check_batches`.
        """
        for row in range(0, len(entries), _hot.ENTRY_FIELDS):
            base_offset, position, timestamp_before = entries[row : row + _hot.ENTRY_FIELDS]
            self._add_entry(base_offset, position, timestamp_before)
        self.timestamp_max = timestamp_max
        self._next_entry_at = next_entry_at

    def _add_entry(self, base_offset: int, position: int, timestamp_before: int) -> None:
        self.offsets.add(base_offset, position)
        if position > 0:
            self.times.add(timestamp_before, base_offset)

    def scan(
        self,
        *,
        start: int,
        end: int,
        offset: int,
        epochs: LeaderEpochs | None,
        gaps_allowed: bool,
        bytes_max: int | None = None,
        observe: Observer | None = None,
    ) -> Scanned:
        """Check and index the batches of bytes [start, end), up to the first invalid batch.

        Their offsets must continue from `offset`, and their leader epochs must be those of
        `epochs`, unless that is None. Stops after the batch that reaches `bytes_max` bytes.
        `observe` gets the valid batches; of some only the headers.

        Raises: OSError.
        """
        position, file = start, unchecked(self.file)
        stop = end if bytes_max is None else min(end, start + bytes_max)
        while position < stop:
            data = memoryview(file.read_at(position, min(SCAN_BYTES, end - position)))
            reached, offset = self._scan_window(data, position, offset, epochs, gaps_allowed)
            size = reached - position
            if not size:
                try:
                    reached, offset = self._scan_one(position, end, offset, epochs, gaps_allowed)
                except TornBatch as torn:
                    return Scanned(position, offset, torn.damage)
                size = HEADER_BYTES
            if observe is not None:
                observe(data[:size])
            position = reached
            del data  # its memory is used again for the next read
        return Scanned(position, offset, None)

    def _scan_window(
        self,
        data: memoryview,
        position: int,
        offset: int,
        epochs: LeaderEpochs | None,
        gaps_allowed: bool,
    ) -> tuple[int, int]:
        """Index the batches of one read that compiled code accepts, possibly none."""
        epoch, epoch_end = (-2, 0) if epochs is None else epochs.span(offset)
        room = _hot.ENTRY_FIELDS * (len(data) // self.index_interval_bytes + 2)
        entries = array("q", bytes(8 * min(room, ENTRIES_MAX)))
        state = array("q", (0, 0, self.timestamp_max, 0, self._next_entry_at))
        _hot.check_batches(
            data, position, offset, epoch, epoch_end, gaps_allowed, self.index_interval_bytes,
            entries, state,
        )  # fmt: skip
        reached, offset, timestamp_max, count, next_entry_at = state
        self.index_checked_batches(
            entries[: count * _hot.ENTRY_FIELDS], timestamp_max, next_entry_at
        )
        return position + reached, offset

    def _scan_one(
        self, position: int, end: int, offset: int, epochs: LeaderEpochs | None, gaps_allowed: bool
    ) -> tuple[int, int]:
        """Index one batch, or raise an error with its damage. Raises: TornBatch, OSError."""
        path = self.file.path
        try:
            _, header = next(scan_batches(unchecked(self.file), start=position, end=end))
            check_offset(header, path, position, offset=offset, gaps_allowed=gaps_allowed)
            if epochs is not None:
                check_epoch(header, path, position, epoch=epochs.at(header.base_offset))
        except CorruptData as damage:
            raise TornBatch(damage) from None
        self.index_batch(
            position, header.base_offset, header.max_timestamp,
            after_gap=header.base_offset != offset,
        )  # fmt: skip
        return position + header.total_bytes, header.end_offset

    def truncated(self, end: LogPosition, timestamp_max: int) -> Contents:
        """The same file with indexes truncated to `end`. Their files must be written again."""
        contents = Contents(self.file, self.index_interval_bytes)
        contents.offsets = self.offsets.truncated(self.offsets.count_below(end.position))
        contents.times = self.times.truncated(self.times.count_below(end.offset))
        contents.timestamp_max = timestamp_max
        return contents

    def load_indexes(
        self, files: Files, directory: str, base_offset: int, *, limit: Covered | None
    ) -> Covered:
        """Load the index files up to `limit`, as far as they are valid.

        Returns what the indexes cover. A missing or damaged file counts up to its damage. The
        missing entries are rebuilt from the log.

        Raises: OSError.
        """
        offsets = _read_index(files, directory, base_offset, OffsetIndex)
        times = _read_index(files, directory, base_offset, TimeIndex)
        ends = [offsets.covered, times.covered]
        covered = min(ends if limit is None else [*ends, limit])
        first = offsets.pairs.entries()[:1]
        if not first or first[0][0] < base_offset or first[0][1] != 0:
            covered = Covered(0, base_offset, -1)
        self.offsets = offsets.pairs.truncated(offsets.pairs.count_below(covered.position))
        self.times = times.pairs.truncated(times.pairs.count_below(covered.offset))
        self.timestamp_max = covered.timestamp_max
        last = self.offsets.last_value()
        self._next_entry_at = 0 if last is None else last + self.index_interval_bytes
        matches_files = (
            ends == [covered, covered] and offsets.damage is None and times.damage is None
        )
        self._saved = covered if matches_files else None
        return covered

    def save_indexes(
        self, files: Files, directory: str, base_offset: int, covered: Covered, *, sync: bool
    ) -> None:
        """Extend the index files to `covered`. The log must be synced up to there.

        Raises: OSError. The next call then writes the files again from the beginning.
        """
        before, self._saved = self._saved, None
        if (before != covered or sync) and covered.position > 0:
            for index, by_offset in ((self.offsets, False), (self.times, True)):
                file = files.open(segment_path(directory, base_offset, index.SUFFIX), create=True)
                start = 0
                if before is None or before.position == 0:  # of an empty segment there is no file
                    file.truncate(0)
                    file.append(index.encode_header(base_offset))
                else:
                    start = index.count_below(before.offset if by_offset else before.position)
                if before != covered:
                    end = index.count_below(covered.offset if by_offset else covered.position)
                    file.append(index.encode_block(covered, start=start, end=end))
                if sync:
                    file.sync()
                file.close()
        self._saved = covered

    @property
    def matches_files(self) -> bool:
        """Whether the index files cover what they covered when they were read or written last."""
        return self._saved is not None

    def first_timestamp(self, end: int) -> int:
        """The timestamp of the first batch, 0 if bytes [0, end) hold none."""
        for _, header in walk_headers(self.file, start=0, end=end):
            return header.max_timestamp
        return 0

    def is_saved(self, position: int) -> bool:
        """Whether the index files cover bytes [0, position)."""
        return self._saved is not None and self._saved.position == position


class Segment:
    """A segment of a log, open or unloaded."""

    __slots__ = ("base_offset", "contents", "size", "timestamp_max", "trust")

    def __init__(
        self, base_offset: int, size: int, contents: Contents | None, *, verified: bool = True
    ) -> None:
        self.base_offset = base_offset
        self.size = size
        """Bytes of whole batches. Final once a later segment exists."""
        self.contents = contents
        """None if the segment is unloaded."""
        self.timestamp_max: int | None = None
        """Largest timestamp of a closed segment. Known once the segment was loaded."""
        self.trust = Trust(base_offset, is_whole=verified)
        """Without it each read checks the batch headers, because the CRC that clients check does
        not cover base offset and leader epoch."""
        if contents is not None:
            if isinstance(contents.file, TrustedFile):
                self.trust = contents.file.trust
            else:
                contents.file = TrustedFile(contents.file, self.trust)

    @property
    def verified(self) -> bool:
        """See `Trust.is_whole`."""
        return self.trust.is_whole

    def load(
        self,
        files: Files,
        directory: str,
        *,
        index_interval_bytes: int,
        next_base_offset: int,
        gaps_allowed: bool,
    ) -> Contents:
        """Open a closed segment. Rebuilds its indexes if they are missing or damaged.

        Raises: CorruptData if the file is damaged, OSError.
        """
        path = segment_path(directory, self.base_offset)
        file = TrustedFile(files.open(path), self.trust)
        contents = Contents(file, index_interval_bytes)
        covered = contents.load_indexes(files, directory, self.base_offset, limit=None)
        size = contents.file.size()
        if size != self.size or covered.position > size:
            expected = max(self.size, covered.position)
            raise CorruptData(path, min(size, expected), f"{expected} bytes", f"{size} bytes")
        file.note(covered.position, size)  # the epochs are not checked here
        _, end_offset, damage = contents.scan(
            start=covered.position,
            end=size,
            offset=covered.offset,
            epochs=None,
            gaps_allowed=gaps_allowed,
        )
        if damage is not None:
            raise damage
        if end_offset > next_base_offset or (end_offset < next_base_offset and not gaps_allowed):
            raise CorruptData(
                path, size, f"the last batch to end at offset {next_base_offset}", str(end_offset)
            )
        self.timestamp_max = contents.timestamp_max
        self.contents = contents
        return contents

    def unload(self, contents: Contents) -> None:
        """Release the contents of a closed segment. Readers keep the files that they hold."""
        self.timestamp_max = contents.timestamp_max
        self.contents = None


class PartialSegment(Exception):
    """Creating a segment failed, and so did removing its file. Never leaves `storage`."""


def create_segment(
    files: Files, directory: str, base_offset: int, index_interval_bytes: int
) -> Contents:
    """Create a segment's file. After a failure no file is left, so appends to the segment before
    may continue beyond `base_offset`.

    Raises: OSError, CorruptData if such a file exists and is not empty, PartialSegment.
    """
    path = segment_path(directory, base_offset)
    try:
        file = files.open(path, create=True)
        found = file.size()
    except OSError as error:
        try:
            _remove_present(files, path)
        except OSError as second:
            message = f"creating a segment failed ({error}), removing its file failed ({second})"
            raise PartialSegment(message) from error
        raise
    if found > 0:
        raise CorruptData(path, 0, "no such file", f"{found} bytes")
    return Contents(file, index_interval_bytes)


def remove_segment(files: Files, directory: str, base_offset: int) -> None:
    """Remove a segment's files, if they exist.

    Raises: OSError.
    """
    remove_indexes(files, directory, base_offset)
    _remove_present(files, segment_path(directory, base_offset))


def remove_indexes(files: Files, directory: str, base_offset: int) -> None:
    """Remove a segment's index files, if they exist.

    Raises: OSError.
    """
    for kind in (OffsetIndex, TimeIndex):
        _remove_present(files, segment_path(directory, base_offset, kind.SUFFIX))


def _remove_present(files: Files, path: str) -> None:
    try:
        files.remove(path)
    except FileNotFoundError:
        pass


def _read_index(
    files: Files, directory: str, base_offset: int, kind: type[IndexT]
) -> Decoded[IndexT]:
    path = segment_path(directory, base_offset, kind.SUFFIX)
    try:
        data = files.read_bytes(path)
    except FileNotFoundError:
        data = b""
    return kind.decode(data, path=path, base_offset=base_offset)
