"""Payloads of a partition that moves: the limit of replicas that catch up is theirs too."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest
from crc32c import crc32c

import bascule
from support.clusters import running_cluster

pytestmark = pytest.mark.tier3

PIECE = bytes(range(256)) * 4096
PIECES = 6
RATE = 1 << 20


async def store(server: str) -> int:
    async with bascule.connect(server) as client:
        async with client.open_payload("models") as out:
            for _ in range(PIECES):
                await out.write(PIECE)
        assert out.ack is not None
        return out.ack.offset


@pytest.mark.long
def test_payloads_of_a_replica_that_catches_up_are_limited(tmp_path: Path) -> None:
    with running_cluster(tmp_path) as cluster:
        cluster.nodes[1].create("models", "models", replicas=1)
        cluster.wait_in_sync("models")
        offset = asyncio.run(store(cluster.nodes[1].addresses["http"]))
        (target,) = [n for n in cluster.nodes if n not in cluster.partition("models")["replicas"]][
            :1
        ]
        with bascule.connect_sync(cluster.nodes[1].addresses["http"]) as client:
            client.throttle(RATE)
            began = time.monotonic()
            client.reassign_stream("models", [target])
            cluster.wait_moved("models")
            took = time.monotonic() - began
        # The first packet leaves at once, and a debt that the others wait for.
        assert took > (PIECES - 1) * len(PIECE) / RATE - 0.1
        assert cluster.partition("models")["replicas"] == [target]
        (file,) = (cluster.replica(target, "models") / "payloads").glob(f"{offset:020d}-*.linked")
        assert crc32c(file.read_bytes()) == crc32c(PIECE * PIECES)
