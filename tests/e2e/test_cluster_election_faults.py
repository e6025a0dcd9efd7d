"""Elections while logs are damaged, nodes are paused and controllers end, on real nodes."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import bascule
from bascule.errors import BasculeError
from support import commands
from support.clusters import RunningCluster, running_cluster
from support.processes import Node, running_nats, wait_for

pytestmark = pytest.mark.tier3

SIZE = 40


def command(node: Node, *args: str) -> str:
    """What a command of the CLI prints."""
    done = commands.run(*args, "--server", node.addresses["http"], text=True)
    assert done.returncode == 0, done.stderr
    return " ".join(done.stdout.split())


def wait_until(node: Node, look: Callable[[], Any]) -> Any:
    """What `look` finds, once it finds something."""

    def safely() -> Any:
        try:
            return look() or None
        except (OSError, BasculeError):
            return None

    return wait_for(safely, node.process, node.log)


def publish(node: Node, values: range) -> list[int]:
    with bascule.connect_sync(node.addresses["http"]) as client:
        return list(client.publish_many([("flights.a", b"%d" % n) for n in values]).offsets)


def read(node: Node) -> list[int]:
    with bascule.connect_sync(node.addresses["http"]) as client:
        return [int(message.value) for message in client.read("flights")]


def send(node: Node, number: signal.Signals) -> None:
    assert node.process is not None
    node.process.send_signal(number)


def change_boot_id(node: Node) -> None:
    """The machine has gone down since the node ran."""
    path = node.directory / "data" / "last-run.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "boot_id": "another"}))


def leave_last_in_sync(cluster: RunningCluster) -> tuple[int, int]:
    """A stream of two replicas, one of which was killed when both had the first SIZE records: the
    other one, which has twice as many, and that one."""
    cluster.nodes[1].create("flights", "flights.>", replicas=2, min_isr=1)
    cluster.wait_in_sync("flights")
    state = cluster.partition("flights")
    last = state["leader"]
    (behind,) = set(state["replicas"]) - {last}
    node = cluster.nodes[last]
    publish(node, range(SIZE))
    cluster.wait_in_sync("flights")
    cluster.nodes[behind].stop(signal.SIGKILL)
    wait_until(node, lambda: node.partition("flights")["isr"] == [last])
    publish(node, range(SIZE, 2 * SIZE))
    return last, behind


@pytest.mark.long
def test_a_damaged_log_that_nobody_can_replace_is_shown_everywhere(tmp_path: Path) -> None:
    """The last replica in sync stays in the ISR: nobody else has all records."""
    with (
        running_nats(tmp_path / "nats") as nats,
        running_cluster(tmp_path / "nodes", nats=nats.url) as cluster,
    ):
        last, behind = leave_last_in_sync(cluster)
        node = cluster.nodes[last]
        node.stop(signal.SIGKILL)
        (segment,) = cluster.replica(last, "flights").glob("*.log")
        with segment.open("r+b") as file:
            file.truncate(segment.stat().st_size // 4)
        cluster.start(last, behind)
        other = cluster.nodes[behind]
        node.wait_replica_failed("flights")
        cause = "expected a batch of"
        advice = (
            f"flights 0 on node {last}: it is the last in sync, and the partition takes and serves "
            "nothing; `bascule stream repair flights --accept-loss` goes on with what can be read, "
            f"or stop node {last} and let another replica lead with what it has: `bascule stream "
            "recover flights --accept-loss`"
        )
        for each in cluster.nodes.values():
            shown = command(each, "cluster", "status")
            assert "1 failed replica" in shown
            assert advice in shown
            assert cause in shown
            info = command(each, "stream", "info", "flights")
            assert "stopped:" in info
            assert cause in info
            (failed,) = json.loads(command(each, "cluster", "status", "--json"))["failed"]
            assert (failed["node"], failed["partition"]) == (last, 0)
        parts = {each["part"]: each["reason"] for each in node.call("GET", "/readyz")["parts"]}
        assert "1 of 2 are stopped" in parts["partitions"]

        # As it says: the other replica has the first records, and no clean election takes it.
        assert node.partition("flights")["leader"] == last
        node.stop(signal.SIGTERM)
        command(other, "stream", "recover", "flights", "--accept-loss", "--yes")
        wait_until(other, lambda: other.partition("flights")["leader"] == behind)
        wait_until(other, lambda: read(other) == list(range(SIZE)))
        node.start()
        # From then on another one has all records that count: it heals by itself.
        cluster.wait_in_sync("flights")
        assert json.loads(command(other, "cluster", "status", "--json"))["failed"] == []
        publish(other, range(SIZE, SIZE + 1))
        cluster.stop()
        assert cluster.log_bytes(last, "flights") == cluster.log_bytes(behind, "flights")


def test_a_longer_log_that_was_paused_during_an_unclean_election_gives_way(
    tmp_path: Path,
) -> None:
    """It resumes as the leader of an earlier epoch, and the others have gone on without it."""
    with (
        running_nats(tmp_path / "nats") as nats,
        running_cluster(tmp_path / "nodes", nats=nats.url) as cluster,
    ):
        last, behind = leave_last_in_sync(cluster)
        node, other = cluster.nodes[last], cluster.nodes[behind]
        (witness,) = (
            each for number, each in cluster.nodes.items() if number not in (last, behind)
        )
        send(node, signal.SIGSTOP)
        try:
            other.spawn_again()
            other.wait_ready()
            command(witness, "stream", "alter", "flights", "--unclean-election")
            wait_until(witness, lambda: witness.partition("flights")["leader"] == behind)
            assert publish(other, range(1_000, 1_010)) == list(range(SIZE, SIZE + 10))
        finally:
            send(node, signal.SIGCONT)
        cluster.wait_in_sync("flights")
        expected = [*range(SIZE), *range(1_000, 1_010)]
        wait_until(node, lambda: read(node) == expected)
        assert other.partition("flights")["leader"] == behind
        assert "records removed after an unclean election" in node.log.read_text()
        epochs = [other.partition("flights")[each] for each in ("unclean_epoch", "leader_epoch")]
        assert epochs[0] == epochs[1] > 0
        publish(node, range(2_000, 2_010))
        cluster.stop()
        assert cluster.log_bytes(last, "flights") == cluster.log_bytes(behind, "flights")


def test_a_controller_that_ends_while_it_asks_for_logs_is_replaced(tmp_path: Path) -> None:
    """A replica is paused while it is asked, and then the controller is killed."""
    with (
        running_nats(tmp_path / "nats") as nats,
        running_cluster(tmp_path / "nodes", nats=nats.url) as cluster,
    ):
        cluster.nodes[1].create("flights", "flights.>", replicas=3, sync="never")
        cluster.wait_in_sync("flights")
        publish(cluster.nodes[1], range(SIZE))
        cluster.wait_in_sync("flights")
        for each in cluster.nodes.values():
            each.stop(signal.SIGKILL)
            change_boot_id(each)
        cluster.start()
        node = cluster.nodes[1]
        wait_until(node, lambda: "went down before" in node.partition("flights")["waits"])
        number = wait_until(node, lambda: cluster.info()["controller"])
        controller = cluster.nodes[number]
        first, second = (each for each in cluster.nodes.values() if each is not controller)
        send(second, signal.SIGSTOP)
        try:
            command(first, "stream", "alter", "flights", "--unclean-election")
            controller.stop(signal.SIGKILL)
        finally:
            send(second, signal.SIGCONT)
        wait_until(first, lambda: first.partition("flights")["leader"] > 0)
        wait_until(first, lambda: read(first) == list(range(SIZE)))
        state = first.partition("flights")
        assert state["unclean_epoch"] > 0
        controller.start()
        cluster.wait_in_sync("flights")
        publish(controller, range(SIZE, 2 * SIZE))
        assert read(second) == list(range(2 * SIZE))
