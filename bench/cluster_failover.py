"""The longest time without an ack when a node of three dies or is paused.

Three nodes with one `nats-server`, one stream with three replicas, `sync = always`. A publisher
has 50 lanes, each of which sends a message 20 ms after the last ack. In each round one node is
killed with -9, or paused for three seconds: the leader of the partition, or a follower. Now and
then it is the controller, too. The longest time between two acks around that is measured. What the
lost leader had received is sent again after 2 s, the publisher's wait for an ack. The node starts
again, or goes on, and is in sync before the next round.
"""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import statistics
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import bascule
from bascule.client import Client
from bascule.errors import BasculeError
from bench.harness import Running, nats_server, report, row, work_directory

NODES: Final = 3
ROUNDS: Final = 20
IN_FLIGHT: Final = 50
BETWEEN_S: Final = 0.02
PAUSE_S: Final = 3.0
CALM_S: Final = 1.0
BIN: Final = Path(sys.executable).parent
KINDS: Final = ("leader killed", "follower killed", "leader paused", "follower paused")
MEDIAN_BAR_S: Final = 1.0
WORST_BAR_S: Final = 3.0


class ServedNode(Running):
    """One `bascule serve` of the cluster, which may be killed and started again."""

    def __init__(self, number: int, peers: str, nats: str, ports: list[int], place: Path) -> None:
        self.number = number
        self.http = f"http://127.0.0.1:{ports[1]}"
        self.client_port = ports[2]
        self._log = place / f"node{number}.log"
        self._ready = place / f"ready{number}.json"
        self._command = [
            str(BIN / "bascule"), "serve", "--node-id", str(number), "--peers", peers,
            "--peer-port", str(ports[0]), "--http-port", str(ports[1]), "--client-port",
            str(ports[2]), "--nats", nats, "--data", str(place / f"node{number}"),
            "--ready-file", str(self._ready),
        ]  # fmt: skip
        self.start()

    def start(self) -> None:
        self._ready.unlink(missing_ok=True)
        with self._log.open("ab") as output:
            super().__init__(subprocess.Popen(self._command, stdout=output, stderr=output))

    @property
    def is_ready(self) -> bool:
        return self._ready.exists()

    def wait_ready(self, seconds: float = 60.0) -> None:
        wait_until(self._ready.exists, seconds)

    def get(self, path: str) -> Any:
        with urllib.request.urlopen(self.http + path, timeout=10) as response:
            return json.loads(response.read())


def wait_until(condition: Callable[[], bool], seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError("the cluster does not get there")
        time.sleep(0.01)


class SteadyLoad:
    """Publishes without end, and notes when acks arrive."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._run = time.monotonic_ns()
        """Begins the message ids: no run sends those of another."""
        self.acked_at: list[float] = []
        self.stopping = False

    async def run(self) -> None:
        await asyncio.gather(*(self._publish(n) for n in range(IN_FLIGHT)))

    async def _publish(self, lane: int) -> None:
        number = 0
        while not self.stopping:
            try:
                await self._client.publish(
                    "flights.x", bytes(128), message_id=f"{self._run}.{lane}.{number}"
                )
            except BasculeError:
                await asyncio.sleep(0.005)
                continue
            number += 1
            self.acked_at.append(time.monotonic())
            await asyncio.sleep(BETWEEN_S)

    def longest_gap(self, since: float) -> float:
        """The longest time without an ack since `since`, in seconds."""
        times = [since, *(at for at in self.acked_at if at >= since), time.monotonic()]
        return max(after - before for before, after in pairwise(times))


def in_sync(node: ServedNode) -> bool:
    return all(len(p["isr"]) == NODES for p in node.get("/v1/streams/flights")["partitions"])


def choose(kind: str, nodes: dict[int, ServedNode]) -> int:
    """The node to hurt."""
    leader = int(nodes[1].get("/v1/streams/flights")["partitions"][0]["leader"])
    if kind.startswith("follower"):
        return next(number for number in nodes if number != leader)
    return leader


async def measure(kind: str, nodes: dict[int, ServedNode], rounds: int) -> list[float]:
    gaps: list[float] = []
    servers = ",".join(node.http for node in nodes.values())
    async with bascule.connect(servers) as client:
        load = SteadyLoad(client)
        run = asyncio.create_task(load.run())
        while len(gaps) < rounds:
            await asyncio.sleep(CALM_S)
            victim = await asyncio.to_thread(choose, kind, nodes)
            node, began = nodes[victim], time.monotonic()
            if "paused" in kind:
                node.process.send_signal(signal.SIGSTOP)
                await asyncio.sleep(PAUSE_S)
                node.process.send_signal(signal.SIGCONT)
            else:
                node.process.kill()
                await asyncio.to_thread(node.process.wait)
                await asyncio.sleep(PAUSE_S)
            gaps.append(load.longest_gap(began))
            if "killed" in kind:
                await asyncio.to_thread(node.start)
            other = next(each for n, each in nodes.items() if n != victim)
            await asyncio.to_thread(wait_until, lambda other=other: in_sync(other))
            load.acked_at.clear()
        load.stopping = True
        await run
    return gaps


def free_ports(count: int) -> list[int]:
    socks = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [int(sock.getsockname()[1]) for sock in socks]
    for sock in socks:
        sock.close()
    return ports


def run(*, quick: bool = False) -> None:
    rounds = 3 if quick else ROUNDS
    with work_directory() as place, nats_server(place) as nats:
        ports = free_ports(3 * NODES)
        peers = ",".join(f"{n + 1}@127.0.0.1:{ports[3 * n]}" for n in range(NODES))
        nodes = {
            n + 1: ServedNode(n + 1, peers, nats.url, ports[3 * n : 3 * n + 3], place)
            for n in range(NODES)
        }
        try:
            for node in nodes.values():
                node.wait_ready()
            with bascule.connect_sync(nodes[1].http) as client:
                client.create_stream("flights", "flights.>", replicas=NODES)
            gaps = {}
            for kind in KINDS:
                gaps[kind] = asyncio.run(measure(kind, nodes, rounds))
                print(kind, [round(gap, 3) for gap in gaps[kind]], flush=True)
        finally:
            for each in nodes.values():
                each.stop()
    rows = []
    for kind, found in gaps.items():
        measured = {
            "value": round(statistics.median(found), 3),
            "max": round(max(found), 3),
            "rounds": [round(gap, 3) for gap in found],
        }
        rows.append(
            row(f"{kind}: longest time without an ack, median, s", measured, at_most=MEDIAN_BAR_S)
        )
        worst = {"value": round(max(found), 3)}
        rows.append(
            row(f"{kind}: longest time without an ack, worst, s", worst, at_most=WORST_BAR_S)
        )
    report("cluster_failover", rows)
