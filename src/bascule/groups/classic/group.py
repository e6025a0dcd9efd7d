"""The state machine of one classic group."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from bascule.groups.classic.member import (
    Member,
    choose_protocol,
    joining_bytes,
    new_member,
    protocols_bytes,
    restored_member,
    stored_twice_bytes,
)
from bascule.groups.classic.member_table import MemberTable
from bascule.groups.classic.messages import (
    Effect,
    GroupAnswer,
    GroupLimits,
    GroupState,
    JoinAnswer,
    JoinRequest,
    Store,
    SyncAnswer,
)
from bascule.groups.classic.snapshot import GroupSnapshot
from bascule.wire.error_codes import ErrorCode

RETRY_MS: Final = 1_000


class ClassicGroup:
    """See the package. Take the effects after each call; times are in milliseconds."""

    def __init__(self, limits: GroupLimits) -> None:
        self.state = GroupState.EMPTY
        self.generation = 0
        """Of the last generation that began."""
        self.protocol_type: str | None = None
        """Of all members; None without members."""
        self.protocol: str | None = None
        """Of the present generation."""
        self.leader: str | None = None
        self.rebalances = 0
        """Rebalances that began."""
        self.expired = 0
        """Members removed because their time was up."""
        self._limits = limits
        self._table = MemberTable()
        self._members, self._static = self._table.by_id, self._table.static
        self._effects: list[Effect] = []
        self._deadline_ms: int | None = None
        """When the joins, or the syncs, of the present rebalance must have come."""
        self._extension_ms: int | None = None
        """By how much the initial delay may still grow; None: no initial delay runs."""
        self._has_grown = False
        """Whether a member has joined since the initial delay began or was extended."""
        self._store_number = 0
        """Of the last `Store`."""
        self._storing: int | None = None
        """The `Store` that holds the assignments of the present generation."""
        self._assignments: dict[str, bytes] = {}
        """What is being stored for a new generation: member id -> assignment."""
        self._assigning_bytes = 0
        """Of `_assignments`."""
        self._replacements: dict[int, tuple[int, JoinAnswer]] = {}
        """Number of a `Store` -> ticket and answer of a static member that waits for it."""
        self._is_stored = False
        """Whether a record of the group may be stored: it is removed with the last member."""
        self._retry_ms: int | None = None
        """When a removal that failed is tried again."""

    @classmethod
    def restore(cls, snapshot: GroupSnapshot, limits: GroupLimits, now_ms: int) -> ClassicGroup:
        """The group as it was stored. Its members go on; their sessions begin now."""
        group = cls(limits)
        group.state = GroupState.STABLE
        group.generation = snapshot.generation
        group.protocol_type, group.protocol = snapshot.protocol_type, snapshot.protocol
        group.leader = snapshot.leader
        for member in snapshot.members:
            group._table.add(restored_member(member, now_ms))
        group._is_stored = True
        return group

    @property
    def members(self) -> Mapping[str, Member]:
        """By member id."""
        return self._members

    @property
    def kept_bytes(self) -> int:
        """What the group takes in memory and as it is stored, about."""
        table = self._table
        assigned = table.assigned_bytes + self._assigning_bytes
        return table.kept_bytes + stored_twice_bytes(assigned)

    def join_growth_bytes(self, request: JoinRequest) -> int:
        """By how much `kept_bytes` grows with a join; 0 or less for a member that says the same."""
        member_id = request.member_id or self._static.get(request.instance_id or "", "")
        member = self._members.get(member_id)
        return joining_bytes(request) - (0 if member is None else member.kept_bytes)

    def sync_growth_bytes(
        self, member_id: str, generation: int, assignments: Sequence[tuple[str, bytes]]
    ) -> tuple[int, int]:
        """By how much `kept_bytes` grows with a sync: in the end, and while it is stored."""
        if (
            self.state is not GroupState.COMPLETING_REBALANCE
            or self._storing is not None
            or (member_id, generation) != (self.leader, self.generation)
        ):
            return 0, 0
        brought = stored_twice_bytes(sum(len(each) for _, each in assignments))
        return brought - stored_twice_bytes(self._table.assigned_bytes), brought

    @property
    def is_forgettable(self) -> bool:
        """Whether the group holds nothing that a new one would not."""
        return not self._members and not self._table.pending and not self._is_stored

    def take_effects(self) -> list[Effect]:
        """What the caller has to do, in order."""
        effects, self._effects = self._effects, []
        return effects

    def next_deadline_ms(self) -> int | None:
        """When `on_time` may have something to do; a heartbeat only makes it later."""
        deadlines = (self._table.next_deadline_ms(), self._deadline_ms, self._retry_ms)
        return min((each for each in deadlines if each is not None), default=None)

    # -- joins ----------------------------------------------------------------------------------

    def on_join(self, request: JoinRequest, ticket: int, now_ms: int) -> None:
        """A member joins, or joins again. The answer may wait for the other members."""
        error = self._join_error(request)
        if error:
            self._refuse_join(ticket, error, request.member_id)
        elif request.member_id:
            self._join_with_id(request, ticket, now_ms)
        elif request.instance_id is not None and request.instance_id in self._static:
            self._replace_static(request, ticket, now_ms)
        elif request.instance_id is None and request.knows_required_ids:
            self._add_pending(request, now_ms)
            self._refuse_join(ticket, ErrorCode.MEMBER_ID_REQUIRED, request.new_member_id)
        else:
            self._add(request, request.new_member_id, ticket, now_ms)

    def _join_error(self, request: JoinRequest) -> ErrorCode:
        limits = self._limits
        if not limits.session_ms_min <= request.session_timeout_ms <= limits.session_ms_max:
            return ErrorCode.INVALID_SESSION_TIMEOUT
        if request.member_id:
            if request.member_id in self._table.pending and request.instance_id is None:
                error = ErrorCode.NONE
            else:
                error = self._member_error(request.member_id, request.instance_id)
            if error:
                return error
        if not request.protocol_type or not request.protocols:
            return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        own_id = request.member_id or self._static.get(request.instance_id or "", "")
        own = self._members.get(own_id)
        others = len(self._members) - (own is not None)
        if others and request.protocol_type != self.protocol_type:
            return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        if not self._table.supports_any((name for name, _ in request.protocols), without=own):
            return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        size = protocols_bytes(request.protocols) + self._table.said_bytes
        size -= 0 if own is None else own.size_bytes
        if others >= limits.members_max or size > limits.bytes_max:
            return ErrorCode.GROUP_MAX_SIZE_REACHED
        return ErrorCode.NONE

    def _add_pending(self, request: JoinRequest, now_ms: int) -> None:
        pending = self._table.pending
        if len(pending) >= self._limits.members_max:
            # The oldest is told that it is unknown if it joins after all, and asks for another id.
            del pending[next(iter(pending))]
        self._table.add_pending(request.new_member_id, now_ms + request.session_timeout_ms)

    def _join_with_id(self, request: JoinRequest, ticket: int, now_ms: int) -> None:
        if self._table.pending.pop(request.member_id, None) is not None:
            self._add(request, request.member_id, ticket, now_ms)
            return
        member = self._members[request.member_id]
        member.heard_ms = now_ms
        is_unchanged = member.protocols == request.protocols
        if self.state is GroupState.COMPLETING_REBALANCE and is_unchanged:
            # It has missed the answer to its join.
            self._answer(ticket, self._joined(member))
        elif self.state is GroupState.STABLE and is_unchanged and member.member_id != self.leader:
            self._answer(ticket, self._joined(member))
        else:
            self._table.update(member, request)
            self._wait_join(member, ticket, now_ms)

    def _add(self, request: JoinRequest, member_id: str, ticket: int, now_ms: int) -> None:
        member = new_member(request, member_id, now_ms)
        # Where the id was given before, the client knows it.
        member.is_known = bool(request.member_id)
        self._table.add(member)
        self.protocol_type = request.protocol_type
        self._has_grown = True
        self._wait_join(member, ticket, now_ms)

    def _wait_join(self, member: Member, ticket: int, now_ms: int) -> None:
        """Let the join wait for the others, in a rebalance that may begin now."""
        if member.join_ticket is not None:
            self._refuse_join(member.join_ticket, ErrorCode.REBALANCE_IN_PROGRESS, member.member_id)
        if self.state is not GroupState.PREPARING_REBALANCE:
            self._prepare(now_ms)  # it answers what waits, a sync of this member with it
        self._table.wait_join(member, ticket)
        self._complete_if_all_joined(now_ms)

    def _replace_static(self, request: JoinRequest, ticket: int, now_ms: int) -> None:
        """A static member has started again: it gets a new id, and the old one is fenced."""
        assert request.instance_id is not None
        old_id, new_id = self._static[request.instance_id], request.new_member_id
        member = self._members[old_id]
        self._answer_waiting(member, ErrorCode.FENCED_INSTANCE_ID)
        self._fence_replacement(old_id)
        self._table.remove(member)
        member.member_id, member.heard_ms, member.is_known = new_id, now_ms, False
        member.update(request)
        self._table.add(member)
        was_leader = self.leader == old_id
        if was_leader:
            self.leader = new_id
        if (
            self.state is not GroupState.STABLE
            or choose_protocol(list(self._members.values())) != self.protocol
        ):
            self._wait_join(member, ticket, now_ms)
            return
        answer = self._joined(member, may_skip=request.may_skip_assignment)
        if was_leader and not request.may_skip_assignment:
            # It must not take itself for the leader: it would assign, and nobody joins.
            answer = self._joined(member, may_skip=False, leader=old_id)
        self._replacements[self._store(self._present_assignments())] = ticket, answer

    def _fence_replacement(self, member_id: str) -> None:
        """Answer the join of a static member that is replaced before its state was stored."""
        for number, (ticket, answer) in list(self._replacements.items()):
            if answer.member_id == member_id:
                del self._replacements[number]
                self._refuse_join(ticket, ErrorCode.FENCED_INSTANCE_ID, member_id)

    def _joined(
        self, member: Member, *, may_skip: bool = False, leader: str | None = None
    ) -> JoinAnswer:
        """What a member is told of the present generation."""
        assert self.protocol is not None
        leads = member.member_id == self.leader and leader is None
        everyone = self._members.values() if leads else ()
        return JoinAnswer(
            generation=self.generation,
            protocol_type=self.protocol_type,
            protocol=self.protocol,
            leader=leader or self.leader or "",
            member_id=member.member_id,
            members=tuple(each.joined(self.protocol) for each in everyone),
            skip_assignment=leads and may_skip,
        )

    # -- rebalances -----------------------------------------------------------------------------

    def begin_rebalance(self, now_ms: int) -> None:
        """All members have to join again."""
        self._prepare(now_ms)

    def _prepare(self, now_ms: int) -> None:
        """Begin a rebalance: from now on joins wait, and heartbeats say that members must join."""
        begins_empty = self.state is GroupState.EMPTY
        self._answer_syncs(ErrorCode.REBALANCE_IN_PROGRESS, now_ms)
        self._end_storing()
        self.state = GroupState.PREPARING_REBALANCE
        self.rebalances += 1
        wait_ms, delay_ms = self._rebalance_ms(), self._limits.initial_delay_ms
        self._extension_ms = None
        if begins_empty and delay_ms:
            self._extension_ms, self._has_grown = max(wait_ms - delay_ms, 0), False
            wait_ms = delay_ms
        self._deadline_ms = now_ms + wait_ms

    def _rebalance_ms(self) -> int:
        return max((m.rebalance_timeout_ms for m in self._members.values()), default=0)

    def _complete_if_all_joined(self, now_ms: int) -> None:
        if (
            self.state is GroupState.PREPARING_REBALANCE
            and self._extension_ms is None
            and self._table.have_all_joined
        ):
            self._complete(now_ms)

    def _complete(self, now_ms: int) -> None:
        """Begin the next generation, without the members that have not joined.

        Static members stay until their sessions end.
        """
        for member in list(self._members.values()):
            if member.join_ticket is None and not member.is_static:
                self.expired += 1
                self._drop(member)
        joined = [m for m in self._members.values() if m.join_ticket is not None]
        if not self._members:
            self._become_empty()
            return
        self._extension_ms = None
        self._deadline_ms = now_ms + self._rebalance_ms()
        if not joined:
            return
        if self.leader not in {m.member_id for m in joined}:
            self.leader = joined[0].member_id
        self.generation += 1
        self.protocol = choose_protocol(list(self._members.values()))
        self.state = GroupState.COMPLETING_REBALANCE
        for member in self._members.values():
            # A static member that is away is not waited for.
            member.has_synced, member.earlier_generation = member.join_ticket is None, None
        for member in joined:
            assert member.join_ticket is not None
            self._answer(member.join_ticket, self._joined(member))
            self._table.end_waiting(member, now_ms)
            member.is_known = True

    def _become_empty(self) -> None:
        self.state = GroupState.EMPTY
        self.protocol_type = self.protocol = self.leader = None
        self._deadline_ms = self._extension_ms = None
        self._end_storing()
        self._remove_record()

    def _remove_record(self) -> None:
        if self._is_stored:
            self._store_number += 1
            self._effects.append(Store(self._store_number, None))

    def _drop(self, member: Member) -> None:
        """Remove a member. The caller goes on with `_after_removal`."""
        self._answer_waiting(member, ErrorCode.UNKNOWN_MEMBER_ID)
        self._table.remove(member)

    def _after_removal(self, now_ms: int) -> None:
        if not self._members:
            if self.state is not GroupState.EMPTY:
                self._become_empty()
        else:
            if self.state is not GroupState.PREPARING_REBALANCE:
                self._prepare(now_ms)
            self._complete_if_all_joined(now_ms)

    # -- syncs ----------------------------------------------------------------------------------

    def on_sync(
        self,
        member_id: str,
        instance_id: str | None,
        generation: int,
        assignments: Iterable[tuple[str, bytes]],
        ticket: int,
        now_ms: int,
        *,
        protocol_type: str | None = None,
        protocol: str | None = None,
    ) -> None:
        """A member asks for its assignment; the leader brings those of all."""
        error = self._member_error(member_id, instance_id, generation)
        if not error and self.state is GroupState.PREPARING_REBALANCE:
            error = ErrorCode.REBALANCE_IN_PROGRESS
        if not error and (
            protocol_type not in (None, self.protocol_type) or protocol not in (None, self.protocol)
        ):
            error = ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        if error:
            self._answer(ticket, SyncAnswer(error))
            return
        member = self._members[member_id]
        member.heard_ms = now_ms
        if self.state is GroupState.STABLE:
            member.has_synced = True
            self._answer(ticket, self._assigned(member))
            return
        if member_id == self.leader and self._storing is None:
            brought = dict(assignments)
            assigned = {each: brought.get(each, b"") for each in self._members}
            size = sum(len(a) for a in assigned.values())
            if size + self._table.said_bytes > self._limits.bytes_max:
                self._answer(ticket, SyncAnswer(ErrorCode.UNKNOWN_SERVER_ERROR))
                return
            self._storing = self._store(assigned)
            self._assignments, self._assigning_bytes = assigned, size
        if member.sync_ticket is not None:
            self._answer(member.sync_ticket, SyncAnswer(ErrorCode.REBALANCE_IN_PROGRESS))
        member.has_synced = True
        self._table.wait_sync(member, ticket)

    def _end_storing(self) -> None:
        """No assignments are being stored any more."""
        self._storing, self._assignments, self._assigning_bytes = None, {}, 0

    def _store(self, assignments: dict[str, bytes]) -> int:
        """Store the members with these assignments; the number of the `Store`."""
        assert self.protocol_type is not None
        assert self.protocol is not None
        self._store_number += 1
        self._is_stored = True
        snapshot = GroupSnapshot(
            generation=self.generation,
            protocol_type=self.protocol_type,
            protocol=self.protocol,
            leader=self.leader or "",
            members=tuple(m.snapshot(assignments[m.member_id]) for m in self._members.values()),
        )
        self._effects.append(Store(self._store_number, snapshot))
        return self._store_number

    def _present_assignments(self) -> dict[str, bytes]:
        return {m.member_id: m.assignment for m in self._members.values()}

    def on_stored(self, number: int, error: ErrorCode, now_ms: int) -> None:
        """The state of a `Store` is committed, or not."""
        ticket, joined = self._replacements.pop(number, (None, JoinAnswer()))
        if ticket is not None:
            answer = JoinAnswer(error, member_id=joined.member_id) if error else joined
            member = self._members.get(joined.member_id)
            if member is not None:
                member.is_known, member.heard_ms = True, now_ms
            self._answer(ticket, answer)
        if self.state is GroupState.EMPTY and number == self._store_number:
            self._is_stored = bool(error)
            self._retry_ms = now_ms + RETRY_MS if error else None
        if number != self._storing:
            return
        assignments = self._assignments
        self._end_storing()
        if error:
            self._answer_syncs(error, now_ms)
            self._prepare(now_ms)
            return
        self.state = GroupState.STABLE
        for member in self._members.values():
            self._table.assign(member, assignments[member.member_id])
            if member.sync_ticket is not None:
                self._answer(member.sync_ticket, self._assigned(member))
                self._table.end_waiting(member, now_ms)

    def _assigned(self, member: Member) -> SyncAnswer:
        return SyncAnswer(
            protocol_type=self.protocol_type,
            protocol=self.protocol,
            assignment=member.assignment,
        )

    # -- life of the members --------------------------------------------------------------------

    def on_heartbeat(
        self, member_id: str, instance_id: str | None, generation: int, now_ms: int
    ) -> ErrorCode:
        """REBALANCE_IN_PROGRESS: the member must join again."""
        error = self._member_error(member_id, instance_id, generation)
        if error:
            return error
        self._members[member_id].heard_ms = now_ms
        if self.state is GroupState.PREPARING_REBALANCE:
            return ErrorCode.REBALANCE_IN_PROGRESS
        return ErrorCode.NONE

    def on_commit(
        self, member_id: str, instance_id: str | None, generation: int, now_ms: int
    ) -> ErrorCode:
        """Whether a commit of offsets is taken. It counts as a heartbeat."""
        if not self._members:
            return ErrorCode.NONE if generation < 0 else ErrorCode.ILLEGAL_GENERATION
        error = self._member_error(member_id, instance_id, generation)
        if error:
            return error
        self._members[member_id].heard_ms = now_ms
        if self.state is GroupState.COMPLETING_REBALANCE:
            return ErrorCode.REBALANCE_IN_PROGRESS
        return ErrorCode.NONE

    def on_leave(self, leaving: Sequence[tuple[str, str | None]], now_ms: int) -> list[ErrorCode]:
        """Members leave, each named by its id, its instance id, or both; the error of each."""
        before = len(self._members)
        errors = [self._leave(member_id, instance_id) for member_id, instance_id in leaving]
        if len(self._members) < before:
            self._after_removal(now_ms)
        self._complete_if_all_joined(now_ms)
        return errors

    def _leave(self, member_id: str, instance_id: str | None) -> ErrorCode:
        if instance_id is None and self._table.pending.pop(member_id, None) is not None:
            return ErrorCode.NONE
        if instance_id is not None and not member_id:
            member_id = self._static.get(instance_id, "")
        error = self._member_error(member_id, instance_id)
        if not error:
            self._drop(self._members[member_id])
        return error

    def on_disconnect(self, ticket: int, now_ms: int) -> None:
        """The connection on which `ticket` waits is gone. Nobody can be told the answer."""
        for number, (waiting, _) in list(self._replacements.items()):
            if waiting == ticket:
                del self._replacements[number]
        joins, syncs = self._table.joins.get(ticket), self._table.syncs.get(ticket)
        if syncs is not None:
            self._table.end_waiting(syncs, now_ms)
        elif joins is not None:
            self._table.end_waiting(joins, now_ms)
            if not joins.is_known and not joins.is_static:
                # Nobody knows its id, so nobody can join with it again.
                self._drop(joins)
                self._after_removal(now_ms)

    def on_time(self, now_ms: int) -> None:
        """Do what is due: remove who has not been heard of, end what has waited long enough."""
        if self._retry_ms is not None and self._retry_ms <= now_ms:
            self._retry_ms = None
            if self.state is GroupState.EMPTY:
                self._remove_record()
        gone = self._table.expire(now_ms)
        is_due = self._deadline_ms is not None and self._deadline_ms <= now_ms
        if is_due and self.state is not GroupState.PREPARING_REBALANCE:
            self._deadline_ms = None
            known = {m.member_id for m in gone}
            gone += [m for k, m in self._members.items() if not m.has_synced and k not in known]
        for member in gone:
            self.expired += 1
            self._drop(member)
        if gone:
            self._after_removal(now_ms)
        self._complete_if_all_joined(now_ms)
        if self.state is GroupState.PREPARING_REBALANCE and is_due:
            self._end_waiting(now_ms)

    def _end_waiting(self, now_ms: int) -> None:
        """The time for joins is up. The initial delay goes on while members come."""
        if self._deadline_ms is None or self._deadline_ms > now_ms:
            return
        if self._extension_ms and self._has_grown:
            more_ms = min(self._limits.initial_delay_ms, self._extension_ms)
            self._extension_ms -= more_ms
            self._deadline_ms, self._has_grown = now_ms + more_ms, False
        else:
            self._complete(now_ms)

    def unload(self, error: ErrorCode) -> None:
        """This node does not coordinate the group any more: answer all that wait."""
        for member in self._members.values():
            self._answer_waiting(member, error)
        for ticket, answer in self._replacements.values():
            self._refuse_join(ticket, error, answer.member_id)
        self._replacements.clear()
        self._table.clear()
        self._end_storing()
        self._deadline_ms = self._retry_ms = None
        self._is_stored = False
        self.state = GroupState.DEAD

    # -- answers --------------------------------------------------------------------------------

    def _member_error(
        self, member_id: str, instance_id: str | None, generation: int | None = None
    ) -> ErrorCode:
        if instance_id is not None:
            current = self._static.get(instance_id)
            if current is None:
                return ErrorCode.UNKNOWN_MEMBER_ID
            if current != member_id:
                return ErrorCode.FENCED_INSTANCE_ID
        member = self._members.get(member_id)
        if member is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        if generation not in (None, self.generation, member.earlier_generation):
            return ErrorCode.ILLEGAL_GENERATION
        return ErrorCode.NONE

    def _answer(self, ticket: int, answer: JoinAnswer | SyncAnswer) -> None:
        self._effects.append(GroupAnswer(ticket, answer))

    def _refuse_join(self, ticket: int, error: ErrorCode, member_id: str) -> None:
        self._answer(ticket, JoinAnswer(error, member_id=member_id))

    def _answer_syncs(self, error: ErrorCode, now_ms: int) -> None:
        for member in self._members.values() if self._table.syncs else ():
            if member.sync_ticket is not None:
                self._answer(member.sync_ticket, SyncAnswer(error))
                self._table.end_waiting(member, now_ms)

    def _answer_waiting(self, member: Member, error: ErrorCode) -> None:
        if member.join_ticket is not None:
            self._refuse_join(member.join_ticket, error, member.member_id)
        if member.sync_ticket is not None:
            self._answer(member.sync_ticket, SyncAnswer(error))
        self._table.end_waiting(member)
