"""ConsumerGroupHeartbeat and ConsumerGroupDescribe, and offsets under epochs, over a real log."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Any

import pytest

from bascule.errors import NeedsClusterVersion
from bascule.groups.consumer import ConsumerGroup
from bascule.wire.error_codes import ErrorCode
from bascule.wire.messages.group.consumer_group_describe import ConsumerGroupDescribeRequest
from bascule.wire.messages.group.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    GroupTopicPartitions,
)
from bascule.wire.messages.group.join_group import JoinGroupRequestProtocol
from bascule.wire.messages.group.sync_group import SyncGroupRequest
from bascule.wire.messages.offset_fetch import (
    OffsetFetchGroup,
    OffsetFetchGroupTopic,
    OffsetFetchRequest,
)
from bascule.wire.offsets import OFFSETS_STREAM
from support.group_requests import GroupRequests
from support.handlers import HandlerHarness
from support.served_stream import open_stream

NONE = ErrorCode.NONE
SUBSCRIPTION = b"\0\1\0\0\0\1\0\x07flights\xff\xff\xff\xff\0\0\0\0"
"""To flights, in version 1, without partitions that are owned."""


class MemberRequests(GroupRequests):
    """Requests of members that speak the consumer protocol."""

    async def member_join(self, name: str, version: int = 1, **fields: Any) -> Any:
        request = ConsumerGroupHeartbeatRequest(
            fields.pop("group_id", "billing"),
            name,
            0,
            rebalance_timeout_ms=60_000,
            subscribed_topic_names=["flights"],
            topic_partitions=[],
        )
        for field, value in fields.items():
            setattr(request, field, value)
        return await self.send(request, version)

    async def member_heartbeat(self, name: str, epoch: int, **fields: Any) -> Any:
        return await self.send(ConsumerGroupHeartbeatRequest("billing", name, epoch, **fields), 1)

    async def describe(self, *names: str) -> Any:
        return (await self.send(ConsumerGroupDescribeRequest(list(names)), 1)).groups

    async def fetch(self, name: str, epoch: int) -> ErrorCode:
        topics = [OffsetFetchGroupTopic("flights", partition_indexes=[0])]
        group = OffsetFetchGroup("billing", name, epoch, topics)
        answer = await self.send(OffsetFetchRequest(groups=[group]), 9)
        return ErrorCode(answer.groups[0].error_code)


@pytest.fixture
def requests(harness: HandlerHarness, tmp_path: Path) -> MemberRequests:
    log = open_stream(tmp_path, harness.partitions, OFFSETS_STREAM, clock=harness.clock)
    return MemberRequests(harness, log)


@pytest.mark.parametrize("version", [0, 1])
def test_a_life(requests: MemberRequests, version: int) -> None:
    async def test() -> None:
        joined = await requests.member_join("" if version == 0 else "a", version)
        assert (joined.error_code, joined.error_message, joined.member_epoch) == (NONE, None, 1)
        assert joined.heartbeat_interval_ms == 500
        assert joined.member_id
        (assigned,) = joined.assignment.topic_partitions
        stream = requests.harness.partitions.stream("flights")
        assert stream is not None
        assert assigned.topic_id == stream[0].definition.id
        assert list(assigned.partitions) == list(range(len(stream)))
        again = await requests.member_heartbeat(joined.member_id, 1)
        assert (again.error_code, again.assignment) == (NONE, None)
        assert await requests.commit(1, joined.member_id) == NONE
        assert await requests.commit(0, joined.member_id) == ErrorCode.STALE_MEMBER_EPOCH
        assert await requests.commit(1, "nobody") == ErrorCode.UNKNOWN_MEMBER_ID
        assert await requests.commit(-1, "") == ErrorCode.UNKNOWN_MEMBER_ID
        assert await requests.fetch(joined.member_id, 1) == NONE
        assert await requests.fetch(joined.member_id, 2) == ErrorCode.STALE_MEMBER_EPOCH
        assert await requests.fetch("nobody", 1) == ErrorCode.UNKNOWN_MEMBER_ID
        await requests.offsets.wait_caught_up()
        assert list(requests.offsets.group_states) == ["billing"]
        assert list(requests.offsets.member_states["billing"]) == [joined.member_id]
        left = await requests.member_heartbeat(joined.member_id, -1)
        assert (left.error_code, left.member_epoch) == (NONE, -1)
        await requests.offsets.wait_caught_up()
        assert requests.offsets.group_states == requests.offsets.member_states == {}
        assert requests.groups.counts().members == 0
        assert await requests.commit(-1, "") == NONE

    requests.run(test)


def test_members_are_known_to_the_next_coordinator(requests: MemberRequests) -> None:
    async def first() -> None:
        for name in "abc":
            await requests.member_join(name)

    async def second() -> None:
        (described,) = await requests.describe("billing")
        for member in described.members:
            owned = [
                GroupTopicPartitions(each.topic_id, each.partitions)
                for each in member.assignment.topic_partitions
            ]
            answer = await requests.member_heartbeat(
                member.member_id, member.member_epoch, topic_partitions=owned
            )
            assert (answer.error_code, answer.member_epoch) == (NONE, 3)
        (described,) = await requests.describe("billing")
        assert (described.group_epoch, described.assignment_epoch) == (3, 3)
        counts = requests.groups.counts()
        assert (counts.members, counts.rebalances) == (3, 0)

    requests.run(first)
    requests.begin()
    requests.run(second)


def test_a_damaged_record_drops_the_group(
    requests: MemberRequests, caplog: pytest.LogCaptureFixture
) -> None:
    async def damage() -> None:
        await requests.member_join("a")
        await requests.offsets.store_members("billing", [("a", b"?")])

    async def test() -> None:
        answer = await requests.member_heartbeat("a", 1)
        assert answer.error_code == ErrorCode.UNKNOWN_MEMBER_ID
        assert (await requests.member_join("a")).error_code == NONE

    requests.run(damage)
    requests.begin()
    with caplog.at_level(logging.WARNING):
        requests.run(test)
    assert "members of a group cannot be read" in caplog.text


def test_groups_are_described(requests: MemberRequests) -> None:
    async def test() -> None:
        await requests.member_join("a", instance_id="one", rack_id="r", server_assignor="range")
        await requests.member_join("b", subscribed_topic_names=None, subscribed_topic_regex="f.*")
        unknown, billing = await requests.describe("nobody", "billing", "billing")
        assert unknown.error_code == ErrorCode.GROUP_ID_NOT_FOUND
        assert (billing.group_state, billing.group_epoch) == ("Reconciling", 2)
        assert (billing.assignment_epoch, billing.assignor_name) == (2, "range")
        a, b = billing.members
        assert (a.member_id, a.instance_id, a.rack_id, a.member_epoch) == ("a", "one", "r", 1)
        assert (a.client_id, a.member_type) == ("test", 1)
        assert (list(a.subscribed_topic_names), a.subscribed_topic_regex) == (["flights"], None)
        assert (list(b.subscribed_topic_names), b.subscribed_topic_regex) == ([], "f.*")
        assert [each.topic_name for each in a.assignment.topic_partitions] == ["flights"]
        targets = [
            n for m in (a, b) for t in m.target_assignment.topic_partitions for n in t.partitions
        ]
        stream = requests.harness.partitions.stream("flights")
        assert stream is not None
        assert targets == list(range(len(stream)))

    requests.run(test)


def test_errors_before_a_group_is_asked(requests: MemberRequests) -> None:
    async def test() -> None:
        for name in ("", "x" * 201):
            refused = await requests.member_join("a", group_id=name)
            assert refused.error_code == ErrorCode.INVALID_GROUP_ID
        refused = await requests.member_heartbeat("a", 1)
        assert refused.error_code == ErrorCode.UNKNOWN_MEMBER_ID
        refused = await requests.member_join("a", server_assignor="best")
        assert refused.error_code == ErrorCode.UNSUPPORTED_ASSIGNOR
        assert "uniform, range" in refused.error_message
        assert not requests.groups.counts().states, "no group was made"

    requests.run(test)


@pytest.mark.parametrize("behind", [{2: "0.1.0"}, {}])
def test_older_nodes_are_waited_for(requests: MemberRequests, behind: dict[int, str]) -> None:
    """While they are upgraded clients are refused; in the moment after that they try again."""

    def check() -> None:
        raise NeedsClusterVersion("a group", 2, 1, behind, "set group.protocol=classic")

    async def test() -> None:
        requests.groups._check_version = check
        refused = await requests.member_join("a")
        if behind:
            assert refused.error_code == ErrorCode.UNSUPPORTED_VERSION
            assert "upgrade node 2 (release 0.1.0)" in refused.error_message
        else:
            assert refused.error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        assert not requests.groups.counts().states

    requests.run(test)


def test_a_group_stays_classic_where_the_newer_member_is_refused(requests: MemberRequests) -> None:
    async def test() -> None:
        protocols = [JoinGroupRequestProtocol("range", memoryview(SUBSCRIPTION))]
        joined = await requests.join(version=3, protocols=protocols)
        synced = await requests.send(SyncGroupRequest("billing", 1, joined.member_id), 5)
        assert synced.error_code == NONE
        refused = await requests.member_join("newer")
        assert refused.error_code == ErrorCode.GROUP_MAX_SIZE_REACHED
        assert not isinstance(requests.groups._groups["billing"].group, ConsumerGroup)
        assert await requests.heartbeat(joined) == NONE, "it does not have to join again"

    requests.begin(members_max=1)
    requests.run(test)


def test_a_node_that_does_not_lead_refuses(requests: MemberRequests) -> None:
    async def test() -> None:
        await requests.member_join("a")
        await requests.groups.close()
        for answer in (await requests.member_heartbeat("a", 1), *await requests.describe("x")):
            assert answer.error_code == ErrorCode.NOT_COORDINATOR

    requests.run(test)


def test_a_closed_connection_takes_nothing_back(requests: MemberRequests) -> None:
    """The member may not know that it has joined: it repeats its request."""

    async def test() -> None:
        gone = asyncio.create_task(requests.member_join("a"))
        await asyncio.wait([gone], timeout=0)
        gone.cancel()
        await asyncio.wait([gone])
        again = await requests.member_join("a")
        assert (again.error_code, again.member_epoch) == (NONE, 1)
        assert not requests.groups._waiting

    requests.run(test)


def test_a_silent_member_is_removed_by_the_timer(requests: MemberRequests) -> None:
    """On the real clock, with a short session."""

    async def test() -> None:
        await requests.member_join("a")
        appended = asyncio.Event()
        requests.log.watchers.add(appended.set)
        await requests.offsets.wait_caught_up()
        while requests.offsets.group_states:
            await appended.wait()
            appended.clear()
            await requests.offsets.wait_caught_up()
        assert (requests.groups.counts().members, requests.groups.counts().expired) == (0, 1)

    requests.begin(consumer_session_ms=500, consumer_heartbeat_ms=100)
    requests.run(test)


def test_a_group_is_converted_and_back(
    requests: MemberRequests, caplog: pytest.LogCaptureFixture
) -> None:
    """The metadata here are no subscription, so this group stays as it is; and one that is."""

    async def test() -> None:
        joined = await requests.member()
        refused = await requests.member_join("newer")
        assert refused.error_code == ErrorCode.GROUP_ID_NOT_FOUND
        assert await requests.heartbeat(joined) == NONE

        protocols = [JoinGroupRequestProtocol("range", memoryview(SUBSCRIPTION))]
        given = await requests.join(group_id="mixed", protocols=protocols)
        older = await requests.join(given.member_id, group_id="mixed", protocols=protocols)
        assert older.generation_id == 1
        newer = await requests.member_join("newer", group_id="mixed")
        assert (newer.error_code, newer.member_epoch) == (NONE, 2)
        again = await requests.join(given.member_id, group_id="mixed", protocols=protocols)
        assert (again.error_code, again.generation_id, again.leader) == (NONE, 2, "")
        (mixed,) = await requests.describe("mixed")
        assert sorted(each.member_type for each in mixed.members) == [0, 1]
        await requests.offsets.wait_caught_up()
        assert len(requests.offsets.member_states["mixed"]) == 2
        left = await requests.send(ConsumerGroupHeartbeatRequest("mixed", "newer", -1), 1)
        assert left.error_code == NONE
        while "mixed" in requests.offsets.member_states:
            await asyncio.wait(requests.groups._storing)
            await requests.offsets.wait_caught_up()
        assert not isinstance(requests.groups._groups["mixed"].group, ConsumerGroup)

    with caplog.at_level(logging.INFO):
        requests.run(test)
    assert [r.to_protocol for r in caplog.records if r.message == "group converted"] == [
        "consumer",
        "classic",
    ]
