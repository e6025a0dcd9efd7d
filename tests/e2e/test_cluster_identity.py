"""Two clusters of one name, of which one has the addresses that the other one had."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

import bascule
from bascule.raft_driver.data_directory import DataDirectory
from support import http_calls
from support.clusters import RunningCluster, running_cluster
from support.ports import reserve_ports
from support.processes import NatsServer, Node, wait_for

pytestmark = pytest.mark.tier3

LATE_TERM = 1_000_000
"""A term that no cluster of a test reaches by itself."""
FOREIGN = re.compile(r" error .*peer address belongs to another cluster .*node=(\d+) ")


def raise_term(data: Path, node: int) -> None:
    """Have a node that does not run believe that its cluster had many elections."""
    directory = DataDirectory(str(data / "raft"), node_id=node)
    store = directory.store(1)
    store.load()
    store.persist_term(LATE_TERM, 0)
    store.flush()
    store.close()
    directory.close()


def stored_term(data: Path, node: int) -> int:
    directory = DataDirectory(str(data / "raft"), node_id=node)
    store = directory.store(1)
    term = store.load().term
    store.close()
    directory.close()
    return term


def start_elsewhere(node: Node) -> None:
    """Start it with a peer listener of its own."""
    options = list(node.options)
    at = options.index("--peer-port") + 1
    (port,) = reserve_ports(1)
    node.options = [*options[:at], str(port), *options[at + 1 :]]
    node.spawn_again()


def wait_foreign(stray: Node, *numbers: int) -> None:
    """Return once the node has said that the addresses of these are those of another cluster."""

    def look() -> bool | None:
        found = {int(each) for each in FOREIGN.findall(stray.log.read_text())}
        return found >= set(numbers) or None

    wait_for(look, stray.process, stray.log)


def kept_id(node: Node) -> str:
    """The cluster id in the node's data directory."""
    found: str = json.loads((node.directory / "data/cluster.json").read_text())["cluster_id"]
    assert found
    return found


def check_works(cluster: RunningCluster, value: bytes) -> None:
    with bascule.connect_sync(cluster.nodes[1].addresses["http"]) as client:
        assert client.publish("flights.x", value, timeout=30).replicas >= 2


@pytest.mark.long
def test_a_node_with_old_addresses_does_not_disturb_who_has_them_now(
    tmp_path: Path, nats_server: NatsServer
) -> None:
    with running_cluster(tmp_path / "old", nats=nats_server.url) as old:
        old.stop()
        ports = list(old.peer_ports.values())
        stray = old.nodes[1]
        raise_term(stray.directory / "data", 1)
        stray.log.unlink()
        options = stray.options
        start_elsewhere(stray)
        wait_for(
            lambda: "raft group opened" in stray.log.read_text() or None,
            stray.process,
            stray.log,
        )
        place = tmp_path / "new"
        with running_cluster(place, nats=nats_server.url, peer_ports=ports) as new:
            new.nodes[1].create("flights", "flights.>", replicas=3)
            wait_foreign(stray, 2, 3)
            check_works(new, b"1")
            assert "raft peer connected" not in stray.log.read_text()
            # It may also start when they are there already.
            stray.stop()
            stray.log.unlink()
            stray.spawn_again()
            wait_foreign(stray, 2, 3)
            check_works(new, b"2")
            new.wait_in_sync("flights")
            said = stray.log.read_text()
            assert "raft peer connected" not in said
            (id,) = {kept_id(node) for node in new.nodes.values()}
            assert f"found the id {id}, expected the id {kept_id(stray)}" in said
            metrics = http_calls.get(f"{new.nodes[2].addresses['http']}/metrics")
            assert re.search(r"^bascule_foreign_peers_refused_total [1-9]", metrics, re.MULTILINE)
            stray.stop()
            new.stop()
            logs = "".join(node.log.read_text() for node in new.nodes.values())
            assert "peer of another cluster refused" in logs
            assert logs.count("peer of another cluster refused") <= 3 * 3 * 2, "not each attempt"
            for number, node in new.nodes.items():
                assert stored_term(node.directory / "data", number) < LATE_TERM
        # The old cluster is as it was.
        stray.options = options
        old.start()
        assert {kept_id(node) for node in old.nodes.values()} == {kept_id(stray)}
        old.wait_in_sync("_offsets")
