"""A clock that a test sets ahead, for the time-outs of data streaming."""

from __future__ import annotations

from bascule.host.real import RealClock
from support.payload_nodes import PayloadNode


class ShiftedClock(RealClock):
    """The real one, and what a test adds."""

    def __init__(self) -> None:
        super().__init__()
        self.ahead_ns = 0

    def monotonic_ns(self) -> int:
        return super().monotonic_ns() + self.ahead_ns


def advance(clock: ShiftedClock, node: PayloadNode, seconds: float) -> None:
    """Set the clock ahead, and have the node look at its timers."""
    clock.ahead_ns += int(seconds * 1e9)
    node.streams._reactor.call(lambda: None)
