"""Histograms of sizes and durations, in buckets whose bounds grow by four."""

from __future__ import annotations

from typing import Final, NamedTuple

GROWTH_BITS: Final = 2
"""Each bound is four times the one before: ten buckets span six orders of magnitude."""


class Scale(NamedTuple):
    """The bounds of a histogram: `first`, 4 * `first`, 16 * `first` and so on, then infinity.

    `first` is a power of two, so that the number of bits of a value gives its bucket.
    """

    first: int
    buckets: int

    def bounds(self) -> list[int]:
        """Inclusive upper bounds of all buckets except the last, which has none."""
        return [self.first << (GROWTH_BITS * index) for index in range(self.buckets - 1)]


SECONDS: Final = Scale(first=1 << 16, buckets=11)
"""In nanoseconds: 66 us, 262 us, 1 ms, 4 ms, 17 ms, 67 ms, 0.27 s, 1.1 s, 4.3 s, 17 s."""
BYTES: Final = Scale(first=1 << 8, buckets=9)
"""256 B, 1 KiB, 4 KiB, 16 KiB, 64 KiB, 256 KiB, 1 MiB, 4 MiB."""
COUNTS: Final = Scale(first=1, buckets=10)
"""1, 4, 16, 64, 256, 1024, 4096, 16384, 65536."""


class Histogram:
    """Values in buckets, and their sum. One thread at a time observes; any thread may read.

    A concurrent read may see the new bucket count without the new sum.
    """

    __slots__ = ("_shift", "counts", "scale", "total")

    def __init__(self, scale: Scale) -> None:
        self.scale = scale
        self.counts = [0] * scale.buckets
        self.total = 0
        self._shift = scale.first.bit_length() - 1

    def observe(self, value: int) -> None:
        """Count one value of at least 0, in the scale's unit."""
        above = ((value - 1) >> self._shift).bit_length() if value > 0 else 0
        index = (above + 1) >> 1
        self.counts[index if index < len(self.counts) else -1] += 1
        self.total += value

    @property
    def count(self) -> int:
        return sum(self.counts)
