"""A Kafka consumer reads from the replica in its own rack, and goes on at the leader without it."""

from __future__ import annotations

import re
import signal
import time
from pathlib import Path

import confluent_kafka
import pytest

import bascule
from support.clusters import RunningCluster, running_cluster
from support.processes import WAIT_SECONDS_MAX, Node, running_nats

pytestmark = pytest.mark.tier3

RACKS = ("north", "east", "south")


def fetched_bytes(node: Node) -> int:
    """Record bytes of the stream that the node has sent to consumers."""
    with bascule.connect_sync(node.addresses["http"]) as client:
        found = re.search(
            r'^bascule_stream_fetched_bytes_total\{[^}]*stream="flights"[^}]*\} (\d+)',
            client.metrics(),
            re.MULTILINE,
        )
    return int(found[1]) if found else 0


def publish(cluster: RunningCluster, numbers: range) -> None:
    servers = ",".join(node.addresses["http"] for node in cluster.alive())
    with bascule.connect_sync(servers) as client:
        client.publish_many([("flights.a", b"%d" % n) for n in numbers])


def read(consumer: confluent_kafka.Consumer, count: int) -> list[int]:
    found: list[int] = []
    deadline = time.monotonic() + WAIT_SECONDS_MAX
    while len(found) < count and time.monotonic() < deadline:
        message = consumer.poll(0.5)
        if message is not None:
            assert message.error() is None, message.error()
            found.append(int(message.value()))
    return found


def test_a_consumer_reads_from_the_replica_in_its_rack(tmp_path: Path) -> None:
    with (
        running_nats(tmp_path / "nats") as nats,
        running_cluster(tmp_path / "nodes", nats=nats.url, racks=RACKS) as cluster,
    ):
        cluster.nodes[1].create("flights", "flights.>", replicas=3)
        cluster.wait_in_sync("flights")
        publish(cluster, range(500))
        leader = cluster.leader("flights")
        near = next(node for node in cluster.nodes if node != leader)
        consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": ",".join(n.addresses["client"] for n in cluster.alive()),
                "group.id": "g",
                "enable.auto.commit": False,
                "client.rack": RACKS[near - 1],
            }
        )
        try:
            consumer.assign([confluent_kafka.TopicPartition("flights", 0, 0)])
            assert read(consumer, 500) == list(range(500))
            publish(cluster, range(500, 1_000))
            assert read(consumer, 500) == list(range(500, 1_000))
            assert fetched_bytes(cluster.nodes[near]) > 0
            cluster.nodes[near].stop(signal.SIGKILL)
            publish(cluster, range(1_000, 1_200))
            assert read(consumer, 200) == list(range(1_000, 1_200))
        finally:
            consumer.close()
