"""The segments of one log, loaded or not, and lookups in them."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from operator import attrgetter
from typing import Final

from bascule.errors import CorruptData
from bascule.host.api import Files
from bascule.storage.epochs import LeaderEpochs
from bascule.storage.index.header_checks import check_batch_headers
from bascule.storage.index.segment_lookup import BatchLocation, limit_of, locate_batch
from bascule.storage.index.trusted_file import TrustedFile, unchecked
from bascule.storage.scan import (
    SCAN_BYTES,
    first_record,
    walk_headers,
    whole_batch,
)
from bascule.storage.segment import (
    Contents,
    FileSlice,
    LogPosition,
    Observer,
    Segment,
    SegmentInfo,
    Tail,
    segment_path,
)

OPEN_SEGMENTS_MAX: Final = 4
"""Segments of one log kept open for readers, besides those whose indexes are not yet saved."""
COLD_BYTES_MAX: Final = 4 << 20
"""Bytes that one look-up reads from the disk, and checks, before they are sent; a batch may be
larger."""
BASE_OFFSET: Final = attrgetter("base_offset")


class SegmentGone(Exception):
    """A segment was removed or replaced while it was opened: repeat the lookup. Never leaves
    `storage`."""


class Segments:
    """An ordered sequence of segments. Any thread may read it while other threads change it."""

    def __init__(
        self,
        files: Files,
        directory: str,
        all_: tuple[Segment, ...],
        *,
        index_interval_bytes: int,
        gaps_allowed: bool,
        guard: AbstractContextManager[object],
    ) -> None:
        """`guard` is the lock for changes that several threads make."""
        self._files = files
        self._directory = directory
        self._index_interval_bytes = index_interval_bytes
        self._guard = guard
        self._loaded: tuple[Segment, ...] = ()
        self.gaps_allowed = gaps_allowed
        self.all = all_
        self.bytes_before_last = sum(segment.size for segment in all_[:-1])
        """Bytes of all closed segments."""

    def roll(self, size: int, segment: Segment) -> None:
        """Close the last segment at `size` and add a new one. For the appending thread only."""
        with self._guard:
            self.all[-1].size = size
            self.all = (*self.all, segment)
            self.bytes_before_last += size

    def replace(self, removed: Sequence[Segment], added: Sequence[Segment] = ()) -> None:
        """Replace `removed`, consecutive closed segments, by `added`.

        The caller creates and removes the files. A reader that has found a removed segment keeps
        its open file, or repeats its lookup.
        """
        gone = set(removed)
        with self._guard:
            first = self.all.index(removed[0])
            kept = [s for s in self.all if s not in gone]
            self.all = (*kept[:first], *added, *kept[first:])
            self.bytes_before_last += sum(s.size for s in added) - sum(s.size for s in removed)
            self._loaded = tuple(s for s in self._loaded if s not in gone)

    def truncate(self, kept: Sequence[Segment], active: Segment) -> None:
        """Keep the segments `kept` and add a new, empty one. For the appending thread only."""
        with self._guard:
            self.all = (*kept, active)
            self.bytes_before_last = sum(segment.size for segment in kept)
            self._loaded = tuple(segment for segment in self._loaded if segment in self.all)

    def reopen_last(self) -> None:
        """Open the file of the last segment again, which has its final name now. Raises: OSError.

        For the appending thread only."""
        last = self.all[-1]
        assert last.contents is not None, "the last segment is always open"
        path = segment_path(self._directory, last.base_offset)
        last.contents.file = TrustedFile(self._files.open(path), last.trust)

    def holds(self, segment: Segment) -> bool:
        """Whether the segment is still in the log."""
        return self.at(segment.base_offset)[0] is segment

    def sync(
        self,
        first: LogPosition,
        last: LogPosition,
        syncs_names: bool,
        on_file: Callable[[], object],
    ) -> None:
        """Sync the bytes in [first, last), oldest segment first, and the names of new segments.

        `syncs_names`: those of all files. `on_file` is called after each. Raises: OSError.
        """
        for segment in self.all:
            if first.segment_base <= segment.base_offset <= last.segment_base:
                assert segment.contents is not None, "segments stay open until they are synced"
                segment.contents.file.sync()
                on_file()
        if syncs_names or last.segment_base != first.segment_base:
            self._files.sync_dir(self._directory)

    def infos(self, tail: Tail) -> tuple[SegmentInfo, ...]:
        """The state of every segment of a log that ends at `tail`."""
        infos = []
        segments = self.all
        for segment, following in zip(segments, (*segments[1:], None), strict=True):
            if segment.base_offset > tail.end.segment_base:
                break
            known: int | None
            if following is None or segment.base_offset == tail.end.segment_base:
                end, size, known = tail.end.offset, tail.end.position, tail.segment_timestamp_max
            else:
                contents = segment.contents
                end, size = following.base_offset, segment.size
                known = segment.timestamp_max if contents is None else contents.timestamp_max
            infos.append(SegmentInfo(segment.base_offset, end, size, known, following is None))
        return tuple(infos)

    def bytes_from(self, offset: int, end: LogPosition) -> int:
        """About how many bytes the batches in [offset, end) have. Up to an index interval too many,
        and in a segment that is not loaded as if its records were equally large."""
        if offset >= end.offset:
            return 0
        segments = self.all
        first = max(bisect_right(segments, offset, key=BASE_OFFSET) - 1, 0)
        found = 0
        for segment, following in zip(
            segments[first:], (*segments[first + 1 :], None), strict=True
        ):
            base, contents = segment.base_offset, segment.contents
            if base > end.segment_base:
                break
            is_last = following is None or base == end.segment_base
            size = end.position if is_last else segment.size
            if base < offset:
                end_offset = end.offset if is_last or following is None else following.base_offset
                size -= (
                    size * (offset - base) // max(end_offset - base, 1)
                    if contents is None
                    else contents.offsets.entry_at(offset)[0]
                )
            found += max(size, 0)
        return found

    def load_timestamps(self, tail: Tail, below: int) -> None:
        """See `PartitionLog.load_timestamps`. Raises: SegmentGone, CorruptData, OSError."""
        for info in self.infos(tail):
            known = info.timestamp_max
            if known is None:
                segment, following = self.at(info.base_offset)
                known = self.open(segment, following).timestamp_max
            if known >= below or info.is_active:
                return

    def at(self, offset: int) -> tuple[Segment, Segment | None]:
        """The segment that holds `offset` and the one after it."""
        segments = self.all
        row = max(bisect_right(segments, offset, key=BASE_OFFSET) - 1, 0)
        return segments[row], segments[row + 1] if row + 1 < len(segments) else None

    def open(self, segment: Segment, following: Segment | None) -> Contents:
        """The contents of a segment. Loads an unloaded segment.

        Raises: SegmentGone, CorruptData, OSError.
        """
        contents = segment.contents
        if contents is None:
            assert following is not None, "the last segment is always open"
            try:
                contents = segment.load(
                    self._files,
                    self._directory,
                    index_interval_bytes=self._index_interval_bytes,
                    next_base_offset=following.base_offset,
                    gaps_allowed=self.gaps_allowed,
                )
            except (CorruptData, FileNotFoundError):
                if self.holds(segment):
                    raise
                raise SegmentGone from None
            self._note_loaded(segment)
        contents.used = True
        return contents

    def _note_loaded(self, segment: Segment) -> None:
        """Keep a loaded segment open, and unload another one if too many are open."""
        with self._guard:
            if not self.holds(segment):
                raise SegmentGone
            loaded = (*self._loaded, segment)
            if len(loaded) > OPEN_SEGMENTS_MAX:
                oldest = next((s for s in loaded if s.contents and not s.contents.used), loaded[0])
                loaded = tuple(s for s in loaded if s is not oldest)
                for other in loaded:
                    if other is not segment and other.contents is not None:
                        other.contents.used = False
                oldest.contents = None
            self._loaded = loaded

    def unload_unused(self, synced: LogPosition) -> None:
        """Unload segments whose indexes are saved and that were not read since the last call."""
        for segment in self.all:
            contents = segment.contents
            if contents is None or segment.base_offset >= synced.segment_base:
                continue
            if not contents.used and contents.is_saved(segment.size):
                segment.unload(contents)
            contents.used = False
        with self._guard:
            self._loaded = tuple(s for s in self._loaded if s.contents is not None)

    def slice(
        self,
        offset: int,
        *,
        bytes_max: int,
        end: LogPosition,
        epochs: LeaderEpochs,
        nowait: bool,
    ) -> FileSlice | None:
        """See `PartitionLog.plan_read`.

        Raises: CorruptData, also for a damaged header in a segment that is not `verified`; OSError.
        """
        found = self._find(offset, end=end, nowait=nowait)
        if found is None:
            return None
        segment, following, contents, location, limit = found
        file, position = contents.file, location.position
        length = min(bytes_max, limit - position)
        if position + length < location.end:
            whole = whole_batch(file, position, limit, length, nowait)
            if whole is None:
                return None
            length = whole
        elif position + length < limit:
            length = _end_of_last_batch(contents, position, length)
        is_cached = length <= 0 or file.is_cached(position, position + length)
        if not is_cached and nowait:
            segment.trust.lose()
            return None
        if not is_cached and length > COLD_BYTES_MAX:
            least = max(COLD_BYTES_MAX, location.end - position)
            length = min(length, _end_of_last_batch(contents, position, least))
        stop = position + length
        next_base = end.offset if following is None else following.base_offset
        check = partial(
            check_batch_headers, file, contents.offsets, limit=limit,
            base_offset=segment.base_offset, end_offset=next_base, epochs=epochs,
            gaps_allowed=self.gaps_allowed,
        )  # fmt: skip
        has_more = stop == limit and next_base < end.offset
        piece = FileSlice(file, position, length, next_base if has_more else -1, check)
        if not is_cached:
            piece.load(position, stop)
        elif length > 0 and not segment.verified and not check(
            start=position, end=stop, nowait=nowait
        ):  # fmt: skip
            return None
        return piece

    def _find(
        self, offset: int, *, end: LogPosition, nowait: bool
    ) -> tuple[Segment, Segment | None, Contents, BatchLocation, int] | None:
        """Find the batch that holds `offset`; if `offset` is in a gap, the first batch after it.

        Returns the segment and the one that follows it in the same state of the log, the contents,
        the batch's location, and the end of the bytes below `end` in that file. None if `nowait` is
        set and the lookup would wait for the disk.

        Raises: SegmentGone, CorruptData, OSError.
        """
        while True:
            segment, following = self.at(offset)
            if offset < segment.base_offset:
                raise SegmentGone  # the log start has advanced beyond `offset`
            contents = segment.contents
            if contents is None:
                if nowait:
                    return None
                try:
                    contents = self.open(segment, following)
                except SegmentGone:
                    continue
            contents.used = True
            limit = limit_of(segment, following, end)
            if offset >= end.offset:
                return segment, following, contents, BatchLocation(limit, limit), limit
            next_base = end.offset if following is None else following.base_offset
            if segment.base_offset < end.segment_base and next_base > end.offset:
                # The segment of `end` was merged into this one.
                last = locate_batch(contents, end.offset, limit, nowait)
                if last is None:
                    return None
                limit = last.position
            location = locate_batch(contents, offset, limit, nowait)
            if location is None:
                segment.trust.lose()
                return None
            if location.position < limit or following is None:
                return segment, following, contents, location, limit
            offset = following.base_offset

    def find_timestamp(
        self, timestamp: int, *, start_offset: int, end: LogPosition
    ) -> tuple[int, int] | None:
        """(offset, timestamp) of the first record of at least `timestamp`, in [start_offset, end).

        Raises: SegmentGone, CorruptData, OSError.
        """
        segments = self.all
        for row, segment in enumerate(segments):
            following = segments[row + 1] if row + 1 < len(segments) else None
            if following is not None and following.base_offset <= start_offset:
                continue
            if segment.base_offset > end.segment_base:
                break
            if segment.timestamp_max is not None and segment.timestamp_max < timestamp:
                continue
            contents = self.open(segment, following)
            if contents.timestamp_max < timestamp:
                continue
            limit = limit_of(segment, following, end)
            first = contents.times.offset_before(timestamp)
            position = 0 if first is None else contents.offsets.entry_at(first)[0]
            for at, header in walk_headers(contents.file, start=position, end=limit):
                if header.max_timestamp < timestamp or header.end_offset <= start_offset:
                    continue
                found = first_record(contents.file, at, header, timestamp, start_offset)
                if found is not None:
                    return found
        return None

    def find_timestamp_max(self, *, start_offset: int, end: LogPosition) -> tuple[int, int] | None:
        """See `PartitionLog.find_timestamp_max`. Raises: SegmentGone, CorruptData, OSError."""
        if end.offset <= start_offset:
            return None
        largest = self.timestamp_max(start_offset=start_offset, end=end)
        return self.find_timestamp(largest, start_offset=start_offset, end=end)

    def timestamp_max(self, *, start_offset: int, end: LogPosition) -> int:
        """The largest timestamp of the batches in [start_offset, end), -1 if there is none.

        Raises: SegmentGone, CorruptData, OSError.
        """
        largest = -1
        segments = self.all
        for row, segment in enumerate(segments):
            following = segments[row + 1] if row + 1 < len(segments) else None
            if following is not None and following.base_offset <= start_offset:
                continue
            if segment.base_offset > end.segment_base:
                break
            whole = segment.base_offset >= start_offset and segment.base_offset < end.segment_base
            if whole and segment.timestamp_max is not None:
                largest = max(largest, segment.timestamp_max)
                continue
            contents = self.open(segment, following)
            if whole:
                largest = max(largest, contents.timestamp_max)
                continue
            position = 0
            if segment.base_offset < start_offset:
                position = contents.offsets.entry_at(start_offset)[0]
            else:
                largest_before, offset = contents.times.entry_before(end.offset)
                largest = max(largest, largest_before)
                position = 0 if offset is None else contents.offsets.entry_at(offset)[0]
            limit = limit_of(segment, following, end)
            for _, header in walk_headers(contents.file, start=position, end=limit):
                if header.end_offset > start_offset:
                    largest = max(largest, header.max_timestamp)
        return largest

    def verify(
        self,
        start: LogPosition | None,
        *,
        synced: LogPosition,
        epochs: LeaderEpochs,
        bytes_max: int,
        observe: Observer | None,
    ) -> LogPosition | None:
        """See `PartitionLog.verify`. Raises: SegmentGone, CorruptData, OSError."""
        segment, following = self.at(0 if start is None else start.segment_base)
        base = segment.base_offset
        if start is None or start.segment_base != base:
            # The next segment was removed or replaced: continue with the one in its place.
            start = LogPosition(base, base, 0)
        contents = self.open(segment, following)
        limit = synced.position if base == synced.segment_base else segment.size
        position, offset = start.position, start.offset
        trust = segment.trust
        losses, is_first_part = trust.losses, offset <= trust.checked_offset
        if position > 0 and (self.gaps_allowed or not is_first_part):
            # Compaction keeps the offsets of batch boundaries, but not their byte positions. Nor
            # does another log, which may have taken the place of the one of which `start` is. The
            # headers between an entry of the index and the offset may be damaged.
            at = contents.offsets.entry_at(offset)[0]
            offset, position = contents.offsets.last_at(at) or (base, 0)
            bytes_max += contents.index_interval_bytes  # the entry is less than that below `start`
            following_at = contents.offsets.entry_after(position)
            if following_at is not None:
                # A gap is between the entries if `offset` is: go beyond it, whatever is before it.
                bytes_max = max(bytes_max, following_at + 1 - position)
        if not contents.file.is_cached(position, min(limit, position + bytes_max + SCAN_BYTES)):
            trust.suspend()
        try:
            reached, offset = self._verify(
                segment, contents, LogPosition(offset, base, position), limit,
                end_offset=synced.offset if following is None else following.base_offset,
                epochs=epochs, bytes_max=bytes_max, observe=observe,
            )  # fmt: skip
        except CorruptData:
            trust.lose()
            raise
        if is_first_part:
            trust.confirm(losses, below=offset, is_whole=reached >= limit)
        if reached < limit:
            return LogPosition(offset, base, reached)
        if following is None or following.base_offset > synced.segment_base:
            return None
        return LogPosition(following.base_offset, following.base_offset, 0)

    def _verify(
        self,
        segment: Segment,
        contents: Contents,
        start: LogPosition,
        limit: int,
        *,
        end_offset: int,
        epochs: LeaderEpochs,
        bytes_max: int,
        observe: Observer | None,
    ) -> tuple[int, int]:
        """Check some batches of a segment; return position and offset behind them.

        Raises: CorruptData, OSError.
        """
        reached, offset, damage = Contents(contents.file, limit + 1).scan(
            start=start.position,
            end=limit,
            offset=start.offset,
            epochs=epochs,
            gaps_allowed=self.gaps_allowed,
            bytes_max=bytes_max,
            observe=observe,
        )
        if damage is not None:
            raise damage
        if self.gaps_allowed and reached > start.position:
            check_batch_headers(
                unchecked(contents.file), contents.offsets, start=start.position, end=reached,
                limit=limit, base_offset=segment.base_offset, end_offset=end_offset, epochs=epochs,
                gaps_allowed=True,
            )  # fmt: skip
        return reached, offset


def _end_of_last_batch(contents: Contents, position: int, length: int) -> int:
    """The length up to the last batch boundary in the index, `length` if it knows none there.

    Readers discard a batch that is cut, and request it again.
    """
    end = contents.offsets.last_entry_within(position, position + length)
    return length if end is None else end - position
