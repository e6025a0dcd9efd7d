"""What takes up the places of a node, and which one gives its place to a new one."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator
from typing import Final, Generic, TypeVar

from bascule.datastream.inbound import InboundConnection
from bascule.datastream.limits import DataStreamCounts, DataStreamLimits
from bascule.datastream.session import Key, Session
from bascule.errors import Broken
from bascule.host.api import Clock
from bascule.wire.datastream.frames import SMALL_FRAME_BYTES_MAX

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


class PayloadAdmission:
    """The connections of a node and the payloads that it receives: how many, and how much memory
    their requests take. Belongs to the thread of the reactor."""

    def __init__(
        self,
        clock: Clock,
        limits: DataStreamLimits,
        counts: DataStreamCounts,
        loading: Container[Key],
    ) -> None:
        """`loading` are the payloads whose part is read from the disk."""
        self._limits = limits
        self._counts = counts
        self._loading = loading
        self.connections: Occupants[InboundConnection] = Occupants(
            clock, lambda each: each.may_yield
        )
        self.sessions: Occupants[Session] = Occupants(clock, self._may_yield)

    def _may_yield(self, session: Session) -> bool:
        return session.waits_for_sender and session.key not in self._loading

    def may_end(self, session: Session) -> bool:
        """Whether nobody sends a payload, and neither its part is read nor its file is finished."""
        is_busy = session.is_being_finished or session.key in self._loading
        return session.is_detached and not is_busy

    def on_look(self) -> None:
        """Called every few seconds."""
        self.connections.on_look()
        self.sessions.on_look()

    def admits_connection(self) -> bool:
        """Whether there is room for one more, if need be by another one that gives way."""
        if len(self.connections) < self._limits.connections_max:
            return True
        connection = self.connections.next_to_yield()
        if connection is not None:
            self._counts.gave_way += 1
            connection.give_way()
        return connection is not None

    def admit_session(self) -> None:
        """Make room for a payload that somebody sends now, if need be by another one that gives
        way: one without a sender first. What was received of it stays in its file, and its sender
        may go on with that. Raises: Broken."""
        if len(self.sessions) < self._limits.sessions_max:
            return
        detached = [each for each in self.sessions if self.may_end(each)]
        if detached:
            min(detached, key=lambda each: each.used_at_ns).end()
            return
        session = self.sessions.next_to_yield()
        if session is None:
            raise Broken(f"this node receives {len(self.sessions)} payloads already")
        self._counts.gave_way += 1
        session.fail(Broken("the node has too many payloads, and too little came of this one"))

    def hold_opening(self, session: Session, count: int) -> None:
        """Count what the opening of a payload takes of the memory. Raises: Broken."""
        self.sessions.hold(session, 0)
        if count > SMALL_FRAME_BYTES_MAX:
            self._make_memory(count)
            self.sessions.hold(session, count)

    def hold_request(self, connection: InboundConnection, count: int) -> None:
        """Count a request that has come in part; 0: none has. Raises: Broken."""
        self.connections.hold(connection, 0)
        if count:
            self._make_memory(count)
            self.connections.hold(connection, count)

    def _make_memory(self, count: int) -> None:
        """Have those give way that hold memory, until it is enough. Raises: Broken."""
        most = self._limits.requests_bytes_max
        while self.connections.held + self.sessions.held + count > most:
            if (connection := self.connections.next_to_yield(holding=True)) is not None:
                connection.give_way()
            elif (session := self.sessions.next_to_yield(holding=True)) is not None:
                session.fail(Broken("the node has too many large requests"))
            else:
                raise Broken("this node has too many large requests already")
            self._counts.gave_way += 1
