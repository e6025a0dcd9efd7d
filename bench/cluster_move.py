"""How long a cluster acknowledges nothing while a leader is moved as planned.

Three nodes with one `nats-server`, one stream with three replicas, `sync = always`. A publisher
sends a new message every 2 ms, whether or not those before it are answered. `elect-leader` moves
the leadership to the next node, again and again. Of each move the longest time between two acks
counts, from the request until a second after the new leader leads.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any, Final

import bascule
from bascule.client import Client
from bench.cluster_failover import STREAM, SteadyLoad, in_sync, state_of
from bench.clusters import NODES, ClusterNode, served_cluster, wait_until
from bench.harness import report, row, work_directory
from bench.latency import percentile

MOVES: Final = 100
BETWEEN_S: Final = 0.002
CALM_S: Final = 1.0
BAR_MS: Final = 100


async def move(client: Client, load: SteadyLoad, nodes: dict[int, ClusterNode]) -> float:
    """Move the leadership to the next node; the longest time without an ack."""
    leader = int((await asyncio.to_thread(state_of, nodes[1]))["leader"])
    began = time.monotonic()
    await client.elect_leader(STREAM, node=leader % NODES + 1)
    await asyncio.sleep(CALM_S)
    return load.longest_gap(began)


async def measure(nodes: dict[int, ClusterNode], count: int) -> dict[str, Any]:
    """The longest time without an ack of each move, and as long without moves."""
    servers = ",".join(node.http for node in nodes.values())
    gaps: list[float] = []
    async with bascule.connect(servers) as client:
        load = SteadyLoad(client, between_s=BETWEEN_S)
        run = asyncio.create_task(load.run())
        await asyncio.sleep(CALM_S)
        calm = time.monotonic()
        await asyncio.sleep(3 * CALM_S)
        without = load.longest_gap(calm)
        for _ in range(count):
            gaps.append(await move(client, load, nodes))
            load.acked_at.clear()
        load.stopping = True
        await run
    return {
        "value": round(percentile(gaps, 0.99), 1),
        "p50_ms": round(percentile(gaps, 0.5), 1),
        "max_ms": round(1_000 * max(gaps), 1),
        "without_moves_ms": round(1_000 * without, 1),
        "moves": count,
    }


def run(*, quick: bool = False, rounds: int | None = None) -> None:
    with work_directory() as place, served_cluster(place) as (nodes, _):
        nodes[1].create(STREAM, f"{STREAM}.>", replicas=NODES)
        wait_until(lambda: in_sync(nodes[1]))
        measured = asyncio.run(measure(nodes, rounds or (10 if quick else MOVES)))
    figure = "planned move of a leader under load: longest time without an ack, p99, ms"
    report("cluster_move", [row(figure, measured, at_most=BAR_MS)])
