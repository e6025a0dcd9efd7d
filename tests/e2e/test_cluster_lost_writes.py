"""Machines that went down with writes that were not synced, on real nodes.

A test cannot take the power from a machine. It kills a node, puts an earlier copy of its log in
place, as a disk has it to which nothing was written since, and changes the boot id under which the
node believes to have run.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import bascule
from bascule.errors import BasculeError
from support import commands
from support.clusters import RunningCluster, running_cluster
from support.processes import Node, running_nats, running_node, wait_for

pytestmark = pytest.mark.tier3

SIZE = 40
EARLIER = "earlier"
"""Where the copy of a log is."""


def keep_copy(cluster: RunningCluster, node: int, stream: str) -> None:
    """Copy the log of a replica, to which nothing is written meanwhile."""
    shutil.copytree(cluster.replica(node, stream), cluster.nodes[node].directory / EARLIER / stream)


def change_boot_id(node: Node) -> None:
    path = node.directory / "data" / "last-run.json"
    run = json.loads(path.read_text())
    assert run["boot_id"], "the kernel has one"
    assert not run["is_clean"]
    path.write_text(json.dumps({**run, "boot_id": "another"}))


def lose_power(cluster: RunningCluster, node: int, stream: str) -> None:
    """Kill the node, and lose what was written to the log since it was copied."""
    cluster.nodes[node].stop(signal.SIGKILL)
    place = cluster.replica(node, stream)
    shutil.rmtree(place)
    shutil.copytree(cluster.nodes[node].directory / EARLIER / stream, place)
    change_boot_id(cluster.nodes[node])


@contextlib.contextmanager
def paused(*nodes: Node) -> Iterator[None]:
    """Until it ends, or is left early, these processes do nothing."""
    for node in nodes:
        assert node.process is not None
        node.process.send_signal(signal.SIGSTOP)
    try:
        yield
    finally:
        resume(*nodes)


def resume(*nodes: Node) -> None:
    for node in nodes:
        if node.process is not None and node.process.poll() is None:
            node.process.send_signal(signal.SIGCONT)


def wait_until(node: Node, look: Any) -> Any:
    """What `look` finds, once it finds something."""

    def safely() -> Any:
        try:
            return look() or None
        except (OSError, BasculeError):
            return None

    return wait_for(safely, node.process, node.log)


def publish(node: Node, values: range) -> None:
    with bascule.connect_sync(node.addresses["http"]) as client:
        published = client.publish_many([("flights.a", b"%d" % n) for n in values])
        assert list(published.offsets) == list(values)


def read(node: Node) -> list[int]:
    with bascule.connect_sync(node.addresses["http"]) as client:
        return [int(message.value) for message in client.read("flights")]


def wait_read(node: Node, values: range) -> None:
    """Return once the stream has these values: another leader may not know its end at once."""
    wait_until(node, lambda: read(node) == list(values))


def bascule_command(node: Node, *args: str) -> str:
    """What a command of the CLI prints."""
    done = commands.run(*args, "--server", node.addresses["http"], text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_recipe_that_split_jetstream(tmp_path: Path) -> None:
    """Pause a minority, write, fail one, pause the rest, resume the minority."""
    with (
        running_nats(tmp_path / "nats") as nats,
        running_cluster(tmp_path / "nodes", nats=nats.url) as cluster,
    ):
        cluster.nodes[1].create("flights", "flights.>", replicas=3, sync="never")
        cluster.wait_in_sync("flights")
        first = cluster.leader("flights")
        failed, behind = (number for number in cluster.nodes if number != first)
        whole, other = cluster.nodes[first], cluster.nodes[failed]
        publish(whole, range(SIZE))
        cluster.wait_in_sync("flights")
        keep_copy(cluster, failed, "flights")
        with contextlib.ExitStack() as pauses:
            minority = pauses.enter_context(contextlib.ExitStack())
            minority.enter_context(paused(cluster.nodes[behind]))
            wait_until(whole, lambda: whole.partition("flights")["isr"] == sorted([first, failed]))
            publish(whole, range(SIZE, 2 * SIZE))
            lose_power(cluster, failed, "flights")
            pauses.enter_context(paused(whole))
            other.spawn_again()
            minority.close()
            other.wait_ready()
            # The two have a controller, and none of all records.
            state = wait_until(other, lambda: _leaderless(other))
            assert state["waits"].startswith(f"waits for node {first}, the last in sync")
            assert "unclean_election is off" in state["waits"]
            assert f"waits for node {first}" in bascule_command(other, "cluster", "status")
        wait_until(other, lambda: other.partition("flights")["leader"] == first)
        wait_read(whole, range(2 * SIZE))
        cluster.wait_in_sync("flights")
        publish(whole, range(2 * SIZE, 3 * SIZE))
        assert not other.partition("flights")["unclean_epoch"]
        cluster.wait_in_sync("flights")
        cluster.stop()
        logs = {cluster.log_bytes(number, "flights") for number in cluster.nodes}
        assert len(logs) == 1


def _leaderless(node: Node) -> dict[str, Any] | None:
    state = node.partition("flights")
    return state if state["waits"].startswith("waits") else None


@pytest.mark.long
def test_where_all_machines_went_down_an_operator_decides(tmp_path: Path) -> None:
    with (
        running_nats(tmp_path / "nats") as nats,
        running_cluster(tmp_path / "nodes", nats=nats.url) as cluster,
    ):
        node = cluster.nodes[1]
        node.create("flights", "flights.>", replicas=3, sync="never")
        node.create("synced", "synced.>", replicas=3)
        cluster.wait_in_sync("flights")
        publish(node, range(SIZE))
        cluster.wait_in_sync("flights")
        for each in cluster.nodes.values():
            each.stop(signal.SIGKILL)
        cluster.start()
        # The page cache has what killed processes have written: nobody is asked.
        cluster.wait_in_sync("flights")
        wait_read(node, range(SIZE))
        for number in cluster.nodes:
            keep_copy(cluster, number, "flights")
        publish(node, range(SIZE, 2 * SIZE))
        for number in cluster.nodes:
            lose_power(cluster, number, "flights")
        cluster.start()
        waits = wait_until(node, lambda: node.partition("flights")["waits"])
        assert "went down before the node had stopped" in waits
        assert "has lost what sync = never had not synced" in waits
        assert waits in " ".join(bascule_command(node, "cluster", "status").split())
        part = next(
            each for each in node.call("GET", "/readyz")["parts"] if each["part"] == "cluster"
        )
        assert waits in part["reason"]
        cluster.leader("synced")
        lost = "the machine went down before the node had stopped"
        assert all(lost in each.log.read_text() for each in cluster.nodes.values())

        event = "every replica in sync has lost writes stream=flights partition=0 lossy="
        assert any(event in each.log.read_text() for each in cluster.nodes.values())

        bascule_command(node, "stream", "alter", "flights", "--unclean-election")
        cluster.leader("flights")
        cluster.wait_in_sync("flights")
        state = node.partition("flights")
        assert state["unclean_epoch"] == state["leader_epoch"]
        wait_read(node, range(SIZE))
        publish(node, range(SIZE, SIZE + 1))


def test_a_log_that_is_not_whole_is_out_of_sync_also_if_it_was_synced(tmp_path: Path) -> None:
    """Under `sync = always` a machine that goes down loses nothing. A log that ends below its
    synced mark nevertheless is damaged: its node leads nobody with it, whoever registers first."""
    with (
        running_nats(tmp_path / "nats") as nats,
        running_cluster(tmp_path / "nodes", nats=nats.url) as cluster,
    ):
        cluster.nodes[1].create("flights", "flights.>", replicas=3)
        cluster.wait_in_sync("flights")
        publish(cluster.nodes[1], range(SIZE))
        cluster.wait_in_sync("flights")
        damaged = cluster.leader("flights")
        others = sorted(number for number in cluster.nodes if number != damaged)
        for each in cluster.nodes.values():
            each.stop(signal.SIGKILL)
            change_boot_id(each)
        (segment,) = cluster.replica(damaged, "flights").glob("*.log")
        with segment.open("r+b") as file:
            file.truncate(segment.stat().st_size // 2)
        node, hurt = cluster.nodes[others[0]], cluster.nodes[damaged]
        before, opened = len(hurt.log.read_text()), "replica opened up to its damage"
        cluster.start()
        wait_until(hurt, lambda: opened in hurt.log.read_text())
        until_opened = hurt.log.read_text()[before:].partition(opened)[0]
        led = "role of a partition stream=flights partition=0 role=leader"
        assert led in hurt.log.read_text()[:before]
        # It may be asked to lead for a moment, and refuses all with a log that it cannot use.
        leads = [line for line in until_opened.splitlines() if led in line]
        assert all(line.endswith("end_offset=0") for line in leads), "it leads once it is whole"
        wait_read(node, range(SIZE))
        cluster.wait_in_sync("flights")
        wait_read(node, range(SIZE))


MARKS = ("synced", "checkpoint")
"""What says up to where a log is synced. A disk may have earlier ones after a loss of power."""


def test_damage_that_a_loss_of_power_hides_loses_nothing(tmp_path: Path) -> None:
    """All machines go down, and a byte of one disk has flipped in what no mark on it covers: that
    log is cut there, and looks whole. Whichever node registers last, the longest log leads."""
    with (
        running_nats(tmp_path / "nats") as nats,
        running_cluster(tmp_path / "nodes", nats=nats.url) as cluster,
    ):
        cluster.nodes[1].create("flights", "flights.>", replicas=3)
        cluster.wait_in_sync("flights")
        kept = {
            path: path.read_bytes()
            for number in cluster.nodes
            for name in MARKS
            if (path := cluster.replica(number, "flights") / name).exists()
        }
        for turn, damaged in enumerate(cluster.nodes):
            publish(cluster.nodes[1], range(turn * SIZE, (turn + 1) * SIZE))
            cluster.wait_in_sync("flights")
            for number, each in cluster.nodes.items():
                each.stop(signal.SIGKILL)
                change_boot_id(each)
                for name in MARKS:
                    path = cluster.replica(number, "flights") / name
                    if path in kept:
                        path.write_bytes(kept[path])
                    else:
                        path.unlink(missing_ok=True)
            hurt = cluster.nodes[damaged]
            (segment,) = cluster.replica(damaged, "flights").glob("*.log")
            with segment.open("r+b") as file:
                file.seek(segment.stat().st_size // 2)
                (byte,) = file.read(1)
                file.seek(-1, 1)
                file.write(bytes([byte ^ 1]))
            before = len(hurt.log.read_text())
            cluster.start()
            cluster.wait_in_sync("flights")
            wait_read(cluster.nodes[1], range((turn + 1) * SIZE))
            said = hurt.log.read_text()[before:]
            assert "unsynced tail cut stream=flights" in said, "nobody can tell the damage"
            logs = [each.log.read_text() for each in cluster.nodes.values()]
            assert any("ends of logs compared stream=flights" in each for each in logs)
            assert not cluster.nodes[1].partition("flights")["unclean_epoch"]


def test_one_copy_leads_again_with_what_it_has(tmp_path: Path) -> None:
    """A node alone has nobody to differ from: its operator chose what a power loss costs."""
    with running_node(tmp_path) as node:
        node.create("flights", "flights.>", sync="never")
        publish(node, range(SIZE))
        node.stop(signal.SIGKILL)
        change_boot_id(node)
        node.start()
        wait_read(node, range(SIZE))
        publish(node, range(SIZE, 2 * SIZE))
        node.stop()
        path = tmp_path / "data" / "last-run.json"
        assert json.loads(path.read_text())["is_clean"]
        node.start()
        wait_read(node, range(2 * SIZE))
