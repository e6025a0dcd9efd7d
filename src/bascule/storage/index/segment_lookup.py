"""Find the batch that contains an offset in a segment."""

from __future__ import annotations

from typing import NamedTuple

from bascule.record.header import HEADER_BYTES, read_header
from bascule.storage import _hot
from bascule.storage.scan import WALK_BYTES, check_header, read_headers
from bascule.storage.segment import Contents, LogPosition, Segment


class BatchLocation(NamedTuple):
    """The position of a batch, and a position at or after its end, both found without reading the
    whole batch."""

    position: int
    end: int


def limit_of(segment: Segment, following: Segment | None, end: LogPosition) -> int:
    """The end of the bytes below `end` in a segment."""
    if segment.base_offset == end.segment_base:
        if following is None:
            return end.position
        if end.offset >= following.base_offset:
            # Compaction may have given the segment another size since `end` was its end.
            return segment.size
        # An `end` from before a truncation may lie beyond the end of the segment.
        return min(end.position, segment.size)
    return segment.size if segment.base_offset < end.segment_base else 0


def locate_batch(contents: Contents, offset: int, limit: int, nowait: bool) -> BatchLocation | None:
    """Find the first batch that ends beyond `offset`; the location is `limit` if there is none.

    The index entry at or below it is less than an index interval away, so one read is enough. None
    if `nowait` is set and that read would wait for the disk.

    Raises: CorruptData, OSError.
    """
    position, exact = contents.offsets.entry_at(offset)
    if exact:
        bound = contents.offsets.entry_after(position)
        return BatchLocation(position, limit if bound is None else min(bound, limit))
    file = contents.file
    window, window_at = b"", position
    while position < limit:
        if position + HEADER_BYTES > window_at + len(window):
            data = read_headers(file, position, min(WALK_BYTES, limit - position), nowait)
            if data is None:
                return None
            window, window_at = data, position
        # Compiled code skips many batches in one call. The next one is checked below.
        position = window_at + _hot.skip_batches(window, position - window_at, offset)
        if position + HEADER_BYTES > window_at + len(window):
            continue
        header = read_header(window, position - window_at)
        check_header(header, file.path, position, limit)
        if header.end_offset > offset:
            return BatchLocation(position, position + header.total_bytes)
        position += header.total_bytes
    return BatchLocation(limit, limit)
