"""Plans what one response to a follower contains of a log: slices of one or more segments."""

from __future__ import annotations

from typing import Final

from bascule.errors import BasculeError
from bascule.storage.partition_log import FileSlice, LogPosition, PartitionLog
from bascule.storage.segment import FileSlices

SEGMENTS_MAX: Final = 64
"""Segments of one log in a response. Each is a look-up, and one sendfile where it is not small."""


def plan_records(
    store: PartitionLog,
    offset: int,
    *,
    bytes_max: int,
    end: LogPosition,
    segments_max: int = SEGMENTS_MAX,
    nowait: bool = False,
) -> FileSlice | FileSlices | None:
    """Plan a read from `offset` that goes on in the segments that follow.

    The first slice is that of `PartitionLog.plan_read`, and so are the errors and None. A later one
    is left out where it exceeds `bytes_max`, would wait for the disk, or cannot be read. Without
    later ones a log of small segments, as compaction leaves them, would cost its followers a round
    trip for each of them. There are up to `segments_max`, and SEGMENTS_MAX at most.
    """
    truncations = store.truncation_version
    first = store.plan_read(offset, bytes_max=bytes_max, end=end, nowait=nowait)
    if first is None or first.following < 0:
        return first
    found, left = [first], bytes_max - first.length
    most = min(segments_max, SEGMENTS_MAX)
    while left > 0 and found[-1].following >= 0 and len(found) < most:
        try:
            piece = store.plan_read(found[-1].following, bytes_max=left, end=end, nowait=nowait)
        except (BasculeError, OSError):
            break  # whoever reads from there is told
        if piece is None or not 0 < piece.length <= left:
            break
        found.append(piece)
        left -= piece.length
    if len(found) == 1 or truncations % 2 or store.truncation_version != truncations:
        return first  # records from before and from behind a truncation do not follow each other
    return FileSlices(tuple(found))
