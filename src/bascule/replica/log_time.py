"""The time that records of a log are stamped with: the wall clock's, and never going back."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from bascule.host.api import Clock

log = logging.getLogger("bascule.replica")

CLOCK_BACK_MS_MAX: Final = 60_000
"""How far the wall clock may be behind the last record before the log's time leaves it.

Steps of a clock that is kept by NTP are far smaller. Until then the log's time stands still, which
delays retention and the dedupe window by as much at most.
"""


class LogTime:
    """The time of one log. Pure.

    Timestamps in a log never decrease, since lookups by time rely on it. So when the wall clock was
    ahead once, records of that time are ahead for good. Standing still until the wall clock gets
    there would stop retention by age and the dedupe window for just as long. Instead the log's time
    continues from its last record at the pace of the wall clock.
    """

    __slots__ = ("ahead_ms",)

    def __init__(self) -> None:
        self.ahead_ms = 0
        """By how much the log's time is ahead of the wall clock; 0 while it follows the clock."""

    def now_ms(self, wall_ms: int, last_ms: int) -> int:
        """The log's time at `wall_ms`, with `last_ms` the timestamp of the last record or -1.

        At least `last_ms`.
        """
        if last_ms <= wall_ms + CLOCK_BACK_MS_MAX:
            self.ahead_ms = 0
        elif wall_ms + self.ahead_ms + CLOCK_BACK_MS_MAX < last_ms:
            self.ahead_ms = last_ms - wall_ms
        return max(wall_ms + self.ahead_ms, last_ms)


class LogClock:
    """The `LogTime` of one partition on the wall clock. What the clock does is logged."""

    __slots__ = ("_clock", "_partition", "_stream", "_time", "not_before_ms")

    def __init__(self, stream: str, partition: int, clock: Clock) -> None:
        self._stream = stream
        self._partition = partition
        self._clock = clock
        self._time = LogTime()
        self.not_before_ms: Callable[[], int] | None = None
        """A time that records of now are not to be before, by the clocks of other nodes. The log's
        time goes on from it, as from a last record."""

    @property
    def ahead_ms(self) -> int:
        """By how much the log's time was ahead of the wall clock when it was read last."""
        return self._time.ahead_ms

    def now_ms(self, last_ms: int) -> int:
        """The log's time, with `last_ms` the timestamp of its last record or -1."""
        wall_ms = self._clock.now_ms()
        if self.not_before_ms is not None:
            last_ms = max(last_ms, self.not_before_ms())
        if last_ms <= wall_ms and not self._time.ahead_ms:
            return wall_ms
        was_ahead = self._time.ahead_ms > 0
        now_ms = self._time.now_ms(wall_ms, last_ms)
        if was_ahead != (self._time.ahead_ms > 0):
            self._note(is_behind=not was_ahead)
        return now_ms

    def _note(self, *, is_behind: bool) -> None:
        name, index = self._stream, self._partition
        if is_behind:
            log.warning(
                "clock is behind the last record; the log's time goes on from it",
                extra={"stream": name, "partition": index, "ahead_ms": self._time.ahead_ms},
            )
        else:
            log.info(
                "clock has reached the time of the log", extra={"stream": name, "partition": index}
            )
