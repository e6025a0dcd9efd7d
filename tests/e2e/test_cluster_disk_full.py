"""The disk of one node of three is full: it costs that node's memberships, and not the streams."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import bascule
from bascule.errors import BasculeError
from support.clusters import RunningCluster, running_cluster
from support.processes import Node, running_nats, wait_for
from support.small_disk import SmallDisk, can_mount

pytestmark = [
    pytest.mark.tier3,
    pytest.mark.skipif(not can_mount(), reason="no user and mount namespaces here (unshare -rm)"),
]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[RunningCluster]:
    """Node 1 has a small disk. It is started first, so it is likely to be the controller."""
    with (
        running_nats(tmp_path / "nats") as nats,
        running_cluster(tmp_path / "nodes", nats=nats.url, kinds={1: SmallDisk}) as found,
    ):
        yield found


def wait_until(node: Node, look: Callable[[], Any]) -> None:
    def safely() -> bool | None:
        try:
            return True if look() else None
        except (OSError, BasculeError):
            return None

    wait_for(safely, node.process, node.log)


def test_a_full_disk_costs_the_memberships_of_its_node(cluster: RunningCluster) -> None:
    """Whether it leads or follows. With room again it copies what it has missed."""
    small, other = cluster.nodes[1], cluster.nodes[2]
    assert isinstance(small, SmallDisk)
    for number in range(4):
        other.create(f"s{number}", f"s{number}.>", replicas=3)
        cluster.wait_in_sync(f"s{number}")
    names = [f"s{number}" for number in range(4)]
    if not any(cluster.leader(name) == 1 for name in names):
        other.call("POST", "/v1/streams/s0/reassign", {"replicas": [1, 2, 3]})
        wait_until(other, lambda: cluster.leader("s0") == 1)

    def publish(count: int) -> None:
        with bascule.connect_sync(other.addresses["http"], timeout=30) as client:
            for name in names:
                client.publish_many([(f"{name}.a", b"x" * 1_000) for _ in range(count)])

    publish(20)
    ballast = small.fill()
    # Until then, a second at most, the leader refuses messages.
    for name in names:
        wait_until(other, lambda name=name: _in_sync(other, name) == [2, 3])
        assert other.call("GET", f"/v1/streams/{name}")["partitions"][0]["leader"] in (2, 3)
    publish(100)
    other.create("late", "late.>", replicas=2, min_isr=1)
    ballast.unlink()
    for name in names:
        wait_until(other, lambda name=name: _in_sync(other, name) == [1, 2, 3])
    publish(20)
    for name in names:
        with bascule.connect_sync(small.addresses["http"]) as client:
            assert len([m.value for m in client.read(name)]) == 140


def _in_sync(node: Node, name: str) -> list[int]:
    found: list[int] = node.call("GET", f"/v1/streams/{name}")["partitions"][0]["isr"]
    return found
