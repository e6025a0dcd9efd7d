"""Check what the CRC does not cover: a batch's base offset, leader epoch and length."""

from __future__ import annotations

from array import array

from bascule.errors import CorruptData
from bascule.host.api import File
from bascule.record.header import HEADER_BYTES, BatchHeader, read_header
from bascule.storage import _hot
from bascule.storage.epochs import LeaderEpochs
from bascule.storage.index.offset_index import OffsetIndex
from bascule.storage.scan import (
    WALK_BYTES,
    check_epoch,
    check_header,
    check_offset,
    read_headers,
)


def check_batch_headers(
    file: File,
    index: OffsetIndex,
    *,
    start: int,
    end: int,
    limit: int,
    base_offset: int,
    end_offset: int,
    epochs: LeaderEpochs,
    gaps_allowed: bool,
    nowait: bool = False,
) -> bool:
    """Check the headers of the batches that begin in bytes [start, end) of a segment.

    The check begins at the last batch at or before `start` of which `index`, the segment's, has an
    entry, since only of such a batch the offset is known; without any it begins at the segment's
    beginning and `base_offset`. The last batch may end as late as byte `limit`. No batch may end
    beyond `end_offset`.

    Where `gaps_allowed`, offsets may be missing between batches. The index has an entry for each
    batch after a gap, so the position of these batches is known, too.

    False if `nowait` is set and a read would wait for the disk. Raises: CorruptData, OSError.
    """
    offset, position = index.last_at(start) or (base_offset, 0)
    gaps = index if gaps_allowed else None
    window, window_at, first = b"", position, True
    while position < end:
        if position + HEADER_BYTES > window_at + len(window):
            data = read_headers(file, position, min(WALK_BYTES, limit - position), nowait)
            if data is None:
                return False
            window, window_at = data, position
        if not first:
            # Compiled code checks many batches in one call. The next one is checked below.
            entry = None if gaps is None else gaps.entry_after(position - 1)
            known = window if entry is None else window[: max(entry - window_at, 0)]
            state = array("q", (position - window_at, offset))
            _hot.check_headers(known, *epochs.span(offset), False, state)
            position, offset = window_at + state[0], state[1]
            if position >= end:
                break
            if position + HEADER_BYTES > window_at + len(window):
                continue
        header = read_header(window, position - window_at)
        check_header(header, file.path, position, limit)
        _check_base_offset(header, file.path, position, offset, gaps=gaps)
        check_epoch(header, file.path, position, epoch=epochs.at(header.base_offset))
        position, offset, first = position + header.total_bytes, header.end_offset, False
    if offset > end_offset:
        raise CorruptData(file.path, position, f"batches up to offset {end_offset}", str(offset))
    return True


def _check_base_offset(
    header: BatchHeader,
    path: str,
    position: int,
    offset: int,
    *,
    gaps: OffsetIndex | None,
) -> None:
    base = header.base_offset
    check_offset(header, path, position, offset=offset, gaps_allowed=gaps is not None)
    if gaps is not None:
        key = gaps.key_of(position)
        if key != base and (key is not None or base != offset):
            entry = "no batch after a gap" if key is None else f"base offset {key}"
            raise CorruptData(path, position, f"{entry}, by the index", f"base offset {base}")
