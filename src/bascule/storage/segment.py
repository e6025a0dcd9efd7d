"""One segment: a file of batches and its two sparse indexes, in memory while they are in use."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from bascule.errors import CorruptData
from bascule.host.api import File, Files
from bascule.storage import _hot
from bascule.storage.epochs import LeaderEpochs
from bascule.storage.index.offset_index import OffsetIndex
from bascule.storage.index.sparse_index import Covered, Decoded, IndexT
from bascule.storage.index.time_index import TimeIndex
from bascule.storage.scan import SCAN_BYTES, check_epoch, check_offset, scan_batches, walk_headers

LOG_SUFFIX: Final = ".log"
NAME_DIGITS: Final = 20
INDEX_INTERVAL_BYTES: Final = 4096
"""From Kafka's index.interval.bytes."""
ENTRIES_MAX: Final = 3 * 4_096
"""Numbers taken from compiled code at a time; more entries than fit cost another call."""


def segment_path(directory: str, base_offset: int, suffix: str = LOG_SUFFIX) -> str:
    return f"{directory}/{base_offset:0{NAME_DIGITS}d}{suffix}"


def base_offset_of(name: str) -> int | None:
    """The base offset a segment file is named for, or None where the name is another file's."""
    digits, dot, suffix = name.partition(".")
    if dot + suffix != LOG_SUFFIX or len(digits) != NAME_DIGITS:
        return None
    return int(digits) if digits.isascii() and digits.isdigit() else None


@dataclass(frozen=True, slots=True)
class LogConfig:
    """How a log cuts itself into segments."""

    segment_bytes_max: int = 256 << 20
    segment_age_ms_max: int = 7 * 24 * 3_600_000
    segment_messages_max: int = 1 << 62
    index_interval_bytes: int = INDEX_INTERVAL_BYTES
    gaps_allowed: bool = False
    """Whether offsets may be missing between batches, as compaction leaves them. A log for which
    they were allowed once goes on allowing them."""


@dataclass(frozen=True, slots=True)
class FileSlice:
    """Bytes of one segment, ready for sendfile."""

    file: File
    position: int
    length: int


class LogPosition(NamedTuple):
    """A batch boundary in a log; later positions compare greater."""

    offset: int
    """The offset the next batch there has, or would have."""
    segment_base: int
    """Base offset of the segment that holds it."""
    position: int
    """Byte position in that segment's file."""


class Tail(NamedTuple):
    """The end of a log with what is true up to there, published as one value."""

    end: LogPosition
    timestamp_max: int
    segment_timestamp_max: int

    def advanced(self, position: int, end_offset: int, timestamp_max: int) -> Tail:
        """The end after batches up to `position` and `end_offset` in the same segment."""
        end, log_max, segment_max = self
        return Tail(
            LogPosition(end_offset, end.segment_base, position),
            max(log_max, timestamp_max),
            max(segment_max, timestamp_max),
        )


class SegmentInfo(NamedTuple):
    """One segment as it is now."""

    base_offset: int
    end_offset: int
    bytes: int
    timestamp_max: int | None
    """None where nobody has looked since the log was opened; see `PartitionLog.learn_times`."""
    is_active: bool
    """Whether the next batch may go there."""


class Scanned(NamedTuple):
    """Where the whole batches end, and what is wrong with the next one, if anything."""

    position: int
    offset: int
    damage: CorruptData | None


class TornBatch(Exception):
    """The next batch is cut short or not what was written; never leaves this module."""

    def __init__(self, damage: CorruptData) -> None:
        super().__init__(str(damage))
        self.damage = damage


