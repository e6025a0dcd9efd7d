"""The members of a classic group, with sums and indexes: no request looks at all members."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Final

from bascule.groups.classic.member import Member
from bascule.groups.classic.messages import JoinRequest

PENDING_BYTES: Final = 300
"""Of an id that was given to a client, in memory; measured: 160 bytes with an id of 40."""


class MemberTable:
    """All changes of members that the sums depend on go through its methods."""

    def __init__(self) -> None:
        self.by_id: dict[str, Member] = {}
        self.static: dict[str, str] = {}
        """Instance id -> member id of the static members."""
        self.pending: dict[str, int] = {}
        """Id that was given to a client -> when it is forgotten if the client does not join."""
        self.joins: dict[int, Member] = {}
        """Ticket of a join that waits -> its member."""
        self.syncs: dict[int, Member] = {}
        """Ticket of a sync that waits -> its member."""
        self.said_bytes = 0
        """What the members say of themselves: the sum of their `size_bytes`."""
        self.assigned_bytes = 0
        """Of their assignments."""
        self._kept_bytes = 0
        self._supporters: Counter[str] = Counter()
        """Name of a protocol -> how many members support it."""
        self._due_ms: int | None = None
        """Not later than the deadline of any member or id."""

    @property
    def kept_bytes(self) -> int:
        """What the members take in memory, and as they are stored, without assignments."""
        return self._kept_bytes + PENDING_BYTES * len(self.pending)

    @property
    def have_all_joined(self) -> bool:
        """Whether the joins of all members wait, and no id waits to be used."""
        return not self.pending and len(self.joins) == len(self.by_id)

    # -- members --------------------------------------------------------------------------------

    def add(self, member: Member) -> None:
        self.by_id[member.member_id] = member
        if member.instance_id is not None:
            self.static[member.instance_id] = member.member_id
        self._count(member, 1)
        self.watch(member)

    def remove(self, member: Member) -> None:
        """Remove a member for which nothing waits."""
        del self.by_id[member.member_id]
        if member.instance_id is not None:
            del self.static[member.instance_id]
        self._count(member, -1)

    def clear(self) -> None:
        for member in list(self.by_id.values()):
            self.remove(member)
        self.pending.clear()
        self._due_ms = None

    def update(self, member: Member, request: JoinRequest) -> None:
        """A member takes over what its join says."""
        self._count(member, -1)
        member.update(request)
        self._count(member, 1)
        self.watch(member)

    def assign(self, member: Member, assignment: bytes) -> None:
        self.assigned_bytes += len(assignment) - len(member.assignment)
        member.assignment = assignment

    def _count(self, member: Member, sign: int) -> None:
        self.said_bytes += sign * member.size_bytes
        self._kept_bytes += sign * member.kept_bytes
        self.assigned_bytes += sign * len(member.assignment)
        for name in member.protocol_names:
            self._supporters[name] += sign
            if not self._supporters[name]:
                del self._supporters[name]

    def supports_any(self, names: Iterable[str], *, without: Member | None) -> bool:
        """Whether all members but `without` support one of these protocols."""
        own = frozenset() if without is None else without.protocol_names
        others = len(self.by_id) - (without is not None)
        return any(self._supporters[name] - (name in own) == others for name in names)

    # -- requests that wait ---------------------------------------------------------------------

    def wait_join(self, member: Member, ticket: int) -> None:
        if member.join_ticket is not None:
            del self.joins[member.join_ticket]
        member.join_ticket = ticket
        self.joins[ticket] = member

    def wait_sync(self, member: Member, ticket: int) -> None:
        if member.sync_ticket is not None:
            del self.syncs[member.sync_ticket]
        member.sync_ticket = ticket
        self.syncs[ticket] = member

    def end_waiting(self, member: Member, now_ms: int | None = None) -> None:
        """Nothing waits any more for a member. With a time it was heard of then, and goes on."""
        if member.join_ticket is not None:
            del self.joins[member.join_ticket]
        if member.sync_ticket is not None:
            del self.syncs[member.sync_ticket]
        member.join_ticket = member.sync_ticket = None
        if now_ms is not None:
            member.heard_ms = now_ms
            self.watch(member)

    # -- time -----------------------------------------------------------------------------------

    def add_pending(self, member_id: str, due_ms: int) -> None:
        self.pending[member_id] = due_ms
        self._note_due(due_ms)

    def watch(self, member: Member) -> None:
        """The deadline of a member may be earlier than before."""
        due_ms = member.deadline_ms
        if due_ms is not None:
            self._note_due(due_ms)

    def _note_due(self, due_ms: int) -> None:
        if self._due_ms is None or due_ms < self._due_ms:
            self._due_ms = due_ms

    def next_deadline_ms(self) -> int | None:
        """Not later than that of any member or id; heartbeats do not change it."""
        return self._due_ms if self.by_id or self.pending else None

    def expire(self, now_ms: int) -> list[Member]:
        """The members whose sessions are over. Forgets the ids whose time is up.

        Looks at all members, once about every session.
        """
        if self._due_ms is None or now_ms < self._due_ms:
            return []
        gone, self._due_ms = [], None
        for member_id, due_ms in list(self.pending.items()):
            if due_ms <= now_ms:
                del self.pending[member_id]
            else:
                self._note_due(due_ms)
        for member in self.by_id.values():
            session_ms = member.deadline_ms
            if session_ms is not None and session_ms <= now_ms:
                gone.append(member)
            else:
                self.watch(member)
        return gone
