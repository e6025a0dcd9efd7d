"""`SimLoop`: virtual time as a heap of events that run in an order determined by the seed.

Time is in microseconds from 0. Events of the same time run in the order in which they were
scheduled. An event is a tuple (time, number, function, first, second). The function is a bound
method made once, so that scheduling allocates only the tuple.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from itertools import count
from typing import Any, Final, TypeAlias

SECOND: Final = 1_000_000
MILLISECOND: Final = 1_000

Callback: TypeAlias = Callable[[Any, Any], None]
Event: TypeAlias = tuple[int, int, Callback, Any, Any]

_DIGEST_MASK: Final = (1 << 64) - 1
_DIGEST_FACTOR: Final = 0x100000001B3


class SimLoop:
    """The clock, and the scheduled events."""

    __slots__ = ("_heap", "_next", "digest", "events", "now")

    def __init__(self) -> None:
        self._heap: list[Event] = []
        self._next = count().__next__
        self.now = 0
        """Microseconds."""
        self.events = 0
        """Events run so far."""
        self.digest = 0xCBF29CE484222325
        """Hash of the times and numbers of all events so far. Equal runs have equal digests."""

    def after(self, delay: int, action: Callback, first: Any = None, second: Any = None) -> None:
        """Run `action(first, second)` in `delay` microseconds, 0 or more."""
        heappush(self._heap, (self.now + delay, self._next(), action, first, second))

    def at(self, when: int, action: Callback, first: Any = None, second: Any = None) -> None:
        """Run `action(first, second)` at `when`, which is not in the past."""
        heappush(self._heap, (when, self._next(), action, first, second))

    def run(self, until: int) -> None:
        """Run all events up to and including `until`; `now` is `until` then."""
        heap, events, digest = self._heap, self.events, self.digest
        try:
            while heap and heap[0][0] <= until:
                when, number, action, first, second = heappop(heap)
                self.now = when
                events += 1
                digest = ((digest ^ when ^ number) * _DIGEST_FACTOR) & _DIGEST_MASK
                action(first, second)
        finally:
            self.events, self.digest = events, digest
        self.now = until
