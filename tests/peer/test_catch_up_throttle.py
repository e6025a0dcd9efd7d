"""The limit of what replicas that are not in sync get."""

from __future__ import annotations

from bascule.peer.catch_up_throttle import (
    BURST_SECONDS,
    MOVE_RATE_MIN,
    WAIT_SECONDS_MAX,
    WAIT_SECONDS_MIN,
    CatchUpThrottle,
)
from bascule.sim.disk import SimClock


class Limited:
    """A throttle with a clock and a rate that change."""

    def __init__(self, rate: int, *, is_move: bool = False) -> None:
        self.rate = rate
        self.is_move = is_move
        self.clock = SimClock(1_000)
        self.throttle = CatchUpThrottle(lambda: self.rate, self.clock)

    def send(self, seconds: float) -> int:
        """The bytes that are sent in some time, in pieces of any size."""
        sent, end = 0, self.clock.ms + seconds * 1_000
        while self.clock.ms < end:
            if piece := self.throttle.allowed(1 << 30, is_move=self.is_move):
                self.throttle.spend(piece, is_move=self.is_move)
                sent += piece
            assert self.throttle.is_spent(is_move=self.is_move)
            wait = self.throttle.wait_seconds(is_move=self.is_move)
            assert WAIT_SECONDS_MIN <= wait <= WAIT_SECONDS_MAX
            self.clock.ms += max(round(wait * 1_000), 1)
        return sent


def test_no_more_is_sent_than_the_rate_allows() -> None:
    for rate in (10_000, 1_000_000, 20_000_000):
        sent = Limited(rate).send(10)
        assert 0.9 * 10 * rate <= sent <= 10 * rate + BURST_SECONDS * rate


def test_without_a_rate_everything_is_sent_and_the_rate_may_change() -> None:
    limited = Limited(0)
    assert limited.throttle.allowed(1 << 30, is_move=False) == 1 << 30
    limited.throttle.spend(1 << 30, is_move=False)
    assert not limited.throttle.is_spent(is_move=False)
    limited.rate = 1_000_000
    assert limited.throttle.allowed(1 << 20, is_move=False) <= BURST_SECONDS * limited.rate
    limited.send(1)
    limited.rate = 0
    assert limited.throttle.allowed(1 << 20, is_move=False) == 1 << 20


def test_a_batch_that_is_larger_leaves_a_debt() -> None:
    limited = Limited(1_000)
    limited.clock.ms += 1_000
    assert limited.throttle.allowed(1 << 20, is_move=False) > 0
    limited.throttle.spend(5_000, is_move=False)
    limited.clock.ms += 4_000
    assert limited.throttle.allowed(1 << 20, is_move=False) == 0
    assert limited.throttle.is_spent(is_move=False)
    limited.clock.ms += 1_500
    assert limited.throttle.allowed(1 << 20, is_move=False) > 0


def test_a_piece_waits_for_what_was_sent_before() -> None:
    """Of a payload, or of records: one limit holds for both."""
    limited = Limited(1_000_000)
    limited.clock.ms += 1_000
    assert limited.throttle.admit(1 << 20, is_move=False) == 0
    limited.clock.ms += 900
    assert limited.throttle.admit(1 << 20, is_move=False) > 0
    assert limited.throttle.allowed(1, is_move=False) == 0
    limited.clock.ms += 200
    assert limited.throttle.admit(1 << 20, is_move=False) == 0
    limited.rate = 0
    assert limited.throttle.admit(1 << 30, is_move=False) == 0


def test_the_smallest_rate_sends_something_at_last() -> None:
    assert Limited(1).send(20) > 0


def test_a_move_has_no_limit_while_the_replicas_in_sync_get_nothing() -> None:
    limited = Limited(0, is_move=True)
    for _ in range(5):
        assert limited.throttle.allowed(1 << 30, is_move=True) == 1 << 30
        limited.throttle.spend(1 << 30, is_move=True)
        assert not limited.throttle.is_spent(is_move=True)
        limited.clock.ms += 100
    limited.throttle.note_in_sync(1)
    assert limited.throttle.limit(is_move=True) == MOVE_RATE_MIN
    assert limited.throttle.allowed(1 << 30, is_move=True) <= BURST_SECONDS * MOVE_RATE_MIN
    limited.clock.ms += 2_000
    assert limited.throttle.allowed(1 << 30, is_move=True) == 1 << 30


def test_a_move_gets_the_least_rate_or_twice_what_the_replicas_in_sync_get() -> None:
    for load, rate in ((1_000, MOVE_RATE_MIN), (100_000_000, 200_000_000)):
        limited = Limited(0, is_move=True)
        limited.throttle.note_in_sync(load)
        sent = limited.send(0.9)
        assert 0.9 * 0.9 * rate <= sent <= 0.9 * rate + BURST_SECONDS * rate
        limited.clock.ms += 100
        assert limited.throttle.limit(is_move=True) == rate, "the window before counts"


def test_what_is_not_a_move_has_no_limit_but_an_operator_s() -> None:
    limited = Limited(0)
    limited.throttle.note_in_sync(1 << 20)
    assert limited.throttle.allowed(1 << 30, is_move=False) == 1 << 30
    limited.rate = 5_000_000_000
    for is_move in (False, True):
        assert limited.throttle.limit(is_move=is_move) == 5_000_000_000
