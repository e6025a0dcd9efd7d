"""Messages without ids while leaders change on three real nodes: how often each is stored."""

from __future__ import annotations

import itertools
import signal
from collections.abc import Iterator
from typing import Any
from urllib.error import HTTPError

import pytest

import bascule
from support.cluster_commands import fallbacks_in, lines_since, log_sizes, until_smooth
from support.clusters import RunningCluster, running_cluster
from support.handover_load import HandoverLoad, Outcome
from support.processes import NatsServer, wait_for

pytestmark = pytest.mark.tier3

ROUNDS = 3


@pytest.fixture(scope="module")
def cluster(
    tmp_path_factory: pytest.TempPathFactory, nats_server: NatsServer
) -> Iterator[RunningCluster]:
    """Leadership moves to preferred leaders at once."""
    with running_cluster(
        tmp_path_factory.mktemp("nodes"),
        nats=nats_server.url,
        environment={"BASCULE_CLUSTER_LEADER_BALANCE_MS": "100"},
    ) as running:
        yield running


@pytest.fixture(scope="module")
def default_cluster(
    tmp_path_factory: pytest.TempPathFactory, nats_server: NatsServer
) -> Iterator[RunningCluster]:
    """With the default settings."""
    with running_cluster(tmp_path_factory.mktemp("default"), nats=nats_server.url) as running:
        yield running


def begin(cluster: RunningCluster, server: NatsServer, name: str, **config: Any) -> HandoverLoad:
    """Create a stream and publish to it."""
    node = cluster.nodes[1]

    def create() -> bool | None:
        try:
            node.create(name, f"{name}.>", replicas=3, **config)
        except HTTPError as error:
            assert error.code == 503, "a node is taken for lost, and comes back"
            return None
        return True

    wait_for(create, node.process, node.log)
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


def end_leader(cluster: RunningCluster, load: HandoverLoad, name: str, how: signal.Signals) -> None:
    """End the process of the leader, start it again once another one leads, and wait for it."""
    leader = cluster.leader(name)
    node = cluster.nodes[leader]
    assert node.process is not None
    node.process.send_signal(how)
    node.process.wait()
    cluster.leader(name)
    wait_stored(cluster, load, load.sent)
    cluster.start(leader)
    cluster.wait_in_sync(name)


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
        wait_for(
            lambda: len(load.acked) + len(load.errors) >= load.asked or None,
            node.process,
            node.log,
        )
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


def why_not_smooth(
    cluster: RunningCluster, name: str, epoch: int, sizes: dict[int, int]
) -> list[str]:
    """Changes of the leader since `epoch` that were no handovers within their time limits; `sizes`
    are those of the logs then.

    On a machine that stalls a node may be taken for lost, or a handover be given up.
    """
    lines = lines_since(cluster, sizes)
    planned = [each for each in lines if f"leader changed stream={name} partition=0" in each]
    changes: int = cluster.partition(name)["leader_epoch"] - epoch
    unplanned = [f"{changes} changes, {len(planned)} of them planned"]
    return [*fallbacks_in(lines), *(unplanned if len(planned) != changes else ())]


def check(outcome: Outcome) -> None:
    """What holds whatever happens."""
    assert outcome.doubled == []
    assert outcome.untrue == []
    assert [number for number in outcome.lost if number in outcome.acked] == []
    assert outcome.in_order


@pytest.mark.parametrize(
    ("name", "config"),
    [("plain", {}), ("split", {"partitions": 3, "partition_by": "subject"})],
)
def test_a_handover_between_living_nodes_stores_each_message_once_and_in_order(
    cluster: RunningCluster, nats_server: NatsServer, name: str, config: dict[str, Any]
) -> None:
    numbers = itertools.count()

    def scene() -> list[str]:
        stream = f"{name}{next(numbers)}"
        load = begin(cluster, nats_server, stream, **config)
        epoch, sizes = cluster.partition(stream)["leader_epoch"], log_sizes(cluster)
        for _ in range(ROUNDS):
            hand_over(cluster, stream)
            wait_stored(cluster, load, load.sent)
        reasons = why_not_smooth(cluster, stream, epoch, sizes)
        outcome = end(cluster, load, stream, answers_all=not reasons)
        check(outcome)
        reasons += map(str, load.errors)
        assert reasons or outcome.lost == []
        return reasons

    until_smooth(scene)


def test_members_of_a_queue_group_hand_over_without_doubles_and_in_order(
    cluster: RunningCluster, nats_server: NatsServer
) -> None:
    load = begin(cluster, nats_server, "grouped", group="workers")
    for _ in range(ROUNDS):
        hand_over(cluster, "grouped")
        wait_stored(cluster, load, load.sent)
    check(end(cluster, load, "grouped"))


def test_a_node_that_stops_hands_over_first(
    default_cluster: RunningCluster, nats_server: NatsServer
) -> None:
    cluster = default_cluster
    numbers = itertools.count()

    def scene() -> list[str]:
        name = f"stopped{next(numbers)}"
        load = begin(cluster, nats_server, name)
        epoch, sizes = cluster.partition(name)["leader_epoch"], log_sizes(cluster)
        for _ in range(2):
            end_leader(cluster, load, name, signal.SIGTERM)
        reasons = why_not_smooth(cluster, name, epoch, sizes)
        outcome = end(cluster, load, name)
        check(outcome)
        reasons += map(str, load.errors)
        assert reasons or outcome.lost == []
        return reasons

    until_smooth(scene)


def test_after_kill_9_nothing_is_stored_twice(
    default_cluster: RunningCluster, nats_server: NatsServer
) -> None:
    cluster = default_cluster
    load = begin(cluster, nats_server, "killed")
    for _ in range(3):
        end_leader(cluster, load, "killed", signal.SIGKILL)
    check(end(cluster, load, "killed"))
