"""Gets of a table: through the Python client, over those of `nats-py` at JetStream; over HTTP.

Both have one node, 10,000 keys with values of 100 bytes, and one process that reads. Rounds of both
alternate. Over HTTP one keep-alive connection asks again and again, with the node otherwise idle.
"""

from __future__ import annotations

import asyncio
import http.client
import random
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import nats

import bascule
from bench.harness import median_ratio, nats_server, node, report, row, work_directory

KEYS: Final = 10_000
VALUE: Final = b"v" * 100
ROUNDS: Final = 7
GETS: Final = {1: 2_000, 64: 12_000}
"""By the number in flight."""
HTTP_GETS: Final = 5_000
HTTP_P99_MS_MAX: Final = 2.0
RATIO_MIN: Final = 2.0

Get = Callable[[str], Awaitable[Any]]


async def _gets_per_second(get: Get, count: int, in_flight: int, keys: int, seed: int) -> float:
    dice = random.Random(seed)
    asked = iter([f"k{dice.randrange(keys)}" for _ in range(count)])

    async def read() -> None:
        for key in asked:
            assert (await get(key)) is not None

    began = time.perf_counter()
    await asyncio.gather(*(read() for _ in range(in_flight)))
    return count / (time.perf_counter() - began)


async def _compare(http: str, jetstream: str, *, keys: int, quick: bool) -> list[dict[str, Any]]:
    connection = await nats.connect(jetstream)
    bucket = await connection.jetstream().create_key_value(bucket="bench")
    async with bascule.connect(http) as client:
        await client.create_table("bench")
        table = client.table("bench")
        subjects = [(f"$KV.bench.k{n}", VALUE) for n in range(keys)]
        await client.publish_many(subjects)
        for at in range(0, keys, 100):
            await asyncio.gather(*(bucket.put(f"k{n}", VALUE) for n in range(at, at + 100)))
        rows = []
        for in_flight, count in GETS.items():
            ours: list[float] = []
            theirs: list[float] = []
            for number in range(2 if quick else ROUNDS):
                gets = count // 4 if quick else count
                for get, rates in ((table.get, ours), (bucket.get, theirs)):
                    rates.append(await _gets_per_second(get, gets, in_flight, keys, number))
            measured = median_ratio(ours, theirs)
            rows.append(
                row(
                    f"gets through the Python client, {in_flight} in flight, over nats-py KV get",
                    measured,
                    at_least=RATIO_MIN,
                )
            )
    await connection.close()
    return rows


def _http_row(url: str, *, keys: int, quick: bool) -> dict[str, Any]:
    connection = http.client.HTTPConnection(urlsplit(url).netloc)
    dice, taken = random.Random(1), []
    for _ in range(HTTP_GETS // 5 if quick else HTTP_GETS):
        began = time.perf_counter_ns()
        connection.request("GET", f"/v1/tables/bench/keys/k{dice.randrange(keys)}")
        response = connection.getresponse()
        assert response.read() == VALUE, response.status
        taken.append(time.perf_counter_ns() - began)
    connection.close()
    taken.sort()
    return row(
        "get over HTTP, keep-alive, one in flight, p99, ms",
        {
            "value": round(taken[len(taken) * 99 // 100] / 1e6, 2),
            "p50_ms": round(taken[len(taken) // 2] / 1e6, 2),
        },
        at_most=HTTP_P99_MS_MAX,
    )


def run(*, quick: bool = False) -> None:
    keys = KEYS // 10 if quick else KEYS
    with work_directory() as directory:
        store = Path(directory) / "jetstream"
        store.mkdir()
        settings = f'jetstream {{ store_dir: "{store}" }}\n'
        with node(directory) as running, nats_server(store, settings=settings) as jetstream:
            http_url = running.addresses["http"]
            rows = asyncio.run(_compare(http_url, jetstream.url, keys=keys, quick=quick))
            rows.append(_http_row(http_url, keys=keys, quick=quick))
    report("table_get", rows)
