"""A node does not take part without what it has confirmed: its votes, and its log."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from e2e.test_cluster_founding import refused_start
from support.clusters import RunningCluster
from support.processes import Node, wait_for

pytestmark = pytest.mark.tier3

LOST = "raft log lacks entries that its node has confirmed"


def test_metadata_that_are_gone_or_an_older_copy_are_refused(cluster: RunningCluster) -> None:
    node = cluster.nodes[3]
    raft = node.directory / "data/raft"
    node.stop()
    shutil.copytree(raft, node.directory / "copy")
    node.start()
    cluster.nodes[1].create("later", "later.>", replicas=3)
    cluster.wait_in_sync("later")
    node.stop()
    shutil.rmtree(raft)
    said = refused_start(node)
    assert "cluster.json says, found no database" in said
    assert "node remove N --force --yes" in said
    shutil.rmtree(raft)
    shutil.copytree(node.directory / "copy", raft)
    for _ in range(2):
        assert "it is an older copy" in refused_start(node)


def test_an_older_copy_of_the_whole_directory_stops_by_what_the_leader_knows(
    cluster: RunningCluster,
) -> None:
    controller = cluster.info()["controller"]
    node = cluster.nodes[1 + controller % 3]
    data = node.directory / "data"
    node.stop()
    shutil.copytree(data, node.directory / "copy")
    node.start()
    cluster.nodes[controller].create("later", "later.>", replicas=3)
    cluster.wait_in_sync("later")
    node.stop(9)
    shutil.rmtree(data)
    (node.directory / "copy").rename(data)
    said = refused_start(node)
    assert f" error   bascule.raft_driver {LOST} " in said
    assert "its data directory is an older copy" in said
    leader = cluster.nodes[controller]
    wait_for(lambda: LOST in leader.log.read_text() or None, leader.process, leader.log)


def test_a_copy_that_runs_beside_the_original_is_refused(
    cluster: RunningCluster, tmp_path: Path
) -> None:
    node = cluster.nodes[3]
    node.stop()
    shutil.copytree(node.directory / "data", tmp_path / "copy/data")
    node.start()
    cluster.wait_in_sync("_offsets")
    options = [*node.options]
    options[options.index("--peer-port") + 1] = "0"
    clone = Node(tmp_path / "copy", node.nats, options)
    said = refused_start(clone)
    assert "another process of node 3 runs at " in said
    assert said.count("raft peer disconnected") < 10, "it waits longer and longer"
    assert node.process is not None
    assert node.process.poll() is None
    logs = [each.log.read_text() for number, each in cluster.nodes.items() if number != 3]
    assert any("two processes use the number of one node" in each for each in logs)
    cluster.wait_in_sync("_offsets")
