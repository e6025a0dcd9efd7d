"""Groups of consumers in a cluster of real nodes: the coordinator's node is killed, or stops."""

from __future__ import annotations

import contextlib
import signal
import time
from pathlib import Path
from threading import Thread

import pytest

import bascule
from bascule.cluster_version import NEWEST
from bascule.config.addresses import parse_address
from bascule.log_connection import LogConnection
from bascule.wire.error_codes import ErrorCode
from bascule.wire.messages.offset_commit import (
    OffsetCommitPartition,
    OffsetCommitRequest,
    OffsetCommitTopic,
)
from bascule.wire.messages.offset_fetch import OffsetFetchRequest, OffsetFetchResponse
from bascule.wire.offsets import OFFSETS_STREAM
from support import http_calls
from support.clusters import RunningCluster, running_cluster
from support.group_members import SESSION_MS_LONG, GroupMembers, group_members
from support.in_ci import in_ci
from support.processes import NatsServer, Node, wait_for
from support.wire_members import ClassicWireMembers, commit

PARTITIONS = 6
SESSION_MS_STOPPED = 12_000
"""Long enough to notice that a node hangs, and to find the next one."""
ROUNDS_MAX = 10
CUT_OFF_SECONDS_MAX = 7
"""3 s without a controller, and what a machine that is loaded takes to answer. A node notices by
itself: nobody reaches it."""


def publish(cluster: RunningCluster, first: int, count: int) -> None:
    with bascule.connect_sync(cluster.alive()[0].addresses["http"]) as client:
        client.publish_many((f"flights.{n}", b"%d" % n) for n in range(first, first + count))


def wait_read(cluster: RunningCluster, members: GroupMembers) -> None:
    """Return once each record of the stream was read by a member."""
    node = cluster.alive()[0]

    def look() -> bool | None:
        found = node.call("GET", "/v1/streams/flights")["partitions"]
        stored = {(p["partition"], n) for p in found for n in range(p["high_watermark"])}
        return True if stored <= members.read() else None

    members.wait(look)


def metric(cluster: RunningCluster, node: int, name: str) -> float:
    text = http_calls.get(cluster.nodes[node].addresses["http"] + "/metrics")
    return sum(float(line.split()[-1]) for line in text.splitlines() if line.startswith(name))


def elect(cluster: RunningCluster, stream: str, node: int) -> int:
    """Have a node lead a stream, and return it once it does."""
    asked = cluster.alive()[0]
    asked.call("POST", f"/v1/streams/{stream}/elect-leader", {"node": node})

    def is_led() -> bool | None:
        return cluster.leader(stream) == node or None

    wait_for(is_led, asked.process, asked.log)
    return node


def end(node: Node) -> None:
    """End a node that may be stopped."""
    if node.process is not None and node.process.poll() is None:
        node.process.kill()
        node.process.wait()


