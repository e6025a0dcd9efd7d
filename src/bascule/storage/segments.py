"""The segments of one log, those in use and those put away, and how to find things in them."""

from __future__ import annotations

from bisect import bisect_right
from operator import attrgetter
from typing import Final, NamedTuple

from bascule.host.api import File, Files
from bascule.record.batch import RecordBatch
from bascule.record.header import HEADER_BYTES, BatchHeader, read_header
from bascule.storage import _hot
from bascule.storage.scan import (
    WALK_BYTES,
    check_header,
    check_header_present,
    walk_headers,
)
from bascule.storage.segment import Contents, LogPosition, Segment

OPEN_SEGMENTS_MAX: Final = 4
"""Segments of one log kept open for readers besides those that still have to be saved."""
BASE_OFFSET: Final = attrgetter("base_offset")


class Place(NamedTuple):
    """Where a batch starts, and a position at or behind its end, if that is known for nothing."""

    position: int
    end: int


class Segments:
    """An ordered, growing sequence of segments. Any thread may look things up."""

    def __init__(
        self,
        files: Files,
        directory: str,
        all_: tuple[Segment, ...],
        *,
        index_interval_bytes: int,
        gaps_allowed: bool,
    ) -> None:
        self._files = files
        self._directory = directory
        self._index_interval_bytes = index_interval_bytes
        self._gaps_allowed = gaps_allowed
        self._loaded: tuple[Segment, ...] = ()
        self.all = all_

    def add(self, segment: Segment) -> None:
        """Add a segment at the end; the appending thread alone does."""
        self.all = (*self.all, segment)

    def between(self, first: LogPosition, last: LogPosition) -> list[Segment]:
        """The segments from the one `first` lies in to the one `last` lies in."""
        return [s for s in self.all if first.segment_base <= s.base_offset <= last.segment_base]

    def at(self, offset: int) -> tuple[Segment, Segment | None]:
        """The segment that holds `offset` and the one after it."""
        everything = self.all
        row = max(bisect_right(everything, offset, key=BASE_OFFSET) - 1, 0)
        return everything[row], everything[row + 1] if row + 1 < len(everything) else None

    def open(self, segment: Segment, following: Segment | None) -> Contents:
        """The contents of a segment, loaded where it was put away.

        Raises: CorruptData, OSError.
        """
        contents = segment.contents
        if contents is None:
            assert following is not None, "the last segment is always open"
            contents = segment.load(
                self._files,
                self._directory,
                index_interval_bytes=self._index_interval_bytes,
                next_base_offset=following.base_offset,
                gaps_allowed=self._gaps_allowed,
            )
            loaded = (*self._loaded, segment)
            if len(loaded) > OPEN_SEGMENTS_MAX:
                oldest = next((s for s in loaded if s.contents and not s.contents.used), loaded[0])
                loaded = tuple(s for s in loaded if s is not oldest)
                for other in loaded:
                    if other is not segment and other.contents is not None:
                        other.contents.used = False
                oldest.contents = None
            self._loaded = loaded
        contents.used = True
        return contents

    def put_away(self, synced: LogPosition) -> None:
        """Let go of segments that are wholly saved and that nobody has read of late."""
        for segment in self.all:
            contents = segment.contents
            if contents is None or segment.base_offset >= synced.segment_base:
                continue
            if not contents.used and contents.is_saved(segment.size):
                segment.put_away(contents)
            contents.used = False
        self._loaded = tuple(s for s in self._loaded if s.contents is not None)

    def find(
        self, offset: int, *, end: LogPosition, nowait: bool
    ) -> tuple[File, Place, int] | None:
        """Find the batch that holds `offset`, or the first one behind it where compaction left a
        gap: its file, its place, and where the bytes below `end` stop in that file.

        None where `nowait` is set and the disk would have to be asked.

        Raises: CorruptData, OSError.
        """
        while True:
            segment, following = self.at(offset)
            contents = segment.contents
            if contents is None:
                if nowait:
                    return None
                contents = self.open(segment, following)
            contents.used = True
            limit = limit_of(segment, end)
            if offset >= end.offset:
                return contents.file, Place(limit, limit), limit
            place = locate(contents, offset, limit, nowait)
            if place is None:
                return None
            if place.position < limit or following is None:
                return contents.file, place, limit
            offset = following.base_offset

    def first_at(
        self, timestamp: int, *, start_offset: int, end: LogPosition
    ) -> tuple[int, int] | None:
        """(offset, timestamp) of the first record of at least `timestamp`, in [start_offset, end).

        Raises: CorruptData, OSError.
        """
        everything = self.all
        for row, segment in enumerate(everything):
            following = everything[row + 1] if row + 1 < len(everything) else None
            if following is not None and following.base_offset <= start_offset:
                continue
            if segment.base_offset > end.segment_base:
                break
            if segment.timestamp_max is not None and segment.timestamp_max < timestamp:
                continue
            contents = self.open(segment, following)
            if contents.timestamp_max < timestamp:
                continue
            limit = limit_of(segment, end)
            first = contents.times.offset_before(timestamp)
            position = 0 if first is None else contents.offsets.entry_at(first)[0]
            for at, header in walk_headers(contents.file, start=position, end=limit):
                if header.max_timestamp < timestamp or header.end_offset <= start_offset:
                    continue
                found = _first_record(contents.file, at, header, timestamp, start_offset)
                if found is not None:
                    return found
        return None

    def timestamp_max(self, *, end: LogPosition) -> int:
        """The largest timestamp below `end`, -1 where there is none.

        Raises: CorruptData, OSError.
        """
        largest = -1
        everything = self.all
        for row, segment in enumerate(everything):
            if segment.base_offset > end.segment_base:
                break
            if segment.base_offset < end.segment_base and segment.timestamp_max is not None:
                largest = max(largest, segment.timestamp_max)
                continue
            following = everything[row + 1] if row + 1 < len(everything) else None
            contents = self.open(segment, following)
            if segment.base_offset < end.segment_base:
                largest = max(largest, contents.timestamp_max)
                continue
            timestamp, offset = contents.times.entry_before(end.offset)
            position = 0 if offset is None else contents.offsets.entry_at(offset)[0]
            largest = max(largest, timestamp)
            for _, header in walk_headers(contents.file, start=position, end=end.position):
                largest = max(largest, header.max_timestamp)
        return largest


