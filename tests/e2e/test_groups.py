"""Consumers that subscribe, as processes of real clients: members join, die and go on."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

import bascule
from support.group_members import SESSION_MS_LONG, GroupMembers, group_members
from support.in_ci import in_ci
from support.processes import Node, running_node

FOREIGN = ("confluent-kafka", "kafka-python", "aiokafka")
CLIENTS = (*FOREIGN, "bascule", "bascule-cooperative", "bascule-sync")
NEWER = "confluent-kafka/consumer"
"""It speaks the consumer protocol."""
FREQUENT_HEARTBEATS = {"BASCULE_GROUPS_CONSUMER_HEARTBEAT_MS": "500"}
SHORT_SESSIONS = {**FREQUENT_HEARTBEATS, "BASCULE_GROUPS_CONSUMER_SESSION_MS": "6000"}
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


@pytest.mark.parametrize(
    "client", in_ci([*CLIENTS, NEWER], kept=("confluent-kafka", NEWER, "bascule"))
)
def test_members_share_a_stream_and_take_over_from_one_that_is_killed(
    tmp_path: Path, client: str
) -> None:
    with running_node(tmp_path / "node", keep_ports=True, environment=SHORT_SESSIONS) as node:
        node.create("flights", "flights.*", partitions=PARTITIONS, partition_by="subject")
        publish(node, 0, 300)
        with group_members(tmp_path, node, "billing", "flights", PARTITIONS) as members:
            for _ in range(3):
                members.add(client)
            members.wait_shared()
            wait_read(node, members)

            members.members[0].kill()
            publish(node, 300, 300)
            members.wait_shared(2)
            wait_read(node, members)

            members.add(client)
            members.wait_shared(3)
            publish(node, 600, 300)
            wait_read(node, members)

            # The only node is killed, and starts again: the members go on.
            node.stop(signal.SIGKILL)
            node.start()
            publish(node, 900, 300)
            wait_read(node, members)
            members.wait_shared()

            members.alive()[0].stop()
            members.wait_shared(2)
            members.check_order()


@pytest.mark.parametrize(
    "clients",
    [
        (*FOREIGN, "bascule"),
        pytest.param(
            ("bascule", "confluent-kafka", "bascule-sync", "confluent-kafka"),
            marks=pytest.mark.long,
        ),
        pytest.param(
            ("confluent-cooperative", "bascule-cooperative", "bascule-cooperative"),
            marks=pytest.mark.long,
        ),
        pytest.param(
            ("bascule-cooperative", "confluent-cooperative", "confluent-cooperative"),
            marks=pytest.mark.long,
        ),
        ("bascule-cooperative", "bascule", "confluent-cooperative"),
    ],
    ids="-".join,
)
def test_different_clients_form_one_group(tmp_path: Path, clients: tuple[str, ...]) -> None:
    """Whoever of them leads: the first one leads at first, and ends."""
    with running_node(tmp_path / "node") as node:
        node.create("flights", "flights.*", partitions=PARTITIONS, partition_by="subject")
        publish(node, 0, 300)
        with group_members(tmp_path, node, "mixed", "flights", PARTITIONS) as members:
            for client in clients:
                members.add(client)
                members.wait_shared()
            wait_read(node, members)
            members.members[1].kill()
            members.wait_shared(len(clients) - 1)
            publish(node, 300, 300)
            wait_read(node, members)
            members.members[0].stop()
            members.wait_shared(len(clients) - 2)
            publish(node, 600, 300)
            wait_read(node, members)
            members.check_order()


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


def test_a_static_member_of_the_consumer_protocol_comes_back_to_its_partitions(
    tmp_path: Path,
) -> None:
    with running_node(tmp_path / "node") as node:
        node.create("flights", "flights.*", partitions=PARTITIONS, partition_by="subject")
        with group_members(tmp_path, node, "static", "flights", PARTITIONS) as members:
            first = members.add(NEWER, "one")
            second = members.add(NEWER, "two")
            members.wait_settled()
            owned, assignments = first.owned(), second.assignments()
            first.stop()
            again = members.add(NEWER, "one")
            members.wait(lambda: again.owned() or None)
            assert again.owned() == owned
            publish(node, 0, 300)
            wait_read(node, members)
            assert second.assignments() == assignments


def test_an_expression_finds_streams_and_partitions_that_come_later(tmp_path: Path) -> None:
    with (
        running_node(tmp_path / "node", environment=SHORT_SESSIONS) as node,
        group_members(tmp_path, node, "regex", "^fl[a-z]+$", 2) as members,
    ):
        for _ in range(2):
            members.add(NEWER)
        node.create("trains", "trains.*", partitions=3)
        node.create("flights", "flights.*", partitions=2, partition_by="subject")
        members.wait_shared()
        publish(node, 0, 100)
        wait_read(node, members)
        node.call("PATCH", "/v1/streams/flights", {"partitions": PARTITIONS})
        members.partitions = PARTITIONS
        assert sorted(map(len, members.wait_settled())) == [3, 3]
        publish(node, 100, 300)
        wait_read(node, members)


@pytest.mark.parametrize("client", in_ci(CLIENTS, kept=["confluent-kafka"]))
def test_consumers_are_upgraded_and_back_one_by_one(tmp_path: Path, client: str) -> None:
    """Members of both protocols share a group; each record is read."""
    with running_node(tmp_path / "node", environment=FREQUENT_HEARTBEATS) as node:
        node.create("flights", "flights.*", partitions=PARTITIONS, partition_by="subject")
        with group_members(
            tmp_path, node, "upgraded", "flights", PARTITIONS, session_ms=SESSION_MS_LONG
        ) as members:
            published = 0
            for present in (client, NEWER, client):
                for replaced in members.alive() or [None] * 3:
                    if replaced is not None:
                        replaced.stop()
                    members.add(present)
                    members.wait_shared()
                    publish(node, published, 100)
                    published += 100
                    wait_read(node, members)
            members.wait_shared(3)
        conversions = [line for line in node.log.read_text().splitlines() if "converted" in line]
        assert len(conversions) == 2
        assert "to_protocol=consumer" in conversions[0]
        assert "to_protocol=classic" in conversions[1]


def test_a_restart_in_the_middle_of_an_upgrade_moves_nothing(tmp_path: Path) -> None:
    with running_node(tmp_path / "node", keep_ports=True) as node:
        node.create("flights", "flights.*", partitions=PARTITIONS, partition_by="subject")
        with group_members(
            tmp_path, node, "mixed", "flights", PARTITIONS, session_ms=SESSION_MS_LONG
        ) as members:
            members.add("confluent-kafka")
            members.wait_shared()
            members.add(NEWER)
            shared = members.wait_settled()
            assignments = [each.assignments() for each in members.members]
            node.stop(signal.SIGKILL)
            node.start()
            publish(node, 0, 300)
            wait_read(node, members)
            assert members.share() == shared
            assert [each.assignments() for each in members.members] == assignments
