"""Acked sets of a table with three synced replicas, over NATS key-value R3 and etcd.

Each side has three servers on this machine and one Python process that writes: `table.set`, `put`
of nats-py, and etcd's own gRPC call. JetStream acks what two of three servers have written, and
syncs later; etcd acks what two of three members have synced. Rounds alternate. etcd is Debian's
etcd-server: found in PATH, or named by BENCH_ETCD; without it its rows are left out.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import statistics
import subprocess
import time
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final

import grpc
import nats
from nats.aio.client import Client
from nats.js.kv import KeyValue

import bascule
from bench.clusters import (
    NODES,
    accepts,
    bascule_cluster,
    jetstream_cluster,
    wait_until,
)
from bench.harness import Running, free_ports, median_ratio, report, row, work_directory

KEYS: Final = 1_000
VALUE: Final = b"v" * 100
ROUNDS: Final = 5
SETS: Final = {1: 300, 64: 6_000, 512: 12_000}
"""By the number in flight."""
RATIO_MIN: Final = 2.0
LATENCY_RATIO_MAX: Final = 1.5
ETCD: Final = os.environ.get("BENCH_ETCD") or shutil.which("etcd")
PUT: Final = "/etcdserverpb.KV/Put"

Set = Callable[[str, bytes], Awaitable[Any]]


@contextlib.contextmanager
def etcd_cluster(place: Path, binary: str) -> Iterator[str]:
    """Three members with their defaults; the client address of the first one."""
    ports = free_ports(2 * NODES)
    peers = [f"http://127.0.0.1:{port}" for port in ports[NODES:]]
    members = ",".join(f"m{n}={url}" for n, url in enumerate(peers))
    started: list[Running] = []
    try:
        for n in range(NODES):
            directory = place / f"etcd{n}"
            directory.mkdir()
            client = f"http://127.0.0.1:{ports[n]}"
            command = [
                binary, "--name", f"m{n}", "--data-dir", str(directory / "data"),
                "--listen-client-urls", client, "--advertise-client-urls", client,
                "--listen-peer-urls", peers[n], "--initial-advertise-peer-urls", peers[n],
                "--initial-cluster", members,
            ]  # fmt: skip
            with (directory / "log").open("wb") as output:
                process = subprocess.Popen(command, stdout=output, stderr=output)
            started.append(Running(process))
        for n in range(NODES):
            wait_until(partial(accepts, ports[n]))
        yield f"127.0.0.1:{ports[0]}"
    finally:
        for member in started:
            member.stop()


def _put_request(key: str, value: bytes) -> bytes:
    """PutRequest: field 1 the key, field 2 the value, both shorter than 128 bytes."""
    name = key.encode()
    assert max(len(name), len(value)) < 128
    return b"\x0a%c%b\x12%c%b" % (len(name), name, len(value), value)


async def _round(write: Set, count: int, in_flight: int) -> tuple[float, float]:
    """Sets per second, and the median of their times in ms."""
    numbers, taken = iter(range(count)), []

    async def work() -> None:
        for n in numbers:
            at = time.perf_counter()
            await write(f"k{n % KEYS}", VALUE)
            taken.append(time.perf_counter() - at)

    began = time.perf_counter()
    await asyncio.gather(*(work() for _ in range(in_flight)))
    return count / (time.perf_counter() - began), 1_000 * statistics.median(taken)


async def _compare(
    ours: Set, theirs: Set, in_flight: int, *, quick: bool
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The ratios of the rates and of the times."""
    count = SETS[in_flight] // 4 if quick else SETS[in_flight]
    rates: tuple[list[float], list[float]] = ([], [])
    times: tuple[list[float], list[float]] = ([], [])
    for write in (ours, theirs):
        await _round(write, count // 4, in_flight)
    for _ in range(2 if quick else ROUNDS):
        for side, write in enumerate((ours, theirs)):
            rate, median = await _round(write, count, in_flight)
            rates[side].append(rate)
            times[side].append(median)
    return median_ratio(*rates), median_ratio(*times)


async def _bucket(connection: Client) -> KeyValue:
    """Made once the servers have elected a leader."""
    while True:
        try:
            return await connection.jetstream().create_key_value(bucket="bench", replicas=NODES)
        except (nats.js.errors.APIError, nats.errors.TimeoutError):
            await asyncio.sleep(0.2)


async def _over_nats(http: str, jetstream: str, *, quick: bool) -> list[dict[str, Any]]:
    connection = await nats.connect(jetstream)
    bucket = await _bucket(connection)
    async with bascule.connect(http) as client:
        table = client.table("bench")
        rates, _ = await _compare(table.set, bucket.put, 64, quick=quick)
    await connection.close()
    figure = "acked sets, 3 replicas synced, 64 in flight, over NATS key-value R3"
    return [row(figure, rates, at_least=RATIO_MIN)]


async def _over_etcd(http: str, etcd: str, *, quick: bool) -> list[dict[str, Any]]:
    async with grpc.aio.insecure_channel(etcd) as channel, bascule.connect(http) as client:
        put = channel.unary_unary(PUT)

        async def put_key(key: str, value: bytes) -> None:
            await put(_put_request(key, value), timeout=30, wait_for_ready=True)

        table = client.table("bench")
        rates, _ = await _compare(table.set, put_key, 512, quick=quick)
        _, times = await _compare(table.set, put_key, 1, quick=quick)
    return [
        row("acked sets, 512 in flight, over three etcd members", rates, at_least=RATIO_MIN),
        row("acked set, one in flight, p50, over etcd's", times, at_most=LATENCY_RATIO_MAX),
    ]


def run(*, quick: bool = False) -> None:
    with work_directory() as directory, bascule_cluster(directory / "bascule") as cluster:
        settings = {"cleanup": ["compact"], "key_from": "subject", "table": True}
        leader = cluster.create("bench", "$KV.bench.>", **settings)
        http = cluster.nodes[leader].http
        with jetstream_cluster(directory / "jetstream") as other:
            url = next(iter(other.servers.values())).url
            rows = asyncio.run(_over_nats(http, url, quick=quick))
        if ETCD is None:
            print("no etcd: its rows are left out")
        else:
            with etcd_cluster(directory, ETCD) as address:
                rows += asyncio.run(_over_etcd(http, address, quick=quick))
    report("table_set", rows)
