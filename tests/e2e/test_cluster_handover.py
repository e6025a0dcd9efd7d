"""Messages without ids while leaders change on three real nodes: how often each is stored."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import bascule
from support.clusters import RunningCluster, running_cluster
from support.handover_load import HandoverLoad, Outcome
from support.processes import NatsServer, running_nats, wait_for

pytestmark = pytest.mark.tier3

ROUNDS = 6
FALLBACKS = (
    "old leader has not handed over",
    "log of the old leader not copied to its end",
    "leadership given away unasked",
    "subscriptions of a new leader not confirmed",
    "end of subscriptions not confirmed",
)
"""What a node logs when a handover takes longer than its limits, as on a machine that stalls."""


@pytest.fixture(scope="module")
def nats_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsServer]:
    with running_nats(tmp_path_factory.mktemp("nats")) as server:
        yield server


@pytest.fixture(scope="module")
def cluster(
    tmp_path_factory: pytest.TempPathFactory, nats_server: NatsServer
) -> Iterator[RunningCluster]:
    with running_cluster(
        tmp_path_factory.mktemp("nodes"),
        nats=nats_server.url,
        environment={"BASCULE_CLUSTER_LEADER_BALANCE_MS": "100"},
    ) as running:
        yield running


def begin(cluster: RunningCluster, server: NatsServer, name: str, **config: Any) -> HandoverLoad:
    """Create a stream and publish to it."""
    cluster.nodes[1].create(name, f"{name}.>", replicas=3, **config)
    cluster.leader(name)
    cluster.wait_in_sync(name)
    load = HandoverLoad(int(server.url.rsplit(":", 1)[1]), f"{name}.a")
    wait_stored(cluster, load, load.sent + 500)
    return load


def wait_stored(cluster: RunningCluster, load: HandoverLoad, number: int) -> None:
    """Return once a message with a number from `number` on is acked."""
    node = cluster.alive()[0]
    wait_for(lambda: max(load.acked, default=-1) >= number or None, node.process, node.log)


def hand_over(cluster: RunningCluster, name: str) -> None:
    """Have the next node lead all partitions of a stream."""
    leader = cluster.leader(name)
    first, second = leader % 3 + 1, (leader + 1) % 3 + 1
    body = {"replicas": [first, second, leader]}
    cluster.alive()[0].call("POST", f"/v1/streams/{name}/reassign", body)
    node = cluster.nodes[first]

    def look() -> bool | None:
        found = cluster.alive()[0].call("GET", f"/v1/streams/{name}")["partitions"]
        return all(each["leader"] == first for each in found) or None

    wait_for(look, node.process, node.log)


def end(
    cluster: RunningCluster, load: HandoverLoad, name: str, *, answers_all: bool = False
) -> Outcome:
    """Publish no more, and compare with what is stored once everything has been received.

    `answers_all`: every message that asked for an ack is to get one.
    """
    wait_stored(cluster, load, load.sent + 500)
    load.stop()
    if answers_all:
        node = cluster.alive()[0]
        wait_for(lambda: len(load.acked) == load.asked or None, node.process, node.log)
    servers = ",".join(node.addresses["http"] for node in cluster.alive())
    with bascule.connect_sync(servers) as client:
        last = client.publish(load.subject, b"%d" % load.sent)
        load.sent += 1
        stored = [
            ((message.offset, bytes(message.value or b"")), message.partition)
            for message in client.read(name)
        ]
    assert last.offset >= 0
    return load.outcome([each for each, partition in stored if partition == last.partition])


def fallbacks(cluster: RunningCluster) -> list[str]:
    """What the nodes have logged of handovers that were given up."""
    lines = [line for node in cluster.nodes.values() for line in node.log.read_text().splitlines()]
    return [line for line in lines if any(event in line for event in FALLBACKS)]


@pytest.mark.parametrize(
    ("name", "config"),
    [("plain", {}), ("split", {"partitions": 3, "partition_by": "subject"})],
)
def test_a_handover_between_living_nodes_stores_each_message_once_and_in_order(
    cluster: RunningCluster, nats_server: NatsServer, name: str, config: dict[str, Any]
) -> None:
    load = begin(cluster, nats_server, name, **config)
    epoch = cluster.partition(name)["leader_epoch"]
    for _ in range(ROUNDS):
        hand_over(cluster, name)
        wait_stored(cluster, load, load.sent)
    has_elected = cluster.partition(name)["leader_epoch"] != epoch + ROUNDS
    is_smooth = not has_elected and not fallbacks(cluster)
    outcome = end(cluster, load, name, answers_all=is_smooth)
    assert outcome.doubled == []
    assert outcome.untrue == []
    assert [number for number in outcome.lost if number in outcome.acked] == []
    assert outcome.in_order
    if is_smooth:
        assert outcome.lost == []
        assert load.errors == []


def test_members_of_a_queue_group_hand_over_without_doubles_and_in_order(
    cluster: RunningCluster, nats_server: NatsServer
) -> None:
    load = begin(cluster, nats_server, "grouped", group="workers")
    for _ in range(ROUNDS):
        hand_over(cluster, "grouped")
        wait_stored(cluster, load, load.sent)
    outcome = end(cluster, load, "grouped")
    assert outcome.doubled == []
    assert outcome.untrue == []
    assert [number for number in outcome.lost if number in outcome.acked] == []
    assert outcome.in_order


def test_after_kill_9_nothing_is_stored_twice(
    cluster: RunningCluster, nats_server: NatsServer
) -> None:
    load = begin(cluster, nats_server, "killed")
    for _ in range(3):
        leader = cluster.leader("killed")
        node = cluster.nodes[leader]
        assert node.process is not None
        node.process.kill()
        node.process.wait()
        cluster.leader("killed")
        wait_stored(cluster, load, load.sent)
        cluster.start(leader)
        cluster.wait_in_sync("killed")
    outcome = end(cluster, load, "killed")
    assert outcome.doubled == []
    assert outcome.untrue == []
    assert [number for number in outcome.lost if number in outcome.acked] == []
    assert outcome.in_order
