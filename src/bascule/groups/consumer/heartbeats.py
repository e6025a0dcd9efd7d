"""The requests of members that speak the consumer protocol: they join, live and leave."""

from __future__ import annotations

from typing import NamedTuple

from bascule.groups.classic.member import kept_bytes, stored_twice_bytes
from bascule.groups.consumer.assignors import ASSIGNORS
from bascule.groups.consumer.member import ConsumerMember, MemberState
from bascule.groups.consumer.messages import (
    JOINS,
    LEAVES_FOR_A_WHILE,
    NOTHING,
    MemberAnswer,
    MemberHeartbeat,
    Partitions,
)
from bascule.groups.consumer.regexes import regex_error
from bascule.groups.consumer.roster import Roster
from bascule.wire.error_codes import ErrorCode

SETTLING_MS = 500
"""Heartbeat interval of a member that has to give something up, or waits for something; and of all
members that are heard of within an interval of a change, since others often follow."""


MEMBER_ID_LENGTH_MAX = 250
"""Clients send a UUID. The id is part of the key of a record."""


class HeartbeatRefusal(NamedTuple):
    """Why a heartbeat is refused."""

    error: ErrorCode
    reason: str


class Heartbeats:
    """Works on the roster of one group."""

    def __init__(self, roster: Roster) -> None:
        self._roster = roster
        self._epoch = roster.epoch
        """The group epoch that was seen last."""
        self._changed_ms: int | None = None
        """When it was seen first."""

    def on_heartbeat(
        self, request: MemberHeartbeat, ticket: int, now_ms: int
    ) -> MemberAnswer | None:
        """None: the answer will be an effect."""
        answer = self.on_steady_heartbeat(request, now_ms)
        if answer is not None:
            return answer
        roster = self._roster
        member = roster.members.get(request.member_id)
        refusal = self.refusal(request)
        if refusal is not None:
            return MemberAnswer(refusal.error, refusal.reason)
        if request.epoch < JOINS:
            assert member is not None
            answer = self._leave(member, request.epoch, now_ms)
        else:
            answer = self._live(request, member, now_ms)
        return None if roster.journal.answer(ticket, answer) else answer

    def on_steady_heartbeat(self, request: MemberHeartbeat, now_ms: int) -> MemberAnswer | None:
        """The answer to a heartbeat that changes nothing, of a member that has nothing to do; None
        for any other one, which is not taken."""
        member = self._roster.members.get(request.member_id)
        if member is None or not self._is_steady(member, request):
            return None
        member.heard_ms = now_ms
        return self._answer(member, None, now_ms)

    def _is_steady(self, member: ConsumerMember, request: MemberHeartbeat) -> bool:
        """Whether nothing has changed, on either side."""
        roster = self._roster
        return (
            request.epoch == member.epoch == roster.epoch == roster.assignment_epoch
            and request.epoch > JOINS
            and member.state is MemberState.STABLE
            and member.classic is None
            and request.owned is None
            and request.topics is None
            and request.regex is None
            and request.assignor in (None, member.assignor)
            and request.instance_id == member.instance_id
            and roster.journal.is_settled
            and not roster.has_new_topics
        )

    # -- what is refused ------------------------------------------------------------------------

    def refusal(self, request: MemberHeartbeat) -> HeartbeatRefusal | None:
        """Why this group refuses a heartbeat, or None."""
        member = self._roster.members.get(request.member_id)
        return request_error(request) or self._refusal(request, member)

    def _refusal(
        self, request: MemberHeartbeat, member: ConsumerMember | None
    ) -> HeartbeatRefusal | None:
        if member is not None and member.classic is not None:
            if request.epoch != JOINS:
                return HeartbeatRefusal(
                    ErrorCode.UNKNOWN_MEMBER_ID, "the member speaks the classic protocol"
                )
            return None
        if request.instance_id is not None:
            refusal = self._static_refusal(request, member)
            if refusal is not None:
                return refusal
        if member is None and request.epoch != JOINS:
            return HeartbeatRefusal(ErrorCode.UNKNOWN_MEMBER_ID, "the group has no such member")
        if request.epoch < JOINS:
            return None
        if member is not None and request.epoch > JOINS:
            refusal = _epoch_refusal(request, member)
            if refusal is not None:
                return refusal
        return self._size_refusal(request, member)

    def _static_refusal(
        self, request: MemberHeartbeat, member: ConsumerMember | None
    ) -> HeartbeatRefusal | None:
        assert request.instance_id is not None
        present = self._roster.static.get(request.instance_id)
        if present is None:
            if request.epoch == JOINS and member is None:
                return None
            return HeartbeatRefusal(
                ErrorCode.UNKNOWN_MEMBER_ID, "the group has no such static member"
            )
        if present == request.member_id:
            return None
        if request.epoch != JOINS:
            return HeartbeatRefusal(
                ErrorCode.FENCED_INSTANCE_ID,
                f"the static member {request.instance_id!r} is {present!r} now",
            )
        old = self._roster.members[present]
        if old.is_away or old.classic is not None:
            return None
        return HeartbeatRefusal(
            ErrorCode.UNRELEASED_INSTANCE_ID,
            f"the static member {request.instance_id!r} is still there as {present!r}",
        )

    def _size_refusal(
        self, request: MemberHeartbeat, member: ConsumerMember | None
    ) -> HeartbeatRefusal | None:
        roster, limits = self._roster, self._roster.limits
        if member is not None and request.topics is None:
            return None
        is_more = member is None and request.instance_id not in roster.static
        if is_more and len(roster.members) >= limits.members_max:
            return HeartbeatRefusal(
                ErrorCode.GROUP_MAX_SIZE_REACHED, f"the group has {len(roster.members)} members"
            )
        # Who says again what it has said before is not refused, however large the group has become.
        more = request.said_bytes - (0 if member is None else member.said_bytes)
        if more > 0 and roster.size_bytes + more > limits.bytes_max:
            return HeartbeatRefusal(
                ErrorCode.GROUP_MAX_SIZE_REACHED,
                f"the group's records would have more than {limits.bytes_max} bytes",
            )
        return None

    def growth_bytes(self, request: MemberHeartbeat) -> int:
        """By how much `Roster.kept_bytes` grows with what a heartbeat says of its member."""
        roster = self._roster
        member = roster.members.get(request.member_id)
        if member is None and request.instance_id is not None:
            member = roster.members.get(roster.static.get(request.instance_id, ""))
        return heartbeat_growth_bytes(request, member)

    # -- members --------------------------------------------------------------------------------

    def _leave(self, member: ConsumerMember, epoch: int, now_ms: int) -> MemberAnswer:
        roster = self._roster
        if epoch == LEAVES_FOR_A_WHILE:
            # It keeps its partitions until its session ends, but for those that it had to give up.
            member.epoch, member.heard_ms = LEAVES_FOR_A_WHILE, now_ms
            roster.release(member)
        else:
            roster.remove(member)
        return MemberAnswer(member_id=member.member_id, epoch=epoch)

    def _live(
        self, request: MemberHeartbeat, member: ConsumerMember | None, now_ms: int
    ) -> MemberAnswer:
        roster = self._roster
        joins = request.epoch == JOINS
        owned = request.owned
        is_new = has_changed = False
        if member is None or member.classic is not None or member.is_away:
            is_new = True
            member, has_changed = self._add(request, member, now_ms)
        elif joins:
            # Its first answer was lost, or it has lost track. It is told what it may have, and
            # gives up what it must with its next heartbeats: this one may be a late copy.
            owned = None
        member.heard_ms = now_ms
        # Also what is not stored at once counts for the size.
        roster.journal.touched.add(member.member_id)
        if _update(member, request):
            roster.journal.touch(member.member_id)
            has_changed = True
        roster.note_topics(has_changed=has_changed)
        roster.update_targets()
        if joins and not is_new and member.assigned | member.revoking:
            return self._answer(member, member.assigned | member.revoking, now_ms)
        changed = roster.reconcile(member, owned, now_ms)
        tells = changed or joins or request.says_all
        tells = tells or (owned is not None and member.state is MemberState.UNREVOKED)
        return self._answer(member, member.assigned if tells else None, now_ms)

    def _add(
        self, request: MemberHeartbeat, present: ConsumerMember | None, now_ms: int
    ) -> tuple[ConsumerMember, bool]:
        """A new member, and whether it is one more: it may take the place of another one."""
        roster = self._roster
        member = ConsumerMember(request.member_id, request.instance_id, heard_ms=now_ms)
        if present is None and request.instance_id is not None:
            present = roster.members.get(roster.static.get(request.instance_id, ""))
        if present is None:
            roster.adopt(member)
            return member, True
        roster.replace(present, member)
        return member, False

    def _answer(
        self, member: ConsumerMember, assigned: Partitions | None, now_ms: int
    ) -> MemberAnswer:
        interval_ms = self._roster.limits.consumer_heartbeat_ms
        if self._epoch != self._roster.epoch:
            self._epoch, self._changed_ms = self._roster.epoch, now_ms
        elif self._changed_ms is not None and now_ms - self._changed_ms >= interval_ms:
            self._changed_ms = None
        if member.state is not MemberState.STABLE or self._changed_ms is not None:
            interval_ms = min(interval_ms, SETTLING_MS)
        return MemberAnswer(
            member_id=member.member_id,
            epoch=member.epoch,
            interval_ms=interval_ms,
            assigned=assigned,
        )


