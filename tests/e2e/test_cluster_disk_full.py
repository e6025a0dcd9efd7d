"""The disk of one node of three is full: it costs that node's memberships, and not the streams."""

from __future__ import annotations

import asyncio
import shutil
import signal
from collections.abc import Callable, Iterator
from itertools import count
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

    acked: dict[str, list[bytes]] = {name: [] for name in names}
    numbers = count()

    def publish(name: str) -> bool:
        """Whether the next ten messages are acknowledged; some may be refused for a moment, by a
        leader that is about to give way."""
        values = [b"%d " % next(numbers) + b"x" * 1_000 for _ in range(10)]
        with bascule.connect_sync(other.addresses["http"], timeout=30) as client:
            client.publish_many([(f"{name}.a", value) for value in values])
        acked[name] += values
        return True

    for name in names:
        publish(name)
    ballast = small.fill()
    for name in names:
        wait_until(other, lambda name=name: _in_sync(other, name) == [2, 3])
        assert other.call("GET", f"/v1/streams/{name}")["partitions"][0]["leader"] in (2, 3)
        for _ in range(5):
            wait_until(other, lambda name=name: publish(name))
    other.create("late", "late.>", replicas=2, min_isr=1)
    assert all(_in_sync(other, name) == [2, 3] for name in names), "it stays away"
    ballast.unlink()
    for name in names:
        wait_until(other, lambda name=name: _in_sync(other, name) == [1, 2, 3])
        publish(name)
    for name in names:
        with bascule.connect_sync(small.addresses["http"]) as client:
            found = [message.value for message in client.read(name)]
        assert set(acked[name]) <= set(found)
        assert len(acked[name]) == 70


def test_a_controller_without_room_for_a_decision_gives_way(cluster: RunningCluster) -> None:
    """The loss of a node is decided on, although the reserve of the controller is used up."""
    small, other = cluster.nodes[1], cluster.nodes[2]
    assert isinstance(small, SmallDisk)
    other.create("s", "s.>", replicas=3)
    cluster.wait_in_sync("s")
    if (controller := cluster.info()["controller"]) != 1:
        other.call("POST", f"/v1/nodes/{controller}/drain", {})
        wait_until(other, lambda: other.call("GET", "/v1/cluster")["controller"] == 1)
        other.call("POST", f"/v1/nodes/{controller}/resume")
    other.call("POST", "/v1/streams/s/reassign", {"replicas": [3, 2, 1]})
    wait_until(other, lambda: cluster.leader("s") == 3)

    def has_given_way() -> bool:
        small.fill_to(100_000)  # also what the reserve gives back
        return bool(other.call("GET", "/v1/cluster")["controller"] != 1)

    wait_until(other, has_given_way)
    assert small.process is not None
    assert small.process.poll() is None, "its metadata log goes on"
    cluster.nodes[3].stop(signal.SIGKILL)
    wait_until(other, lambda: _in_sync(other, "s") == [2])


def test_a_leader_without_room_for_a_payload_gives_way(cluster: RunningCluster) -> None:
    """Its log would go on, but no payload could be acknowledged. It comes back with room again."""
    small, other = cluster.nodes[1], cluster.nodes[2]
    assert isinstance(small, SmallDisk)
    other.create("s", "s.>", replicas=3)
    cluster.wait_in_sync("s")
    other.call("POST", "/v1/streams/s/reassign", {"replicas": [1, 2, 3]})
    wait_until(other, lambda: cluster.leader("s") == 1)
    small.fill_to(4 << 20)
    contents = [bytes([number]) * (5 << 20) for number in range(2)]
    with bascule.connect_sync(other.addresses["http"], timeout=30) as client:
        for data in contents:
            with client.open_payload("s", subject="s.a", timeout=20) as out:
                out.write(data)
        assert cluster.leader("s") in (2, 3)
    assert small.process is not None
    assert small.process.poll() is None
    (small.data / "more_ballast").unlink()
    wait_until(other, lambda: sorted(_in_sync(other, "s")) == [1, 2, 3])
    with bascule.connect_sync(small.addresses["http"], timeout=30) as client:
        for offset, data in enumerate(contents):
            with client.read_payload("s", offset) as payload:
                assert payload.read() == data


def _in_sync(node: Node, name: str) -> list[int]:
    found: list[int] = node.call("GET", f"/v1/streams/{name}")["partitions"][0]["isr"]
    return found


def test_a_payload_that_does_not_fit_costs_one_membership(cluster: RunningCluster) -> None:
    """The node without room leaves the in-sync set of that stream, and of no other."""
    other = cluster.nodes[2]
    for name in ("large", "small"):
        other.create(name, name, replicas=3)
        cluster.wait_in_sync(name)
    data = b"0123456789abcdef" * (40 << 16)

    async def test() -> None:
        async with bascule.connect(other.addresses["http"]) as client:
            async with client.open_payload("large", timeout=60) as out:
                await out.write(data)
            assert out.ack is not None
            assert out.ack.replicas == 2
            async with client.read_payload("large", out.ack.offset) as payload:
                assert await payload.read() == data
            await client.publish("large", b"and on")
            await client.publish("small", b"as before")

    asyncio.run(test())
    assert 1 not in cluster.partition("large")["isr"]
    cluster.wait_in_sync("small")
    small = cluster.nodes[1]
    assert isinstance(small, SmallDisk)
    assert shutil.disk_usage(small.data).free > 1 << 20
