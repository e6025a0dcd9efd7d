"""Founders that find each other over the NATS that they share, as real processes."""

from __future__ import annotations

import json
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from support.ports import reserve_ports
from support.processes import WAIT_SECONDS_MAX, NatsServer, Node, wait_for

pytestmark = pytest.mark.tier3

Make = Callable[..., Node]


@pytest.fixture
def make(tmp_path: Path, nats_server: NatsServer) -> Iterator[Make]:
    """Makes a node of a cluster of three that is named after the test's directory."""
    made: list[Node] = []

    def make(number: int, *options: str, name: str = "", cluster: str = "") -> Node:
        (peer,) = reserve_ports(1)
        place = tmp_path / (name or f"node{number}")
        place.mkdir()
        node = Node(
            place,
            nats_server.url,
            [
                "--node-id", str(number), "--peer-port", str(peer),
                "--cluster", cluster or tmp_path.name.replace(".", "-")[:64],
                "--bootstrap-expect", "3", *options,
            ],
            keep_ports=True,
        )  # fmt: skip
        made.append(node)
        return node

    yield make
    for node in made:
        if node.process is not None and node.process.poll() is None:
            node.process.terminate()
    for node in made:
        if node.process is not None:
            node.stop()


def kept(node: Node) -> dict[str, Any]:
    path = node.directory / "data/founders.json"
    found: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    return found


def refused_start(node: Node) -> str:
    """The log of a node that does not start."""
    if node.process is None or node.process.poll() is not None:
        node.spawn_again()
    assert node.process is not None
    assert node.process.wait(WAIT_SECONDS_MAX) == 2
    return node.log.read_text()


def wait_logged(node: Node, text: str) -> None:
    wait_for(
        lambda: (text in node.log.read_text() if node.log.exists() else None) or None,
        node.process,
        node.log,
    )


def peer_port(node: Node) -> str:
    return node.options[node.options.index("--peer-port") + 1]


def wait_formed(nodes: list[Node]) -> None:
    """Return once all nodes serve, as one cluster."""
    for node in nodes:
        node.wait_ready()
    for node in nodes:
        wait_for(lambda node=node: alive(node) == 3 or None, node.process, node.log)
    decided = [kept(node) for node in nodes]
    assert all(each["decided"] for each in decided)
    assert len({json.dumps(each["promise"]) for each in decided}) == 1


def alive(node: Node) -> int:
    return sum(each["alive"] for each in node.call("GET", "/v1/cluster")["nodes"])


def test_three_nodes_find_each_other_and_later_ones_are_refused(make: Make) -> None:
    nodes = [make(number) for number in (1, 2, 3)]
    for node in nodes:
        node.spawn_again()
    wait_formed(nodes)
    nodes[0].create("flights", "flights.>", replicas=3)

    stranger = make(2, name="stranger")
    assert "says that the cluster has formed" in refused_start(stranger)
    wait_logged(nodes[1], "another node has the number of this one")
    fourth = make(4)
    assert "the founding nodes are those with the numbers 1 to 3" in refused_start(fourth)

    for node in nodes:
        node.stop()
    moved = make(1, name="moved")
    shutil.copytree(nodes[0].directory / "data", moved.directory / "data")
    assert "start it there with --peer-port" in refused_start(moved)
    # A majority is enough later, as in any cluster.
    for node in nodes[:2]:
        node.spawn_again()
    for node in nodes[:2]:
        node.wait_ready()
    assert nodes[1].call("GET", "/v1/streams/flights")["partitions"][0]["replicas"]


@pytest.mark.parametrize("moment", ["directory", "promise", "decided"])
def test_a_founder_killed_while_the_cluster_forms(make: Make, moment: str) -> None:
    nodes = [make(number) for number in (1, 2, 3)]
    for node in nodes:
        node.spawn_again()
    killed = nodes[1]
    wait_for(lambda: kept(killed).get(moment) or None, killed.process, killed.log)
    killed.stop(signal.SIGKILL)
    killed.spawn_again()
    wait_formed(nodes)


@pytest.mark.long
def test_founders_wait_for_all_and_for_those_of_their_cluster(make: Make) -> None:
    one, two = make(1), make(2)
    other = make(3, cluster="another")
    for node in (one, two, other):
        node.spawn_again()
    wait_logged(one, "waiting for founders on nats")
    assert kept(one).get("promise") is None
    assert "waits_for=\"['node 3']\"" in one.log.read_text()
    assert one.stop() == 0, "it can be stopped"
    double = make(2, name="double")
    said = refused_start(double)
    assert "two nodes have the number 2" in said
    for node in (two, double):
        assert f"127.0.0.1:{peer_port(node)}" in said
    wait_logged(two, "another node has the number of this one")
    (line,) = [line for line in two.log.read_text().splitlines() if "another node has" in line]
    assert " error " in line
    assert f" peer=127.0.0.1:{peer_port(double)} " in line
    assert f" own_peer=127.0.0.1:{peer_port(two)} " in line
    assert two.process is not None
    assert two.process.poll() is None, "who was there first stays"


def test_a_directory_with_another_history_is_refused(make: Make, tmp_path: Path) -> None:
    alone = Node(tmp_path / "alone", make(2).nats)
    alone.directory.mkdir()
    alone.start()
    alone.create("s", "s.>")
    alone.stop()
    node = make(1)
    shutil.copytree(alone.directory / "data", node.directory / "data")
    assert "was used without --bootstrap-expect" in refused_start(node)