def limit_of(segment: Segment, end: LogPosition) -> int:
    """Where the bytes below `end` stop in a segment."""
    if segment.base_offset == end.segment_base:
        return end.position
    return segment.size if segment.base_offset < end.segment_base else 0


def locate(contents: Contents, offset: int, limit: int, nowait: bool) -> Place | None:
    """Find the first batch that ends beyond `offset`; at `limit` where there is none.

    The index entry at or below it is less than an index interval away, so one read does it. None
    where `nowait` is set and that read would have to ask the disk.

    Raises: CorruptData, OSError.
    """
    position, exact = contents.offsets.entry_at(offset)
    if exact:
        bound = contents.offsets.entry_after(position)
        return Place(position, limit if bound is None else min(bound, limit))
    file = contents.file
    window, window_at = b"", position
    while position < limit:
        if position + HEADER_BYTES > window_at + len(window):
            wanted = min(WALK_BYTES, limit - position)
            data = (file.read_at_nowait if nowait else file.read_at)(position, wanted)
            if data is None:
                return None
            window, window_at = data, position
            check_header_present(file.path, position, len(window))
        # Compiled code passes the small batches in one go; the next one is looked at in full.
        position = window_at + _hot.skip_batches(window, position - window_at, offset)
        if position + HEADER_BYTES > window_at + len(window):
            continue
        header = read_header(window, position - window_at)
        check_header(header, file.path, position, limit)
        if header.end_offset > offset:
            return Place(position, position + header.total_bytes)
        position += header.total_bytes
    return Place(limit, limit)


def _first_record(
    file: File, position: int, header: BatchHeader, timestamp: int, start_offset: int
) -> tuple[int, int] | None:
    if header.is_log_append_time or header.codec:
        # One timestamp for all; a compressed batch is opaque here and answers with its beginning.
        return max(header.base_offset, start_offset), header.max_timestamp
    for record in RecordBatch(file.read_at(position, header.total_bytes), origin=file.path):
        if record.timestamp >= timestamp and record.offset >= start_offset:
            return record.offset, record.timestamp
    return None


def whole_batch(file: File, position: int, limit: int, length: int, nowait: bool) -> int | None:
    """`length`, or as many bytes as the batch at `position` has where those are more.

    None where `nowait` is set and the disk would have to be asked.

    Raises: CorruptData, OSError.
    """
    data = (file.read_at_nowait if nowait else file.read_at)(position, HEADER_BYTES)
    if data is None:
        return None
    check_header_present(file.path, position, len(data))
    header = read_header(data)
    check_header(header, file.path, position, limit)
    return max(length, header.total_bytes)


def first_timestamp(contents: Contents, end: int) -> int:
    """The timestamp of a segment's first batch, 0 where bytes [0, end) hold none."""
    for _, header in walk_headers(contents.file, start=0, end=end):
        return header.max_timestamp
    return 0
