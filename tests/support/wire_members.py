"""Members of groups that speak the protocol by hand, so that they can break its rules."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from bascule.log_connection import LogConnection
from bascule.wire.error_codes import ErrorCode
from bascule.wire.messages.group.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    GroupTopicPartitions,
)
from bascule.wire.messages.group.heartbeat import HeartbeatRequest
from bascule.wire.messages.group.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from bascule.wire.messages.group.sync_group import SyncGroupRequest, SyncGroupRequestAssignment
from bascule.wire.messages.offset_commit import (
    OffsetCommitPartition,
    OffsetCommitRequest,
    OffsetCommitTopic,
)

SESSION_MS_LONG: Final = 600_000
REBALANCE_MS: Final = 600_000
"""Nobody is removed because the machine is slow."""
PROTOCOLS: Final = [JoinGroupRequestProtocol("range", b"\0\3" + bytes(200))]
_numbers: Final = itertools.count(1)


@dataclass
class Joined:
    """A member, and its generation or epoch."""

    group: str
    member_id: str
    generation: int


def commit(connection: LogConnection, group: str, generation: int, member_id: str) -> int:
    """The error of a commit for partition 0 of `flights`."""
    topic = OffsetCommitTopic("flights", partitions=[OffsetCommitPartition(0, 7)])
    request = OffsetCommitRequest(group, generation, member_id, topics=[topic])
    return connection.request(request, version=9).topics[0].partitions[0].error_code


class WireMembers(Protocol):
    """How members of one protocol join, live and die."""

    def join(
        self, connection: LogConnection, group: str, session_ms: int = SESSION_MS_LONG
    ) -> Joined:
        """Join a group that has no members, and be settled. `session_ms` may be the node's."""

    def heartbeat(self, connection: LogConnection, joined: Joined) -> int:
        """The error of a heartbeat."""

    def begin_join(
        self, connection: LogConnection, group: str, session_ms: int, number: int
    ) -> None:
        """Begin to join a group whose member does not move; how far, depends on `number`."""


class ClassicWireMembers:
    """Of the classic protocol."""

    @staticmethod
    def request(group: str, member_id: str, session_ms: int) -> JoinGroupRequest:
        return JoinGroupRequest(
            group, session_ms, REBALANCE_MS, member_id,
            protocol_type="consumer", protocols=PROTOCOLS,
        )  # fmt: skip

    def join(
        self, connection: LogConnection, group: str, session_ms: int = SESSION_MS_LONG
    ) -> Joined:
        given = connection.request(self.request(group, "", session_ms))
        assert given.error_code == ErrorCode.MEMBER_ID_REQUIRED
        joined = connection.request(self.request(group, given.member_id, session_ms))
        assert joined.error_code == ErrorCode.NONE
        assignment = SyncGroupRequestAssignment(joined.member_id, bytes(100))
        synced = connection.request(
            SyncGroupRequest(
                group, joined.generation_id, joined.member_id, assignments=[assignment]
            )
        )
        assert synced.error_code == ErrorCode.NONE
        return Joined(group, joined.member_id, joined.generation_id)

    def heartbeat(self, connection: LogConnection, joined: Joined) -> int:
        request = HeartbeatRequest(joined.group, joined.generation, joined.member_id)
        return connection.request(request).error_code

    def begin_join(
        self, connection: LogConnection, group: str, session_ms: int, number: int
    ) -> None:
        given = connection.request(self.request(group, "", session_ms))
        if number % 2:
            # The member that stays does not join again, so this one waits.
            connection.send(self.request(group, given.member_id, session_ms))


class ConsumerWireMembers:
    """Of the consumer protocol (KIP-848). The session time-out is the node's."""

    def ask(
        self,
        connection: LogConnection,
        joined: Joined,
        *,
        owned: Sequence[GroupTopicPartitions] | None = None,
        regex: str | None = None,
    ) -> ConsumerGroupHeartbeatResponse:
        """A heartbeat; the member takes over the epoch of the answer."""
        answer = connection.request(self.request(joined, owned=owned, regex=regex))
        if not answer.error_code:
            joined.generation = answer.member_epoch
        return answer

    @staticmethod
    def request(
        joined: Joined,
        *,
        owned: Sequence[GroupTopicPartitions] | None = None,
        regex: str | None = None,
    ) -> ConsumerGroupHeartbeatRequest:
        joins = not joined.generation
        return ConsumerGroupHeartbeatRequest(
            joined.group,
            joined.member_id,
            joined.generation,
            rebalance_timeout_ms=REBALANCE_MS if joins else -1,
            subscribed_topic_names=["flights"] if joins and regex is None else None,
            subscribed_topic_regex=regex,
            topic_partitions=[] if joins else owned,
        )

    @staticmethod
    def new(group: str) -> Joined:
        return Joined(group, f"member-{next(_numbers):016}", 0)

    def join(
        self, connection: LogConnection, group: str, session_ms: int = SESSION_MS_LONG
    ) -> Joined:
        joined = self.new(group)
        answer = self.ask(connection, joined)
        assert answer.error_code == ErrorCode.NONE, answer.error_message
        assert answer.assignment is not None
        owned = answer.assignment.topic_partitions
        assert [list(each.partitions) for each in owned] == [[0]]
        assert self.ask(connection, joined, owned=owned).error_code == ErrorCode.NONE
        return joined

    def heartbeat(self, connection: LogConnection, joined: Joined) -> int:
        return self.ask(connection, joined).error_code

    def begin_join(
        self, connection: LogConnection, group: str, session_ms: int, number: int
    ) -> None:
        joined = self.new(group)
        regex = f"^fl{number}.*$" if number % 3 == 2 else None
        if number % 3 == 1:
            connection.send(self.request(joined))
            return
        answer = self.ask(connection, joined, regex=regex)
        assert answer.error_code in (ErrorCode.NONE, ErrorCode.GROUP_MAX_SIZE_REACHED)
