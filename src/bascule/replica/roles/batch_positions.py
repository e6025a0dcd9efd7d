"""The byte position of an offset in a log."""

from __future__ import annotations

from typing import Final

from bascule.storage.compaction.replacement_manifest import CLEANED_SUFFIX
from bascule.storage.partition_log import LogPosition, PartitionLog
from bascule.storage.segment import base_offset_of

_BASE_OFFSET_BYTES: Final = 8


def position_of(log: PartitionLog, offset: int, *, nowait: bool) -> LogPosition | None:
    """The position of the batch boundary at `offset`; at the start of its batch if it is inside.

    `offset` is limited to the log. None if `nowait` is set and the disk would have to be read.

    Raises: OffsetOutOfRange if the log was truncated meanwhile, CorruptData, LogFailed, Closed,
    OSError.
    """
    end = log.end
    offset = max(offset, log.start_offset)
    if offset >= end.offset:
        return end
    found = log.plan_read(offset, bytes_max=1, end=end, nowait=nowait)
    if found is None:
        return None
    if not found.length:
        return end  # compaction has removed the records from `offset` on
    # Compaction opens a new segment's file by the name that it has before the replacement.
    name = found.file.path.rpartition("/")[2].removesuffix(CLEANED_SUFFIX)
    base = base_offset_of(name)
    assert base is not None, f"{found.file.path} is not a segment"
    # Planning the read has just read the header, which may have left the page cache since.
    read = found.file.read_at_nowait if nowait else found.file.read_at
    data = read(found.position, _BASE_OFFSET_BYTES)
    if data is None or (nowait and len(data) < _BASE_OFFSET_BYTES):
        return None
    return LogPosition(min(offset, int.from_bytes(data, "big")), base, found.position)
