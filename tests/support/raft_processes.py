"""`examples/raft_kv.py` as real processes, and clients for its line protocol."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from support.ports import reserve_ports
from support.processes import STARTED, WAIT_SECONDS_MAX

ROOT = Path(__file__).resolve().parents[2]
NO_EFFECT = ("not-leader", "again")
"""Answers after which a client may repeat the request."""

NEVER = threading.Event()


def until(look: Callable[[], Any], what: str) -> Any:
    """Poll `look`; returns its first true value."""
    deadline = time.monotonic() + WAIT_SECONDS_MAX
    while not (found := look()):
        assert time.monotonic() < deadline, f"not within {WAIT_SECONDS_MAX} s: {what}"
        NEVER.wait(0.02)
    return found


class Line:
    """A client's connection to one node."""

    def __init__(self, port: int, timeout: float = 10.0) -> None:
        """Raises: OSError."""
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=timeout)
        self._file = self._socket.makefile("rwb")

    def ask(self, request: str) -> str:
        """Raises: OSError without an answer; the request may have taken effect or not."""
        self.send(request)
        return self.receive()

    def send(self, request: str) -> None:
        self._file.write(request.encode() + b"\n")
        self._file.flush()

    def receive(self) -> str:
        answer = self._file.readline()
        if not answer.endswith(b"\n"):
            raise ConnectionResetError("the node hung up")
        return answer.decode().rstrip("\n")

    def close(self) -> None:
        self._socket.close()  # first, so that closing the file flushes nothing to a stopped peer
        with contextlib.suppress(OSError):
            self._file.close()


@dataclass
class KvNode:
    """One process; it can be killed, stopped and restarted with its directory."""

    number: int
    peers: dict[int, int]
    client_port: int
    directory: Path
    options: Sequence[str] = ()
    process: subprocess.Popen[bytes] | None = None

    @property
    def log(self) -> Path:
        return self.directory / f"node-{self.number}.log"

    def command(self) -> list[str]:
        peers = ",".join(f"{node}=127.0.0.1:{port}" for node, port in self.peers.items())
        return [
            sys.executable, str(ROOT / "examples" / "raft_kv.py"), "--id", str(self.number),
            "--peers", peers, "--client", f"127.0.0.1:{self.client_port}",
            "--data", str(self.directory / f"kv-{self.number}"), *self.options,
        ]  # fmt: skip

    def start(self) -> None:
        with self.log.open("ab") as output:
            self.process = subprocess.Popen(
                self.command(), stdout=output, stderr=subprocess.STDOUT, env=dict(os.environ)
            )
        STARTED.append(self.process)

    def wait_up(self) -> None:
        def look() -> bool:
            assert self.process is not None
            assert self.process.poll() is None, self.log.read_text()
            return self.try_ask("members") is not None

        until(look, f"node {self.number} serves")

    @property
    def is_running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def send(self, number: int) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    def end(self, number: int = signal.SIGTERM) -> int:
        assert self.process is not None
        if self.process.poll() is None:
            self.process.send_signal(number)
        return self.process.wait(WAIT_SECONDS_MAX)

    def ask(self, request: str, timeout: float = 10.0) -> str:
        """Raises: OSError."""
        line = Line(self.client_port, timeout)
        try:
            return line.ask(request)
        finally:
            line.close()

    def try_ask(self, request: str, timeout: float = 2.0) -> str | None:
        try:
            return self.ask(request, timeout)
        except OSError:
            return None

    def report(self) -> dict[str, Any] | None:
        answer = self.try_ask("report")
        if answer is None:
            return None
        found: dict[str, Any] = json.loads(answer.removeprefix("report "))
        return found


@dataclass
class KvCluster:
    """The processes by node number."""

    nodes: dict[int, KvNode] = field(default_factory=dict)

    def leader(self) -> KvNode:
        """The leader, when a node says that it leads and answers a read."""

        def look() -> KvNode | None:
            for node in self.nodes.values():
                if node.is_running:
                    answer = node.try_ask("get -")
                    if answer is not None and answer.split()[0] in ("ok", "none"):
                        return node
            return None

        found: KvNode = until(look, "a leader serves")
        return found

    def followers(self) -> list[KvNode]:
        leader = self.leader()
        return [node for node in self.nodes.values() if node is not leader and node.is_running]

    def ask(self, request: str) -> str:
        """Send a request to the leader; repeat it while it had no effect."""

        def look() -> str | None:
            answer = self.leader().try_ask(request, timeout=10)
            return None if answer is None or answer.split()[0] in NO_EFFECT else answer

        found: str = until(look, request)
        return found

    def end(self) -> None:
        for node in self.nodes.values():
            if node.is_running:
                node.send(signal.SIGCONT)
                node.end()


@contextlib.contextmanager
def running_cluster(directory: Path, *options: str, count: int = 3) -> Iterator[KvCluster]:
    """`count` nodes that elect a leader."""
    ports = reserve_ports(2 * count)
    peers = dict(zip(range(1, count + 1), ports[:count], strict=True))
    cluster = KvCluster(
        {
            number: KvNode(number, peers, client_port, directory, options)
            for number, client_port in zip(peers, ports[count:], strict=True)
        }
    )
    for node in cluster.nodes.values():
        node.start()
    try:
        for node in cluster.nodes.values():
            node.wait_up()
        yield cluster
    finally:
        cluster.end()
