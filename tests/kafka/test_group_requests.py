"""JoinGroup, SyncGroup, Heartbeat and LeaveGroup, in all versions, over a real log."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bascule.model import PartitionState
from bascule.replica.partition import Partition
from bascule.wire.error_codes import ErrorCode
from bascule.wire.messages.group.leave_group import LeaveGroupRequest, MemberIdentity
from bascule.wire.messages.offset_fetch import (
    OffsetFetchGroup,
    OffsetFetchGroupTopic,
    OffsetFetchRequest,
)
from bascule.wire.offsets import OFFSETS_STREAM
from bascule.wire.schema import Request
from support.group_requests import GroupRequests
from support.handlers import HandlerHarness
from support.served_stream import NODE, open_stream

NONE = ErrorCode.NONE
OTHER = NODE.node_id + 1


@pytest.fixture
def requests(harness: HandlerHarness, tmp_path: Path) -> GroupRequests:
    log = open_stream(tmp_path, harness.partitions, OFFSETS_STREAM, clock=harness.clock)
    return GroupRequests(harness, log)


@pytest.mark.parametrize("version", range(10))
def test_a_life_in_every_version(requests: GroupRequests, version: int) -> None:
    async def test() -> None:
        joined = await requests.join(version=version)
        if version >= 4:
            assert joined.error_code == ErrorCode.MEMBER_ID_REQUIRED
            joined = await requests.join(joined.member_id, version)
        assert (joined.error_code, joined.generation_id) == (NONE, 1)
        assert joined.member_id.startswith("test-"), "the client id"
        assert (joined.protocol_name, joined.leader) == ("range", joined.member_id)
        synced = await requests.sync(joined, min(version, 5))
        assert synced.assignment == joined.member_id.encode()
        assert await requests.heartbeat(joined, min(version, 4)) == NONE
        assert await requests.commit(1, joined.member_id) == NONE
        assert await requests.commit(0, joined.member_id) == ErrorCode.ILLEGAL_GENERATION
        assert await requests.commit(1, "nobody") == ErrorCode.UNKNOWN_MEMBER_ID
        assert await requests.commit(-1, "") == ErrorCode.UNKNOWN_MEMBER_ID
        assert list(requests.offsets.group_states) == ["billing"]
        leave_version = min(version, 5)
        if leave_version < 3:
            left = await requests.send(
                LeaveGroupRequest("billing", joined.member_id), leave_version
            )
            assert left.error_code == NONE
        else:
            leaving = [MemberIdentity(joined.member_id), MemberIdentity("nobody")]
            left = await requests.send(LeaveGroupRequest("billing", members=leaving), leave_version)
            assert [m.error_code for m in left.members] == [NONE, ErrorCode.UNKNOWN_MEMBER_ID]
        assert await requests.heartbeat(joined) == ErrorCode.UNKNOWN_MEMBER_ID
        assert await requests.commit(-1, "") == NONE

    requests.run(test)
    assert requests.groups.counts().members == 0


def test_what_another_node_may_have_changed_is_not_overwritten(requests: GroupRequests) -> None:
    """Its timer comes when the node leads again, before it has loaded the groups again."""

    async def test() -> None:
        joined = await requests.join(version=3)
        assert (await requests.sync(joined)).error_code == NONE
        running = requests.groups._groups["billing"]
        state = requests.log.state
        assert state is not None
        led = PartitionState((NODE.node_id,), (NODE.node_id,), NODE.node_id, state.leader_epoch, 0)
        for leader, epoch in ((8, state.leader_epoch + 1), (NODE.node_id, state.leader_epoch + 2)):
            now = replace(led, leader=leader, leader_epoch=epoch)
            requests.log.set_role(now, NODE.node_id, lag_ns_max=0)
        requests.groups._on_due(running, requests.groups._due.now_ms() + 3_600_000)
        await requests.offsets.wait_caught_up()
        assert await requests.heartbeat(joined) == NONE, "a session begins with a new coordinator"
        for _ in range(2):  # the second one comes behind what the timer may have stored
            assert await requests.commit(1, joined.member_id) == NONE
        assert list(requests.offsets.group_states) == ["billing"]

    requests.run(test)


def test_errors_before_a_group_is_asked(requests: GroupRequests) -> None:
    async def test() -> None:
        refused = await requests.join(group_id="")
        assert refused.error_code == ErrorCode.INVALID_GROUP_ID
        refused = await requests.join("nobody", version=5)
        assert (refused.error_code, refused.protocol_name) == (ErrorCode.UNKNOWN_MEMBER_ID, "")
        assert await requests.heartbeat(refused) == ErrorCode.UNKNOWN_MEMBER_ID
        synced = await requests.sync(refused)
        assert synced.error_code == ErrorCode.UNKNOWN_MEMBER_ID
        assert not requests.groups.counts().states, "no group was made"

    requests.run(test)


def test_a_member_may_send_its_generation_as_an_epoch(requests: GroupRequests) -> None:
    """franz-go does so where it reads committed offsets, and joins again if it is refused."""

    async def test() -> None:
        joined = await requests.member()
        assert await requests.commit(1, joined.member_id) == NONE
        topic = OffsetFetchGroupTopic("flights", partition_indexes=[0])
        group = OffsetFetchGroup("billing", joined.member_id, 1, [topic])
        answer = await requests.send(OffsetFetchRequest(groups=[group]), 9)
        assert answer.groups[0].error_code == NONE
        assert answer.groups[0].topics[0].partitions[0].committed_offset == 7

    requests.run(test)


def test_a_coordinator_that_is_cut_off_refuses(requests: GroupRequests) -> None:
    """There may be another one, at which the sessions of its members run out."""

    async def test() -> None:
        joined = await requests.member()
        is_cut_off, elsewhere = True, ErrorCode.NOT_COORDINATOR
        requests.groups._is_cut_off = lambda: is_cut_off
        assert await requests.heartbeat(joined) == elsewhere
        assert await requests.commit(1, joined.member_id) == elsewhere
        assert (await requests.join(joined.member_id)).error_code == elsewhere
        is_cut_off = False
        assert await requests.heartbeat(joined) == NONE
        assert await requests.commit(1, joined.member_id) == NONE

    requests.run(test)


def test_a_coordinator_that_another_one_follows_answers_no_fetch_and_no_leave(
    requests: GroupRequests,
) -> None:
    """One that stood still does not know yet that there is another one, which takes commits."""
    group = OffsetFetchGroup(
        "billing", topics=[OffsetFetchGroupTopic("flights", partition_indexes=[0])]
    )
    asked: list[asyncio.Future[bool]] = []

    def ask(partition: Partition) -> asyncio.Future[bool]:
        assert partition is requests.log
        asked.append(asyncio.get_running_loop().create_future())
        return asked[-1]

    async def confirmed(request: Request[Any], version: int, *, leads: bool) -> Any:
        answer = asyncio.create_task(requests.send(request, version))
        while not asked:
            await asyncio.wait([answer], timeout=0)
            assert not answer.done()
        asked.pop().set_result(leads)
        return await answer

    async def test() -> None:
        joined = await requests.member()
        assert await requests.commit(1, joined.member_id) == NONE
        fetch = OffsetFetchRequest(groups=[group])
        leave = LeaveGroupRequest("billing", members=[MemberIdentity(joined.member_id)])
        requests.groups._leads = ask
        # Nobody else has the partition: nobody else can lead.
        alone = (await requests.send(fetch, 9)).groups[0]
        assert (alone.error_code, alone.topics[0].partitions[0].committed_offset) == (NONE, 7)
        assert requests.log.state is not None
        state = replace(requests.log.state, replicas=(NODE.node_id, NODE.node_id + 1))
        requests.log.set_role(state, NODE.node_id, lag_ns_max=1)
        elsewhere = ErrorCode.NOT_COORDINATOR
        assert (await confirmed(fetch, 9, leads=False)).groups[0].error_code == elsewhere
        assert (await confirmed(leave, 4, leads=False)).error_code == elsewhere
        assert await requests.heartbeat(joined) == NONE
        found = (await confirmed(fetch, 9, leads=True)).groups[0]
        assert (found.error_code, found.topics[0].partitions[0].committed_offset) == (NONE, 7)
        assert (await confirmed(leave, 4, leads=True)).error_code == NONE
        assert requests.groups.counts().members == 0

    requests.run(test)


def test_a_node_that_does_not_lead_refuses(requests: GroupRequests) -> None:
    async def test() -> None:
        joined = await requests.member()
        waiting = asyncio.create_task(requests.join(version=3))
        await asyncio.wait([waiting], timeout=0)
        set_leader(requests.log, NODE.node_id + 1)
        assert (await waiting).error_code == ErrorCode.NOT_COORDINATOR
        elsewhere = ErrorCode.NOT_COORDINATOR
        assert await requests.heartbeat(joined) == elsewhere
        assert (await requests.sync(joined)).error_code == elsewhere
        assert (await requests.join(joined.member_id)).error_code == elsewhere
        left = await requests.send(LeaveGroupRequest("billing", members=[MemberIdentity("x")]), 5)
        assert (left.error_code, list(left.members)) == (elsewhere, [])
        # It leads again: the member goes on with what was stored.
        set_leader(requests.log, NODE.node_id)
        assert await requests.heartbeat(joined) == NONE
        assert await requests.commit(1, joined.member_id) == NONE

    requests.run(test)


def set_leader(log: Partition, leader: int) -> None:
    assert log.state is not None
    state = replace(
        log.state,
        leader=leader,
        isr=(leader,),
        replicas=(leader,),
        leader_epoch=log.leader_epoch + 1,
        version=log.state.version + 1,
    )
    log.set_role(state, NODE.node_id, lag_ns_max=1)


def test_members_are_known_to_the_next_coordinator(requests: GroupRequests) -> None:
    joined: list[Any] = []

    async def first() -> None:
        joined.append(await requests.member())

    async def second() -> None:
        assert await requests.heartbeat(joined[0]) == NONE
        assert await requests.commit(1, joined[0].member_id) == NONE
        counts = requests.groups.counts()
        assert (counts.states, counts.members, counts.rebalances) == ({"Stable": 1}, 1, 0)

    requests.run(first)
    requests.begin()
    requests.run(second)


def test_a_closed_connection_takes_its_join_back(requests: GroupRequests) -> None:
    async def test() -> None:
        joined = await requests.member()
        for _ in range(100):
            gone = asyncio.create_task(requests.join(version=3))
            await asyncio.wait([gone], timeout=0)
            gone.cancel()
            await asyncio.wait([gone])
        assert requests.groups.counts().members == 1
        again = await requests.join(joined.member_id)
        assert (again.error_code, again.generation_id) == (NONE, 2)

    requests.run(test)


def test_a_silent_member_is_removed_by_the_timer(requests: GroupRequests) -> None:
    """On the real clock, with the shortest session."""

    async def test() -> None:
        joined = await requests.join(version=3, session_timeout_ms=1_000)
        await requests.sync(joined)
        appended = asyncio.Event()
        requests.log.watchers.add(appended.set)
        await requests.offsets.wait_caught_up()
        while requests.offsets.group_states:
            await appended.wait()
            appended.clear()
            await requests.offsets.wait_caught_up()
        assert (requests.groups.counts().members, requests.groups.counts().expired) == (0, 1)

    requests.begin(session_ms_min=1_000)
    requests.run(test)


def test_while_the_groups_are_loaded_clients_wait(requests: GroupRequests) -> None:
    async def test() -> None:
        loading = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        assert (await requests.join()).error_code == loading
        assert await requests.commit(-1, "") == loading

    async def store() -> None:
        await requests.member()

    requests.run(store)
    requests.begin()
    # The store has not read anything yet.
    asyncio.run(test())


def test_while_the_groups_are_loaded_members_are_not_told_so(requests: GroupRequests) -> None:
    """As in Kafka: aiokafka's heartbeats end with COORDINATOR_LOAD_IN_PROGRESS."""
    joined: Any = None

    async def store() -> None:
        nonlocal joined
        joined = await requests.member()

    async def test() -> None:
        assert await requests.heartbeat(joined) == NONE
        assert (await requests.sync(joined)).error_code == ErrorCode.REBALANCE_IN_PROGRESS
        assert requests.groups.error() == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        set_leader(requests.log, NODE.node_id + 1)
        elsewhere = ErrorCode.NOT_COORDINATOR
        assert await requests.heartbeat(joined) == elsewhere
        assert (await requests.sync(joined)).error_code == elsewhere

    requests.run(store)
    requests.begin()
    # The store has not read anything yet.
    asyncio.run(test())


