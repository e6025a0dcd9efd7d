"""Digests of ranges of one log, and their comparison."""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from typing import Final, NamedTuple

from bascule.storage import _hot

WIDTH_MIN: Final = 1_024
RANGES_MAX: Final = 4_096
"""Ranges of one log; with more they become twice as wide. They take 16 bytes each."""


@dataclass(frozen=True, slots=True)
class DigestedRanges:
    """The digests of a log, which nobody changes."""

    width: int
    """Offsets of a range, a power of two."""
    first: int
    """Number of the first range: its first offset divided by `width`."""
    limit: int
    """Batches up to this offset are in the digests."""
    sums: array[int]
    """Of type Q."""
    covered: array[int]
    """Of type q. How many offsets of each range have a record that compaction has not touched."""

    @property
    def bytes(self) -> int:
        """Memory of the digests."""
        return 16 * len(self.sums)

    def widened(self, width: int) -> DigestedRanges:
        """The same digests of larger ranges."""
        found = self
        while found.width < width:
            start, count = found.first // 2, (found.first % 2 + len(found.sums) + 1) // 2
            sums, covered = array("Q", bytes(8 * count)), array("q", bytes(8 * count))
            for row, (total, offsets) in enumerate(zip(found.sums, found.covered, strict=True)):
                to = (found.first + row) // 2 - start
                sums[to] = (sums[to] + total) & 0xFFFF_FFFF_FFFF_FFFF
                covered[to] += offsets
            found = DigestedRanges(2 * found.width, start, found.limit, sums, covered)
        return found

    def whole(self) -> dict[int, tuple[int, int]]:
        """Number of each whole range -> its end and its digest. The last one ends at `limit`."""
        found = {}
        for row, (total, offsets) in enumerate(zip(self.sums, self.covered, strict=True)):
            number = self.first + row
            end = min((number + 1) * self.width, self.limit)
            if offsets and offsets == end - number * self.width:
                found[number] = end, total
        return found


class RangeDigests:
    """Adds batches of a log, in order, to the digests of ranges."""

    def __init__(self, start: int, limit: int) -> None:
        """`start` is the first offset, `limit` the end of what is digested."""
        self._width, self._limit = WIDTH_MIN, limit
        self._first = start // WIDTH_MIN
        self._sums = array("Q", bytes(8 * RANGES_MAX))
        self._covered = array("q", bytes(8 * RANGES_MAX))
        self._used = 0
        self._next = start
        self.records = 0
        """Of all batches that were added, also beyond the limit."""

    def add(self, data: memoryview) -> None:
        """Add whole batches, back to back; of the last one the header is enough."""
        state = array("q", (0, self._next, 0))
        while (
            _hot.digest_batches(
                data, self._width, self._first, self._limit, self._sums, self._covered, state
            )
            < 0
        ):
            self._widen()
        self._next = state[1]
        self.records += state[2]

    def _widen(self) -> None:
        wider = self._read().widened(2 * self._width)
        self._width, self._first = wider.width, wider.first
        room = array("Q", bytes(8 * (RANGES_MAX - len(wider.sums))))
        self._sums = wider.sums + room
        self._covered = wider.covered + array("q", room.tobytes())

    def _read(self) -> DigestedRanges:
        return DigestedRanges(self._width, self._first, self._limit, self._sums, self._covered)

    def ranges(self) -> DigestedRanges:
        """The digests of what was added."""
        found = self._read()
        end = min(self._next, self._limit)
        used = max(-(-end // found.width) - found.first, 0)
        return DigestedRanges(
            found.width, found.first, end, found.sums[:used], found.covered[:used]
        )


class Comparison(NamedTuple):
    """What a comparison of two logs has found."""

    compared: int
    """Offsets in ranges that are whole in both."""
    differing: tuple[tuple[int, int], ...]
    """Start and end of each range whose digests differ."""


def compare(one: DigestedRanges, other: DigestedRanges) -> Comparison:
    """Compare the ranges that are whole in both logs."""
    width = max(one.width, other.width)
    found = one.widened(width).whole()
    compared, differing = 0, []
    for number, (end, total) in other.widened(width).whole().items():
        if number in found and found[number][0] == end:
            compared += end - number * width
            if found[number][1] != total:
                differing.append((number * width, end))
    return Comparison(compared, tuple(differing))
