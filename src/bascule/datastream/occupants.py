"""What takes up the places of a node, and which one gives its place to a new one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, Generic, TypeVar

from bascule.host.api import Clock

YIELD_SECONDS: Final = 1.0
"""One that was silent for so long gives way to a new one."""
SLOW_BYTES_PER_S: Final = 64 << 10
"""So does the slowest one, if it gets less: whoever keeps all places has to move more than that."""
OccupantT = TypeVar("OccupantT")


class _Use:
    __slots__ = ("bytes", "held", "looks", "used_ns")

    def __init__(self, now_ns: int) -> None:
        self.used_ns = now_ns
        self.bytes = 0
        self.held = 0
        self.looks = ((now_ns, 0),) * 2
        """When it was looked at the last two times, and how many bytes it had moved by then."""


class Occupants(Generic[OccupantT]):
    """Those of one kind, the longest silent one first: only bytes of payloads count as use, so that
    nothing keeps a place by requests alone. Belongs to the thread of the reactor."""

    def __init__(self, clock: Clock, may_yield: Callable[[OccupantT], bool]) -> None:
        """`may_yield` is false for those that wait for this node, or for other nodes."""
        self._clock = clock
        self._may_yield = may_yield
        self._uses: dict[OccupantT, _Use] = {}
        self.held = 0
        """Bytes of memory that all of them hold."""

    def __len__(self) -> int:
        return len(self._uses)

    def __iter__(self) -> Iterator[OccupantT]:
        return iter(tuple(self._uses))

    def add(self, occupant: OccupantT) -> None:
        """One has come."""
        self._uses[occupant] = _Use(self._clock.monotonic_ns())

    def remove(self, occupant: OccupantT) -> None:
        """One has gone, if it was there. It holds nothing any more."""
        use = self._uses.pop(occupant, None)
        if use is not None:
            self.held -= use.held

    def on_bytes(self, occupant: OccupantT, count: int) -> None:
        """So many new bytes of a payload were moved."""
        use = self._uses.pop(occupant, None)
        if use is not None:
            use.used_ns, use.bytes = self._clock.monotonic_ns(), use.bytes + count
            self._uses[occupant] = use

    def hold(self, occupant: OccupantT, count: int) -> None:
        """It holds so many bytes of memory from now on, instead of those before."""
        use = self._uses.get(occupant)
        if use is not None:
            self.held += count - use.held
            use.held = count

    def on_look(self) -> None:
        """Called every few seconds: rates are those since the look before the last one."""
        now_ns = self._clock.monotonic_ns()
        for use in self._uses.values():
            use.looks = use.looks[1], (now_ns, use.bytes)

    def next_to_yield(self, *, holding: bool = False) -> OccupantT | None:
        """The one that was silent the longest, else the slowest one, of those that may give way;
        None if there is none. `holding`: of those that hold memory."""
        now_ns = self._clock.monotonic_ns()
        for occupant, use in self._uses.items():
            if now_ns - use.used_ns < YIELD_SECONDS * 1e9:
                break
            if (use.held or not holding) and self._may_yield(occupant):
                return occupant
        found, least = None, float(SLOW_BYTES_PER_S)
        for occupant, use in self._uses.items():
            (began_ns, before), _ = use.looks
            since_ns = now_ns - began_ns
            if since_ns < YIELD_SECONDS * 1e9 or (holding and not use.held):
                continue
            rate = (use.bytes - before) * 1e9 / since_ns
            if rate < least and self._may_yield(occupant):
                found, least = occupant, rate
        return found