@pytest.mark.parametrize(
    ("client", "number"),
    in_ci(
        [
            ("confluent-kafka", signal.SIGKILL),
            ("kafka-python", signal.SIGKILL),
            ("aiokafka", signal.SIGKILL),
            ("bascule", signal.SIGKILL),
            ("bascule-cooperative", signal.SIGKILL),
            ("bascule-sync", signal.SIGKILL),
            ("confluent-kafka", signal.SIGTERM),
            ("bascule", signal.SIGTERM),
            ("confluent-kafka/consumer", signal.SIGKILL),
            ("confluent-kafka/consumer", signal.SIGTERM),
            ("bascule", signal.SIGSTOP),
        ],
        kept=[
            ("aiokafka", signal.SIGKILL),
            ("bascule", signal.SIGTERM),
            ("confluent-kafka/consumer", signal.SIGKILL),
        ],
    ),
)
def test_members_go_on_when_their_coordinator_ends_and_comes_back(
    tmp_path: Path, cluster: RunningCluster, client: str, number: signal.Signals
) -> None:
    node = cluster.nodes[1]
    node.create("flights", "flights.*", partitions=PARTITIONS, partition_by="subject", replicas=3)
    cluster.wait_in_sync(OFFSETS_STREAM)
    addresses = ",".join(each.addresses["client"] for each in cluster.alive())
    publish(cluster, 0, 300)
    with (
        contextlib.ExitStack() as at_end,
        group_members(
            tmp_path,
            node,
            "billing",
            "flights",
            PARTITIONS,
            address=addresses,
            session_ms=SESSION_MS_STOPPED if number is signal.SIGSTOP else SESSION_MS_LONG,
        ) as members,
    ):
        for _ in range(3):
            members.add(client)
        shared = members.wait_settled(*cluster.alive())
        wait_read(cluster, members)
        assignments = [each.assignments() for each in members.members]

        coordinator = cluster.leader(OFFSETS_STREAM)
        # By each process: the group may have had another coordinator when its members joined.
        name = "bascule_group_rebalances_total"
        begun = {each: metric(cluster, each, name) for each in cluster.nodes}
        assert sum(begun.values()) > 0
        ended = cluster.nodes.pop(coordinator)
        at_end.callback(end, ended)
        if number is signal.SIGSTOP:
            assert ended.process
            ended.process.send_signal(number)
        else:
            ended.stop(number)
        members.node = cluster.alive()[0]
        successor = cluster.leader(OFFSETS_STREAM)
        publish(cluster, 300, 300)
        wait_read(cluster, members)

        def committed() -> bool | None:
            """Whether the members have committed all that there is, under their generation."""
            node = cluster.nodes[successor]
            stored = node.call("GET", "/v1/streams/flights")["partitions"]
            found = node.call("GET", "/v1/offsets?consumer=billing")["offsets"]
            ends = {(p["partition"], p["high_watermark"]) for p in stored if p["high_watermark"]}
            return True if ends <= {(o["partition"], o["offset"]) for o in found} else None

        members.wait(committed)

        def check_nobody_has_joined_again(coordinator: int, rebalances: float) -> None:
            """`rebalances`: those that the coordinator's process had begun before."""
            assert members.share() == shared
            assert [each.assignments() for each in members.members] == assignments
            assert metric(cluster, coordinator, name) == rebalances
            assert metric(cluster, coordinator, 'bascule_groups{state="Stable"}') == 1
            assert metric(cluster, coordinator, "bascule_group_members ") == 3

        check_nobody_has_joined_again(successor, begun[successor])

        # The node comes back, and then coordinates the group again.
        cluster.nodes[coordinator] = ended
        if number is signal.SIGSTOP:
            assert ended.process
            ended.process.send_signal(signal.SIGCONT)
        else:
            cluster.start(coordinator)
        for stream in (OFFSETS_STREAM, "flights"):
            cluster.wait_in_sync(stream)
        publish(cluster, 600, 300)
        wait_read(cluster, members)
        successor = elect(cluster, OFFSETS_STREAM, coordinator)
        publish(cluster, 900, 300)
        wait_read(cluster, members)
        members.wait(committed)
        is_same = number is signal.SIGSTOP
        check_nobody_has_joined_again(coordinator, begun[coordinator] if is_same else 0)
        members.check_order()


def test_a_member_is_not_told_that_its_next_coordinator_loads(cluster: RunningCluster) -> None:
    """That one has a commit of which it does not know yet that it is committed: the third node
    stands still, and is taken for lost after a moment. aiokafka's members would end."""
    wire, loading = ClassicWireMembers(), ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    cluster.nodes[1].create("flights", "flights.*", replicas=3)
    joins: set[int] = set()
    beats: set[int] = set()
    rounds = 0
    while loading not in joins:  # on a machine without time it may have loaded before it is asked
        rounds += 1
        assert rounds <= ROUNDS_MAX
        cluster.wait_in_sync(OFFSETS_STREAM)
        before, controller = cluster.leader(OFFSETS_STREAM), cluster.info()["controller"]
        others = [node for node in cluster.nodes if node != before]
        following, third = sorted(others, key=lambda node: node != controller)
        stopped = cluster.nodes[third].process
        assert stopped
        with contextlib.ExitStack() as at_end:
            left, asked = (
                LogConnection(*parse_address(cluster.nodes[n].addresses["client"]), timeout=60)
                for n in (before, following)
            )
            at_end.callback(left.close)
            at_end.callback(asked.close)
            joined = wire.join(left, f"billing {rounds}")
            stopped.send_signal(signal.SIGSTOP)
            at_end.callback(stopped.send_signal, signal.SIGCONT)
            topic = OffsetCommitTopic("flights", partitions=[OffsetCommitPartition(0, rounds)])
            left.send(OffsetCommitRequest("reader", topics=[topic]), version=7)
            electing = Thread(target=elect, args=(cluster, OFFSETS_STREAM, following))
            electing.start()
            at_end.callback(electing.join)
            code = -1
            while code != ErrorCode.MEMBER_ID_REQUIRED:
                beats.add(wire.heartbeat(asked, joined))
                code = asked.request(wire.request("other", "", SESSION_MS_LONG)).error_code
                joins.add(code)
            assert wire.heartbeat(asked, joined) == ErrorCode.NONE
    assert beats <= {ErrorCode.NONE, ErrorCode.NOT_COORDINATOR}


