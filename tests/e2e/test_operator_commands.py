"""What commands say to operators who lose a node, or change their mind, under real processes."""

from __future__ import annotations

import json
import signal
import subprocess

import pytest

from support import http_calls
from support.cluster_commands import run, wait
from support.clusters import RunningCluster

pytestmark = pytest.mark.tier3


def remove_by_force(cluster: RunningCluster, number: int) -> subprocess.CompletedProcess[str]:
    """Kill a node, and remove it once the controller has lost it."""
    cluster.nodes[number].stop(signal.SIGKILL)
    alive = {each["node_id"]: each["alive"] for each in cluster.info()["nodes"]}
    assert number in alive
    wait(
        cluster,
        lambda: not all(each["alive"] for each in cluster.info()["nodes"]),
    )
    return run(cluster, "node", "remove", str(number), "--force", "--yes")


def in_a_line(text: str) -> str:
    """What a command has printed, without the breaks of lines."""
    return " ".join(text.split())


def test_a_cluster_that_runs_short_says_so_until_a_node_has_joined(
    cluster: RunningCluster,
) -> None:
    cluster.nodes[1].create("flights", "flights.>", replicas=3, partitions=2)
    cluster.wait_in_sync("flights")
    done = remove_by_force(cluster, 3)
    assert done.returncode == 0, done.stderr
    assert "2 partitions with fewer replicas than asked for" in in_a_line(done.stderr)
    want = "it has 2 of 3 replicas, for want of a node: add a node with `bascule node join`"
    assert want in in_a_line(done.stderr)
    status = in_a_line(run(cluster, "cluster", "status").stdout)
    assert "2 partitions with fewer replicas than their streams ask for" in status
    assert want in status
    assert "all replicas are in sync" not in status
    waited = run(cluster, "cluster", "wait", "--timeout", "0", "--json")
    assert (waited.returncode, json.loads(waited.stdout)["is_whole"]) == (1, False)
    assert run(cluster, "cluster", "wait", "--timeout", "30", "--allow-short").returncode == 0
    metrics = http_calls.get(cluster.nodes[1].addresses["http"] + "/metrics")
    assert "bascule_cluster_under_replicated_partitions 2" in metrics
    assert "bascule_cluster_short_partitions 2" in metrics
    cluster.join(4, 1, 2)
    assert run(cluster, "cluster", "wait", "--timeout", "60").returncode == 0
    for partition in range(2):
        state = cluster.partition("flights", partition)
        assert sorted(state["isr"]) == [1, 2, 4], "all is well once they are there, not before"


def test_a_partition_without_a_copy_is_begun_anew(cluster: RunningCluster) -> None:
    cluster.nodes[1].create("gone", "gone.>", replicas=1)
    lost = cluster.leader("gone")
    cluster.nodes[lost].stop(signal.SIGKILL)
    wait(cluster, lambda: cluster.partition("gone")["leader"] == -1)
    shown = run(cluster, "stream", "recover", "gone")
    assert shown.returncode == 1
    taking = min({1, 2, 3} - {lost})
    way = f"bascule stream reassign gone --partition 0 --replicas-on {taking}"
    assert way in in_a_line(shown.stdout)
    moved = run(cluster, *way.split()[1:])
    assert moved.returncode == 0, moved.stderr
    done = run(cluster, "stream", "recover", "gone", "--accept-loss", "--yes")
    assert done.returncode == 0, done.stdout
    assert "1 partition of stream gone with a leader again" in in_a_line(done.stdout)
    assert "nothing had to be given up" not in done.stdout
    assert "waits for node" not in done.stdout, "that is over"
    state = cluster.partition("gone")
    assert (state["leader"], state["replicas"]) == (taking, [taking])
