"""Who may form a cluster, and who may not come back."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from support.clusters import RunningCluster
from support.processes import WAIT_SECONDS_MAX, Node, wait_for

pytestmark = pytest.mark.tier3


def refused_start(node: Node) -> str:
    """The log of a node that does not start."""
    node.log.unlink(missing_ok=True)
    node.spawn_again()
    assert node.process is not None
    assert node.process.wait(WAIT_SECONDS_MAX) != 0
    return node.log.read_text()


def test_a_node_that_has_lost_its_disk_does_not_come_back(cluster: RunningCluster) -> None:
    lost = cluster.nodes[2]
    lost.stop(9)
    shutil.rmtree(lost.directory / "data")
    assert "says that the cluster has formed" in refused_start(lost)
    assert cluster.leader("_offsets") != 2, "the others go on"


def test_a_healthy_start_warns_of_no_peer(cluster: RunningCluster) -> None:
    """Whoever starts first connects to nodes that do not know it yet, and so does one that
    joins."""
    cluster.join(4)
    cluster.stop()
    cluster.start()
    cluster.wait_in_sync("_offsets")
    lines = [line for node in cluster.nodes.values() for line in node.log.read_text().splitlines()]
    assert any(" info    bascule.raft_driver raft peer connected " in line for line in lines)
    assert [line for line in lines if "raft connection closed" in line] == []
    assert [line for line in lines if "its process was started again" in line] == []


def test_a_majority_is_enough_once_the_cluster_has_formed(cluster: RunningCluster) -> None:
    for node in cluster.nodes.values():
        node.stop()
    cluster.start(1, 3)
    cluster.nodes[3].create("later", "later.>", replicas=2)
    assert sorted(cluster.partition("later")["replicas"]) == [1, 3]


def test_other_founders_are_refused(cluster: RunningCluster) -> None:
    node = cluster.nodes[1]
    node.stop()
    options = list(node.options)
    at = options.index("--peers") + 1
    options[at] = ",".join(options[at].split(",")[:2])
    node.options = options
    assert "names the founders" in refused_start(node)


def test_a_node_that_worked_alone_is_refused(cluster: RunningCluster, tmp_path: Path) -> None:
    node = cluster.nodes[1]
    node.stop()
    alone = Node(tmp_path / "alone", node.nats)
    alone.directory.mkdir()
    alone.start()
    alone.create("s", "s.>")
    alone.stop()
    shutil.rmtree(node.directory / "data")
    shutil.copytree(alone.directory / "data", node.directory / "data")
    assert "that of a node that worked alone" in refused_start(node)
    assert (node.directory / "data/streams/s/0").exists(), "nothing of it was moved"


@pytest.mark.long
def test_a_node_that_waits_for_others_can_be_stopped(cluster: RunningCluster) -> None:
    """It waits for a controller, and with an empty directory for the other founders."""
    for node in cluster.nodes.values():
        node.stop()
    node = cluster.nodes[1]
    assert "waiting for a controller" in stopped_while_waiting(node)
    shutil.rmtree(node.directory / "data")
    assert "waiting for the other founders" in stopped_while_waiting(node)


def stopped_while_waiting(node: Node) -> str:
    """The log of a node that is stopped while it waits."""
    node.log.unlink()
    node.spawn_again()
    wait_for(lambda: "waiting for" in node.log.read_text() or None, node.process, node.log)
    assert node.stop() == 0
    return node.log.read_text()