def test_a_coordinator_that_stood_still_answers_no_fetch_with_older_offsets(
    cluster: RunningCluster,
) -> None:
    """The question waits in its socket, and is older than an acknowledged commit."""
    node = cluster.nodes[1]
    node.create("flights", "flights.*", replicas=3)
    cluster.wait_in_sync(OFFSETS_STREAM)
    wait_for(lambda: cluster.info()["cluster_version"] == NEWEST or None, node.process, node.log)
    coordinator = cluster.leader(OFFSETS_STREAM)
    with contextlib.ExitStack() as at_end:
        connections = {
            number: LogConnection(*parse_address(node.addresses["client"]), timeout=60)
            for number, node in cluster.nodes.items()
        }
        for connection in connections.values():
            at_end.callback(connection.close)
        stopped, asking = connections.pop(coordinator), cluster.nodes[coordinator]
        assert asking.process
        asking.process.send_signal(signal.SIGSTOP)
        at_end.callback(asking.process.send_signal, signal.SIGCONT)
        stopped.send(OffsetFetchRequest("billing", topics=None), version=7)
        some = cluster.nodes[next(iter(connections))]

        def has_committed() -> bool | None:
            codes = (commit(each, "billing", -1, "") for each in connections.values())
            return ErrorCode.NONE in codes or None

        wait_for(has_committed, some.process, some.log)
        asking.process.send_signal(signal.SIGCONT)
        answer = stopped.receive()
        assert isinstance(answer, OffsetFetchResponse)
        assert answer.error_code == ErrorCode.NOT_COORDINATOR
    cluster.wait_in_sync(OFFSETS_STREAM)


@pytest.mark.parametrize("controls", [True, pytest.param(False, marks=pytest.mark.long)])
def test_a_coordinator_that_is_cut_off_refuses_its_members_soon(
    tmp_path: Path, nats_server: NatsServer, controls: bool
) -> None:
    """Its listener stays open: only what it answers leads its members to the next coordinator."""
    wire = ClassicWireMembers()
    with (
        running_cluster(tmp_path, nats=nats_server.url, linked=True) as cluster,
        contextlib.ExitStack() as at_end,
    ):
        assert cluster.links is not None
        cluster.wait_in_sync(OFFSETS_STREAM)
        controller = cluster.info()["controller"]
        others = [node for node in cluster.nodes if node != controller]
        before = elect(cluster, OFFSETS_STREAM, controller if controls else others[0])
        connections = {
            number: LogConnection(*parse_address(node.addresses["client"]), timeout=60)
            for number, node in cluster.nodes.items()
        }
        for connection in connections.values():
            at_end.callback(connection.close)
        joined = wire.join(connections[before], "billing")

        held = [
            link
            for node in cluster.nodes
            if node != before
            for link in ((node, before), (before, node))
        ]
        cluster.links.hold(held)
        began = time.monotonic()
        while (code := wire.heartbeat(connections[before], joined)) == ErrorCode.NONE:
            assert time.monotonic() - began < CUT_OFF_SECONDS_MAX
            time.sleep(0.05)
        assert code == ErrorCode.NOT_COORDINATOR
        assert commit(connections[before], "billing", joined.generation, joined.member_id) == code

        def successor() -> int | None:
            """The node where the member goes on, without another join."""
            return next(
                (
                    node
                    for node, connection in connections.items()
                    if node != before and wire.heartbeat(connection, joined) == ErrorCode.NONE
                ),
                None,
            )

        some = cluster.nodes[before]
        assert wait_for(successor, some.process, some.log) != before
        assert wire.heartbeat(connections[before], joined) == ErrorCode.NOT_COORDINATOR
        cluster.links.release(held)
        cluster.wait_in_sync(OFFSETS_STREAM)
