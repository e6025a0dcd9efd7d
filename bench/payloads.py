"""Payloads through three nodes: rate, CPU, bytes that the leader sends, failover, and NATS's object
store beside it.

The CPU of a node is compared with that of a plain relay, as socat would be: a process that receives
the same bytes, writes them to a file and to another socket, and syncs at the end.
"""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import socket
import statistics
import time
from pathlib import Path
from typing import Any, Final

import httpx
import nats

import bascule
from bench.clusters import NODES, Cluster, ClusterNode, bascule_cluster, jetstream_cluster
from bench.harness import in_child, median_ratio, reap, report, row, work_directory

PIECE: Final = os.urandom(1 << 20)
BYTES: Final = 1 << 30
PARALLEL: Final = 32
PARALLEL_BYTES: Final = 32 << 20
ROUNDS: Final = 3
FAILOVERS: Final = 20
STREAM: Final = "payloads"


async def send(client: bascule.Client, size: int, **options: Any) -> float:
    """Send a payload; the seconds until its ack."""
    began = time.perf_counter()
    async with client.open_payload(STREAM, size=size, **options) as out:
        for _ in range(size // len(PIECE)):
            await out.write(PIECE)
    assert out.ack is not None
    assert out.ack.replicas == NODES
    return time.perf_counter() - began


async def send_together(client: bascule.Client, count: int, size: int) -> float:
    began = time.perf_counter()
    await asyncio.gather(*(send(client, size) for _ in range(count)))
    return time.perf_counter() - began


def our_round(cluster: Cluster, size: int, count: int) -> tuple[float, float, float]:
    """Seconds of one payload, and of `count` at once; CPU seconds per GiB and node of the first."""

    async def work() -> tuple[float, float, float]:
        async with bascule.connect(cluster.nodes[1].http) as client:
            before = [node.cpu_seconds() for node in cluster.nodes.values()]
            one = await send(client, size)
            after = [node.cpu_seconds() for node in cluster.nodes.values()]
            cpu = sum(after) - sum(before)
            many = await send_together(client, count, PARALLEL_BYTES)
            await client.purge_stream(STREAM)
            return one, many, cpu / NODES / (size / (1 << 30))

    return asyncio.run(work())


def relay_cpu(place: Path, size: int) -> float:
    """CPU seconds per GiB of a process that writes what it receives to a file and to a socket."""
    with (
        socket.create_server(("127.0.0.1", 0)) as upper,
        socket.create_server(("127.0.0.1", 0)) as lower,
    ):
        used = place / "relay.cpu"

        def relay() -> None:
            buffer = memoryview(bytearray(1 << 20))
            before = resource.getrusage(resource.RUSAGE_SELF)
            with (
                socket.create_connection(upper.getsockname()) as source,
                socket.create_connection(lower.getsockname()) as target,
                (place / "relay.copy").open("wb", buffering=0) as out,
            ):
                while count := source.recv_into(buffer):
                    out.write(buffer[:count])
                    target.sendall(buffer[:count])
                os.fdatasync(out.fileno())
            after = resource.getrusage(resource.RUSAGE_SELF)
            cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
            used.write_text(str(cpu))

        def drain() -> None:
            buffer = memoryview(bytearray(1 << 20))
            sock, _ = lower.accept()
            with sock:
                while sock.recv_into(buffer):
                    pass

        drainer, relayer = in_child(drain), in_child(relay)
        sock, _ = upper.accept()
        with sock:
            for _ in range(size // len(PIECE)):
                sock.sendall(PIECE)
        reap(relayer)
        reap(drainer)
        (place / "relay.copy").unlink()
    return float(used.read_text()) / (size / (1 << 30))


def object_store_round(place: Path, size: int, count: int) -> tuple[float, float]:
    """Seconds of one object of three replicas, and of `count` at once, in NATS's object store."""

    async def work(urls: list[str]) -> tuple[float, float]:
        connection = await nats.connect(servers=urls)
        js = connection.jetstream(timeout=60)
        while True:
            try:
                store = await js.create_object_store("payloads", replicas=NODES)
                break
            except (nats.errors.Error, nats.js.errors.Error):
                await asyncio.sleep(0.2)  # no leader yet
        data = PIECE * (size // len(PIECE))
        began = time.perf_counter()
        await store.put("one", data)
        one = time.perf_counter() - began
        part = data[:PARALLEL_BYTES]
        began = time.perf_counter()
        await asyncio.gather(*(store.put(f"part{n}", part) for n in range(count)))
        many = time.perf_counter() - began
        await connection.close()
        return one, many

    with jetstream_cluster(place) as cluster:
        return asyncio.run(work([server.url for server in cluster.servers.values()]))


def failovers(cluster: Cluster, rounds: int) -> list[float]:
    """Seconds from kill -9 of the node that is sent to until the next acknowledged packet."""

    async def one() -> float:
        async with bascule.connect(
            ",".join(node.http for node in cluster.nodes.values())
        ) as client:
            acks: list[tuple[float, int]] = []
            out = client.open_payload(
                STREAM, on_progress=lambda done: acks.append((time.perf_counter(), done))
            )
            async with out:
                for _ in range(32):
                    await out.write(PIECE)
                first = cluster.nodes[out.route[0][0]]
                first.process.send_signal(signal.SIGKILL)
                killed, before = time.perf_counter(), acks[-1][1] if acks else 0
                first.process.wait()
                while not acks or acks[-1][1] <= before or acks[-1][0] < killed:
                    await out.write(PIECE)
                took = next(at for at, done in acks if at > killed and done > before) - killed
            first.start()
            first.wait_ready()
            return took

    found = []
    for _ in range(rounds):
        found.append(asyncio.run(one()))
        deadline = time.monotonic() + 60
        while len(cluster.nodes[1].partition(STREAM)["isr"]) < NODES:
            assert time.monotonic() < deadline, "the cluster is not in sync again"
            time.sleep(0.05)
    return found


def forwarded(node: ClusterNode) -> int:
    text = httpx.get(f"{node.http}/metrics").text
    for line in text.splitlines():
        if line.startswith("bascule_payload_forwarded_bytes_total "):
            return int(float(line.split()[1]))
    raise AssertionError("no such metric")


def run(*, quick: bool = False) -> None:
    size, count = (128 << 20, 4) if quick else (BYTES, PARALLEL)
    ones, manys, cpus, relays, stores, store_manys = [], [], [], [], [], []
    with work_directory() as directory:
        with bascule_cluster(directory / "ours") as cluster:
            leader = cluster.create(STREAM, STREAM)
            before = forwarded(cluster.nodes[leader])
            for _ in range(1 if quick else ROUNDS):
                one, many, cpu = our_round(cluster, size, count)
                ones.append(one)
                manys.append(many)
                cpus.append(cpu)
                relays.append(relay_cpu(directory, size))
            sent = forwarded(cluster.nodes[leader]) - before
            took = failovers(cluster, 3 if quick else FAILOVERS)
        for number in range(len(ones)):
            store, together = object_store_round(directory / f"js{number}", size, count)
            stores.append(store)
            store_manys.append(together)
    total = len(ones) * (size + count * PARALLEL_BYTES)
    report(
        "payloads",
        [
            row(
                f"one payload of {size >> 20} MiB, rate over NATS's object store R3",
                median_ratio(stores, ones) | {"mib_per_s": round((size >> 20) / min(ones), 1)},
                at_least=3.0,
            ),
            row(
                f"{count} payloads of {PARALLEL_BYTES >> 20} MiB, rate over the object store's",
                median_ratio(store_manys, manys),
                at_least=3.0,
            ),
            row(
                "CPU seconds per GiB and node over a plain relay",
                median_ratio(cpus, relays),
                at_most=2.0,
            ),
            row(
                "bytes that the leader forwards, over payload bytes, sent through followers",
                {"value": round(sent / total, 3)},
                at_most=0.05,
            ),
            row(
                "kill -9 of the node that is sent to, until the next acknowledged packet, s",
                {"value": round(statistics.median(took), 3), "worst": round(max(took), 3)},
                at_most=1.0,
            ),
        ],
    )
