"""Timestamp -> offset in a segment, one entry for about every 4 KiB of log."""

from __future__ import annotations

from bisect import bisect_left
from typing import ClassVar

from bascule.storage.index.sparse_index import SparseIndex


class TimeIndex(SparseIndex):
    """Entries (t, base offset of a batch): no record of this segment before the batch is above t.

    Kafka keeps the same pairs, with the offset of the record that brought the timestamp.
    """

    __slots__ = ()
    MAGIC: ClassVar[bytes] = b"BscTimI1"
    SUFFIX: ClassVar[str] = ".timeindex"

    def offset_before(self, timestamp: int) -> int | None:
        """An offset at or before the first record of at least `timestamp`; None: the beginning."""
        keys, offsets, count = self._view
        at = bisect_left(keys, timestamp, 0, count) - 1
        return offsets[at] if at >= 0 else None

    def entry_before(self, end_offset: int) -> tuple[int, int | None]:
        """The last entry (t, offset) whose offset is below `end_offset`, else (-1, None)."""
        keys, offsets, _ = self._view
        at = self.count_below(end_offset) - 1
        return (keys[at], offsets[at]) if at >= 0 else (-1, None)
