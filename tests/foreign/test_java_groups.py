"""Kafka's own client as a member of groups, by both protocols."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

import bascule
from support.foreign_clients import program_of
from support.group_members import GroupMembers, group_members
from support.processes import Node, running_node

PARTITIONS = 6
ENVIRONMENT = {
    "BASCULE_GROUPS_CONSUMER_SESSION_MS": "30000",
    "BASCULE_GROUPS_CONSUMER_HEARTBEAT_MS": "500",
}


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


@pytest.mark.parametrize("topic", ["flights", "^fl[a-z]+$"])
def test_members_share_a_stream_and_go_on_after_a_restart(tmp_path: Path, topic: str) -> None:
    with running_node(tmp_path / "node", keep_ports=True, environment=ENVIRONMENT) as node:
        node.create("flights", "flights.*", partitions=PARTITIONS, partition_by="subject")
        publish(node, 0, 300)
        with group_members(tmp_path, node, "billing", topic, PARTITIONS) as members:
            for _ in range(3):
                members.add("java/consumer", program=program_of("java/consumer"))
            members.wait_shared()
            wait_read(node, members)

            members.members[0].kill()
            publish(node, 300, 300)
            members.wait_shared(2)
            wait_read(node, members)

            members.add("java/consumer", program=program_of("java/consumer"))
            shared = members.wait_settled()
            assert sorted(map(len, shared)) == [2, 2, 2]
            assignments = [each.assignments() for each in members.alive()]

            node.stop(signal.SIGKILL)
            node.start()
            publish(node, 600, 300)
            wait_read(node, members)
            assert members.share() == shared
            assert [each.assignments() for each in members.alive()] == assignments

            members.alive()[0].stop()
            members.wait_shared(2)


@pytest.mark.parametrize("other", ["confluent-kafka/consumer", "java/classic"])
def test_members_of_other_clients_and_protocols_share_a_group(tmp_path: Path, other: str) -> None:
    with running_node(tmp_path / "node", keep_ports=True, environment=ENVIRONMENT) as node:
        node.create("flights", "flights.*", partitions=PARTITIONS, partition_by="subject")
        publish(node, 0, 300)
        with group_members(tmp_path, node, "mixed", "flights", PARTITIONS) as members:
            members.add(other, program=program_of(other))
            members.wait_shared()
            members.add("java/consumer", program=program_of("java/consumer"))
            members.wait_shared(2)
            wait_read(node, members)
            members.alive()[0].stop()
            members.wait_shared()
            members.add(other, program=program_of(other))
            members.wait_shared(2)
            members.alive()[0].stop()
            members.wait_shared()
            publish(node, 300, 300)
            wait_read(node, members)
