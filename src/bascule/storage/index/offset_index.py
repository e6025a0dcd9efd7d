"""Offset -> position of a batch in a segment, one entry for about every 4 KiB of log."""

from __future__ import annotations

from bisect import bisect_right
from typing import ClassVar

from bascule.storage.index.sparse_index import SparseIndex


class OffsetIndex(SparseIndex):
    """Entries (base offset of a batch, its position).

    The batch that contains an offset starts less than an index interval after the last entry at or
    below that offset. So one small read finds it.
    """

    __slots__ = ()
    MAGIC: ClassVar[bytes] = b"BscOffI1"
    SUFFIX: ClassVar[str] = ".index"

    def entry_at(self, offset: int) -> tuple[int, bool]:
        """The position to search for `offset` from, and whether a batch begins there with it."""
        keys, values, count = self._view
        at = bisect_right(keys, offset, 0, count) - 1
        return (values[at], keys[at] == offset) if at >= 0 else (0, False)

    def entry_after(self, position: int) -> int | None:
        """The position of the first entry above `position`, which is a batch boundary."""
        _, values, count = self._view
        at = self.count_below(position + 1)
        return values[at] if at < count else None

    def last_entry_within(self, start: int, end: int) -> int | None:
        """The position of the last entry above `start` and not above `end`, None without one."""
        _, values, count = self._view
        at = self.count_below(end + 1) - 1
        return values[at] if 0 <= at < count and values[at] > start else None

    def last_at(self, position: int) -> tuple[int, int] | None:
        """(base offset, position) of the last entry at or below `position`, None without one."""
        keys, values, count = self._view
        at = self.count_below(position + 1) - 1
        return (keys[at], values[at]) if 0 <= at < count else None

    def key_of(self, position: int) -> int | None:
        """The base offset of the batch at `position`, None if that batch has no entry."""
        keys, values, count = self._view
        at = self.count_below(position)
        return keys[at] if at < count and values[at] == position else None
