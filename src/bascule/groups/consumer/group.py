"""The state machine of one group of the consumer protocol."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Final

from bascule.groups.classic.member import joining_bytes
from bascule.groups.classic.messages import GroupLimits, JoinRequest
from bascule.groups.consumer.classic_members import ClassicMembers
from bascule.groups.consumer.heartbeats import Heartbeats
from bascule.groups.consumer.member import ConsumerMember
from bascule.groups.consumer.messages import (
    ConsumerEffect,
    MemberAnswer,
    MemberHeartbeat,
    Topics,
)
from bascule.groups.consumer.roster import Roster
from bascule.wire.error_codes import ErrorCode
from bascule.wire.messages.group.consumer_protocol import PROTOCOL_TYPE

RETRY_MS: Final = 1_000


class ConsumerGroupState(StrEnum):
    """Kafka's names, as tools show them."""

    EMPTY = "Empty"
    ASSIGNING = "Assigning"
    """Members or streams have changed; targets are computed with the next request."""
    RECONCILING = "Reconciling"
    """Members are on the way to their targets."""
    STABLE = "Stable"
    DEAD = "Dead"
    """This node does not coordinate the group any more."""


class ConsumerGroup:
    """See the package. Take the effects after each call; times are in milliseconds.

    The members may speak the consumer protocol, the classic one, or both in one group.
    """

    def __init__(self, roster: Roster) -> None:
        self.expired = 0
        """Members removed because their time was up."""
        self._roster = roster
        self._heartbeats = Heartbeats(roster)
        self._classic = ClassicMembers(roster)
        self._is_dead = False
        self._retry_ms: int | None = None
        """When records that could not be stored are stored again; a request does so before."""

    @classmethod
    def empty(cls, limits: GroupLimits, topics: Topics, incarnation: str) -> ConsumerGroup:
        """`incarnation` is a text that no other group of this name has had."""
        return cls(Roster(limits, topics, incarnation))

    @classmethod
    def restore(
        cls,
        group: bytes,
        members: Iterable[tuple[str, bytes]],
        limits: GroupLimits,
        topics: Topics,
        now_ms: int,
    ) -> ConsumerGroup:
        """The group of these records. Its members go on; their sessions begin now.

        Raises: ValueError.
        """
        roster = Roster.restore(group, members, limits, topics, now_ms)
        roster.journal.end()
        return cls(roster)

    @property
    def members(self) -> Mapping[str, ConsumerMember]:
        """By member id."""
        return self._roster.members

    @property
    def state(self) -> ConsumerGroupState:
        if self._is_dead:
            return ConsumerGroupState.DEAD
        if not self._roster.members:
            return ConsumerGroupState.EMPTY
        if self._roster.assignment_epoch < self._roster.epoch:
            return ConsumerGroupState.ASSIGNING
        if self._roster.is_reconciled:
            return ConsumerGroupState.STABLE
        return ConsumerGroupState.RECONCILING

    @property
    def epoch(self) -> int:
        return self._roster.epoch

    @property
    def assignment_epoch(self) -> int:
        return self._roster.assignment_epoch

    @property
    def protocol(self) -> str:
        """The assignor of the targets."""
        return self._roster.assignor

    @property
    def protocol_type(self) -> str:
        """All members are consumers."""
        return PROTOCOL_TYPE

    @property
    def generation(self) -> int:
        """The epoch of the group, under the name of the classic protocol."""
        return self._roster.epoch

    @property
    def rebalances(self) -> int:
        """Targets that were computed, since the count was set to 0."""
        return self._roster.rebalances

    @rebalances.setter
    def rebalances(self, count: int) -> None:
        self._roster.rebalances = count

    @property
    def roster(self) -> Roster:
        """For conversions: the group is not used any more afterwards."""
        return self._roster

    @property
    def size_bytes(self) -> int:
        """Of the records, about."""
        return self._roster.size_bytes

    @property
    def kept_bytes(self) -> int:
        """What the group takes in memory and as it is stored, about. Costs the same for any size,
        but for members that have changed."""
        return self._roster.kept_bytes

    def join_growth_bytes(self, request: JoinRequest) -> int:
        """By how much `kept_bytes` grows with the join of a member of the classic protocol."""
        member_id = request.member_id or self._roster.static.get(request.instance_id or "", "")
        member = self._roster.members.get(member_id)
        return joining_bytes(request) - (0 if member is None else member.kept_bytes)

    def heartbeat_growth_bytes(self, request: MemberHeartbeat) -> int:
        """By how much `kept_bytes` grows with what a heartbeat says of its member."""
        return self._heartbeats.growth_bytes(request)

    def sync_growth_bytes(
        self, member_id: str, generation: int, assignments: Iterable[tuple[str, bytes]]
    ) -> tuple[int, int]:
        """A sync brings nothing: the coordinator assigns."""
        return 0, 0

    @property
    def is_forgettable(self) -> bool:
        """Whether the group holds nothing that a new one would not."""
        return not self._roster.members and self._roster.journal.is_settled

    @property
    def has_only_classic_members(self) -> bool:
        """Whether it can be a group of the classic protocol."""
        return 0 < len(self._roster.members) == self._roster.classic_count

    def take_effects(self) -> list[ConsumerEffect]:
        """What the caller has to do, in order."""
        self._roster.journal.begin()
        return self._roster.journal.take_effects()

    def next_deadline_ms(self) -> int | None:
        """When `on_time` has something to do; a heartbeat only makes it later."""
        due_ms = self._roster.next_deadline_ms()
        if due_ms is None or self._retry_ms is None:
            return self._retry_ms if due_ms is None else due_ms
        return min(due_ms, self._retry_ms)

    def topic_names(self, member: ConsumerMember) -> frozenset[str]:
        """The streams that a member subscribes to, by name or by its regular expression."""
        return self._roster.names_of(member)

    def name_of(self, topic_id: bytes) -> str | None:
        return self._roster.topics.name_of(topic_id)

    # -- requests -------------------------------------------------------------------------------

    def on_member_heartbeat(
        self, request: MemberHeartbeat, ticket: int, now_ms: int
    ) -> MemberAnswer | None:
        """A ConsumerGroupHeartbeat. None: the answer will be an effect, once all is stored.

        A heartbeat that changes nothing costs the same for a group of any size.
        """
        return self._heartbeats.on_heartbeat(request, ticket, now_ms)

    def on_steady_heartbeat(self, request: MemberHeartbeat, now_ms: int) -> MemberAnswer | None:
        """The answer to a heartbeat that changes nothing; None: it is one for
        `on_member_heartbeat`."""
        return self._heartbeats.on_steady_heartbeat(request, now_ms)

    def heartbeat_refusal(self, request: MemberHeartbeat) -> MemberAnswer | None:
        """The answer to a heartbeat that is refused, or None. Nothing is changed."""
        refusal = self._heartbeats.refusal(request)
        return None if refusal is None else MemberAnswer(refusal.error, refusal.reason)

    def on_join(self, request: JoinRequest, ticket: int, now_ms: int) -> None:
        """A member of the classic protocol joins, or joins again."""
        self._classic.on_join(request, ticket, now_ms)

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
        """A member of the classic protocol asks for its assignment; it brings none."""
        self._classic.on_sync(
            member_id,
            instance_id,
            generation,
            ticket,
            now_ms,
            protocol_type=protocol_type,
            protocol=protocol,
        )

    def on_heartbeat(
        self, member_id: str, instance_id: str | None, generation: int, now_ms: int
    ) -> ErrorCode:
        """A member of the classic protocol. REBALANCE_IN_PROGRESS: it must join again."""
        return self._classic.on_heartbeat(member_id, instance_id, generation, now_ms)

    def on_leave(self, leaving: Sequence[tuple[str, str | None]], now_ms: int) -> list[ErrorCode]:
        """Members leave, each named by its id, its instance id, or both; the error of each."""
        return [self._classic.leave(member_id, instance_id) for member_id, instance_id in leaving]

    def on_commit(
        self, member_id: str, instance_id: str | None, generation: int, now_ms: int
    ) -> ErrorCode:
        """Whether a commit of offsets is taken."""
        members = self._roster.members
        if not members:
            return ErrorCode.NONE if generation < 0 else ErrorCode.UNKNOWN_MEMBER_ID
        member = members.get(member_id)
        if member is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        if member.classic is not None:
            return self._classic.commit_error(member_id, instance_id, generation, now_ms)
        if generation != member.epoch:
            return ErrorCode.STALE_MEMBER_EPOCH
        return ErrorCode.NONE

    def on_fetch(self, member_id: str, epoch: int) -> ErrorCode:
        """Whether a member may read the group's offsets."""
        member = self._roster.members.get(member_id)
        if member is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        if member.epoch == epoch:
            return ErrorCode.NONE
        return (
            ErrorCode.STALE_MEMBER_EPOCH if member.classic is None else ErrorCode.ILLEGAL_GENERATION
        )

    # -- time, storing, the end -----------------------------------------------------------------

    def on_disconnect(self, ticket: int, now_ms: int) -> None:
        """The connection on which `ticket` waits is gone. Nobody can be told the answer."""
        self._roster.journal.forget(ticket)

    def on_time(self, now_ms: int) -> None:
        """Remove the members that were not heard of, or did not give up partitions in time."""
        if self._retry_ms is not None and now_ms >= self._retry_ms:
            self._retry_ms = None
            self._roster.journal.try_again()
        for member in self._roster.expired(now_ms):
            self.expired += 1
            self._roster.remove(member)

    def on_stored(self, number: int, error: ErrorCode, now_ms: int) -> None:
        """The records of a `StoreRecords` are committed, or may not be."""
        self._roster.journal.on_stored(number, error)
        self._retry_ms = now_ms + RETRY_MS if error else None

    def end(self) -> list[ConsumerEffect]:
        """The group goes on as one of the classic protocol: the last effects."""
        self._roster.journal.end()
        return self._roster.journal.take_effects()

    def unload(self, error: ErrorCode) -> None:
        """This node does not coordinate the group any more: answer all that wait."""
        self._roster.journal.end(error)
        self._roster.members.clear()
        self._roster.static.clear()
        self._is_dead = True
