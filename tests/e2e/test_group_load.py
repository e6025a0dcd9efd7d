"""Groups under abuse, over real sockets: a thousand groups, members that vanish, and zombies."""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

import bascule
from bascule.cluster_version import NEWEST
from bascule.config.addresses import parse_address
from bascule.log_connection import LogConnection
from bascule.wire.error_codes import ErrorCode
from bascule.wire.messages.group.sync_group import SyncGroupRequest, SyncGroupRequestAssignment
from bascule.wire.messages.offset_fetch import (
    OffsetFetchGroup,
    OffsetFetchGroupTopic,
    OffsetFetchRequest,
)
from support import http_calls
from support.group_members import group_members
from support.processes import Node, running_node, wait_for
from support.wire_members import (
    SESSION_MS_LONG,
    ClassicWireMembers,
    ConsumerWireMembers,
    Joined,
    commit,
)

GROUPS = 1_000
ROUNDS = 2_000
BYTES_MAX = 256 << 20
"""Of all groups together."""
GROWTH_BYTES_MAX = 32 << 20
"""Of the node, for what is gone again. A member that stayed would cost some kilobytes, a
connection of it more."""
PROTOCOLS = {"classic": ClassicWireMembers(), "consumer": ConsumerWireMembers()}
QUICK = {
    "BASCULE_GROUPS_INITIAL_DELAY_MS": "0",
    "BASCULE_GROUPS_SESSION_MS_MIN": "1000",
    "BASCULE_GROUPS_CONSUMER_HEARTBEAT_MS": "500",
}
SHORT_SESSION = {"BASCULE_GROUPS_CONSUMER_SESSION_MS": "3000"}


@pytest.fixture
def node(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Node]:
    """A node; the parameter is what its environment has besides."""
    more = getattr(request, "param", {"BASCULE_GROUPS_CONSUMER_SESSION_MS": str(SESSION_MS_LONG)})
    with running_node(tmp_path / "node", environment=QUICK | more, keep_ports=True) as node:
        # A new cluster does not use its newest version at once; the consumer protocol needs it.
        wait_for(
            lambda: node.call("GET", "/v1/cluster")["cluster_version"] == NEWEST or None,
            node.process,
            node.log,
        )
        yield node


def connect(node: Node) -> LogConnection:
    return LogConnection(*parse_address(node.addresses["client"]), timeout=60)


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


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_thousand_groups_go_on_after_a_restart(node: Node, protocol: str) -> None:
    members = PROTOCOLS[protocol]
    node.create("flights", "flights.*")
    connection = connect(node)
    before = resident_bytes(node)
    joined = [members.join(connection, f"group {n}") for n in range(GROUPS)]
    assert metric(node, 'bascule_groups{state="Stable"}') == GROUPS
    assert resident_bytes(node) - before < GROWTH_BYTES_MAX
    connection.close()
    node.stop(signal.SIGKILL)
    node.start()
    connection = connect(node)
    wait_members(node, GROUPS)
    for member in joined:
        assert members.heartbeat(connection, member) == ErrorCode.NONE
    wait_members(node, GROUPS)
    assert metric(node, "bascule_group_rebalances_total") == 0
    connection.close()


def test_large_assignments_cost_bounded_memory(node: Node) -> None:
    """Each group alone is within its bound. All of them would take 700 MB."""
    connection, members = connect(node), ClassicWireMembers()
    before = resident_bytes(node)
    codes: Counter[int] = Counter()
    for number in range(300):
        group = f"large {number}"
        given = connection.request(members.request(group, "", SESSION_MS_LONG))
        joined = connection.request(members.request(group, given.member_id, SESSION_MS_LONG))
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
    members.join(connection, "small")
    connection.close()


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
@pytest.mark.parametrize("node", [SHORT_SESSION], indirect=True, ids=["short"])
@pytest.mark.long
def test_members_that_join_and_die_in_a_loop_cost_bounded_memory(node: Node, protocol: str) -> None:
    """They die before they use their id, while they wait, and without a heartbeat."""
    members = PROTOCOLS[protocol]
    node.create("flights", "flights.*")
    steady = connect(node)
    stays = members.join(steady, "loop")

    def die(number: int) -> None:
        connection = connect(node)
        members.begin_join(connection, "loop", 1_000, number)
        connection.close()
        connection = connect(node)
        members.join(connection, f"alone {number % 50} {number // 50}", 1_000)
        connection.close()
        if number % 10 == 0:
            code = members.heartbeat(steady, stays)
            assert code in (ErrorCode.NONE, ErrorCode.REBALANCE_IN_PROGRESS)

    def is_alone() -> bool | None:
        code = members.heartbeat(steady, stays)
        assert code in (ErrorCode.NONE, ErrorCode.REBALANCE_IN_PROGRESS)
        return metric(node, "bascule_group_members ") == 1 or None

    for number in range(200):
        die(number)
    before = resident_bytes(node)
    for number in range(200, 200 + ROUNDS):
        die(number)
    # Who has never sent a heartbeat is removed when its session ends.
    wait_for(is_alone, node.process, node.log)
    assert resident_bytes(node) - before < GROWTH_BYTES_MAX
    if protocol == "classic":
        assert members.heartbeat(steady, stays) == ErrorCode.REBALANCE_IN_PROGRESS
        request = ClassicWireMembers.request("loop", stays.member_id, SESSION_MS_LONG)
        again = steady.request(request)
        assert again.error_code == ErrorCode.NONE
        assert [member.member_id for member in again.members] == [stays.member_id]
    else:
        assert members.heartbeat(steady, stays) == ErrorCode.NONE
        assert commit(steady, "loop", stays.generation, stays.member_id) == ErrorCode.NONE
    steady.close()


