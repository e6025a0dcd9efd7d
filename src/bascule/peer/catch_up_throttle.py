"""Limits what a node sends to replicas that are not in sync, so that those in sync keep up.

A bucket of tokens, one for each byte: it fills at the rate, up to what comes in `BURST_SECONDS`. A
batch that is larger than what is in it leaves a debt. The rate may change at any time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from bascule.host.api import Clock

BURST_SECONDS: Final = 0.05
"""Larger pieces would hold up the records of replicas in sync that share the connection."""
WAIT_SECONDS_MIN: Final = 0.01
WAIT_SECONDS_MAX: Final = 1.0
"""The rate may be another one by then."""


class CatchUpThrottle:
    """Belongs to the event loop."""

    def __init__(self, rate: Callable[[], int], clock: Clock) -> None:
        """`rate` is the present limit in bytes a second; 0: none."""
        self._rate = rate
        self._clock = clock
        self._tokens = 0.0
        self._filled_ns = clock.monotonic_ns()

    def allowed(self, asked: int) -> int:
        """How many of `asked` bytes may be sent now."""
        rate = self._rate()
        if not rate:
            self._tokens = 0.0
            return asked
        now = self._clock.monotonic_ns()
        since = (now - self._filled_ns) / 1e9
        self._filled_ns = now
        self._tokens = min(self._tokens + since * rate, self._burst(rate))
        return min(asked, int(self._tokens)) if self._tokens >= 1 else 0

    @property
    def is_spent(self) -> bool:
        """Whether there is a limit, and it is reached."""
        return bool(self._rate()) and self._tokens < 1

    def spend(self, count: int) -> None:
        """So many bytes are sent."""
        if self._rate():
            self._tokens -= count

    @property
    def wait_seconds(self) -> float:
        """How long until a whole burst may be sent: of smaller pieces more is sent twice."""
        rate = self._rate() or 1
        return min(
            max((self._burst(rate) - self._tokens) / rate, WAIT_SECONDS_MIN), WAIT_SECONDS_MAX
        )

    @staticmethod
    def _burst(rate: int) -> float:
        return max(BURST_SECONDS * rate, 1.0)
