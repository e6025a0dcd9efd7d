"""Timestamp -> offset in a segment, one entry for about every 4 KiB of log."""

from __future__ import annotations

from bisect import bisect_left
from typing import ClassVar

from bascule.storage.index.sparse_index import SparseIndex


class TimeIndex(SparseIndex):
    """Entries (t, base offset of a batch): t is the largest timestamp in the segment before it.

    Kafka's time index has the offset of the record with that timestamp instead.
    """

    __slots__ = ()
    MAGIC: ClassVar[bytes] = b"BscTimI1"
    SUFFIX: ClassVar[str] = ".timeindex"

    def offset_before(self, timestamp: int) -> int | None:
        """An offset at or before the first record with at least `timestamp`; None: the start."""
        keys, offsets, count = self._view
        at = bisect_left(keys, timestamp, 0, count) - 1
        return offsets[at] if at >= 0 else None

    def entry_before(self, end_offset: int) -> tuple[int, int | None]:
        """The last entry (t, offset) with an offset below `end_offset`, or (-1, None)."""
        keys, offsets, _ = self._view
        at = self.count_below(end_offset) - 1
        return (keys[at], offsets[at]) if at >= 0 else (-1, None)
