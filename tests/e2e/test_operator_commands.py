"""What commands say to operators who lose a node, or change their mind, under real processes."""

from __future__ import annotations

import json
import random
import signal
import subprocess
from concurrent.futures import ThreadPoolExecutor

import pytest

import bascule
from support import commands, http_calls
from support.cluster_commands import node_of, run, servers_of, wait
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


def test_a_lost_node_is_replaced_without_running_short(cluster: RunningCluster) -> None:
    """A spare node joins first. The lost one is removed as a living one is, without --force."""
    cluster.nodes[1].create("flights", "flights.>", replicas=3)
    cluster.wait_in_sync("flights")
    cluster.nodes[3].stop(signal.SIGKILL)
    wait(cluster, lambda: not node_of(cluster, 3)["alive"])
    refused = run(cluster, "node", "remove", "3", "--yes")
    assert refused.returncode == 1
    assert "start another node first" in in_a_line(refused.stderr)
    cluster.join(4, 1, 2)
    done = run(cluster, "node", "remove", "3", "--yes", "--wait")
    assert done.returncode == 0, done.stderr
    assert sorted(cluster.partition("flights")["isr"]) == [1, 2, 4]
    assert run(cluster, "cluster", "wait").returncode == 0
    cluster.wait_voters(1, 2, 4)


def test_a_wait_for_a_move_says_what_came_of_it(cluster: RunningCluster) -> None:
    """Somebody else cancels it; then the node that copies is lost."""
    cluster.nodes[1].create("flights", "flights.>", replicas=2)
    cluster.wait_in_sync("flights")
    with bascule.connect_sync(servers_of(cluster)) as client:
        client.publish_many((f"flights.{n}", random.Random(n).randbytes(1_000)) for n in range(500))
    before = cluster.partition("flights")["replicas"]
    (added,) = {1, 2, 3} - {*before}
    target = f"{before[0]},{added}"
    move = ("stream", "reassign", "flights", "--replicas-on", target)

    def is_moving() -> bool:
        return bool(cluster.partition("flights")["target"])

    with ThreadPoolExecutor(1) as waiting:
        waited = waiting.submit(run, cluster, *move, "--throttle", "1kB", "--wait")
        wait(cluster, is_moving)
        status = in_a_line(run(cluster, "cluster", "status").stdout)
        assert "1 partition on the way to other nodes" in status
        assert f" → {before[0]} {added}" in status
        assert run(cluster, "stream", "reassign", "flights", "--cancel").returncode == 0
        done = waited.result()
        assert done.returncode == 1, done.stdout
        assert "its move was cancelled or replaced; it is on nodes" in in_a_line(done.stderr)

        # Asked of another node: the one that is killed may not have answered yet.
        asked = cluster.nodes[before[0]].addresses["http"]
        waited = waiting.submit(commands.run, *move, "--wait", "--server", asked, text=True)
        wait(cluster, is_moving)
        cluster.nodes[added].stop(signal.SIGKILL)
        done = waited.result()
    assert done.returncode == 1, done.stdout
    said = in_a_line(done.stderr)
    assert f"its move waits for node {added}, which is not alive" in said
    assert "`bascule stream reassign flights --cancel` takes it back" in said
    again = run(cluster, *move)
    assert again.returncode == 2
    assert "the move to it that is under way still stands" in in_a_line(again.stderr)
    assert "docs/operations.md" in run(cluster, "cluster", "status").stdout, "a node is lost"


def test_what_is_taken_back_elsewhere_ends_the_wait(cluster: RunningCluster) -> None:
    """The only replica of a stream cannot leave while its copy is held up."""
    cluster.nodes[1].create("flights", "flights.>", replicas=1)
    with bascule.connect_sync(servers_of(cluster)) as client:
        client.publish_many((f"flights.{n}", random.Random(n).randbytes(1_000)) for n in range(500))
    assert run(cluster, "cluster", "throttle", "1kB").returncode == 0
    number = str(cluster.leader("flights"))

    def is_moving() -> bool:
        return bool(cluster.partition("flights")["target"])

    with ThreadPoolExecutor(1) as waiting:
        waited = waiting.submit(run, cluster, "node", "remove", number, "--yes", "--wait")
        wait(cluster, is_moving)
        cancelled = run(cluster, "node", "remove", number, "--cancel")
        assert "moves away from it that had begun go on (1 partition)" in cancelled.stdout
        assert "`bascule stream reassign flights --cancel`" in cancelled.stdout
        done = waited.result()
        assert done.returncode == 1, done.stdout
        assert f"the removal of node {number} was taken back meanwhile" in in_a_line(done.stderr)

        drain = ("node", "drain", number, "--replicas", "--wait")
        waited = waiting.submit(run, cluster, *drain)
        wait(cluster, lambda: bool(node_of(cluster, int(number))["is_emptied"]))
        resumed = run(cluster, "node", "resume", number)
        assert resumed.returncode == 0, resumed.stderr
        done = waited.result()
    assert done.returncode == 1, done.stdout
    assert f"the drain of node {number} was ended meanwhile" in in_a_line(done.stderr)
    assert run(cluster, "cluster", "throttle", "0").stdout.startswith("catch-up  no limit")
