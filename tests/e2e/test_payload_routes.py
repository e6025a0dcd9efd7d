"""Routes of payloads follow what nodes measure between them: here proxies delay one of four."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from pathlib import Path

import pytest
from crc32c import crc32c

import bascule
from bascule.client.payloads import PayloadWriter
from bascule.errors import PublishRejected
from support.clusters import RunningCluster, running_cluster

pytestmark = pytest.mark.tier3

PIECE = bytes(range(256)) * 4096
DELAY_SECONDS = 0.03
LOOKS_MAX = 240


def nodes_of(out: PayloadWriter) -> list[int]:
    """The nodes of a chain, in order."""
    assert all(len(after) == 1 for _, after in out.route)
    return [out.route[0][0], *(after[0] for _, after in out.route)]


async def send(client: bascule.Client, count: int = 1) -> PayloadWriter:
    async with client.open_payload("models") as out:
        for _ in range(count):
            await out.write(PIECE)
    return out


async def until_planned(client: bascule.Client, order: list[int]) -> PayloadWriter:
    """Send payloads until one goes along this chain. What nodes measure gets known meanwhile."""
    found = "no payload was taken"
    for _ in range(LOOKS_MAX):
        # A leader whose followers are slow for a moment refuses, and takes the next one.
        with contextlib.suppress(PublishRejected):
            out = await send(client)
            if nodes_of(out) == order:
                return out
            found = f"{out.why}: {nodes_of(out)}"
        await asyncio.sleep(0.5)
    raise AssertionError(f"{found}, expected {order}")


async def follow_distances(cluster: RunningCluster) -> tuple[int, int]:
    """The offset of a payload during which a node died, and that node."""
    assert cluster.links is not None
    servers = ",".join(node.addresses["http"] for node in cluster.nodes.values())
    leader = await asyncio.to_thread(cluster.leader, "models")
    async with bascule.connect(servers) as client:
        first = nodes_of(await send(client))[0]
        assert first != leader
        near, far = sorted(set(cluster.nodes) - {first, leader})
        out = await until_planned(client, [first, near, far, leader])
        assert "the leader last" in out.why
        links = [pair for other in cluster.nodes if other != far for pair in
                 ((far, other), (other, far))]  # fmt: skip
        cluster.links.slow(links, DELAY_SECONDS)
        out = await until_planned(client, [first, near, leader, far])
        assert "one rack, the leader in its place by distance" in out.why
        assert f"{leader}-{far} " in out.why
        await asyncio.to_thread(cluster.wait_in_sync, "models")
        async with client.open_payload("models") as out:
            for number in range(24):
                if number == 8:
                    cluster.nodes[near].stop(signal.SIGKILL)
                await out.write(PIECE)
        assert out.ack is not None
        assert out.ack.payload_crc32c == crc32c(PIECE * 24)
        await until_planned(client, [first, leader, far])
        cluster.links.slow(links, 0)
        return out.ack.offset, near


@pytest.mark.long
def test_a_distant_node_is_last_and_a_dead_one_is_left_out(tmp_path: Path) -> None:
    with running_cluster(tmp_path, count=4, linked=True) as cluster:
        cluster.nodes[1].create("models", "models", replicas=4)
        cluster.wait_in_sync("models")
        offset, killed = asyncio.run(follow_distances(cluster))
        cluster.nodes[killed].start()
        cluster.wait_in_sync("models")
        for node in cluster.nodes:
            (file,) = (cluster.replica(node, "models") / "payloads").glob(f"{offset:020d}-*.linked")
            assert crc32c(file.read_bytes()) == crc32c(PIECE * 24), node