def heartbeat_growth_bytes(request: MemberHeartbeat, member: ConsumerMember | None) -> int:
    """By how much what is kept grows with what a heartbeat says; not: with the partitions."""
    if request.epoch < JOINS:
        return 0
    if member is None or member.classic is not None:
        names = frozenset(request.topics or ())
        grown = kept_bytes(request.said_bytes, len(names))
        return grown if member is None else grown - member.kept_bytes
    grown = stored_twice_bytes(max(len(request.client_id) - len(member.client_id), 0))
    if request.rack_id is not None:
        grown += stored_twice_bytes(max(len(request.rack_id) - len(member.rack_id or ""), 0))
    if request.regex is not None:
        grown += stored_twice_bytes(max(len(request.regex) - len(member.regex), 0))
    if request.topics is not None:
        names = frozenset(request.topics)
        grown += kept_bytes(sum(map(len, names)), len(names))
        grown -= kept_bytes(sum(map(len, member.topics)), len(member.topics))
    return grown


def request_error(request: MemberHeartbeat) -> HeartbeatRefusal | None:
    """What is wrong with a request, whatever the group is."""
    reason = None
    if not 0 < len(request.member_id) <= MEMBER_ID_LENGTH_MAX:
        reason = (
            f"the member id has {len(request.member_id)} characters, "
            f"expected 1 to {MEMBER_ID_LENGTH_MAX}"
        )
    elif request.instance_id == "" or request.rack_id == "":
        reason = "an instance id or a rack id must not be empty"
    elif request.epoch < LEAVES_FOR_A_WHILE:
        reason = f"the member epoch {request.epoch} has no meaning"
    elif request.epoch == LEAVES_FOR_A_WHILE and request.instance_id is None:
        reason = "a member that leaves for a while needs an instance id"
    elif request.epoch == JOINS:
        if request.rebalance_timeout_ms < 0:
            reason = "a member that joins must give a rebalance time-out"
        elif request.owned != NOTHING:
            reason = "a member that joins must own no partitions, and say so"
        elif request.topics is None and not request.regex:
            reason = "a member that joins must subscribe to names or to a regular expression"
    if reason is not None:
        return HeartbeatRefusal(ErrorCode.INVALID_REQUEST, reason)
    if request.assignor is not None and request.assignor not in ASSIGNORS:
        known = ", ".join(ASSIGNORS)
        return HeartbeatRefusal(
            ErrorCode.UNSUPPORTED_ASSIGNOR, f"no assignor {request.assignor!r}: there are {known}"
        )
    if request.regex and (wrong := regex_error(request.regex)) is not None:
        return HeartbeatRefusal(ErrorCode.INVALID_REGULAR_EXPRESSION, wrong)
    return None


