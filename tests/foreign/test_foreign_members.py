"""Consumers of other languages that subscribe, as processes: members die, join, and go on."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

import bascule
from bascule.wire.offsets import OFFSETS_STREAM
from support import http_calls
from support.clusters import RunningCluster
from support.foreign_clients import PROGRAMS, SHORT_SESSIONS, program_of
from support.group_members import GroupMembers, group_members
from support.processes import Node, running_node

PARTITIONS = 6


def publish(node: Node, first: int, count: int) -> None:
    with bascule.connect_sync(node.addresses["http"]) as client:
        client.publish_many((f"flights.{n}", b"%d" % n) for n in range(first, first + count))


def wait_read(node: Node, members: GroupMembers) -> None:
    """Return once each record of the stream was read by a member."""

    def look() -> bool | None:
        found = node.call("GET", "/v1/streams/flights")["partitions"]
        stored = {(p["partition"], n) for p in found for n in range(p["high_watermark"])}
        return True if stored <= members.read() else None

    members.wait(look)


def rebalances_of(cluster: RunningCluster) -> float:
    """How many rebalances the nodes that are alive have begun."""
    texts = [http_calls.get(node.addresses["http"] + "/metrics") for node in cluster.alive()]
    lines = [line for text in texts for line in text.splitlines()]
    name = "bascule_group_rebalances_total"
    return sum(float(line.split()[-1]) for line in lines if line.startswith(name))


@pytest.mark.parametrize("client", PROGRAMS)
def test_members_live_through_deaths_of_members_and_of_the_node(
    tmp_path: Path, client: str
) -> None:
    environment = dict(SHORT_SESSIONS)
    with running_node(tmp_path / "node", keep_ports=True, environment=environment) as node:
        node.create("flights", "flights.*", partitions=PARTITIONS, partition_by="subject")
        publish(node, 0, 300)
        with group_members(tmp_path, node, "billing", "flights", PARTITIONS) as members:
            for _ in range(3):
                members.add(client, program=PROGRAMS[client])
            members.wait_shared(3)
            wait_read(node, members)

            members.members[0].kill()
            publish(node, 300, 300)
            members.wait_shared(2)
            wait_read(node, members)

            members.add(client, program=PROGRAMS[client])
            members.wait_shared(3)
            publish(node, 600, 300)
            wait_read(node, members)

            node.stop(signal.SIGKILL)
            node.start()
            publish(node, 900, 300)
            wait_read(node, members)
            members.wait_shared(3)

            members.alive()[0].stop()
            members.wait_shared(2)
            publish(node, 1200, 300)
            wait_read(node, members)
            members.check_order()


@pytest.mark.parametrize("client", PROGRAMS)
def test_members_live_through_the_death_of_their_coordinator(
    tmp_path: Path, cluster: RunningCluster, client: str
) -> None:
    node = cluster.nodes[1]
    node.create("flights", "flights.*", partitions=PARTITIONS, partition_by="subject", replicas=3)
    cluster.wait_in_sync(OFFSETS_STREAM)
    addresses = ",".join(each.addresses["client"] for each in cluster.alive())
    publish(node, 0, 300)
    with group_members(
        tmp_path, node, "billing", "flights", PARTITIONS, address=addresses
    ) as members:
        for _ in range(3):
            members.add(client, program=PROGRAMS[client])
        members.wait_shared(3)
        wait_read(node, members)

        coordinator = cluster.leader(OFFSETS_STREAM)
        cluster.nodes[coordinator].stop(signal.SIGKILL)
        members.node = cluster.alive()[0]
        publish(cluster.alive()[0], 300, 300)
        wait_read(cluster.alive()[0], members)
        shared = members.wait_shared()
        assert len(shared) == 3

        # The node comes back, and nobody has to join again.
        rebalances = rebalances_of(cluster)
        cluster.start(coordinator)
        for stream in (OFFSETS_STREAM, "flights"):
            cluster.wait_in_sync(stream)
        publish(cluster.nodes[coordinator], 600, 300)
        wait_read(cluster.nodes[coordinator], members)
        assert members.share() == shared
        assert rebalances_of(cluster) == rebalances

        members.members[0].kill()
        publish(cluster.alive()[0], 900, 300)
        members.wait_shared(2)
        wait_read(cluster.alive()[0], members)
        members.check_order()


@pytest.mark.parametrize(
    "clients",
    [
        ("java:CooperativeStickyAssignor", "bascule-cooperative", "franz-go"),
        ("bascule-cooperative", "franz-go", "java:CooperativeStickyAssignor"),
        ("franz-go", "java:CooperativeStickyAssignor", "bascule-cooperative"),
        ("java:RangeAssignor", "bascule", "confluent-kafka"),
        ("bascule", "java:RangeAssignor", "java:RangeAssignor"),
    ],
    ids="-".join,
)
def test_members_of_several_languages_form_one_group(
    tmp_path: Path, clients: tuple[str, ...]
) -> None:
    """The first leads at first, and assigns for the others."""
    with running_node(tmp_path / "node") as node:
        node.create("flights", "flights.*", partitions=PARTITIONS, partition_by="subject")
        publish(node, 0, 300)
        with group_members(tmp_path, node, "mixed", "flights", PARTITIONS) as members:
            for client in clients:
                members.add(client, program=program_of(client))
                members.wait_shared()
            wait_read(node, members)
            members.members[1].kill()
            publish(node, 300, 300)
            members.wait_shared(2)
            wait_read(node, members)
            members.members[0].stop()
            members.wait_shared(1)
            publish(node, 600, 300)
            wait_read(node, members)
            members.check_order()
