"""A change of a table until a watcher on another node has it, over its cost at least.

That is one `fdatasync` in the same directory and two round trips between two processes over TCP:
the leader syncs, a follower copies and acknowledges, the watcher's node is told what is committed.
One change is under way at a time. The watcher is the Python client's.
"""

from __future__ import annotations

import asyncio
import os
import socket
import statistics
import time
from pathlib import Path
from typing import Any, Final

import bascule
from bench.clusters import bascule_cluster
from bench.harness import in_child, reap, report, row, work_directory

CHANGES: Final = 1_000
RATIO_MAX: Final = 2.0


def _sync_ms(directory: Path, count: int) -> float:
    """The median of appending 200 bytes and syncing them."""
    taken = []
    descriptor = os.open(directory / "synced", os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    for _ in range(count):
        began = time.perf_counter()
        os.write(descriptor, b"v" * 200)
        os.fdatasync(descriptor)
        taken.append(time.perf_counter() - began)
    os.close(descriptor)
    return 1_000 * statistics.median(taken)


def _round_trip_ms(count: int) -> float:
    """The median of 100 bytes to another process and back."""
    listener = socket.create_server(("127.0.0.1", 0))

    def answer() -> None:
        connection, _ = listener.accept()
        while data := connection.recv(1_000):
            connection.sendall(data)

    child = in_child(answer)
    taken = []
    with socket.create_connection(listener.getsockname()) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for _ in range(count):
            began = time.perf_counter()
            connection.sendall(b"v" * 100)
            connection.recv(1_000)
            taken.append(time.perf_counter() - began)
    listener.close()
    reap(child)
    return 1_000 * statistics.median(taken)


async def _changes_ms(writer: str, watcher: str, count: int) -> list[float]:
    """How long each change took, in order."""
    async with bascule.connect(writer) as writing, bascule.connect(watcher) as watching:
        table = writing.table("bench")
        seen: asyncio.Queue[float] = asyncio.Queue()
        current = asyncio.Event()

        async def watch() -> None:
            changes = watching.table("bench").watch(
                ">", start="state", on_current=lambda _: current.set()
            )
            async for _ in changes:
                seen.put_nowait(time.perf_counter())

        task = asyncio.create_task(watch())
        await current.wait()
        taken = []
        for n in range(count):
            began = time.perf_counter()
            write = asyncio.create_task(table.set(f"k{n % 100}", b"v" * 100))
            taken.append(1_000 * (await seen.get() - began))
            await write
        task.cancel()
        await asyncio.wait([task])
    return sorted(taken[count // 10 :])


def run(*, quick: bool = False) -> None:
    count = CHANGES // 5 if quick else CHANGES
    with work_directory() as directory:
        trip = _round_trip_ms(count)
        with bascule_cluster(directory / "bascule") as cluster:
            settings: dict[str, Any] = {
                "cleanup": ["compact"], "key_from": "subject", "table": True,
            }  # fmt: skip
            leader = cluster.create("bench", "$KV.bench.>", **settings)
            other = cluster.nodes[cluster.other(leader)]
            sync = _sync_ms(directory, count)
            taken = asyncio.run(_changes_ms(cluster.nodes[leader].http, other.http, count))
            sync = statistics.mean((sync, _sync_ms(directory, count)))
    median = statistics.median(taken)
    measured = {
        "ratio": round(median / (sync + 2 * trip), 2),
        "p50_ms": round(median, 3),
        "p99_ms": round(taken[len(taken) * 99 // 100], 3),
        "fdatasync_ms": round(sync, 3),
        "round_trip_ms": round(trip, 3),
    }
    figure = "change to a watcher on another node, p50, over one fdatasync and two round trips"
    report("table_change", [row(figure, measured, at_most=RATIO_MAX)])
