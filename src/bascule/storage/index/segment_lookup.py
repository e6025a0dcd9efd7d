"""Where in a segment the batch is that holds an offset."""

from __future__ import annotations

from typing import NamedTuple

from bascule.record.header import HEADER_BYTES, read_header
from bascule.storage import _hot
from bascule.storage.scan import WALK_BYTES, check_header, read_headers
from bascule.storage.segment import Contents, LogPosition, Segment


class Place(NamedTuple):
    """Where a batch starts, and a position at or behind its end, if that is known for nothing."""

    position: int
    end: int


def limit_of(segment: Segment, following: Segment | None, end: LogPosition) -> int:
    """Where the bytes below `end` stop in a segment."""
    if segment.base_offset == end.segment_base:
        # An `end` from before a truncation may lie beyond what the segment still has.
        return end.position if following is None else min(end.position, segment.size)
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
            data = read_headers(file, position, min(WALK_BYTES, limit - position), nowait)
            if data is None:
                return None
            window, window_at = data, position
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
