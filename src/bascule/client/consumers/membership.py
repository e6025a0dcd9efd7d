"""One member of a group in the classic protocol: joins, syncs, heartbeats, commits, leaves.

All methods block. Heartbeats are sent on a thread of their own.

Source: Apache Kafka's AbstractCoordinator and ConsumerCoordinator; KIP-62 (heartbeat thread),
KIP-345 (static members), KIP-394 (member id required), KIP-429 (cooperative rebalances).
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final

from bascule.client.connection import ASK_TIMEOUT_S, count_partitions
from bascule.client.consumers.assignors import ASSIGNORS, COOPERATIVE, SubscribedMember
from bascule.client.consumers.coordinator import CoordinatorLink
from bascule.errors import (
    BasculeError,
    Broken,
    Closed,
    CommitFenced,
    GroupRefused,
    PartitionFailed,
    UnknownStream,
)
from bascule.host.real import RealClock
from bascule.wire.error_codes import ErrorCode, code_name
from bascule.wire.messages.group.consumer_protocol import (
    PROTOCOL_TYPE,
    ConsumerSubscription,
    OwnedTopic,
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)
from bascule.wire.messages.group.heartbeat import HeartbeatRequest
from bascule.wire.messages.group.join_group import (
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    JoinGroupResponse,
)
from bascule.wire.messages.group.leave_group import LeaveGroupRequest, MemberIdentity
from bascule.wire.messages.group.sync_group import SyncGroupRequest, SyncGroupRequestAssignment
from bascule.wire.messages.offset_commit import (
    OffsetCommitPartition,
    OffsetCommitRequest,
    OffsetCommitTopic,
)
from bascule.wire.messages.offset_fetch import (
    OffsetFetchGroup,
    OffsetFetchGroupTopic,
    OffsetFetchRequest,
)

log = logging.getLogger(__name__)

CHECK_SECONDS: Final = 10.0
"""Time between the leader's checks for partitions that were added. Kafka's metadata.max.age.ms is
5 minutes."""
ASKS_IN_SESSION: Final = 3
"""Requests that may be without answer one after the other within a session."""
LEAVE_TIMEOUT_S: Final = 3.0
"""For leaving; a member that cannot leave is removed when its session ends."""
JOIN_MARGIN_S: Final = 5.0
"""By how much an answer to a join may come later than the rebalance may take. From Kafka."""
COMMIT_VERSION: Final = 10
"""Of OffsetCommit: the first one with ids of topics. What was read of a stream that was deleted is
not committed for another one of its name."""
FETCH_VERSION: Final = 9
"""Of OffsetFetch: the last one with names of topics."""
_GONE: Final = (
    ErrorCode.UNKNOWN_MEMBER_ID,
    ErrorCode.ILLEGAL_GENERATION,
    ErrorCode.FENCED_INSTANCE_ID,
)
_CLOCK: Final = RealClock()


class Notice(Enum):
    """What the application's side has to do."""

    REJOIN = "rejoin"
    LOST = "lost"
    """The group went on without this member: its partitions are not its own any more."""


@dataclass(frozen=True, slots=True)
class MemberSettings:
    """What a member tells the group about itself; times in seconds."""

    group: str
    stream: str
    assignors: Sequence[str]
    session_timeout: float
    heartbeat_interval: float
    max_poll_interval: float
    instance: str | None


