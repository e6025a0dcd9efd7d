"""Resident memory of a node with a table of many small keys: 100 million, or `--count`.

Keys are published in order by one generator; no process holds them. The memory is the most that the
kernel has seen while they come, and while 1,000 of them are read.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from typing import Any, Final

import bascule
from bench.harness import Node, node, report, row, work_directory

KEYS: Final = 100_000_000
KEYS_QUICK: Final = 1_000_000
RESIDENT_MB_MAX: Final = 1_073.7
"""1 GiB."""
READS: Final = 1_000
CHUNK: Final = 100_000
POINTS: Final = 20
"""How often the growth is noted."""


def _messages(start: int, end: int) -> Iterator[tuple[str, bytes]]:
    for n in range(start, end):
        yield f"$KV.bench.k{n:09d}", b"v%d" % n


async def _fill(running: Node, keys: int) -> dict[str, Any]:
    empty = running.resident_mb()
    grown = [[0, round(empty, 1)]]
    began = time.monotonic()
    async with bascule.connect(running.addresses["http"]) as client:
        await client.create_table("bench")
        table = client.table("bench")
        for start in range(0, keys, CHUNK):
            await client.publish_many(_messages(start, min(keys, start + CHUNK)))
            present = running.resident_mb()
            if start + CHUNK >= len(grown) * keys // POINTS:
                grown.append([start + CHUNK, round(present, 1)])
                print(f"{start + CHUNK} keys: {present:.1f} MB", flush=True)
        seconds = time.monotonic() - began
        last = f"k{keys - 1:09d}"
        while (await table.get(last)) is None:
            await asyncio.sleep(0.1)
        for n in range(READS):
            number = n * (keys // READS)
            found = await table.get(f"k{number:09d}")
            assert found is not None
            assert found.value == b"v%d" % number
    return {
        "value": round(running.resident_mb_max(), 1),
        "empty_mb": round(empty, 1),
        "end_mb": round(running.resident_mb(), 1),
        "keys": keys,
        "keys_per_second": round(keys / seconds),
        "keys_and_mb": grown,
    }


def run(*, quick: bool = False, count: int | None = None) -> None:
    keys = count or (KEYS_QUICK if quick else KEYS)
    with work_directory() as directory, node(directory) as running:
        measured = asyncio.run(_fill(running, keys))
    figure = f"memory of a node with a table of {keys} small keys, at most, MB"
    report("table_memory", [row(figure, measured, at_most=RESIDENT_MB_MAX)])
