"""`Ticker`: turns the time of a monotonic clock into ticks of `MultiRaft`."""

from __future__ import annotations

import math
from collections.abc import Callable

from bascule.host.api import Clock


class Ticker:
    """Passes ticks to `on_ticks`. Ticks that are late are passed together."""

    __slots__ = ("_clock", "_counted_ns", "_on_ticks", "_tick_ns", "ticks")

    def __init__(self, clock: Clock, tick_ms: int, on_ticks: Callable[[int], None]) -> None:
        self._clock = clock
        self._tick_ns = tick_ms * 1_000_000
        self._on_ticks = on_ticks
        self._counted_ns = clock.monotonic_ns()
        """The time up to which ticks were passed."""
        self.ticks = 0
        """Ticks passed since the start."""

    def restart(self) -> None:
        """Count time from now on."""
        self._counted_ns = self._clock.monotonic_ns()

    def advance(self) -> None:
        """Pass the ticks since the last call."""
        ticks = (self._clock.monotonic_ns() - self._counted_ns) // self._tick_ns
        if ticks > 0:
            self._counted_ns += ticks * self._tick_ns
            self.ticks += ticks
            self._on_ticks(ticks)

    def seconds_to_next(self) -> float:
        left_ns = self._counted_ns + self._tick_ns - self._clock.monotonic_ns()
        return max(left_ns, 0) / 1e9

    def ticks_for(self, seconds: float) -> int:
        """The number of ticks that take at least `seconds`."""
        return math.ceil(seconds * 1e9 / self._tick_ns) + 1
