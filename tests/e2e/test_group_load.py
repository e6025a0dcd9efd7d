"""Groups under abuse, over real sockets: a thousand groups, members that vanish, and zombies."""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

import bascule
from bascule.config.addresses import parse_address
from bascule.log_connection import LogConnection
from bascule.wire.error_codes import ErrorCode
from bascule.wire.messages.group.heartbeat import HeartbeatRequest
from bascule.wire.messages.group.join_group import (
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    JoinGroupResponse,
)
from bascule.wire.messages.group.sync_group import SyncGroupRequest, SyncGroupRequestAssignment
from bascule.wire.messages.offset_commit import (
    OffsetCommitPartition,
    OffsetCommitRequest,
    OffsetCommitTopic,
)
from support import http_calls
from support.group_members import group_members
from support.processes import Node, running_node, wait_for

GROUPS = 1_000
ROUNDS = 2_000
BYTES_MAX = 256 << 20
"""Of all groups together."""
GROWTH_BYTES_MAX = 32 << 20
"""Of the node, for what is gone again. A member that stayed would cost some kilobytes, a
connection of it more."""
SESSION_MS_LONG = 600_000
REBALANCE_MS = 600_000
"""Nobody is removed because the machine is slow."""
PROTOCOLS = [JoinGroupRequestProtocol("range", b"\0\3" + bytes(200))]


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    quick = {"BASCULE_GROUPS_INITIAL_DELAY_MS": "0", "BASCULE_GROUPS_SESSION_MS_MIN": "1000"}
    with running_node(tmp_path / "node", environment=quick, keep_ports=True) as node:
        yield node


def connect(node: Node) -> LogConnection:
    return LogConnection(*parse_address(node.addresses["client"]), timeout=60)


def join_request(group: str, member_id: str, session_ms: int) -> JoinGroupRequest:
    return JoinGroupRequest(
        group, session_ms, REBALANCE_MS, member_id, protocol_type="consumer", protocols=PROTOCOLS
    )


def join(
    connection: LogConnection, group: str, session_ms: int = SESSION_MS_LONG
) -> JoinGroupResponse:
    """Join alone, and bring the assignment."""
    given = connection.request(join_request(group, "", session_ms))
    assert given.error_code == ErrorCode.MEMBER_ID_REQUIRED
    joined = connection.request(join_request(group, given.member_id, session_ms))
    assert joined.error_code == ErrorCode.NONE
    assignment = SyncGroupRequestAssignment(joined.member_id, bytes(100))
    synced = connection.request(
        SyncGroupRequest(group, joined.generation_id, joined.member_id, assignments=[assignment])
    )
    assert synced.error_code == ErrorCode.NONE
    return joined


def heartbeat(connection: LogConnection, group: str, joined: JoinGroupResponse) -> int:
    request = HeartbeatRequest(group, joined.generation_id, joined.member_id)
    return connection.request(request).error_code


def metric(node: Node, name: str) -> float:
    text = http_calls.get(node.addresses["http"] + "/metrics")
    return sum(float(line.split()[-1]) for line in text.splitlines() if line.startswith(name))


def resident_bytes(node: Node) -> int:
    assert node.process is not None
    status = Path(f"/proc/{node.process.pid}/status").read_text()
    (line,) = (line for line in status.splitlines() if line.startswith("VmRSS:"))
    return int(line.split()[1]) << 10


def wait_members(node: Node, count: int) -> None:
    wait_for(
        lambda: metric(node, "bascule_group_members ") == count or None, node.process, node.log
    )


def test_a_thousand_groups_go_on_after_a_restart(node: Node) -> None:
    connection = connect(node)
    before = resident_bytes(node)
    joined = {f"group {n}": join(connection, f"group {n}") for n in range(GROUPS)}
    assert metric(node, 'bascule_groups{state="Stable"}') == GROUPS
    assert resident_bytes(node) - before < GROWTH_BYTES_MAX
    connection.close()
    node.stop(signal.SIGKILL)
    node.start()
    connection = connect(node)

    def are_loaded() -> bool | None:
        code = heartbeat(connection, "group 0", joined["group 0"])
        return None if code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS else True

    wait_for(are_loaded, node.process, node.log)
    for group, member in joined.items():
        assert heartbeat(connection, group, member) == ErrorCode.NONE
    wait_members(node, GROUPS)
    assert metric(node, "bascule_group_rebalances_total") == 0
    connection.close()


