"""Limits what a node sends to replicas that are not in sync, so that those in sync keep up.

An operator's limit holds for all of them. Without one, a *move* of a partition yields to messages:
all replicas that the partition is to have are in sync meanwhile, so it is in no hurry. It has no
limit while the replicas in sync get nothing new. Otherwise it gets `MOVE_RATE_MIN`, or twice what
the replicas in sync get if that is more, so that it ends whatever is published.

A bucket of tokens, one for each byte: it fills at the rate, up to what comes in `BURST_SECONDS`. A
batch that is larger than what is in it leaves a debt. The rate may change at any time.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final

from bascule.host.api import Clock

BURST_SECONDS: Final = 0.05
"""Larger pieces would hold up the records of replicas in sync that share the connection."""
WAIT_SECONDS_MIN: Final = 0.01
WAIT_SECONDS_MAX: Final = 1.0
"""The rate may be another one by then."""
MOVE_RATE_MIN: Final = 40_000_000
"""Bytes a second: publish-to-ack p99 is 1.36 of what it is without a move (`bench
cluster_reassign`), on two cores that four nodes share."""
LOAD_NS: Final = 1_000_000_000
"""What the replicas in sync get is counted in windows of this length."""


class CatchUpThrottle:
    """Records leave from the event loop, payloads from a thread of their own: any may call it."""

    def __init__(self, rate: Callable[[], int], clock: Clock) -> None:
        """`rate` is the operator's limit in bytes a second; 0: there is none."""
        self._rate = rate
        self._clock = clock
        self._lock = threading.RLock()
        self._tokens = 0.0
        self._filled_ns = clock.monotonic_ns()
        self._window = 0
        """The number of the window that is counted."""
        self._sent = 0
        """Bytes for replicas in sync in it."""
        self._sent_before = 0
        """And in the window before."""

    def note_in_sync(self, count: int) -> None:
        """So many bytes are sent to a replica in sync."""
        with self._lock:
            self._count_load()
            self._sent += count

    def admit(self, count: int, *, is_move: bool) -> float:
        """For how many seconds a piece of `count` bytes has to wait; 0: it counts as sent."""
        with self._lock:
            if not self.allowed(count, is_move=is_move):
                return self.wait_seconds(is_move=is_move)
            self.spend(count, is_move=is_move)
            return 0.0

    def limit(self, *, is_move: bool) -> int:
        """Bytes a second at present; 0: no limit."""
        if (rate := self._rate()) or not is_move:
            return rate
        with self._lock:
            self._count_load()
            load = max(self._sent, self._sent_before)
        return max(MOVE_RATE_MIN, 2 * load) if load else 0

    def allowed(self, asked: int, *, is_move: bool) -> int:
        """How many of `asked` bytes may be sent now."""
        rate = self.limit(is_move=is_move)
        if not rate:
            return asked
        with self._lock:
            now = self._clock.monotonic_ns()
            since = (now - self._filled_ns) / 1e9
            self._filled_ns = now
            self._tokens = min(self._tokens + since * rate, self._burst(rate))
            return min(asked, int(self._tokens)) if self._tokens >= 1 else 0

    def is_spent(self, *, is_move: bool) -> bool:
        """Whether there is a limit, and it is reached."""
        return bool(self.limit(is_move=is_move)) and self._tokens < 1

    def spend(self, count: int, *, is_move: bool) -> None:
        """So many bytes are sent."""
        with self._lock:
            if self.limit(is_move=is_move):
                self._tokens -= count
            elif not self._rate():
                self._tokens = 0.0

    def wait_seconds(self, *, is_move: bool) -> float:
        """How long until a whole burst may be sent: of smaller pieces more is sent twice."""
        rate = self.limit(is_move=is_move) or 1
        return min(
            max((self._burst(rate) - self._tokens) / rate, WAIT_SECONDS_MIN), WAIT_SECONDS_MAX
        )

    def _count_load(self) -> None:
        window = self._clock.monotonic_ns() // LOAD_NS
        if window != self._window:
            self._sent_before = self._sent if window == self._window + 1 else 0
            self._window, self._sent = window, 0

    @staticmethod
    def _burst(rate: int) -> float:
        return max(BURST_SECONDS * rate, 1.0)
