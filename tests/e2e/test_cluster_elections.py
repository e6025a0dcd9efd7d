"""Who leads when no replica in sync is left, on real nodes."""

from __future__ import annotations

import json
import re
import signal
from pathlib import Path
from typing import Any

import pytest

import bascule
from bascule.errors import BasculeError, PublishRejected
from support import commands
from support.clusters import RunningCluster, running_cluster
from support.processes import Node, running_nats, wait_for

pytestmark = pytest.mark.tier3

SIZE = 40


def bascule_command(node: Node, *args: str) -> str:
    """What a command of the CLI prints."""
    done = commands.run(*args, "--server", node.addresses["http"], text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def status(node: Node) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(bascule_command(node, "cluster", "status", "--json"))
    return found


def publish(cluster: RunningCluster, values: range) -> list[int]:
    servers = ",".join(node.addresses["http"] for node in cluster.alive())
    with bascule.connect_sync(servers) as client:
        messages = [("flights.a", b"%d" % n) for n in values]
        return list(client.publish_many(messages).offsets)


def wait_until(cluster: RunningCluster, look: Any) -> Any:
    """What `look` finds, once it finds something."""

    def safely() -> Any:
        try:
            return look()
        except (OSError, BasculeError, AssertionError):
            return None

    node = cluster.alive()[0]
    return wait_for(safely, node.process, node.log)


def events(cluster: RunningCluster, name: str) -> list[dict[str, str]]:
    """The fields of each event of this name in the logs of all nodes."""
    return [
        dict(field.partition("=")[::2] for field in line.partition(f" {name} ")[2].split(" "))
        for node in cluster.nodes.values()
        for line in node.log.read_text().splitlines()
        if f" {name} " in line
    ]


def test_an_unclean_election_is_asked_for_visible_and_counted(tmp_path: Path) -> None:
    """The last replica in sync is lost. The partition waits until an operator gives it up."""
    with (
        running_nats(tmp_path / "nats") as nats,
        running_cluster(tmp_path / "nodes", nats=nats.url) as cluster,
    ):
        cluster.nodes[1].create("flights", "flights.>", replicas=2, min_isr=1)
        cluster.wait_in_sync("flights")
        publish(cluster, range(SIZE))
        cluster.wait_in_sync("flights")
        state = cluster.partition("flights")
        last = state["leader"]
        other = next(node for node in state["replicas"] if node != last)
        cluster.nodes[other].stop(signal.SIGKILL)
        wait_until(cluster, lambda: cluster.partition("flights")["isr"] == [last] or None)
        acked = publish(cluster, range(SIZE, 2 * SIZE))
        assert acked == list(range(SIZE, 2 * SIZE))
        cluster.nodes[last].stop(signal.SIGKILL)
        cluster.nodes[other].start()

        # Without the setting the partition waits, and every view says for whom.
        survivor = cluster.nodes[other]
        waiting = wait_until(cluster, lambda: status(survivor)["leaderless"])
        assert f"waits for node {last}, the last in sync" in waiting[0]["waits"]
        assert "unclean_election is off" in waiting[0]["waits"]
        assert "waits for node" in bascule_command(survivor, "cluster", "status")
        assert "no leader: waits for" in bascule_command(survivor, "stream", "info", "flights")
        assert cluster.partition("flights")["waits"] == waiting[0]["waits"]
        ready = survivor.call("GET", "/readyz")
        part = next(each for each in ready["parts"] if each["part"] == "cluster")
        assert part["state"] == "degraded"
        assert "waits for node" in part["reason"]

        shown = bascule_command(survivor, "stream", "recover", "flights")
        assert "nothing was done" in shown
        assert re.search(rf"^ *0 +{other} +\d+ +{SIZE} .*would lead$", shown, re.MULTILINE), shown
        assert cluster.partition("flights")["leader"] == -1

        bascule_command(survivor, "stream", "alter", "flights", "--unclean-election")
        assert cluster.leader("flights") == other
        state = cluster.partition("flights")
        assert (state["isr"], state["waits"]) == ([other], "")
        assert state["unclean_epoch"] == state["leader_epoch"]
        assert [ref["stream"] for ref in status(survivor)["unclean"]] == ["flights"]
        (event,) = wait_until(cluster, lambda: events(cluster, "unclean election") or None)
        assert (event["leader"], event["isr_before"]) == (str(other), f"[{last}]")
        counted = 0
        for node in cluster.alive():
            with bascule.connect_sync(node.addresses["http"]) as client:
                found = re.search(
                    r"^bascule_unclean_elections_total (\d+)", client.metrics(), re.MULTILINE
                )
                counted += int(found[1]) if found else 0
        assert counted == 1
        assert publish(cluster, range(1_000, 1_010)) == list(range(SIZE, SIZE + 10))

        assert "acknowledge-loss" in bascule_command(survivor, "cluster", "status")
        bascule_command(survivor, "stream", "acknowledge-loss", "flights")
        assert status(survivor)["unclean"] == []
        assert cluster.partition("flights")["unclean_epoch"] == 0

        # The node that was in sync removes what the new leader does not have.
        cluster.nodes[last].start()
        cluster.wait_in_sync("flights")
        (lost,) = events(cluster, "records removed after an unclean election")
        assert (lost["start"], lost["end"]) == (str(SIZE), str(2 * SIZE))
        with bascule.connect_sync(cluster.nodes[last].addresses["http"]) as client:
            values = [int(message.value) for message in client.read("flights")]
        assert values == [*range(SIZE), *range(1_000, 1_010)]
        cluster.stop()
        assert cluster.log_bytes(last, "flights") == cluster.log_bytes(other, "flights")


@pytest.mark.long
def test_the_longest_log_of_those_out_of_sync_leads(tmp_path: Path) -> None:
    """Both replicas that are back lack records; the preferred one of them lacks more."""
    with (
        running_nats(tmp_path / "nats") as nats,
        running_cluster(tmp_path / "nodes", nats=nats.url) as cluster,
    ):
        cluster.join(4)
        cluster.nodes[1].create("flights", "flights.>", replicas=3, min_isr=1)
        servers = ",".join(node.addresses["http"] for node in cluster.nodes.values())
        with bascule.connect_sync(servers) as client:
            client.reassign_stream("flights", [1, 4, 3])
        cluster.wait_moved("flights")
        wait_until(cluster, lambda: cluster.leader("flights") == 1 or None)
        publish(cluster, range(SIZE))
        # Nodes 1 and 2 are a majority of the voters as long as node 1 runs.
        for number, lost in enumerate((4, 3), start=1):
            cluster.nodes[lost].stop(signal.SIGKILL)
            wait_until(
                cluster, lambda lost=lost: lost not in cluster.partition("flights")["isr"] or None
            )
            publish(cluster, range(number * SIZE, (number + 1) * SIZE))
        cluster.nodes[1].stop(signal.SIGKILL)
        cluster.start(4, 3)
        survivor = cluster.nodes[2]
        wait_until(cluster, lambda: status(survivor)["leaderless"])
        wait_until(
            cluster,
            lambda: (
                [n["alive"] for n in status(survivor)["nodes"]] == [False, True, True, True] or None
            ),
        )
        said = bascule_command(survivor, "stream", "recover", "flights", "--accept-loss", "--yes")
        assert "1 partition of stream flights with a leader again" in said
        assert cluster.leader("flights") == 3
        assert status(survivor)["unclean"] == [], "the operator knows"
        (event,) = wait_until(cluster, lambda: events(cluster, "ends of logs compared") or None)
        assert event["stream"] == "flights"
        text = "".join(node.log.read_text() for node in cluster.nodes.values())
        assert re.search(rf'ends="3=\d+:{2 * SIZE} 4=\d+:{SIZE}"', text)
        wait_until(cluster, lambda: cluster.partition("flights")["isr"] == [3, 4] or None)
        servers = ",".join(node.addresses["http"] for node in cluster.alive())
        with bascule.connect_sync(servers) as client:
            values = [int(message.value) for message in client.read("flights")]
        assert values == [*range(2 * SIZE)]


def test_a_replica_that_left_when_nothing_could_be_committed_leads(tmp_path: Path) -> None:
    """Without it fewer than `min_isr` were in sync, so it lacks nothing that was acknowledged."""
    with (
        running_nats(tmp_path / "nats") as nats,
        running_cluster(tmp_path / "nodes", nats=nats.url) as cluster,
    ):
        cluster.nodes[1].create("flights", "flights.>", replicas=2, min_isr=2)
        cluster.wait_in_sync("flights")
        assert publish(cluster, range(SIZE)) == [*range(SIZE)]
        cluster.wait_in_sync("flights")
        state = cluster.partition("flights")
        last = state["leader"]
        eligible = next(node for node in state["replicas"] if node != last)
        cluster.nodes[eligible].stop(signal.SIGKILL)
        wait_until(cluster, lambda: cluster.partition("flights")["isr"] == [last] or None)
        with (
            pytest.raises(PublishRejected, match="20008"),
            bascule.connect_sync(cluster.nodes[last].addresses["http"]) as client,
        ):
            client.publish("flights.a", b"refused")

        cluster.nodes[last].stop(signal.SIGKILL)
        cluster.nodes[eligible].start()
        wait_until(cluster, lambda: cluster.leader("flights") == eligible or None)
        state = cluster.partition("flights")
        assert (state["isr"], state["waits"], state["unclean_epoch"]) == ([eligible], "", 0)
        assert not events(cluster, "unclean election")

        cluster.nodes[last].start()
        cluster.wait_in_sync("flights")
        assert publish(cluster, range(SIZE, 2 * SIZE)) == [*range(SIZE, 2 * SIZE)]
        with bascule.connect_sync(cluster.nodes[eligible].addresses["http"]) as client:
            values = [int(message.value) for message in client.read("flights")]
        assert values == [*range(2 * SIZE)]
        assert not events(cluster, "records removed after an unclean election")
        cluster.stop()
        assert cluster.log_bytes(last, "flights") == cluster.log_bytes(eligible, "flights")
