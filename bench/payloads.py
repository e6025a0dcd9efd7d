"""Payloads through three nodes: rate, CPU, bytes that the leader sends, failover, small messages
beside them, memory of stalled ones, and NATS's object store beside it.

Rounds alternate: ours, then the relay's and the object store's. While the one is measured the other
cluster is idle, or not there.

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
from bascule.client.payloads import PayloadWriter
from bench.clusters import NODES, Cluster, ClusterNode, bascule_cluster, jetstream_cluster
from bench.harness import in_child, median_ratio, reap, report, row, work_directory

PIECE: Final = os.urandom(1 << 20)
BYTES: Final = 1 << 30
PARALLEL: Final = 32
PARALLEL_BYTES: Final = 32 << 20
ROUNDS: Final = 3
FAILOVERS: Final = 20
STREAM: Final = "payloads"
SMALL: Final = "small"
MESSAGES: Final = 2_000
BESIDE: Final = 4
STALLED: Final = 1_000


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
    """Seconds from kill -9 of the node that is sent to until the next acknowledged packet: the
    first one that another node acknowledges, above all that the dead one has acknowledged."""

    async def one() -> float:
        async with bascule.connect(
            ",".join(node.http for node in cluster.nodes.values())
        ) as client:
            acks: list[tuple[float, int, int]] = []

            def on_progress(done: int) -> None:
                acks.append((time.perf_counter(), done, out.route[0][0]))

            out = client.open_payload(STREAM, on_progress=on_progress)
            async with out:
                for _ in range(32):
                    await out.write(PIECE)
                number = out.route[0][0]
                first = cluster.nodes[number]
                first.process.send_signal(signal.SIGKILL)
                killed = time.perf_counter()
                first.process.wait()

                def next_ack() -> float | None:
                    before = max((done for _, done, node in acks if node == number), default=0)
                    return next(
                        (at for at, done, node in acks if node != number and done > before), None
                    )

                while (at := next_ack()) is None:
                    await out.write(PIECE)
                took = at - killed
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


def leader_bytes(cluster: Cluster, leader: int, size: int) -> dict[str, float]:
    """Topology -> bytes that the leader forwards over payload bytes, sent through any node."""

    async def work(topology: str) -> None:
        async with bascule.connect(cluster.nodes[1].http) as client:
            await send(client, size, topology=topology)
            await client.purge_stream(STREAM)

    found = {}
    for topology in ("star", "chain", "tree"):
        before = forwarded(cluster.nodes[leader])
        asyncio.run(work(topology))
        found[topology] = round((forwarded(cluster.nodes[leader]) - before) / size, 3)
    return found


def small_messages(cluster: Cluster, rounds: int) -> tuple[list[float], list[float]]:
    """p99 in seconds of the acks of small messages, one at a time: beside payloads, and without."""

    async def p99(client: bascule.Client) -> float:
        took = []
        for _ in range(MESSAGES):
            began = time.perf_counter()
            await client.publish(SMALL, b"small")
            took.append(time.perf_counter() - began)
        return statistics.quantiles(took, n=100)[98]

    async def stream(client: bascule.Client, is_done: asyncio.Event) -> None:
        async with client.open_payload(STREAM) as out:
            while not is_done.is_set():
                await out.write(PIECE)

    async def work() -> tuple[list[float], list[float]]:
        beside, without = [], []
        async with (
            bascule.connect(cluster.nodes[1].http) as client,
            bascule.connect(cluster.nodes[1].http) as sender,
        ):
            for _ in range(rounds):
                without.append(await p99(client))
                is_done = asyncio.Event()
                tasks = [asyncio.create_task(stream(sender, is_done)) for _ in range(BESIDE)]
                await asyncio.sleep(1)
                beside.append(await p99(client))
                is_done.set()
                await asyncio.gather(*tasks)
                await client.purge_stream(STREAM)
        return beside, without

    return asyncio.run(work())


def stalled_memory(cluster: Cluster, count: int) -> float:
    """MB of the node that is sent to, above those before, with `count` open payloads whose next
    node writes nothing. It is stopped: its disk could not be slower."""

    async def work() -> float:
        async with bascule.connect(cluster.nodes[1].http) as client:
            probe = client.open_payload(STREAM, topology="chain")
            await probe.__aenter__()
            first, last = probe.route[0][0], probe.route[0][1][0]
            probe.abort()
            route = {first: [last]}
            for node in cluster.nodes:
                if node not in (first, last):
                    route[last] = [node]
            before = cluster.nodes[first].resident_mb()
            outs = [client.open_payload(STREAM, route=route) for _ in range(count)]
            for out in outs:
                await out.__aenter__()
            cluster.nodes[last].process.send_signal(signal.SIGSTOP)
            highest = 0.0
            try:
                writing = [asyncio.create_task(_write_until_stalled(out)) for out in outs]
                for _ in range(20):
                    await asyncio.sleep(0.25)
                    highest = max(highest, cluster.nodes[first].resident_mb() - before)
                for task in writing:
                    task.cancel()
                await asyncio.gather(*writing, return_exceptions=True)
            finally:
                cluster.nodes[last].process.send_signal(signal.SIGCONT)
            for out in outs:
                out.abort()
            return highest

    return asyncio.run(work())


async def _write_until_stalled(out: PayloadWriter) -> None:
    while True:
        await out.write(PIECE[: 256 << 10])


def run(*, quick: bool = False) -> None:
    size, count = (128 << 20, 4) if quick else (BYTES, PARALLEL)
    ones, manys, cpus, relays, stores, store_manys = [], [], [], [], [], []
    with work_directory() as directory, bascule_cluster(directory / "ours") as cluster:
        leader = cluster.create(STREAM, STREAM)
        cluster.create(SMALL, SMALL)
        before = forwarded(cluster.nodes[leader])
        for number in range(1 if quick else ROUNDS):
            one, many, cpu = our_round(cluster, size, count)
            ones.append((size >> 20) / one)
            manys.append((count * PARALLEL_BYTES >> 20) / many)
            cpus.append(cpu)
            relays.append(relay_cpu(directory, size))
            store, together = object_store_round(directory / f"js{number}", size, count)
            stores.append((size >> 20) / store)
            store_manys.append((count * PARALLEL_BYTES >> 20) / together)
        sent = forwarded(cluster.nodes[leader]) - before
        by_topology = leader_bytes(cluster, leader, size)
        beside, without = small_messages(cluster, 1 if quick else ROUNDS)
        memory = stalled_memory(cluster, 50 if quick else STALLED)
        took = failovers(cluster, 3 if quick else FAILOVERS)
    total = len(ones) * (size + count * PARALLEL_BYTES)
    report(
        "payloads",
        [
            row(
                f"one payload of {size >> 20} MiB, MiB/s over NATS's object store R3",
                median_ratio(ones, stores),
                at_least=3.0,
            ),
            row(
                f"{count} payloads of {PARALLEL_BYTES >> 20} MiB, MiB/s over the object store's",
                median_ratio(manys, store_manys),
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
                "the same along a star, a chain and a tree, the most",
                {"value": max(by_topology.values()), **by_topology},
                at_most=1.0,
            ),
            row(
                f"p99 of the acks of small messages beside {BESIDE} payloads over without",
                median_ratio(beside, without),
                at_most=2.0,
            ),
            row(
                "MB of a node above idle, with open payloads whose next node writes nothing",
                {"value": round(memory, 1), "payloads": 50 if quick else STALLED},
                at_most=256 * 1.048576,
            ),
            row(
                "kill -9 of the node that is sent to, until the next acknowledged packet, s",
                {"value": round(statistics.median(took), 3), "worst": round(max(took), 3)},
                at_most=1.0,
            ),
        ],
    )