def test_large_assignments_cost_bounded_memory(node: Node) -> None:
    """Each group alone is within its bound. All of them would take 700 MB."""
    connection = connect(node)
    before = resident_bytes(node)
    codes: Counter[int] = Counter()
    for number in range(300):
        group = f"large {number}"
        given = connection.request(join_request(group, "", SESSION_MS_LONG))
        joined = connection.request(join_request(group, given.member_id, SESSION_MS_LONG))
        assert joined.error_code == ErrorCode.NONE
        assignment = SyncGroupRequestAssignment(joined.member_id, bytes(1_000_000))
        sync = SyncGroupRequest(
            group, joined.generation_id, joined.member_id, assignments=[assignment]
        )
        codes[connection.request(sync).error_code] += 1
    assert codes.keys() == {ErrorCode.NONE, ErrorCode.GROUP_MAX_SIZE_REACHED}
    assert codes[ErrorCode.NONE] > 50
    assert metric(node, "bascule_group_refusals_total ") == codes[ErrorCode.GROUP_MAX_SIZE_REACHED]
    kept = metric(node, "bascule_group_memory_bytes ")
    assert codes[ErrorCode.NONE] * 2_300_000 < kept <= BYTES_MAX
    assert resident_bytes(node) - before < BYTES_MAX + GROWTH_BYTES_MAX
    # Small groups find the room that is left.
    join(connection, "small")
    connection.close()


def test_members_that_join_and_die_in_a_loop_cost_bounded_memory(node: Node) -> None:
    """They die before they use their id, while they wait, and without a heartbeat."""
    steady = connect(node)
    stays = join(steady, "loop")

    def die(number: int) -> None:
        connection = connect(node)
        given = connection.request(join_request("loop", "", 1_000))
        if number % 2:
            # The member that stays does not join again, so this one waits.
            connection.send(join_request("loop", given.member_id, 1_000))
        connection.close()

    def alone(number: int) -> None:
        connection = connect(node)
        join(connection, f"alone {number % 50} {number // 50}", 1_000)
        connection.close()

    for number in range(200):
        die(number)
        alone(number)
    before = resident_bytes(node)
    for number in range(200, 200 + ROUNDS):
        die(number)
        alone(number)
        if number % 50 == 0:
            code = heartbeat(steady, "loop", stays)
            assert code in (ErrorCode.NONE, ErrorCode.REBALANCE_IN_PROGRESS)
    # Who has never sent a heartbeat is removed when its session ends.
    wait_members(node, 1)
    assert resident_bytes(node) - before < GROWTH_BYTES_MAX
    assert heartbeat(steady, "loop", stays) == ErrorCode.REBALANCE_IN_PROGRESS
    again = steady.request(join_request("loop", stays.member_id, SESSION_MS_LONG))
    assert again.error_code == ErrorCode.NONE
    assert [member.member_id for member in again.members] == [stays.member_id]
    steady.close()


def test_an_old_generation_is_refused_whatever_it_asks(node: Node) -> None:
    node.create("flights", "flights.*")
    connection = connect(node)
    first = join(connection, "fenced")

    def commit(generation: int, member_id: str) -> int:
        topic = OffsetCommitTopic("flights", partitions=[OffsetCommitPartition(0, 7)])
        request = OffsetCommitRequest("fenced", generation, member_id, topics=[topic])
        return connection.request(request, version=9).topics[0].partitions[0].error_code

    assert commit(first.generation_id, first.member_id) == ErrorCode.NONE
    again = connection.request(join_request("fenced", first.member_id, SESSION_MS_LONG))
    assert again.generation_id == first.generation_id + 1
    assert heartbeat(connection, "fenced", first) == ErrorCode.ILLEGAL_GENERATION
    assert commit(first.generation_id, first.member_id) == ErrorCode.ILLEGAL_GENERATION
    assert commit(again.generation_id, "somebody else") == ErrorCode.UNKNOWN_MEMBER_ID
    assert commit(-1, "") == ErrorCode.UNKNOWN_MEMBER_ID
    synced = connection.request(SyncGroupRequest("fenced", first.generation_id, first.member_id))
    assert synced.error_code == ErrorCode.ILLEGAL_GENERATION
    connection.close()


@pytest.mark.parametrize("client", ["bascule", "bascule-cooperative", "confluent-kafka"])
def test_a_stopped_process_that_goes_on_later_takes_nothing_back(
    tmp_path: Path, node: Node, client: str
) -> None:
    node.create("flights", "flights.*", partitions=4, partition_by="subject")
    with (
        bascule.connect_sync(node.addresses["http"]) as own,
        group_members(tmp_path, node, "zombies", "flights", 4, session_ms=3_000) as members,
    ):

        def publish(first: int) -> None:
            own.publish_many((f"flights.{n}", b"%d" % n) for n in range(first, first + 200))

        def are_committed() -> bool | None:
            ends = {p.partition: p.high_watermark for p in own.stream("flights").partitions}
            return committed() == ends or None

        def committed() -> dict[int, int]:
            return {e.partition: e.offset for e in own.offsets(consumer="zombies")}

        publish(0)
        zombie, other = members.add(client), members.add(client)
        members.wait_shared()
        members.wait(are_committed)
        zombie.process.send_signal(signal.SIGSTOP)
        publish(200)
        members.wait(lambda: other.owned() == [0, 1, 2, 3] or None)
        members.wait(are_committed)
        before = committed()
        zombie.process.send_signal(signal.SIGCONT)
        members.wait_shared()
        assert committed() == before
        publish(400)
        members.wait(are_committed)
        members.check_order()
