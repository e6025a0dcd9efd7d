"""Nodes are killed while payloads are sent; what was acknowledged is whole on every replica.

`make torture-payloads ROUNDS=50 MIB=256` runs more rounds with larger payloads. A payload is purged
once every replica's file has been compared, so the disk holds few of them at a time.
"""

from __future__ import annotations

import asyncio
import random
import signal
from collections import Counter
from pathlib import Path

import pytest
from crc32c import crc32c

import bascule
from support.clusters import RunningCluster, running_cluster

ROUNDS_USUAL = 4
MIB_USUAL = 32
VICTIMS = ("first", "second", "last", "leader")
PIECE = 1 << 20


async def one_round(
    cluster: RunningCluster, number: int, mib: int, dice: random.Random
) -> tuple[int, int]:
    """Send a payload of `mib` MiB while a node is killed; its offset and checksum."""
    pieces = [dice.randbytes(PIECE) for _ in range(4)]
    order = [dice.randrange(4) for _ in range(mib)]
    killed_at = dice.randrange(1, mib)
    servers = ",".join(node.addresses["http"] for node in cluster.nodes.values())
    leader = await asyncio.to_thread(cluster.leader, "kills")
    crc = 0
    async with bascule.connect(servers) as client:
        async with client.open_payload("kills", topology=dice.choice(("chain", "star"))) as out:
            route = dict(out.route)
            nodes = [out.route[0][0], *(each for after in route.values() for each in after)]
            named = {"first": nodes[0], "second": nodes[1], "last": nodes[-1], "leader": leader}
            victim = cluster.nodes[named[VICTIMS[number % len(VICTIMS)]]]
            for at, piece in enumerate(order):
                if at == killed_at:
                    victim.stop(signal.SIGKILL)
                await out.write(pieces[piece])
                crc = crc32c(pieces[piece], crc)
        assert out.ack is not None
        assert out.ack.payload_crc32c == crc
        await asyncio.to_thread(victim.start)
        return out.ack.offset, crc


def compare_replicas(cluster: RunningCluster, offset: int, crc: int) -> None:
    """Each replica has the payload of the record as it was sent, and no other one.

    Raises: AssertionError.
    """
    for node in cluster.nodes:
        directory = cluster.replica(node, "kills") / "payloads"
        files = {int(file.name[:20]): file for file in directory.glob("*.linked")}
        assert max(files) == offset, node
        found = 0
        with files[offset].open("rb") as file:
            while data := file.read(PIECE):
                found = crc32c(data, found)
        assert found == crc, (node, offset)


def test_acknowledged_payloads_outlive_kills(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    rounds = request.config.getoption("--rounds") or ROUNDS_USUAL
    mib = request.config.getoption("--payload-mib") or MIB_USUAL
    seed = request.config.getoption("--seed") or 7
    print(f"seed {seed}")
    dice = random.Random(seed)
    killed: Counter[str] = Counter()
    with running_cluster(tmp_path) as cluster:
        cluster.nodes[1].create("kills", "kills", replicas=3)
        cluster.wait_in_sync("kills")
        for number in range(rounds):
            offset, crc = asyncio.run(one_round(cluster, number, mib, dice))
            assert offset == number, "each payload has one record"
            cluster.wait_in_sync("kills")
            compare_replicas(cluster, offset, crc)
            killed[VICTIMS[number % len(VICTIMS)]] += 1
            purge = {"to_offset": offset + 1, "partition": 0}
            cluster.alive()[0].call("POST", "/v1/streams/kills/purge", purge)
            print(f"round {number + 1}: {crc:08x}, killed so far: {dict(killed)}", flush=True)
        assert sum(killed.values()) == rounds
