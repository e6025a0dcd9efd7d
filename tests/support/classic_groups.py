"""A classic group under manual time: requests go in, and answers are looked up by ticket."""

from __future__ import annotations

from typing import Any

from bascule.groups.classic import (
    ClassicGroup,
    GroupAnswer,
    GroupLimits,
    GroupSnapshot,
    JoinAnswer,
    JoinRequest,
    Store,
    SyncAnswer,
)
from bascule.wire.error_codes import ErrorCode

SESSION_MS = 10_000
REBALANCE_MS = 60_000
RANGE = (("range", b"flights"),)


class GroupDriver:
    """Stores at once, unless `holds_stores`."""

    def __init__(self, *, initial_delay_ms: int = 0, **limits: int) -> None:
        self.limits = GroupLimits(initial_delay_ms=initial_delay_ms, **limits)
        self.group = ClassicGroup(self.limits)
        self.now_ms = 1_000
        self.holds_stores = False
        self.held: list[Store] = []
        self.stored: GroupSnapshot | None = None
        self.answers: dict[int, JoinAnswer | SyncAnswer] = {}
        self._tickets = 0

    def ticket(self) -> int:
        self._tickets += 1
        return self._tickets

    def join(self, member_id: str = "", *, new: str = "", version: int = 3, **fields: Any) -> int:
        """Ticket of a join; by default of a client that is not required to know its id."""
        ticket = self.ticket()
        request: dict[str, Any] = {
            "instance_id": None,
            "session_timeout_ms": SESSION_MS,
            "rebalance_timeout_ms": REBALANCE_MS,
            "protocol_type": "consumer",
            "protocols": RANGE,
            "new_member_id": new or f"new-{ticket}",
            "knows_required_ids": version >= 4,
            "may_skip_assignment": version >= 9,
        }
        join = JoinRequest(member_id, **{**request, **fields})
        self.group.on_join(join, ticket, self.now_ms)
        self.carry_out()
        return ticket

    def sync(
        self, member_id: str, generation: int, instance_id: str | None = None, **fields: Any
    ) -> int:
        """Ticket of a sync. The leader brings an assignment for each member: its id."""
        ticket = self.ticket()
        brought = [(each, each.encode()) for each in self.group.members]
        self.group.on_sync(
            member_id,
            instance_id,
            generation,
            fields.pop("assignments", brought),
            ticket,
            self.now_ms,
            **fields,
        )
        self.carry_out()
        return ticket

    def joined(self, ticket: int) -> JoinAnswer:
        answer = self.answers[ticket]
        assert isinstance(answer, JoinAnswer)
        return answer

    def synced(self, ticket: int) -> SyncAnswer:
        answer = self.answers[ticket]
        assert isinstance(answer, SyncAnswer)
        return answer

    def heartbeat(
        self, member_id: str, generation: int, instance_id: str | None = None
    ) -> ErrorCode:
        return self.group.on_heartbeat(member_id, instance_id, generation, self.now_ms)

    def commit(self, member_id: str, generation: int, instance_id: str | None = None) -> ErrorCode:
        return self.group.on_commit(member_id, instance_id, generation, self.now_ms)

    def leave(self, *leaving: tuple[str, str | None]) -> list[ErrorCode]:
        errors = self.group.on_leave(leaving, self.now_ms)
        self.carry_out()
        return errors

    def disconnect(self, ticket: int) -> None:
        self.group.on_disconnect(ticket, self.now_ms)
        self.carry_out()

    def carry_out(self) -> None:
        for effect in self.group.take_effects():
            if isinstance(effect, GroupAnswer):
                assert effect.ticket not in self.answers, "answered twice"
                self.answers[effect.ticket] = effect.answer
            else:
                self.held.append(effect)
        while self.held and not self.holds_stores:
            self.finish_store()

    def finish_store(self, error: ErrorCode = ErrorCode.NONE) -> None:
        """End the oldest store."""
        store = self.held.pop(0)
        if not error:
            self.stored = store.snapshot
        self.group.on_stored(store.number, error, self.now_ms)
        self.carry_out()

    def pass_time(self, ms: int) -> None:
        """Do what is due on the way, at the times for which the group asks."""
        end_ms = self.now_ms + ms
        while (due := self.group.next_deadline_ms()) is not None and due <= end_ms:
            assert due > self.now_ms - 1, "a deadline in the past"
            self.now_ms = max(due, self.now_ms)
            self.group.on_time(self.now_ms)
            self.carry_out()
        self.now_ms = end_ms

    def stable(self, *names: str, **fields: Any) -> int:
        """Members that share a generation; the generation."""
        tickets = [self.join(new=name, **fields) for name in names]
        while not all(ticket in self.answers for ticket in tickets):
            # The first was alone in a generation; it joins again.
            for member in list(self.group.members.values()):
                if member.join_ticket is None:
                    self.join(member.member_id, protocols=member.protocols)
        for name in names:
            self.sync(name, self.group.generation)
        return self.group.generation