class Contents:
    """An open segment: its file, its indexes and what they cover.

    The appending thread alone calls `note_batch`, the checkpointing thread alone `save_indexes`.
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
        """Largest timestamp of a batch noted so far."""
        self.used = True
        """Set by readers, cleared by whoever looks for segments to put away."""
        self._next_entry_at = 0
        self._saved: Covered | None = None
        """What the index files hold; None where they have to be written anew."""

    def note_batch(
        self, position: int, base_offset: int, timestamp_max: int, *, behind_gap: bool = False
    ) -> None:
        """Take a batch that was written at `position` into the indexes."""
        if position >= self._next_entry_at or behind_gap:
            self._add_entry(base_offset, position, self.timestamp_max)
            self._next_entry_at = position + self.index_interval_bytes
        if timestamp_max > self.timestamp_max:
            self.timestamp_max = timestamp_max

    @property
    def next_entry_at(self) -> int:
        """The position from which the next batch gets an entry in the indexes."""
        return self._next_entry_at

    def note_checked(self, entries: Sequence[int], timestamp_max: int, next_entry_at: int) -> None:
        """Take batches into the indexes that compiled code has checked: what it found of them."""
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
    ) -> Scanned:
        """Check and index the batches of bytes [start, end), as far as they are whole.

        Their offsets continue from `offset` and their leader epochs are those of `epochs`, where
        that is known. Stops behind the batch with which `bytes_max` bytes are reached.

        Raises: OSError.
        """
        position = start
        stop = end if bytes_max is None else min(end, start + bytes_max)
        while position < stop:
            reached, offset = self._scan_window(position, end, offset, epochs, gaps_allowed)
            if reached == position:
                try:
                    reached, offset = self._scan_one(position, end, offset, epochs, gaps_allowed)
                except TornBatch as torn:
                    return Scanned(position, offset, torn.damage)
            position = reached
        return Scanned(position, offset, None)

    def _scan_window(
        self, position: int, end: int, offset: int, epochs: LeaderEpochs | None, gaps_allowed: bool
    ) -> tuple[int, int]:
        """Take what compiled code vouches for out of one read; maybe nothing."""
        data = memoryview(self.file.read_at(position, min(SCAN_BYTES, end - position)))
        epoch, epoch_end = (-2, 0) if epochs is None else epochs.span(offset)
        room = _hot.ENTRY_FIELDS * (len(data) // self.index_interval_bytes + 2)
        entries = array("q", bytes(8 * min(room, ENTRIES_MAX)))
        state = array("q", (0, 0, self.timestamp_max, 0, self._next_entry_at))
        _hot.check_batches(
            data, position, offset, epoch, epoch_end, gaps_allowed, self.index_interval_bytes,
            entries, state,
        )  # fmt: skip
        reached, offset, timestamp_max, count, next_entry_at = state
        self.note_checked(entries[: count * _hot.ENTRY_FIELDS], timestamp_max, next_entry_at)
        return position + reached, offset

    def _scan_one(
        self, position: int, end: int, offset: int, epochs: LeaderEpochs | None, gaps_allowed: bool
    ) -> tuple[int, int]:
        """Take one batch, or say exactly why not. Raises TornBatch, OSError."""
        path = self.file.path
        try:
            _, header = next(scan_batches(self.file, start=position, end=end))
            check_offset(header, path, position, offset=offset, gaps_allowed=gaps_allowed)
            if epochs is not None:
                check_epoch(header, path, position, epoch=epochs.at(header.base_offset))
        except CorruptData as damage:
            raise TornBatch(damage) from None
        self.note_batch(
            position, header.base_offset, header.max_timestamp,
            behind_gap=header.base_offset != offset,
        )  # fmt: skip
        return position + header.total_bytes, header.end_offset

    def truncated(self, end: LogPosition, timestamp_max: int) -> Contents:
        """The same file with indexes that end at `end`; their files have to be written anew."""
        contents = Contents(self.file, self.index_interval_bytes)
        contents.offsets = self.offsets.truncated(self.offsets.count_below(end.position))
        contents.times = self.times.truncated(self.times.count_below(end.offset))
        contents.timestamp_max = timestamp_max
        return contents

    def load_indexes(
        self, files: Files, directory: str, base_offset: int, *, limit: Covered | None
    ) -> Covered:
        """Take over the index files as far as they are sound and go no further than `limit`.

        Returns how far that is. Files that are missing or damaged end where the damage begins: the
        log is the truth.

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
        as_saved = ends == [covered, covered] and offsets.damage is None and times.damage is None
        self._saved = covered if as_saved else None
        return covered

    def save_indexes(
        self, files: Files, directory: str, base_offset: int, covered: Covered, *, sync: bool
    ) -> None:
        """Bring the index files up to `covered`, which must be on the disk itself.

        Raises: OSError; the next call then writes the files anew.
        """
        before, self._saved = self._saved, None
        if (before != covered or sync) and covered.position > 0:
            for index, by_offset in ((self.offsets, False), (self.times, True)):
                file = files.open(segment_path(directory, base_offset, index.SUFFIX), create=True)
                start = 0
                if before is None:
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

    def first_timestamp(self, end: int) -> int:
        """The timestamp of the first batch, 0 where bytes [0, end) hold none."""
        for _, header in walk_headers(self.file, start=0, end=end):
            return header.max_timestamp
        return 0

    def is_saved(self, position: int) -> bool:
        """Whether the index files cover bytes [0, position)."""
        return self._saved is not None and self._saved.position == position