@pytest.mark.parametrize(("in_sync", "expected"), [
    ((NODE.node_id, OTHER), ErrorCode.COORDINATOR_NOT_AVAILABLE),
    ((NODE.node_id,), ErrorCode.UNKNOWN_SERVER_ERROR),
])  # fmt: skip
def test_where_the_log_has_stopped_another_replica_is_waited_for(
    requests: GroupRequests, in_sync: tuple[int, ...], expected: ErrorCode
) -> None:
    """A consumer ends with an error that it cannot try again after."""

    async def test() -> None:
        joined = await requests.member()
        await requests.offsets.wait_caught_up()
        epoch = requests.log.leader_epoch
        state = PartitionState((NODE.node_id, OTHER), in_sync, NODE.node_id, epoch, 0)
        requests.log.set_role(state, NODE.node_id, lag_ns_max=1 << 60)
        requests.log.fail("bad sector")
        assert (await requests.join()).error_code == expected
        assert (await requests.sync(joined)).error_code == expected
        assert await requests.commit(joined.generation_id, joined.member_id) == expected
        # No other node answers for the groups yet.
        assert requests.groups.error() == expected

    requests.begin()
    requests.run(test)


def test_groups_that_come_and_go_cost_bounded_memory(requests: GroupRequests) -> None:
    async def test() -> None:
        for n in range(3_000):
            gone = asyncio.create_task(requests.join(version=3, group_id=f"group {n}"))
            await asyncio.wait([gone], timeout=0)
            gone.cancel()
            await asyncio.wait([gone])
        assert not requests.groups.counts().states
        assert len(requests.groups._due) <= 1_001

    requests.begin(initial_delay_ms=60_000)
    requests.run(test)
