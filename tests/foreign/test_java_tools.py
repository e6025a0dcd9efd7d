"""Apache Kafka's command line tools on a real node."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import bascule
from support.foreign_clients import CONSOLE, run_tool
from support.group_members import group_members
from support.processes import Node, running_node

TOPICS = "org.apache.kafka.tools.TopicCommand"
CONFIGS = "kafka.admin.ConfigCommand"
OFFSETS = "org.apache.kafka.tools.GetOffsetShell"
PARTITIONS = 3


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    with running_node(tmp_path_factory.mktemp("tools")) as node:
        yield node


def run(node: Node, name: str, *arguments: str) -> str:
    return run_tool(name, "--bootstrap-server", node.addresses["client"], *arguments)


def test_a_topic_is_made_described_altered_and_deleted(node: Node) -> None:
    topic = ("--topic", "orders")
    made = run(node, TOPICS, "--create", *topic, "--partitions", "2",
               "--config", "retention.ms=86400000")  # fmt: skip
    assert "Created topic orders" in made
    described = run(node, TOPICS, "--describe", *topic)
    assert "PartitionCount: 2\tReplicationFactor: 1" in described
    assert "retention.ms=86400000" in described
    assert "orders" in run(node, TOPICS, "--list").split()
    run(node, TOPICS, "--alter", *topic, "--partitions", "4")
    entity = ("--entity-type", "topics", "--entity-name", "orders")
    run(node, CONFIGS, "--alter", *entity, "--add-config", "retention.ms=3600000")
    assert "retention.ms=3600000" in run(node, CONFIGS, "--describe", *entity)
    with bascule.connect_sync(node.addresses["http"]) as client:
        info = client.stream("orders")
    assert len(info.partitions) == 4
    assert info.definition.config.retention_ms_max == 3_600_000
    run(node, CONFIGS, "--alter", *entity, "--delete-config", "retention.ms")
    assert "retention.ms=3600000" not in run(node, CONFIGS, "--describe", *entity)
    broker = run(node, CONFIGS, "--describe", "--entity-type", "brokers", "--entity-name", "1",
                 "--all")  # fmt: skip
    assert "node.id=1" in broker
    run(node, TOPICS, "--delete", *topic)
    assert "orders" not in run(node, TOPICS, "--list").split()


def test_console_consumers_share_a_stream(
    node: Node, tmp_path_factory: pytest.TempPathFactory
) -> None:
    directory = tmp_path_factory.mktemp("console")
    node.create("flights", "flights.*", partitions=PARTITIONS, partition_by="subject")
    with bascule.connect_sync(node.addresses["http"]) as client:
        client.publish_many((f"flights.{n}", b"%d" % n) for n in range(300))
        ends = {p.partition: p.high_watermark for p in client.stream("flights").partitions}
        stored = {(p, n) for p, end in ends.items() for n in range(end)}
        with group_members(directory, node, "console", "flights", PARTITIONS) as members:
            for _ in range(3):
                members.add("console", program=CONSOLE)
            members.wait(lambda: stored <= members.read() or None)
            members.members[0].kill()
            members.wait(
                lambda: (
                    {e.partition: e.offset for e in client.offsets(consumer="console")} == ends
                    or None
                )
            )
    said = run(node, OFFSETS, "--topic", "flights")
    assert {tuple(map(int, line.split(":")[1:])) for line in said.split()} == set(ends.items())
