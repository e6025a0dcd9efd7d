"""A cluster of real processes, whose nodes, links, disks and NATS server can fail."""

from __future__ import annotations

import asyncio
import contextlib
import random
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from support import http_calls
from support.chaos_links import PeerLinks
from support.chaos_load import StreamLoad
from support.ports import reserve_ports
from support.processes import NatsServer, Node

DISK_SIZE = "48m"
STREAMS: dict[str, dict[str, Any]] = {
    "one": {"replicas": 3, "partitions": 1},
    "subjects": {"replicas": 3, "partitions": 3, "partition_by": "subject"},
    "pair": {"replicas": 2, "partitions": 2, "partition_by": "key", "min_isr": 1},
    "grouped": {"replicas": 3, "partitions": 2, "partition_by": "group"},
    "single": {"replicas": 1, "partitions": 3, "partition_by": "subject"},
    "compacted": {
        "replicas": 3,
        "partitions": 1,
        "cleanup": ["compact"],
        "segment_bytes_max": 16384,
        "min_isr": 1,
    },
    "quick": {"replicas": 3, "partitions": 2, "partition_by": "key", "ack_policy": "leader"},
}


class Violation(Exception):
    """What was promised does not hold."""


@dataclass
class ChaosCluster:
    """One cluster under faults."""

    directory: Path
    seed: int
    count: int = 3
    has_links: bool = False
    embedded: bool = False
    has_small_disks: bool = False
    """Whether each data directory is a file system that can be filled; only root can mount one."""
    say: Callable[[str], None] = print
    nodes: dict[int, Node] = field(default_factory=dict)
    slow: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.dice = random.Random(self.seed)
        self.loads: list[StreamLoad] = []
        self._loading: list[asyncio.Task[None]] = []
        self._ports = reserve_ports(5 * self.count)
        self._begin = time.monotonic()
        self._healing = False
        self._extra = 0
        self._down: set[int] = set()
        """Nodes that this run has ended; others may not end."""
        (self.directory / "nats").mkdir(parents=True, exist_ok=True)
        self.nats = NatsServer(self.directory / "nats")

    def _note(self, text: str) -> None:
        stamp = time.strftime("%H:%M:%S")
        line = f"{stamp} {time.monotonic() - self._begin:7.2f} {text}"
        with (self.directory / "chaos.log").open("a") as file:
            file.write(line + "\n")
        self.say(line)

    def _make_nodes(self) -> None:
        count, ports = self.count, self._ports
        listening, reached = ports[:count], ports[4 * count :]
        if self.has_links:
            pairs = {n + 1: (reached[n], listening[n]) for n in range(count)}
            self.links = PeerLinks(pairs)
        else:
            reached = listening
        peers = ",".join(f"{n + 1}@127.0.0.1:{reached[n]}" for n in range(count))
        balance = str(self.dice.choice([1_000, 3_000, 10_000]))
        for n in range(count):
            place = self.directory / f"node{n + 1}"
            place.mkdir(parents=True)
            if self.has_small_disks:
                (place / "data").mkdir()
                mount = ["mount", "-t", "tmpfs", "-o", f"size={DISK_SIZE}", "none"]
                subprocess.run([*mount, str(place / "data")], check=True)
            self.nodes[n + 1] = Node(
                place,
                None if self.embedded else self.nats.url,
                ["--node-id", str(n + 1), "--peers", peers, "--peer-port", str(listening[n])],
                {"BASCULE_CLUSTER_LEADER_BALANCE_MS": balance},
                keep_ports=True,
                ports=ports[count + 3 * n : count + 3 * n + 3],
            )

    def _nats_ports(self) -> list[int]:
        if not self.embedded:
            return [self.nats.port]
        return [int(node.ports[2]) for node in self.nodes.values()]

    def _call(
        self, node: int, method: str, path: str, body: object = None, seconds: float = 25.0
    ) -> Any:
        """Raises: OSError, ValueError."""
        url = f"http://127.0.0.1:{self.nodes[node].ports[1]}{path}"
        return http_calls.call(url, method, body, seconds=seconds)

    def _stop(self) -> None:
        for node in self.nodes.values():
            if node.process is not None and node.process.poll() is None:
                node.process.send_signal(signal.SIGCONT)
                node.process.terminate()
        for node in self.nodes.values():
            if node.process is not None:
                with contextlib.suppress(Exception):
                    node.stop()
                if node.process.poll() is None:
                    node.stop(signal.SIGKILL)
            if self.has_small_disks:
                subprocess.run(["umount", "-l", str(node.directory / "data")], check=True)
        if self.has_links:
            self.links.stop()
        if self.nats.process is not None:
            self.nats.process.send_signal(signal.SIGCONT)
            self.nats.stop()

    async def _sleep(self, seconds: float) -> None:
        """Until the time has passed or the phase ends."""
        end = time.monotonic() + seconds
        while time.monotonic() < end and not self._healing:
            await asyncio.sleep(0.02)

    async def _heal(self) -> None:
        if self.has_links:
            self.links.release([(a, b) for a in (0, *self.nodes) for b in (0, *self.nodes)])
        if not self.embedded:
            assert self.nats.process is not None
            if self.nats.process.poll() is not None:
                await asyncio.to_thread(self.nats.start)
            self.nats.process.send_signal(signal.SIGCONT)
        for number, node in self.nodes.items():
            assert node.process is not None
            if node.process.poll() is not None:
                self._check_ended(number)
                node.spawn_again()
            node.process.send_signal(signal.SIGCONT)
        self._down.clear()
        self._note("healed")

    def _check_ended(self, number: int) -> None:
        node = self.nodes[number]
        assert node.process is not None
        code = node.process.poll()
        if code is not None and number not in self._down:
            raise Violation(f"node {number} ended by itself with {code}")

    def _stop_nodes(self) -> None:
        for number, node in self.nodes.items():
            self._down.add(number)
            assert node.process is not None
            node.process.terminate()
        for node in self.nodes.values():
            node.stop()

    def _is_up(self, number: int) -> bool:
        process = self.nodes[number].process
        return process is not None and process.poll() is None

    async def _end(self, number: int, how: int, seconds: float) -> None:
        """End a process, and start it again after some time unless the phase ends."""
        if not self._is_up(number):
            return
        self._check_ended(number)
        self._down.add(number)
        self._note(f"{signal.Signals(how).name} {number}, down for {seconds:.1f} s")
        process = self.nodes[number].process
        assert process is not None
        process.send_signal(how)
        if how == signal.SIGTERM:
            process.send_signal(signal.SIGCONT)
        ended = asyncio.to_thread(process.wait, 120)
        await ended
        await self._sleep(seconds)
        if not self._is_up(number) and self.nodes[number].process is process:
            self._note(f"start {number}")
            self.nodes[number].spawn_again()
            self._down.discard(number)