def test_an_old_generation_is_refused_whatever_it_asks(node: Node) -> None:
    node.create("flights", "flights.*")
    connection = connect(node)
    members = ClassicWireMembers()
    old = members.join(connection, "fenced")
    generation, member = old.generation, old.member_id
    assert commit(connection, "fenced", generation, member) == ErrorCode.NONE
    again = connection.request(members.request("fenced", member, SESSION_MS_LONG))
    assert again.generation_id == generation + 1
    assert members.heartbeat(connection, old) == ErrorCode.ILLEGAL_GENERATION
    assert commit(connection, "fenced", generation, member) == ErrorCode.ILLEGAL_GENERATION
    others = commit(connection, "fenced", generation + 1, "somebody else")
    assert others == commit(connection, "fenced", -1, "") == ErrorCode.UNKNOWN_MEMBER_ID
    synced = connection.request(SyncGroupRequest("fenced", generation, member))
    assert synced.error_code == ErrorCode.ILLEGAL_GENERATION
    connection.close()


def test_an_old_epoch_is_refused_whatever_it_asks(node: Node) -> None:
    node.create("flights", "flights.*", partitions=1)
    connection = connect(node)
    members = ConsumerWireMembers()
    present = members.join(connection, "fenced")
    zombie = replace(present)
    assert commit(connection, "fenced", zombie.generation, zombie.member_id) == ErrorCode.NONE
    for _ in range(2):
        other = members.new("fenced")
        assert members.ask(connection, other).error_code == ErrorCode.NONE
        assert members.ask(connection, present).error_code == ErrorCode.NONE
    assert present.generation >= zombie.generation + 2

    assert members.heartbeat(connection, zombie) == ErrorCode.FENCED_MEMBER_EPOCH
    stale = commit(connection, "fenced", zombie.generation, zombie.member_id)
    assert stale == ErrorCode.STALE_MEMBER_EPOCH
    assert fetch(connection, zombie) == ErrorCode.STALE_MEMBER_EPOCH
    later = replace(present, generation=present.generation + 1)
    assert members.heartbeat(connection, later) == ErrorCode.FENCED_MEMBER_EPOCH
    assert commit(connection, "fenced", later.generation, later.member_id) == stale
    nobody = replace(present, member_id="somebody else")
    assert members.heartbeat(connection, nobody) == ErrorCode.UNKNOWN_MEMBER_ID
    for generation, member in ((present.generation, "somebody else"), (-1, "")):
        code = commit(connection, "fenced", generation, member)
        assert code == ErrorCode.UNKNOWN_MEMBER_ID
    # None of it has hurt the member.
    assert members.heartbeat(connection, present) == ErrorCode.NONE
    assert commit(connection, "fenced", present.generation, present.member_id) == ErrorCode.NONE
    assert fetch(connection, present) == ErrorCode.NONE
    connection.close()


def fetch(connection: LogConnection, joined: Joined) -> int:
    """The error of a member that reads the group's offsets."""
    group = OffsetFetchGroup(
        joined.group, joined.member_id, joined.generation,
        topics=[OffsetFetchGroupTopic("flights", partition_indexes=[0])],
    )  # fmt: skip
    answer = connection.request(OffsetFetchRequest(groups=[group]), version=9)
    return answer.groups[0].error_code


@pytest.mark.parametrize("node", [SHORT_SESSION], indirect=True, ids=["short"])
def test_a_member_that_sends_no_heartbeats_loses_its_partitions(node: Node) -> None:
    """While it is heard of, it keeps them: an open connection is no sign of life."""
    node.create("flights", "flights.*")
    connection, silent = connect(node), connect(node)
    members = ConsumerWireMembers()
    first = members.join(silent, "heirs")
    heir = members.new("heirs")
    answer = members.ask(connection, heir)
    assert answer.assignment is not None
    assert not answer.assignment.topic_partitions

    def inherits() -> bool | None:
        answer = members.ask(connection, heir)
        assert answer.error_code == ErrorCode.NONE
        return bool(answer.assignment and answer.assignment.topic_partitions) or None

    wait_for(inherits, node.process, node.log)
    assert members.heartbeat(silent, first) == ErrorCode.UNKNOWN_MEMBER_ID
    code = commit(silent, "heirs", first.generation, first.member_id)
    assert code == ErrorCode.UNKNOWN_MEMBER_ID
    assert commit(connection, "heirs", heir.generation, heir.member_id) == ErrorCode.NONE
    silent.close()
    connection.close()


@pytest.mark.parametrize("node", [SHORT_SESSION], indirect=True, ids=["short"])
@pytest.mark.parametrize(
    "client",
    ["bascule", "bascule-cooperative", "confluent-kafka", "confluent-kafka/consumer"],
)
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
