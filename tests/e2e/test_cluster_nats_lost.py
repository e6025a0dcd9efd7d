"""Nodes of a cluster that lose their NATS servers: others lead, and give leadership back later."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support import commands, http_calls
from support.clusters import RunningCluster, running_cluster
from support.nats_servers import Cluster, eventually
from support.processes import NatsServer, Node, RawNats

pytestmark = pytest.mark.tier3

WITHOUT_DISCOVERY = {
    "BASCULE_NATS_DISCOVER": "false",
    "BASCULE_CLUSTER_LEADER_BALANCE_MS": "200",
}
"""Each node has the NATS server of its own machine only, and leadership returns at once."""


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[Cluster]:
    made = Cluster(tmp_path / "nats", 3)
    try:
        yield made
    finally:
        made.stop()


@pytest.fixture
def cluster(tmp_path: Path, servers: Cluster) -> Iterator[RunningCluster]:
    """Node n has the NATS server n - 1; the servers are a cluster."""
    kinds = {n: at_server(servers.servers[n - 1].url) for n in (1, 2, 3)}
    with running_cluster(
        tmp_path / "nodes", nats="unused", kinds=kinds, environment=WITHOUT_DISCOVERY
    ) as running:
        running.nodes[1].create("a", "a.>", replicas=3)
        running.leader("a")
        running.wait_in_sync("a")
        yield running


def at_server(url: str) -> type[Node]:
    class OwnServer(Node):
        def __init__(self, directory: Path, nats: str, **more: Any) -> None:
            super().__init__(directory, url, **more)

    return OwnServer


class Publisher:
    """Publishes messages one by one, and counts those that are acked."""

    def __init__(self, server: NatsServer) -> None:
        self.nats = RawNats(server.port)
        self.nats.send(b"SUB _INBOX.t 1\r\n")
        self.nats.flush()
        self.nats.socket.settimeout(0.3)
        self.acked = 0

    def publish(self) -> bool:
        """Whether a message is acked soon."""
        self.nats.send(b"PUB a.x _INBOX.t 1\r\n1\r\n")
        try:
            found = [json.loads(payload) for _, payload in self.nats.messages()]
        except TimeoutError:
            return False
        acks = [each for each in found if "seq" in each]
        self.acked += len(acks)
        return bool(acks)


def lacking(node: Node) -> list[int]:
    """The nodes that lack NATS, as one of them says."""
    nodes = node.call("GET", "/v1/cluster")["nodes"]
    return [each["node_id"] for each in nodes if each["lacks_nats_since_ms"]]


def metrics_of(node: Node) -> str:
    return http_calls.get(node.addresses["http"] + "/metrics")


def test_others_lead_while_a_node_lacks_nats(cluster: RunningCluster, servers: Cluster) -> None:
    leader = cluster.leader("a")
    other = cluster.nodes[leader % 3 + 1]
    publisher = Publisher(servers.servers[leader % 3])
    eventually(publisher.publish, "no acks at first")
    epoch = other.partition("a")["leader_epoch"]

    servers.servers[leader - 1].stop(signal.SIGKILL)
    eventually(publisher.publish, "nobody else leads")
    state = other.partition("a")
    assert state["leader"] != leader
    assert state["leader_epoch"] == epoch + 1, "one planned move"
    assert leader in state["isr"], "it follows"
    assert lacking(other) == [leader]
    metrics = metrics_of(other)
    assert f'bascule_cluster_node_lacks_nats{{node="{leader}"}} 1' in metrics

    at = ("--server", other.addresses["http"])
    shown = commands.run("cluster", "status", *at, text=True, env={"COLUMNS": "200"}).stdout
    assert f"node {leader} has had no NATS connection since" in shown, shown
    refused = commands.run("stream", "elect-leader", "a", "--node", leader, *at, text=True)
    assert "it has no NATS connection" in refused.stderr, refused.stderr

    # A third node stops: the one without NATS is not elected.
    successor = state["leader"]
    cluster.nodes[successor].stop()
    (third,) = {1, 2, 3} - {leader, successor}
    eventually(lambda: cluster.nodes[third].partition("a")["leader"] == third, "it leads")
    cluster.start(successor)
    cluster.wait_in_sync("a")

    servers.servers[leader - 1].start()
    eventually(lambda: other.partition("a")["leader"] == leader, "leadership has not returned")
    assert lacking(other) == []
    eventually(publisher.publish, "no acks at the end")


def test_nothing_moves_where_all_nodes_lack_nats(tmp_path: Path) -> None:
    server = NatsServer(tmp_path)
    server.start()
    try:
        with running_cluster(
            tmp_path / "nodes", nats=server.url, environment=WITHOUT_DISCOVERY
        ) as cluster:
            node = cluster.nodes[1]
            node.create("a", "a.>", replicas=3)
            leader = cluster.leader("a")
            cluster.wait_in_sync("a")
            state = node.partition("a")
            server.stop(signal.SIGKILL)
            eventually(lambda: lacking(node) == [1, 2, 3], "they do not say so")
            server.start()
            publisher = Publisher(server)
            eventually(publisher.publish, "no acks again")
            eventually(lambda: lacking(node) == [], "they do not say that it is over")
            after = node.partition("a")
            assert (after["leader"], after["leader_epoch"]) == (leader, state["leader_epoch"])
    finally:
        server.stop()
