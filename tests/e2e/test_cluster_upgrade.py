"""A cluster of the release before is upgraded node by node under load; then nobody can go back."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import confluent_kafka
import pytest

import bascule
from bascule.cluster_version import DRAIN_REASONS, NEWEST
from bascule.errors import NeedsClusterVersion
from support import http_calls
from support.asked_once import AskedOnce
from support.cluster_commands import ask, node_of, run, servers_of, wait
from support.clusters import RunningCluster, running_cluster
from support.earlier_release import release_before
from support.handover_load import HandoverLoad, Outcome
from support.processes import WAIT_SECONDS_MAX, NatsServer, Node, wait_for

pytestmark = pytest.mark.tier3

BEFORE = NEWEST - 1
STREAMS = ("flights", "gates")
"""Of a publisher that sends again, and of one that does not."""
BETWEEN = 30
"""Acks of the publisher between two steps."""


class KafkaReader:
    """Reads a stream as a Kafka client does, until it has what it is to have."""

    def __init__(self, addresses: str, topic: str) -> None:
        self.values: dict[int, bytes] = {}
        """Offset -> value."""
        self.errors: list[str] = []
        self._consumer = confluent_kafka.Consumer(
            {"bootstrap.servers": addresses, "group.id": "never joined", "check.crcs": True}
        )
        start = confluent_kafka.OFFSET_BEGINNING
        self._consumer.assign([confluent_kafka.TopicPartition(topic, 0, start)])
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stopping.is_set():
            message = self._consumer.poll(0.2)
            if message is None:
                continue
            if message.error() is not None:
                self.errors.append(str(message.error()))
                continue
            offset, value = message.offset(), message.value()
            if offset in self.values:
                self.errors.append(f"offset {offset} twice")
            self.values[offset] = value

    def close(self) -> None:
        self._stopping.set()
        self._thread.join()
        self._consumer.close()


@pytest.fixture
def earlier(tmp_path: Path) -> Path:
    return release_before(tmp_path / "earlier")


@pytest.fixture
def cluster(tmp_path: Path, nats_server: NatsServer, earlier: Path) -> Iterator[RunningCluster]:
    """Three nodes of the release before."""
    environment = {"PYTHONPATH": str(earlier)}
    with running_cluster(
        tmp_path / "nodes", nats=nats_server.url, environment=environment
    ) as running:
        yield running


def replace(cluster: RunningCluster, number: int, earlier: Path | None = None) -> None:
    """Drain a node, start it with this release or with an earlier one, and resume it."""
    node = cluster.nodes[number]
    assert ask(cluster, "node", "drain", str(number))["leaders"] == 0
    assert node.stop() == 0
    choose(cluster, number, earlier)
    node.start()
    for name in STREAMS:
        cluster.wait_in_sync(name)
    newest = NEWEST if earlier is None else BEFORE
    wait(cluster, lambda: node_of(cluster, number)["cluster_version_max"] == newest)
    ask(cluster, "node", "resume", str(number))
    wait(cluster, lambda: not node_of(cluster, number)["is_drained"])


def choose(cluster: RunningCluster, number: int, earlier: Path | None) -> None:
    environment = cluster.nodes[number].environment
    environment.pop("PYTHONPATH", None)
    if earlier is not None:
        environment["PYTHONPATH"] = str(earlier)


def end(cluster: RunningCluster, load: HandoverLoad) -> Outcome:
    """Publish no more, and compare with what is stored once all acks have come."""
    load.stop()
    wait(cluster, lambda: len(load.acked) + len(load.errors) >= load.asked)
    with bascule.connect_sync(servers_of(cluster)) as client:
        return load.outcome([(each.offset, each.value or b"") for each in client.read("gates")])


def in_force(cluster: RunningCluster, number: int) -> int:
    """The cluster version, as one node says."""
    found = cluster.nodes[number].call("GET", "/v1/cluster")["cluster_version"]
    return int(found)


def wait_in_force(cluster: RunningCluster, number: int) -> None:
    wait(cluster, lambda: in_force(cluster, number) == NEWEST)


def check_refused(cluster: RunningCluster, number: int) -> None:
    """The node ends by itself, and says why."""
    node = cluster.nodes[number]
    said = len(node.log.read_text())
    node.spawn_again()
    assert node.process is not None
    assert node.process.wait(WAIT_SECONDS_MAX) == 2
    text = " ".join(node.log.read_text()[said:].split())
    assert f"supports cluster version {BEFORE}, and the cluster uses {NEWEST}" in text, text
    assert "start it with the release of the other nodes, or a newer one" in text, text


def check_not_yet(cluster: RunningCluster, upgraded: int) -> None:
    """What the new version brings is refused, and the nodes are named that do not know it."""
    with bascule.connect_sync(cluster.nodes[upgraded].addresses["http"]) as client:
        with pytest.raises(NeedsClusterVersion) as refused:
            client.drain_node(upgraded, reason="a new kernel")
        for number in cluster.nodes.keys() - {upgraded}:
            assert f"node {number} (release" in str(refused.value)
        info = client.cluster()
    assert info.cluster_version == BEFORE
    assert not any(each.is_drained for each in info.nodes)


def check_brought(cluster: RunningCluster) -> None:
    """What the new version brings works, on all nodes."""
    run(cluster, "node", "drain", "1", "--reason", "a new kernel")
    for node in cluster.nodes.values():
        wait_for(partial(_has_reason, node, "a new kernel"), node.process, node.log)
    assert "drained (a new kernel)" in " ".join(run(cluster, "node", "list").stdout.split())
    ask(cluster, "node", "resume", "1")
    wait(cluster, lambda: reasons(cluster.info()) == [])


def _has_reason(node: Node, reason: str) -> bool | None:
    return True if reasons(node.call("GET", "/v1/cluster")) == [reason] else None


def reasons(info: dict[str, list[dict[str, str]]]) -> list[str]:
    return [each["drain_reason"] for each in info["nodes"] if each["drain_reason"]]


def test_nodes_of_two_releases_are_one_cluster(
    cluster: RunningCluster, nats_server: NatsServer, earlier: Path
) -> None:
    assert DRAIN_REASONS == NEWEST, "take something else that the newest version has brought"
    assert {each["cluster_version_max"] for each in cluster.info()["nodes"]} == {BEFORE}
    assert {in_force(cluster, number) for number in cluster.nodes} == {BEFORE}
    for name in STREAMS:
        cluster.nodes[1].create(name, f"{name}.>", replicas=3)
        cluster.wait_in_sync(name)
    addresses = ",".join(node.addresses["client"] for node in cluster.nodes.values())
    reader = KafkaReader(addresses, "flights")
    plain = HandoverLoad(int(nats_server.url.rsplit(":", 1)[1]), "gates.a", burst=1)

    async def scene() -> tuple[AskedOnce, dict[int, bytes]]:
        async with bascule.connect(servers_of(cluster)) as client:
            load = AskedOnce(client)
            publishing = asyncio.create_task(load.run())
            await load.wait_more(BETWEEN)
            await asyncio.to_thread(replace, cluster, 1)
            await asyncio.to_thread(check_not_yet, cluster, 1)
            await load.wait_more(BETWEEN)
            await asyncio.to_thread(replace, cluster, 1, earlier)
            await load.wait_more(BETWEEN)
            for number in (3, 1, 2):
                await asyncio.to_thread(replace, cluster, number)
                await load.wait_more(BETWEEN)
            for number in cluster.nodes:
                await asyncio.to_thread(wait_in_force, cluster, number)
            await load.wait_more(BETWEEN)
            load.stopping = True
            await publishing
            return load, {m.offset: m.value async for m in client.read("flights")}

    try:
        load, stored = asyncio.run(scene())
        wait(cluster, lambda: len(reader.values) >= len(stored))
        outcome = end(cluster, plain)
    finally:
        reader.close()
        plain.stop()
    assert all(stored[offset] == b"%d" % n for n, offset in load.acked.items())
    assert reader.values == stored
    assert reader.errors == []
    assert load.errors == []
    assert plain.errors == []
    assert (outcome.lost, outcome.doubled, outcome.untrue, outcome.unanswered) == ([], [], [], 0)
    assert outcome.in_order
    metrics = http_calls.get(cluster.nodes[2].addresses["http"] + "/metrics")
    assert f"bascule_cluster_version {NEWEST}" in metrics
    assert f'bascule_cluster_node_version_max{{node="3"}} {NEWEST}' in metrics
    assert f"version {NEWEST}" in " ".join(run(cluster, "cluster", "status").stdout.split())
    check_brought(cluster)

    cluster.nodes[3].stop()
    choose(cluster, 3, earlier)
    check_refused(cluster, 3)
    kept = cluster.nodes[3].directory / "data/cluster.json"
    content = json.loads(kept.read_text())
    assert content["cluster_version"] == NEWEST
    kept.write_text(json.dumps({**content, "cluster_version": BEFORE}))
    check_refused(cluster, 3)  # by its metadata, or by the controller
    choose(cluster, 3, None)
    cluster.nodes[3].start()
    cluster.wait_in_sync("flights")