def _epoch_refusal(request: MemberHeartbeat, member: ConsumerMember) -> HeartbeatRefusal | None:
    """The answer with the present epoch may have been lost: then the one before is good, too."""
    if request.epoch == member.epoch:
        return None
    if (
        request.epoch == member.previous_epoch < member.epoch
        and request.owned is not None
        and request.owned <= member.assigned | member.revoking
    ):
        return None
    return HeartbeatRefusal(
        ErrorCode.FENCED_MEMBER_EPOCH,
        f"the member epoch is {request.epoch}, expected {member.epoch}",
    )


def _update(member: ConsumerMember, request: MemberHeartbeat) -> bool:
    """Take over what a member says of itself; whether the targets depend on it."""
    member.client_id, member.client_host = request.client_id, request.client_host
    if request.rack_id is not None:
        member.rack_id = request.rack_id
    if request.rebalance_timeout_ms >= 0:
        member.rebalance_timeout_ms = request.rebalance_timeout_ms
    topics = member.topics if request.topics is None else frozenset(request.topics)
    regex = member.regex if request.regex is None else request.regex
    assignor = member.assignor if request.assignor is None else request.assignor
    if (topics, regex, assignor) == (member.topics, member.regex, member.assignor):
        return False
    member.topics, member.regex, member.assignor = topics, regex, assignor
    return True