class GroupMembership:
    """See the module. `join` and the other requests may run on different threads."""

    def __init__(
        self,
        bootstrap: str,
        settings: MemberSettings,
        *,
        timeout: float,
        on_notice: Callable[[Notice], None],
        poll_count: Callable[[], int | None],
    ) -> None:
        """`on_notice` is called on the heartbeat thread. `poll_count` grows with each request of
        the application; None while the application waits."""
        self._bootstrap = bootstrap
        self._settings = settings
        self._on_notice = on_notice
        self._poll_count = poll_count
        # A join may wait for minutes, so that it has a connection of its own.
        self._joins = CoordinatorLink(bootstrap, settings.group, timeout=timeout)
        # A node that hangs is given up while there is time for another coordinator.
        answer_s = min(ASK_TIMEOUT_S, settings.session_timeout / ASKS_IN_SESSION)
        self._requests = CoordinatorLink(
            bootstrap, settings.group, timeout=timeout, answer_s=answer_s
        )
        self._member_id = ""
        self._generation = -1
        self._owned_in = -1
        """The generation in which this member got what it owns."""
        self._is_fenced = False
        """Whether another process has joined as this static member."""
        self._is_joining = False
        self._counted: int | None = None
        """The stream's partitions as this member has assigned them; None: it has not."""
        self._stopped = threading.Event()
        self._heartbeats: threading.Thread | None = None

    @property
    def is_member(self) -> bool:
        """Whether it has joined, and no coordinator has said since that it is not a member."""
        return self._generation >= 0

    # -- joining --------------------------------------------------------------------------------

    def join(self, owned: Iterable[int]) -> frozenset[int] | None:
        """Join the next generation, and return the partitions of this member in it.

        `owned` are those that it keeps meanwhile. None: the group has removed this member, which
        must give up what it owns, and join again. Raises: GroupRefused, UnknownStream, Broken,
        Closed.
        """
        self._is_joining = True
        try:
            while True:
                joined = self._joined(frozenset(owned))
                if joined is None:
                    return None
                assignment = self._synced(joined)
                if assignment is not None:
                    break
                if self._generation < 0:
                    return None
        finally:
            self._is_joining = False
        self._owned_in = self._generation
        self._joins.close()
        self._start_heartbeats()
        return assignment

    def _joined(self, owned: frozenset[int]) -> JoinGroupResponse | None:
        settings = self._settings
        while True:
            if self._is_fenced:
                raise GroupRefused(settings.group, self._instance_refusal())
            answer = self._joins.request(
                JoinGroupRequest(
                    group_id=settings.group,
                    session_timeout_ms=round(settings.session_timeout * 1000),
                    rebalance_timeout_ms=round(settings.max_poll_interval * 1000),
                    member_id=self._member_id,
                    group_instance_id=settings.instance,
                    protocol_type=PROTOCOL_TYPE,
                    protocols=[self._protocol(name, owned) for name in settings.assignors],
                ),
                lambda response: (response.error_code,),
                answer_s=settings.max_poll_interval + JOIN_MARGIN_S,
            )
            code = answer.error_code
            if code == ErrorCode.NONE:
                self._member_id, self._generation = answer.member_id, answer.generation_id
                return answer
            if code == ErrorCode.MEMBER_ID_REQUIRED:
                self._member_id = answer.member_id
            elif code == ErrorCode.UNKNOWN_MEMBER_ID:
                had_generation = self._generation >= 0
                self._forget()
                if had_generation:
                    return None
            elif code != ErrorCode.REBALANCE_IN_PROGRESS:
                raise GroupRefused(settings.group, self._join_refusal(code))

    def _protocol(self, name: str, owned: frozenset[int]) -> JoinGroupRequestProtocol:
        stream, generation = self._settings.stream, self._owned_in
        # Members that read subscriptions of version 1 look for the generation there.
        user_data = generation.to_bytes(4, "big", signed=True) if name == COOPERATIVE else None
        subscription = ConsumerSubscription(
            topics=[stream],
            user_data=user_data,
            owned_partitions=[OwnedTopic(stream, sorted(owned))] if owned else [],
            generation_id=generation,
        )
        return JoinGroupRequestProtocol(name, encode_subscription(subscription))

    def _join_refusal(self, code: int) -> str:
        settings = self._settings
        match code:
            case ErrorCode.INCONSISTENT_GROUP_PROTOCOL:
                return (
                    f"it offers the assignors {', '.join(settings.assignors)}, and its other "
                    "members have none in common with it; give `assignors` that all of them have"
                )
            case ErrorCode.INVALID_SESSION_TIMEOUT:
                return (
                    f"a session timeout of {settings.session_timeout:g} s is outside of "
                    "groups.session_ms_min and groups.session_ms_max of the node"
                )
            case ErrorCode.GROUP_MAX_SIZE_REACHED:
                return (
                    "it is full (groups.members_max, or the size of its members' data); stop a "
                    "member, or raise the limit"
                )
            case ErrorCode.FENCED_INSTANCE_ID:
                return self._instance_refusal()
        return f"the coordinator says {code_name(code)}; see its log"

    def _instance_refusal(self) -> str:
        return (
            f"another member with instance {self._settings.instance!r} has joined; give each "
            "member an `instance` of its own"
        )

    def _synced(self, joined: JoinGroupResponse) -> frozenset[int] | None:
        """This member's partitions; None: join again."""
        settings = self._settings
        answer = self._joins.request(
            SyncGroupRequest(
                group_id=settings.group,
                generation_id=joined.generation_id,
                member_id=joined.member_id,
                group_instance_id=settings.instance,
                protocol_type=PROTOCOL_TYPE,
                protocol_name=joined.protocol_name,
                assignments=self._assignments(joined),
            ),
            lambda response: (response.error_code,),
            answer_s=settings.max_poll_interval + JOIN_MARGIN_S,
        )
        if answer.error_code == ErrorCode.FENCED_INSTANCE_ID:
            raise GroupRefused(settings.group, self._instance_refusal())
        if answer.error_code in _GONE:
            self._forget(answer.error_code)
            return None
        if answer.error_code == ErrorCode.REBALANCE_IN_PROGRESS:
            return None
        if answer.error_code:
            raise GroupRefused(
                settings.group, f"SyncGroup failed with {code_name(answer.error_code)}"
            )
        return frozenset(
            decode_assignment(bytes(answer.assignment or b"")).get(settings.stream, ())
        )

    def _assignments(self, joined: JoinGroupResponse) -> list[SyncGroupRequestAssignment]:
        """The assignments of all members, if this one is the leader."""
        self._counted = None
        if joined.leader != joined.member_id:
            return []
        if joined.skip_assignment:  # it led before it was started again, and leads on
            self._counted = self._count(self._settings.stream)
            return []
        members = []
        for each in joined.members:
            subscription = decode_subscription(bytes(each.metadata or b""))
            members.append(
                SubscribedMember(
                    each.member_id,
                    each.group_instance_id,
                    frozenset(subscription.topics),
                    frozenset(
                        (of.topic, p) for of in subscription.owned_partitions for p in of.partitions
                    ),
                    subscription.generation_id,
                )
            )
        topics = frozenset(topic for each in members for topic in each.topics)
        counts = {topic: self._count(topic) for topic in topics}
        self._counted = counts.get(self._settings.stream)
        assign = ASSIGNORS[joined.protocol_name or ""]
        assigned = assign(members, counts)
        return [
            SyncGroupRequestAssignment(member_id, encode_assignment(_by_topic(partitions)))
            for member_id, partitions in assigned.items()
        ]

    def _count(self, topic: str) -> int:
        """The number of partitions; 0 for another member's topic that does not exist."""
        try:
            return count_partitions(self._bootstrap, topic)
        except (UnknownStream, PartitionFailed):
            return 0

    def _forget(self, code: int = ErrorCode.NONE) -> None:
        """It has no partitions any more, as a coordinator says with `code`. One that does not know
        the generation may know the member: with another id it would wait for this one."""
        if code != ErrorCode.ILLEGAL_GENERATION:
            self._member_id = ""
        self._generation = self._owned_in = -1

    # -- heartbeats -----------------------------------------------------------------------------

    def _start_heartbeats(self) -> None:
        if self._heartbeats is None and not self._stopped.is_set():
            self._heartbeats = threading.Thread(
                target=self._send_heartbeats,
                name=f"bascule-group-{self._settings.group}",
                daemon=True,
            )
            self._heartbeats.start()

    def _send_heartbeats(self) -> None:
        polled, polled_at = self._poll_count(), _CLOCK.monotonic_ns()
        checked_at = polled_at
        while not self._stopped.wait(self._settings.heartbeat_interval):
            now = _CLOCK.monotonic_ns()
            count = self._poll_count()
            if count is None or count != polled:
                polled, polled_at = count, now
            if self._is_joining or self._generation < 0:
                continue
            try:
                if now - polled_at > self._settings.max_poll_interval * 1e9:
                    self._leave_idle()
                    continue
                self._heartbeat()
                if self._counted is not None and now - checked_at > CHECK_SECONDS * 1e9:
                    checked_at = now
                    self._check_partitions(self._counted)
            except Closed:
                return
            except BasculeError as error:
                log.warning("a heartbeat of group %s failed: %s", self._settings.group, error)

    def _heartbeat(self) -> None:
        generation = self._generation
        answer = self._requests.request(
            HeartbeatRequest(
                self._settings.group, generation, self._member_id, self._settings.instance
            ),
            lambda response: (response.error_code,),
            # The next one tries again. Commits must not wait for long behind this one.
            timeout=self._settings.heartbeat_interval,
        )
        if generation != self._generation or self._is_joining:
            return
        if answer.error_code == ErrorCode.REBALANCE_IN_PROGRESS:
            self._on_notice(Notice.REJOIN)
        elif answer.error_code in _GONE:
            self._lose(answer.error_code)

    def _lose(self, code: int) -> None:
        self._is_fenced = code == ErrorCode.FENCED_INSTANCE_ID
        self._forget(code)
        self._on_notice(Notice.LOST)

    def _leave_idle(self) -> None:
        log.warning(
            "this member leaves group %s: it has not asked for the next message for %g s; process "
            "messages faster, or set a larger max_poll_interval",
            self._settings.group,
            self._settings.max_poll_interval,
        )
        self._leave()
        if not self._is_joining:
            self._lose(ErrorCode.UNKNOWN_MEMBER_ID)

    def _check_partitions(self, counted: int) -> None:
        """The leader lets all join again if the stream has other partitions than it assigned."""
        if count_partitions(self._bootstrap, self._settings.stream) != counted:
            self._on_notice(Notice.REJOIN)

    # -- offsets --------------------------------------------------------------------------------

    def committed(self, partitions: Iterable[int]) -> dict[int, int]:
        """The group's committed offsets of `partitions`; those without one are left out."""
        settings = self._settings
        wanted = OffsetFetchGroupTopic(settings.stream, partition_indexes=sorted(partitions))
        answer = self._requests.request(
            OffsetFetchRequest(groups=[OffsetFetchGroup(settings.group, topics=[wanted])]),
            lambda response: [group.error_code for group in response.groups],
            version=FETCH_VERSION,
        )
        group = answer.groups[0]
        if group.error_code:
            raise Broken(f"group {settings.group!r}: OffsetFetch: {code_name(group.error_code)}")
        found = {}
        for each in group.topics[0].partitions:
            if each.error_code:
                raise Broken(
                    f"group {settings.group!r}: OffsetFetch of stream {settings.stream!r} "
                    f"partition {each.partition_index}: {code_name(each.error_code)}"
                )
            if each.committed_offset >= 0:
                found[each.partition_index] = each.committed_offset
        return found

    def commit(self, offsets: Mapping[int, int], *, stream_id: bytes) -> bool:
        """Commit, as a member of the present generation; False: try again once it has joined.

        Raises: CommitFenced, Broken, UnknownStream.
        """
        settings, generation = self._settings, self._generation
        if generation < 0:
            raise CommitFenced(settings.group, "this member is not in the group now")
        partitions = [OffsetCommitPartition(p, offset) for p, offset in offsets.items()]
        answer = self._requests.request(
            OffsetCommitRequest(
                group_id=settings.group,
                generation_id_or_member_epoch=generation,
                member_id=self._member_id,
                group_instance_id=settings.instance,
                topics=[OffsetCommitTopic(topic_id=stream_id, partitions=partitions)],
            ),
            lambda response: [p.error_code for topic in response.topics for p in topic.partitions],
            version=COMMIT_VERSION,
        )
        codes = {p.error_code for topic in answer.topics for p in topic.partitions} - {0}
        if codes & {ErrorCode.REBALANCE_IN_PROGRESS}:
            return False
        for code in codes:
            if code in _GONE:
                if self._is_joining or generation != self._generation:
                    return False
                self._lose(code)
                raise CommitFenced(settings.group, f"the coordinator says {code_name(code)}")
            if code in (ErrorCode.UNKNOWN_TOPIC_ID, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION):
                raise UnknownStream(settings.stream)
            raise Broken(f"group {settings.group!r}: OffsetCommit: {code_name(code)}")
        return True

    # -- the end --------------------------------------------------------------------------------

    def leave(self) -> None:
        """Leave the group, unless this member is static, and stop the heartbeats."""
        self._stopped.set()
        # Also where it has not joined yet: the others would wait until its session ends.
        if self._member_id and self._settings.instance is None:
            try:
                self._leave()
            except BasculeError as error:
                log.info("group %s was not left: %s", self._settings.group, error)
        self._forget()
        self.abort()
        self._joins.close()
        self._requests.close()

    def abort_join(self) -> None:
        """End a join in progress, which raises Closed. Thread-safe."""
        self._joins.abort()

    def abort(self) -> None:
        """End what is in progress, without leaving the group. Thread-safe; idempotent."""
        self._stopped.set()
        self._joins.abort()
        self._requests.abort()

    def _leave(self) -> None:
        self._requests.request(
            LeaveGroupRequest(
                self._settings.group,
                members=[MemberIdentity(self._member_id, reason="the consumer leaves")],
            ),
            lambda response: (response.error_code,),
            timeout=LEAVE_TIMEOUT_S,
        )


def _by_topic(partitions: Iterable[tuple[str, int]]) -> dict[str, list[int]]:
    topics: dict[str, list[int]] = {}
    for topic, partition in partitions:
        topics.setdefault(topic, []).append(partition)
    return topics