class Segment:
    """A segment of a log, open or put away."""

    __slots__ = ("base_offset", "contents", "size", "timestamp_max", "vouched")

    def __init__(
        self, base_offset: int, size: int, contents: Contents | None, *, vouched: bool = True
    ) -> None:
        self.base_offset = base_offset
        self.size = size
        """Bytes of whole batches. Final once a later segment exists."""
        self.contents = contents
        self.timestamp_max: int | None = None
        """Largest timestamp, known once a segment that is no longer written was open."""
        self.vouched = vouched
        """Whether this process wrote or checked every byte; else each read checks the headers it
        hands on, since the CRC that readers check leaves offsets and epochs out."""

    def load(
        self,
        files: Files,
        directory: str,
        *,
        index_interval_bytes: int,
        next_base_offset: int,
        gaps_allowed: bool,
    ) -> Contents:
        """Open a segment that is no longer written, rebuilding indexes that cannot be trusted.

        Raises: CorruptData where the file is not what was written, OSError.
        """
        path = segment_path(directory, self.base_offset)
        contents = Contents(files.open(path), index_interval_bytes)
        covered = contents.load_indexes(files, directory, self.base_offset, limit=None)
        size = contents.file.size()
        if size != self.size or covered.position > size:
            expected = max(self.size, covered.position)
            raise CorruptData(path, min(size, expected), f"{expected} bytes", f"{size} bytes")
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

    def put_away(self, contents: Contents) -> None:
        """Let go of a segment that is no longer written; readers keep what they hold."""
        self.timestamp_max = contents.timestamp_max
        self.contents = None


class Stillborn(Exception):
    """A segment could not be begun, nor what there is of it be removed; stays in storage."""


def begin_segment(
    files: Files, directory: str, base_offset: int, index_interval_bytes: int
) -> Contents:
    """Create a segment's file. Where that fails nothing is left of it, so that the segment before
    may go on beyond `base_offset`.

    Raises: OSError, CorruptData where there is such a file, Stillborn.
    """
    path = segment_path(directory, base_offset)
    try:
        file = files.open(path, create=True)
        found = file.size()
    except OSError as error:
        try:
            _remove_present(files, path)
        except OSError as second:
            message = f"a segment could not be begun ({error}) nor removed ({second})"
            raise Stillborn(message) from error
        raise
    if found > 0:
        raise CorruptData(path, 0, "no such file", f"{found} bytes")
    return Contents(file, index_interval_bytes)


def remove_segment(files: Files, directory: str, base_offset: int) -> None:
    """Remove a segment's files, as far as they are there.

    Raises: OSError.
    """
    remove_indexes(files, directory, base_offset)
    _remove_present(files, segment_path(directory, base_offset))


def remove_indexes(files: Files, directory: str, base_offset: int) -> None:
    """Remove a segment's index files, as far as they are there.

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
