"""Virtual time: a heap of events, run one after another in an order that is the seed's alone.

Time is in microseconds from 0. Events of one moment run in the order in which they were asked for.
An event is a tuple (time, number, function, first, second); the function is a bound method made
once, so that asking for an event makes nothing but the tuple.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from itertools import count
from typing import Any, Final, TypeAlias

SECOND: Final = 1_000_000
MILLISECOND: Final = 1_000

OperationKind: TypeAlias = Callable[[Any, Any], None]
Event: TypeAlias = tuple[int, int, OperationKind, Any, Any]

_DIGEST_MASK: Final = (1 << 64) - 1
_DIGEST_FACTOR: Final = 0x100000001B3


class SimLoop:
    """The clock and what is to happen."""

    __slots__ = ("_heap", "_next", "digest", "events", "now")

    def __init__(self) -> None:
        self._heap: list[Event] = []
        self._next = count().__next__
        self.now = 0
        """Microseconds."""
        self.events = 0
        """Run so far."""
        self.digest = 0xCBF29CE484222325
        """Of the times and numbers of all events run so far: equal where two runs are."""

    def after(
        self, delay: int, action: OperationKind, first: Any = None, second: Any = None
    ) -> None:
        """Run `action(first, second)` in `delay` microseconds, 0 or more."""
        heappush(self._heap, (self.now + delay, self._next(), action, first, second))

    def at(self, when: int, action: OperationKind, first: Any = None, second: Any = None) -> None:
        """The same at a moment, which is not in the past."""
        heappush(self._heap, (when, self._next(), action, first, second))

    def run(self, until: int) -> None:
        """Run what is due up to and with `until`; it is `until` then."""
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
