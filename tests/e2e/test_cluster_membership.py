"""Nodes that join a cluster and leave it, and replicas that move, under real processes."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

import bascule
from support.clusters import RunningCluster, running_cluster
from support.ids_published import IdsPublished, check_published
from support.processes import WAIT_SECONDS_MAX, NatsServer, Node, running_nats

pytestmark = pytest.mark.tier3


@pytest.fixture(scope="module")
def nats_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsServer]:
    with running_nats(tmp_path_factory.mktemp("nats")) as server:
        yield server


@pytest.fixture
def cluster(tmp_path: Path, nats_server: NatsServer) -> Iterator[RunningCluster]:
    with running_cluster(tmp_path, nats=nats_server.url) as running:
        yield running


def refused(node: Node) -> str:
    """The log of a node that ends by itself, with an error."""
    assert node.process is not None
    assert node.process.wait(WAIT_SECONDS_MAX) != 0
    return node.log.read_text()


def test_a_node_joins_and_takes_the_place_of_another(cluster: RunningCluster) -> None:
    """Under acked load a fourth node joins, gets a replica, and the first node is removed."""
    cluster.nodes[1].create("flights", "flights.>", replicas=3)
    every = ",".join(node.addresses["http"] for node in cluster.nodes.values())

    async def scene() -> tuple[list[int], dict[int, bytes]]:
        async with bascule.connect(every) as client:
            published = IdsPublished(client)
            run = asyncio.create_task(published.run())
            await published.wait_more(300)
            await asyncio.to_thread(cluster.join, 4)
            await client.reassign_stream("flights", [4, 2, 3])
            await asyncio.to_thread(cluster.wait_moved, "flights")
            assert cluster.partition("flights")["replicas"] == [4, 2, 3]
            await asyncio.to_thread(cluster.wait_removed, 1, "flights")
            await published.wait_more(300)
            await client.remove_node(1)
            text = await asyncio.to_thread(refused, cluster.nodes[1])
            assert "it was removed from the cluster" in text
            await published.wait_more(300)
            published.stopping = True
            await run
            stored = {m.offset: m.value async for m in client.read("flights")}
            return published.offsets, stored

    offsets, stored = asyncio.run(scene())
    check_published(offsets, stored)
    info = cluster.info()
    assert [node["node_id"] for node in info["nodes"]] == [2, 3, 4]
    cluster.wait_voters(2, 3, 4)
    cluster.wait_in_sync("flights")
    cluster.nodes[1].spawn_again()
    assert "was removed from the cluster" in refused(cluster.nodes[1])
    cluster.stop()
    logs = {cluster.log_bytes(node, "flights") for node in (2, 3, 4)}
    assert len(logs) == 1, "the replicas differ"
