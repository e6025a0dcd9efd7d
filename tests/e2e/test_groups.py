"""Consumers that subscribe, as processes of real clients: members join, die and go on."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

import bascule
from support.group_members import SESSION_MS_LONG, GroupMembers, group_members
from support.processes import Node, running_node

CLIENTS = ("confluent-kafka", "kafka-python", "aiokafka")
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


@pytest.mark.parametrize("client", CLIENTS)
def test_members_share_a_stream_and_take_over_from_one_that_is_killed(
    tmp_path: Path, client: str
) -> None:
    with running_node(tmp_path / "node", keep_ports=True) as node:
        node.create("flights", "flights.*", partitions=PARTITIONS, partition_by="subject")
        publish(node, 0, 300)
        with group_members(tmp_path, node, "billing", "flights", PARTITIONS) as members:
            for _ in range(3):
                members.add(client)
            members.wait_shared()
            wait_read(node, members)

            members.members[0].kill()
            publish(node, 300, 300)
            assert len(members.wait_shared()) == 2
            wait_read(node, members)

            members.add(client)
            assert len(members.wait_shared()) == 3
            publish(node, 600, 300)
            wait_read(node, members)

            # The only node is killed, and starts again: the members go on.
            node.stop(signal.SIGKILL)
            node.start()
            publish(node, 900, 300)
            wait_read(node, members)
            members.wait_shared()

            members.alive()[0].stop()
            assert len(members.wait_shared()) == 2


def test_different_clients_form_one_group(tmp_path: Path) -> None:
    with running_node(tmp_path / "node") as node:
        node.create("flights", "flights.*", partitions=PARTITIONS, partition_by="subject")
        publish(node, 0, 300)
        with group_members(tmp_path, node, "mixed", "flights", PARTITIONS) as members:
            for client in CLIENTS:
                members.add(client)
            members.wait_shared()
            wait_read(node, members)
            members.members[1].stop()
            assert len(members.wait_shared()) == 2
            publish(node, 300, 300)
            wait_read(node, members)


def test_a_static_member_comes_back_without_a_rebalance(tmp_path: Path) -> None:
    with running_node(tmp_path / "node") as node:
        node.create("flights", "flights.*", partitions=PARTITIONS, partition_by="subject")
        with group_members(
            tmp_path, node, "static", "flights", PARTITIONS, session_ms=SESSION_MS_LONG
        ) as members:
            first = members.add("confluent-kafka", "one")
            second = members.add("confluent-kafka", "two")
            members.wait_shared()
            owned, assignments = first.owned(), second.assignments()
            first.kill()
            again = members.add("confluent-kafka", "one")
            members.wait(lambda: again.owned() or None)
            assert again.owned() == owned
            publish(node, 0, 300)
            wait_read(node, members)
            assert second.assignments() == assignments
