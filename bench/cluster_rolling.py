"""The longest time without an ack while each of three nodes is restarted in turn.

Three nodes with one `nats-server`, one stream with three replicas, `sync = always`, and a publisher
that sends a new message every 5 ms. Each node is drained, stopped with SIGTERM, started again,
waited for until it is in sync, and resumed.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any, Final

import bascule
from bascule.client import Client
from bench.cluster_failover import STREAM, SteadyLoad, in_sync, summary
from bench.clusters import NODES, ClusterNode, served_cluster, wait_until
from bench.harness import report, row, work_directory

ROUNDS: Final = 10
"""Each restarts three nodes."""
CALM_S: Final = 1.0
POLL_S: Final = 0.02
BAR_S: Final = 0.5


async def restart(client: Client, node: ClusterNode) -> None:
    """Drain a node, restart it, and have it go on."""
    found = await client.drain_node(node.number)
    while found.leaders:
        await asyncio.sleep(POLL_S)
        found = await client.node_drain(node.number)
    await asyncio.to_thread(node.stop)
    await asyncio.to_thread(node.start)
    await asyncio.to_thread(node.wait_ready)
    await asyncio.to_thread(wait_until, lambda: in_sync(node))
    await client.resume_node(node.number)
    await asyncio.sleep(CALM_S)


async def measure(nodes: dict[int, ClusterNode], rounds: int) -> dict[str, Any]:
    """The longest time without an ack of each round."""
    servers = ",".join(node.http for node in nodes.values())
    gaps: list[float] = []
    seconds: list[float] = []
    async with bascule.connect(servers) as client:
        load = SteadyLoad(client)
        run = asyncio.create_task(load.run())
        await asyncio.sleep(CALM_S)
        for _ in range(rounds):
            began = time.monotonic()
            for node in nodes.values():
                await restart(client, node)
            gaps.append(load.longest_gap(began))
            seconds.append(round(time.monotonic() - began, 1))
            print(round(gaps[-1], 3), seconds[-1], flush=True)
            load.acked_at.clear()
        load.stopping = True
        await run
    return {**summary(gaps), "value": round(max(gaps), 3), "seconds": seconds}


def run(*, quick: bool = False, rounds: int | None = None) -> None:
    with work_directory() as place, served_cluster(place) as (nodes, _):
        nodes[1].create(STREAM, f"{STREAM}.>", replicas=NODES)
        wait_until(lambda: in_sync(nodes[1]))
        measured = asyncio.run(measure(nodes, rounds or (1 if quick else ROUNDS)))
    figure = "rolling restart of three nodes under load: longest time without an ack, worst, s"
    report("cluster_rolling", [row(figure, measured, at_most=BAR_S)])
