"""Payloads through three nodes: rate, CPU, bytes that the leader sends, failover, small messages
beside them, memory of stalled ones, and NATS's object store beside it.

`--part` chooses one figure; each is reported and stored when it is there. Rounds alternate: ours,
then the relay's and the object store's. While the one is measured the other cluster is idle, or not
there, and what it had not synced is on the disk: an object store leaves gigabytes in memory, whose
writing would be measured with what follows.

The CPU of a node is compared with that of a plain relay, as socat would be: a process that receives
the same bytes, writes them to a file and to another socket, and syncs at the end.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import signal
import socket
import statistics
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final

import httpx
import nats

import bascule
from bascule.client.payloads import PayloadWriter
from bascule.errors import BasculeError
from bench.clusters import (
    NODES,
    Cluster,
    ClusterNode,
    bascule_cluster,
    jetstream_cluster,
    wait_until,
)
from bench.harness import in_child, median_ratio, reap, report_one, row, work_directory

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
COPY_BYTES_MAX: Final = 1 << 30
"""Of one plain copy, which begins anew then: they fill the disk otherwise."""
STALLED: Final = 1_000
STALLED_BYTES: Final = 1 << 20
"""What a stalled payload has on its way: of all of them four times the bar."""
STALL_SECONDS_MAX: Final = 120.0
STOPPED_SECONDS: Final = 2.2
"""Who is silent for 3 s may be left out."""
ANSWER_SECONDS: Final = 0.03
STILL_SECONDS: Final = 0.7
IDLE_SECONDS: Final = 5
SYNC_BYTES: Final = 16 << 20
"""Of the copies beside which small messages are measured, as of payloads."""


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


def cpu_seconds(cluster: Cluster) -> float:
    return sum(node.cpu_seconds() for node in cluster.nodes.values())


def our_round(cluster: Cluster, size: int, count: int) -> tuple[float, float, float]:
    """Seconds of one payload, and of `count` at once; CPU seconds per GiB and node of the first,
    above those that the nodes use in the same time without it."""

    async def work() -> tuple[float, float, float]:
        async with bascule.connect(cluster.nodes[1].http) as client:
            idle = cpu_seconds(cluster)
            await asyncio.sleep(IDLE_SECONDS)
            before = cpu_seconds(cluster)
            one = await send(client, size)
            cpu = cpu_seconds(cluster) - before - (before - idle) * one / IDLE_SECONDS
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


def metric(node: ClusterNode, name: str) -> int:
    """A counter of payloads at a node."""
    text = httpx.get(f"{node.http}/metrics").text
    for line in text.splitlines():
        if line.startswith(f"bascule_payload_{name}_total "):
            return int(float(line.split()[1]))
    raise AssertionError(f"no metric bascule_payload_{name}_total")


def forwarded(node: ClusterNode) -> int:
    """Bytes of payloads."""
    return metric(node, "forwarded_bytes")


def received(node: ClusterNode) -> int:
    """Bytes of payloads."""
    return metric(node, "received_bytes")


def leader_bytes(cluster: Cluster, leader: int, size: int, *, first: int) -> dict[str, float]:
    """Topology -> bytes that the leader forwards over payload bytes, sent through node `first`."""

    async def work(topology: str) -> None:
        async with bascule.connect(cluster.nodes[first].http) as client:
            if topology == "quorum":
                await send(client, size, quorum=True)
            else:
                await send(client, size, topology=topology)
            await client.purge_stream(STREAM)

    found = {}
    for topology in ("star", "chain", "tree", "quorum"):
        before = forwarded(cluster.nodes[leader])
        asyncio.run(work(topology))
        found[topology] = round((forwarded(cluster.nodes[leader]) - before) / size, 3)
    return found


def small_messages(cluster: Cluster, directory: Path, rounds: int, *, count: int) -> None:
    """p99 of the acks of small messages, one at a time: beside payloads, and without.

    In turn with both: beside plain copies that have the same processors and the same disk, for what
    of it is the machine's. Payloads are sent by a process of their own.
    """

    async def p99(refused: Counter[str]) -> float:
        took = []
        async with bascule.connect(cluster.nodes[1].http) as client:
            await client.publish(SMALL, b"first")
            for _ in range(count):
                began = time.perf_counter()
                try:
                    await client.publish(SMALL, b"small")
                except BasculeError as error:
                    refused[f"{type(error).__name__}: {error}"] += 1
                else:
                    took.append(time.perf_counter() - began)
        return statistics.quantiles(took, n=100)[98]

    def stream() -> None:
        async def one(client: bascule.Client) -> None:
            async with client.open_payload(STREAM) as out:
                while True:
                    await out.write(PIECE)

        async def work() -> None:
            async with bascule.connect(cluster.nodes[1].http) as client:
                await asyncio.gather(*(one(client) for _ in range(BESIDE)))

        asyncio.run(work())

    def copy() -> None:
        signal.signal(signal.SIGTERM, lambda *_: sys.exit())
        with in_sync_copies(directory, BESIDE):
            signal.pause()

    beside, without, copied, rates = [], [], [], []
    in_sync, refused, refused_beside_copies = NODES, Counter[str](), Counter[str]()
    for _ in range(rounds):
        without.append(asyncio.run(p99(refused)))
        for load, found, refusals in (
            (stream, beside, refused),
            (copy, copied, refused_beside_copies),
        ):
            before, began = received(cluster.nodes[1]), time.perf_counter()
            pid = in_child(load)
            time.sleep(2)
            found.append(asyncio.run(p99(refusals)))
            in_sync = min(in_sync, len(cluster.nodes[1].partition(SMALL)["isr"]))
            if load is stream:
                sent = received(cluster.nodes[1]) - before
                rates.append(round((sent >> 20) / (time.perf_counter() - began), 1))
            os.kill(pid, signal.SIGTERM if load is copy else signal.SIGKILL)
            os.waitpid(pid, 0)
            wait_until(lambda: len(cluster.nodes[1].partition(SMALL)["isr"]) == NODES)
            time.sleep(2)
    measured = median_ratio(beside, without) | {"in_sync": in_sync, "mib_per_s": rates}
    measured["beside_copies"] = [round(each, 4) for each in copied]
    measured |= {"refused": refused, "refused_beside_copies": refused_beside_copies}
    report_one(
        "payloads",
        row(
            f"p99 of the acks of small messages beside {BESIDE} payloads over without",
            measured,
            at_most=2.0,
        ),
    )


@contextlib.contextmanager
def in_sync_copies(place: Path, count: int) -> Iterator[None]:
    """`count` processes for each node that copy from a socket to a file and to the next socket, and
    sync each 16 MiB."""

    def copy(source: socket.socket | None, target: socket.socket | None, path: Path) -> None:
        buffer, at = memoryview(bytearray(PIECE)), 0
        with path.open("wb", buffering=0) as out:
            path.unlink()
            while True:
                size = source.recv_into(buffer) if source else len(buffer)
                if target:
                    target.sendall(buffer[:size])
                if not source:
                    continue
                out.write(buffer[:size])
                if at // SYNC_BYTES != (at + size) // SYNC_BYTES:
                    os.fdatasync(out.fileno())
                at += size
                if at >= COPY_BYTES_MAX:
                    out.seek(0)
                    out.truncate()
                    at = 0

    pids = []
    try:
        for number in range(count):
            pairs = [socket.socketpair() for _ in range(NODES)]
            for at in range(NODES + 1):
                source = pairs[at - 1][1] if at else None
                target = pairs[at][0] if at < NODES else None
                path = place / f"copy{number}-{at}"
                pids.append(in_child(partial(copy, source, target, path)))
            for each in pairs:
                each[0].close()
                each[1].close()
        yield
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


class StoppedNode:
    """A node that is stopped but for moments, in which it says that it is there, so that it is not
    left out of trees. Its disk could hardly be slower. A thread does it: event loops are late."""

    def __init__(self, node: ClusterNode) -> None:
        self._process = node.process
        self._has_ended = threading.Event()
        self.stops = 0
        """How often it was stopped."""
        self.is_stopped = False
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._has_ended.is_set():
            self._process.send_signal(signal.SIGSTOP)
            self.stops += 1
            self.is_stopped = True
            self._has_ended.wait(STOPPED_SECONDS)
            self.is_stopped = False
            self._process.send_signal(signal.SIGCONT)
            self._has_ended.wait(ANSWER_SECONDS)

    def end(self) -> None:
        self._has_ended.set()
        self._thread.join()


def stalled_memory(cluster: Cluster, count: int) -> dict[str, float]:
    """MB of the node that is sent to, above those before, with `count` payloads that cannot go on:
    their next node is stopped. Each waits with `STALLED_BYTES` that are not acknowledged, and
    nothing is received any more."""

    async def work() -> dict[str, float]:
        async with bascule.connect(cluster.nodes[1].http) as client:
            probe = client.open_payload(STREAM, topology="chain")
            await probe.__aenter__()
            first, last = probe.route[0][0], probe.route[0][1][0]
            probe.abort()
            (third,) = set(cluster.nodes) - {first, last}
            route, sent_to = {first: [last], last: [third]}, cluster.nodes[first]
            before, lost = sent_to.resident_mb(), metric(sent_to, "successors_lost")
            outs = [client.open_payload(STREAM, route=route) for _ in range(count)]
            for out in outs:
                await out.__aenter__()
            highest, began = 0.0, time.monotonic()
            writing = [asyncio.create_task(_write_until_stalled(out)) for out in outs]
            stopped = StoppedNode(cluster.nodes[last])

            async def stand_still() -> bool:
                """Whether each payload waits, and nothing is received for a while."""
                at, count = stopped.stops, received(sent_to)
                await asyncio.sleep(STILL_SECONDS)
                return (
                    all(out.position - out.acknowledged >= STALLED_BYTES for out in outs)
                    and received(sent_to) == count
                    and (stopped.stops, stopped.is_stopped) == (at, True)
                )

            try:
                while not await stand_still():
                    highest = max(highest, sent_to.resident_mb() - before)
                    assert time.monotonic() - began < STALL_SECONDS_MAX, "payloads go on"
                highest = max(highest, sent_to.resident_mb() - before)
                assert metric(sent_to, "successors_lost") == lost, "the slow node was left out"
            finally:
                stopped.end()
                for task in writing:
                    task.cancel()
                await asyncio.gather(*writing, return_exceptions=True)
            behind = sum(out.position - out.acknowledged for out in outs)
            for out in outs:
                out.abort()
            return {"value": round(highest, 1), "waiting_mb": round(behind / 1e6)}

    return asyncio.run(work())


async def _write_until_stalled(out: PayloadWriter) -> None:
    """Keep so many bytes on their way that are not acknowledged."""
    while True:
        if out.position - out.acknowledged < STALLED_BYTES:
            await out.write(PIECE)
        else:
            await asyncio.sleep(0.1)


def rates(cluster: Cluster, directory: Path, rounds: int, *, quick: bool) -> None:
    """One payload and many at once, beside the relay and the object store."""
    size, count = (128 << 20, 4) if quick else (BYTES, PARALLEL)
    ones, manys, cpus, relays, stores, store_manys = [], [], [], [], [], []
    for number in range(rounds):
        os.sync()
        one, many, cpu = our_round(cluster, size, count)
        ones.append((size >> 20) / one)
        manys.append((count * PARALLEL_BYTES >> 20) / many)
        cpus.append(cpu)
        os.sync()
        relays.append(relay_cpu(directory, size))
        os.sync()
        store, together = object_store_round(directory / f"js{number}", size, count)
        stores.append((size >> 20) / store)
        store_manys.append((count * PARALLEL_BYTES >> 20) / together)
    report_one(
        "payloads",
        row(
            f"one payload of {size >> 20} MiB, MiB/s over NATS's object store R3",
            median_ratio(ones, stores),
            at_least=3.0,
        ),
    )
    report_one(
        "payloads",
        row(
            f"{count} payloads of {PARALLEL_BYTES >> 20} MiB, MiB/s over the object store's",
            median_ratio(manys, store_manys),
            at_least=3.0,
        ),
    )
    report_cpu(cpus, relays)


def report_cpu(cpus: list[float], relays: list[float]) -> None:
    report_one(
        "payloads",
        row(
            "CPU seconds per GiB and node, above idle, over a plain relay",
            median_ratio(cpus, relays),
            at_most=2.0,
        ),
    )


def cpu(cluster: Cluster, directory: Path, rounds: int, *, quick: bool) -> None:
    """The CPU of one payload beside that of the relay, without the rest."""
    size = 128 << 20 if quick else BYTES
    cpus, relays = [], []
    for _ in range(rounds):
        os.sync()
        cpus.append(our_round(cluster, size, 0)[2])
        os.sync()
        relays.append(relay_cpu(directory, size))
    report_cpu(cpus, relays)


def topologies(cluster: Cluster, directory: Path, rounds: int, *, quick: bool) -> None:
    """What the leader forwards."""
    leader, size = cluster.leader(STREAM), 128 << 20
    follower = next(number for number in cluster.nodes if number != leader)
    by_topology = leader_bytes(cluster, leader, size, first=follower)
    at_leader = leader_bytes(cluster, leader, size, first=leader)
    report_one(
        "payloads",
        row(
            "bytes that the leader forwards over payload bytes, sent through followers in a chain",
            {"value": by_topology["chain"]},
            at_most=0.05,
        ),
    )
    report_one(
        "payloads",
        row(
            "the same along a star, a chain and a tree, the most",
            {"value": max(by_topology.values()), **by_topology},
            at_most=1.0,
        ),
    )
    report_one(
        "payloads",
        row(
            "the same with clients of the leader's node, the most",
            {"value": max(at_leader.values()), **at_leader},
            at_most=1.0,
        ),
    )


def beside(cluster: Cluster, directory: Path, rounds: int, *, quick: bool) -> None:
    """Small messages beside payloads."""
    small_messages(cluster, directory, rounds, count=MESSAGES // 10 if quick else MESSAGES)


def stalled(cluster: Cluster, directory: Path, rounds: int, *, quick: bool) -> None:
    """Memory with open payloads that cannot go on."""
    count = 50 if quick else STALLED
    report_one(
        "payloads",
        row(
            "MB of a node above idle, with open payloads whose next node writes nothing",
            {**stalled_memory(cluster, count), "payloads": count},
            at_most=256 * 1.048576,
        ),
    )


def failover(cluster: Cluster, directory: Path, rounds: int, *, quick: bool) -> None:
    """Kills of the node that is sent to."""
    took = failovers(cluster, 3 if quick else FAILOVERS)
    report_one(
        "payloads",
        row(
            "kill -9 of the node that is sent to, until the next acknowledged packet, s",
            {"value": round(statistics.median(took), 3), "worst": round(max(took), 3)},
            at_most=1.0,
        ),
    )


PARTS: Final = {each.__name__: each for each in (rates, topologies, beside, stalled, failover, cpu)}


def run(*, quick: bool = False, part: str = "", rounds: int = 0) -> None:
    """Measure all parts, or one of them. Each figure is reported when it is there."""
    if part and part not in PARTS:
        raise SystemExit(f"no part is named {part}; there are {', '.join(PARTS)}")
    with work_directory() as directory, bascule_cluster(directory / "ours") as cluster:
        cluster.create(SMALL, SMALL)
        for name in [part] if part else [name for name in PARTS if name != "cpu"]:
            cluster.create(STREAM, STREAM)
            PARTS[name](cluster, directory, rounds or (1 if quick else ROUNDS), quick=quick)
            cluster.delete(STREAM)  # with the payloads that nobody has finished, up to 25 GB
