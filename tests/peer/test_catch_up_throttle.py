"""The limit of what replicas that are not in sync get."""

from __future__ import annotations

from bascule.peer.catch_up_throttle import (
    BURST_SECONDS,
    WAIT_SECONDS_MAX,
    WAIT_SECONDS_MIN,
    CatchUpThrottle,
)
from bascule.sim.disk import SimClock


class Limited:
    """A throttle with a clock and a rate that change."""

    def __init__(self, rate: int) -> None:
        self.rate = rate
        self.clock = SimClock(1_000)
        self.throttle = CatchUpThrottle(lambda: self.rate, self.clock)

    def send(self, seconds: float) -> int:
        """The bytes that are sent in some time, in pieces of any size."""
        sent, end = 0, self.clock.ms + seconds * 1_000
        while self.clock.ms < end:
            if piece := self.throttle.allowed(1 << 20):
                self.throttle.spend(piece)
                sent += piece
            assert self.throttle.is_spent
            wait = self.throttle.wait_seconds
            assert WAIT_SECONDS_MIN <= wait <= WAIT_SECONDS_MAX
            self.clock.ms += max(round(wait * 1_000), 1)
        return sent


def test_no_more_is_sent_than_the_rate_allows() -> None:
    for rate in (10_000, 1_000_000, 20_000_000):
        sent = Limited(rate).send(10)
        assert 0.9 * 10 * rate <= sent <= 10 * rate + BURST_SECONDS * rate


def test_without_a_rate_everything_is_sent_and_the_rate_may_change() -> None:
    limited = Limited(0)
    assert limited.throttle.allowed(1 << 30) == 1 << 30
    limited.throttle.spend(1 << 30)
    assert not limited.throttle.is_spent
    limited.rate = 1_000_000
    assert limited.throttle.allowed(1 << 20) <= BURST_SECONDS * limited.rate
    limited.send(1)
    limited.rate = 0
    assert limited.throttle.allowed(1 << 20) == 1 << 20


def test_a_batch_that_is_larger_leaves_a_debt() -> None:
    limited = Limited(1_000)
    limited.clock.ms += 1_000
    assert limited.throttle.allowed(1 << 20) > 0
    limited.throttle.spend(5_000)
    limited.clock.ms += 4_000
    assert limited.throttle.allowed(1 << 20) == 0
    assert limited.throttle.is_spent
    limited.clock.ms += 1_500
    assert limited.throttle.allowed(1 << 20) > 0


def test_the_smallest_rate_sends_something_at_last() -> None:
    assert Limited(1).send(20) > 0
