"""Nodes are killed while payloads are sent; what was acknowledged is whole on every replica.

`BASCULE_PAYLOAD_KILLS=50 BASCULE_PAYLOAD_MIB=256` runs more rounds with larger payloads.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
from pathlib import Path

from crc32c import crc32c

import bascule
from support.clusters import RunningCluster, running_cluster

KILLS = int(os.environ.get("BASCULE_PAYLOAD_KILLS", "4"))
MIB = int(os.environ.get("BASCULE_PAYLOAD_MIB", "32"))
SEED = int(os.environ.get("BASCULE_PAYLOAD_SEED", "7"))
VICTIMS = ("first", "second", "last", "leader")
PIECE = 1 << 20


async def one_round(cluster: RunningCluster, number: int, dice: random.Random) -> tuple[int, int]:
    """Send a payload while a node is killed; its offset and checksum."""
    pieces = [dice.randbytes(PIECE) for _ in range(4)]
    order = [dice.randrange(4) for _ in range(MIB)]
    killed_at = dice.randrange(1, MIB)
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


def test_acknowledged_payloads_outlive_kills(tmp_path: Path) -> None:
    dice = random.Random(SEED)
    with running_cluster(tmp_path) as cluster:
        cluster.nodes[1].create("kills", "kills", replicas=3)
        cluster.wait_in_sync("kills")
        sent: dict[int, int] = {}
        for number in range(KILLS):
            offset, crc = asyncio.run(one_round(cluster, number, dice))
            assert offset == number, "each payload has one record"
            sent[offset] = crc
            cluster.wait_in_sync("kills")
        for node in cluster.nodes:
            directory = cluster.replica(node, "kills") / "payloads"
            files = {int(file.name[:20]): file for file in directory.glob("*.linked")}
            assert files.keys() == sent.keys()
            for offset, file in files.items():
                assert crc32c(file.read_bytes()) == sent[offset], (node, offset)
