"""The requests of members that speak the classic protocol, in a group of the consumer protocol.

To such a member the group looks like one of the classic protocol in which somebody else leads: it
joins at once, under its member epoch as generation, and syncs for the assignment that the
coordinator has computed. Where it has to give up partitions, or may have more, its heartbeats say
that it must join again. Source: KIP-848, the migration of live groups.
"""

from __future__ import annotations

from bascule.errors import RemoteProtocolError
from bascule.groups.classic.member import protocols_bytes
from bascule.groups.classic.messages import JoinAnswer, JoinRequest, SyncAnswer
from bascule.groups.consumer.member import ClassicSide, ConsumerMember, MemberState
from bascule.groups.consumer.messages import Partitions, TopicPartition
from bascule.groups.consumer.roster import Roster
from bascule.wire.error_codes import ErrorCode
from bascule.wire.messages.group.consumer_protocol import (
    PROTOCOL_TYPE,
    ConsumerSubscription,
    decode_subscription,
    encode_assignment,
    subscription_version,
)


class ClassicMembers:
    """Works on the roster of one group."""

    def __init__(self, roster: Roster) -> None:
        self._roster = roster

    # -- joins ----------------------------------------------------------------------------------

    def on_join(self, request: JoinRequest, ticket: int, now_ms: int) -> None:
        """The answer comes as soon as it is stored: nobody is waited for."""
        error, said = self._join_error(request)
        if not error and self._needs_id(request):
            self._refuse(ticket, ErrorCode.MEMBER_ID_REQUIRED, request.new_member_id)
            return
        if error or said is None:
            self._refuse(ticket, error, request.member_id)
            return
        roster = self._roster
        member, is_new = self._joining(request, now_ms)
        member.heard_ms = now_ms
        classic = member.classic
        assert classic is not None
        classic.protocols = request.protocols
        classic.session_timeout_ms = request.session_timeout_ms
        member.client_id, member.client_host = request.client_id, request.client_host
        member.rebalance_timeout_ms = request.rebalance_timeout_ms
        member.rack_id = said.rack_id
        topics = frozenset(said.topics)
        has_changed = is_new or topics != member.topics
        member.topics = topics
        roster.journal.touch(member.member_id)
        roster.note_topics(has_changed=has_changed)
        roster.update_targets()
        roster.reconcile(member, self._owned(said), now_ms)
        # It has to sync, or to give up partitions and join again.
        self._expect(member, now_ms + request.rebalance_timeout_ms)
        answer = JoinAnswer(
            generation=member.epoch,
            protocol_type=PROTOCOL_TYPE,
            protocol=request.protocols[0][0],
            member_id=member.member_id,
        )
        if not roster.journal.answer(ticket, answer):
            roster.journal.tell(ticket, answer)

    @staticmethod
    def _needs_id(request: JoinRequest) -> bool:
        is_static = request.instance_id is not None
        return not request.member_id and not is_static and request.knows_required_ids

    def _join_error(self, request: JoinRequest) -> tuple[ErrorCode, ConsumerSubscription | None]:
        roster, limits = self._roster, self._roster.limits
        if not limits.session_ms_min <= request.session_timeout_ms <= limits.session_ms_max:
            return ErrorCode.INVALID_SESSION_TIMEOUT, None
        if request.protocol_type != PROTOCOL_TYPE or not request.protocols:
            return ErrorCode.INCONSISTENT_GROUP_PROTOCOL, None
        present = roster.members.get(request.member_id)
        if request.instance_id is not None:
            known = roster.static.get(request.instance_id)
            if request.member_id and known != request.member_id:
                fenced, unknown = ErrorCode.FENCED_INSTANCE_ID, ErrorCode.UNKNOWN_MEMBER_ID
                return fenced if known else unknown, None
            present = roster.members.get(known or "")
        if present is not None and present.classic is None and not present.is_away:
            is_static = request.instance_id is not None
            unreleased, unknown = ErrorCode.UNRELEASED_INSTANCE_ID, ErrorCode.UNKNOWN_MEMBER_ID
            return unreleased if is_static else unknown, None
        if not roster.have_protocol((name for name, _ in request.protocols), besides=present):
            return ErrorCode.INCONSISTENT_GROUP_PROTOCOL, None
        more = protocols_bytes(request.protocols)
        if present is not None and present.classic is not None:
            more -= protocols_bytes(present.classic.protocols)
        if (present is None and len(roster.members) >= limits.members_max) or (
            more > 0 and roster.size_bytes + more > limits.bytes_max
        ):
            return ErrorCode.GROUP_MAX_SIZE_REACHED, None
        try:
            return ErrorCode.NONE, decode_subscription(request.protocols[0][1])
        except RemoteProtocolError:
            return ErrorCode.INCONSISTENT_GROUP_PROTOCOL, None

    def _joining(self, request: JoinRequest, now_ms: int) -> tuple[ConsumerMember, bool]:
        """The member that joins, and whether it was not there before."""
        roster = self._roster
        present = roster.members.get(request.member_id)
        if present is not None and present.classic is not None:
            return present, False
        if request.instance_id is not None:
            present = roster.members.get(roster.static.get(request.instance_id, ""))
        member = ConsumerMember(
            request.member_id or request.new_member_id,
            request.instance_id,
            heard_ms=now_ms,
            classic=ClassicSide(request.session_timeout_ms, request.protocols),
        )
        if present is None:
            roster.adopt(member)
            return member, True
        roster.replace(present, member)
        member.regex, member.assignor = "", None
        return member, bool(present.regex)

    def _owned(self, said: ConsumerSubscription) -> Partitions:
        """What a member says that it owns. With an eager assignor that is nothing."""
        topics = self._roster.topics
        return frozenset(
            TopicPartition(found[0], partition)
            for owned in said.owned_partitions
            if (found := topics.find(owned.topic)) is not None
            for partition in owned.partitions
        )

    def _expect(self, member: ConsumerMember, due_ms: int | None) -> None:
        assert member.classic is not None
        member.classic.due_ms = due_ms
        self._roster.watch(member)

    def _refuse(self, ticket: int, error: ErrorCode, member_id: str) -> None:
        self._roster.journal.tell(ticket, JoinAnswer(error, member_id=member_id))

    # -- syncs, heartbeats, commits -------------------------------------------------------------

    def on_sync(
        self,
        member_id: str,
        instance_id: str | None,
        generation: int,
        ticket: int,
        now_ms: int,
        *,
        protocol_type: str | None,
        protocol: str | None,
    ) -> None:
        """The assignment of a member under its epoch."""
        journal = self._roster.journal
        error = self._member_error(member_id, instance_id, generation)
        member = self._roster.members.get(member_id)
        if error or member is None or member.classic is None:
            journal.tell(ticket, SyncAnswer(error))
            return
        name, metadata = member.classic.protocols[0]
        if protocol_type not in (None, PROTOCOL_TYPE) or protocol not in (None, name):
            journal.tell(ticket, SyncAnswer(ErrorCode.INCONSISTENT_GROUP_PROTOCOL))
            return
        member.heard_ms = now_ms
        member.classic.due_ms = None
        if member.state is MemberState.UNREVOKED:
            # What it is told takes partitions away: it has to join again without them.
            self._expect(member, member.revoke_due_ms)
        answer = SyncAnswer(
            protocol_type=PROTOCOL_TYPE,
            protocol=name,
            assignment=encoded(self._roster, member.assigned, metadata),
        )
        if not journal.answer(ticket, answer):
            journal.tell(ticket, answer)

    def on_heartbeat(
        self, member_id: str, instance_id: str | None, generation: int, now_ms: int
    ) -> ErrorCode:
        """REBALANCE_IN_PROGRESS: the member must join again."""
        error = self._member_error(member_id, instance_id, generation)
        if error:
            return error
        roster = self._roster
        member = roster.members[member_id]
        member.heard_ms = now_ms
        roster.note_topics()
        if (
            member.epoch == roster.epoch == roster.assignment_epoch
            and member.state is not MemberState.UNREVOKED
            and not roster.may_get_more(member)
        ):
            return ErrorCode.NONE
        if member.classic is not None and member.classic.due_ms is None:
            self._expect(member, now_ms + member.rebalance_timeout_ms)
        return ErrorCode.REBALANCE_IN_PROGRESS

    def commit_error(
        self, member_id: str, instance_id: str | None, generation: int, now_ms: int
    ) -> ErrorCode:
        """Why a commit is refused, or NONE. It counts as a heartbeat."""
        error = self._member_error(member_id, instance_id, generation)
        if not error:
            self._roster.members[member_id].heard_ms = now_ms
        return error

    def leave(self, member_id: str, instance_id: str | None) -> ErrorCode:
        """A member leaves, or an operator removes it: members of both protocols."""
        roster = self._roster
        if instance_id is not None:
            current = roster.static.get(instance_id)
            if current is None:
                return ErrorCode.UNKNOWN_MEMBER_ID
            if member_id and member_id != current:
                return ErrorCode.FENCED_INSTANCE_ID
            member_id = current
        member = roster.members.get(member_id)
        if member is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        roster.remove(member)
        return ErrorCode.NONE

    def _member_error(self, member_id: str, instance_id: str | None, generation: int) -> ErrorCode:
        if instance_id is not None:
            current = self._roster.static.get(instance_id)
            if current is None:
                return ErrorCode.UNKNOWN_MEMBER_ID
            if current != member_id:
                return ErrorCode.FENCED_INSTANCE_ID
        member = self._roster.members.get(member_id)
        if member is None or member.classic is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        return ErrorCode.NONE if generation == member.epoch else ErrorCode.ILLEGAL_GENERATION


def encoded(roster: Roster, partitions: Partitions, metadata: bytes) -> bytes:
    """An assignment for a member with this metadata; without streams that are deleted."""
    by_name: dict[str, list[int]] = {}
    for topic_id, partition in sorted(partitions):
        name = roster.topics.name_of(topic_id)
        if name is not None:
            by_name.setdefault(name, []).append(partition)
    return encode_assignment(by_name, subscription_version(metadata))
