"""Real processes for tests of tier 3: `nats-server` and `bascule serve` on loopback ports."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from support import http_calls
from support.fork_server import ForkServer, is_usable
from support.ports import reserve_ports

WAIT_SECONDS_MAX = 120.0
"""For a start, an end or another event: a loaded machine takes ten times as long as an idle one."""
STARTED: list[subprocess.Popen[bytes]] = []
"""Every process started here. None is collected while it runs; Python warns of those that are."""
BIN = Path(sys.executable).parent
FIRST_PIDS: dict[int, int] = {}
"""Process of a restarted server -> its first process, which a fixture started."""
FORK_SERVERS: dict[str, ForkServer] = {}
"""Those of this process, once something was started where they can be used: one for each width of
the terminal, which is read when the console is imported."""


@dataclass
class NatsServer:
    """A `nats-server` that can be stopped and started again on its port."""

    directory: Path
    options: Sequence[str] = ()
    port: int = 0
    process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"nats://127.0.0.1:{self.port}"

    def start(self) -> None:
        for stale in self.directory.glob("*.ports"):
            stale.unlink()
        before = self.process
        if not self.port:
            (self.port,) = reserve_ports(1)
        with (self.directory / "nats.log").open("ab") as output:
            self.process = subprocess.Popen(
                [
                    str(BIN / "nats-server"), "-a", "127.0.0.1", "-p", str(self.port),
                    "--ports_file_dir", str(self.directory), *self.options,
                ],
                stdout=output,
                stderr=subprocess.STDOUT,
            )  # fmt: skip
        note_started(self.process, before)
        wait_for(lambda: _ports(self.directory), self.process, self.directory / "nats.log")

    def stop(self, number: int = signal.SIGTERM) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(number)
            self.process.wait(WAIT_SECONDS_MAX)


def start(
    command: Sequence[str], environment: dict[str, str], output: int
) -> subprocess.Popen[bytes]:
    """Start a program; `bascule` from a process that has imported it, where that can be done."""
    server = fork_server(command, environment)
    if server is None:
        return subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, env=environment)
    with Path(os.devnull).open("rb") as nothing:
        return server.start(command, environment, (nothing.fileno(), output, output))


def fork_server(command: Sequence[str], environment: Mapping[str, str]) -> ForkServer | None:
    """What can start a command from a process that has imported it."""
    if command[0] != str(BIN / "bascule") or not is_usable():
        return None
    width = environment.get("COLUMNS", "")
    if width not in FORK_SERVERS:
        clean = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith("BASCULE_") or name == "BASCULE_PURE"
        }
        clean.pop("COLUMNS", None)
        FORK_SERVERS[width] = ForkServer(clean | ({"COLUMNS": width} if width else {}))
    found = FORK_SERVERS[width]
    return found if found.can_start(environment) else None


def note_started(process: subprocess.Popen[bytes], before: subprocess.Popen[bytes] | None) -> None:
    """Remember a process; it replaces `before`, the previous process of the same server."""
    STARTED.append(process)
    if before is not None:
        FIRST_PIDS[process.pid] = FIRST_PIDS.get(before.pid, before.pid)


def _ports(directory: Path) -> str | None:
    for path in directory.glob("*.ports"):
        text = path.read_text()
        if text.rstrip().endswith("}"):
            return text
    return None


def wait_for(
    look: Any,
    process: subprocess.Popen[bytes] | None,
    log: Path,
    seconds: float = WAIT_SECONDS_MAX,
) -> Any:
    """Poll `look` until it returns a value; fail when the process ends or `seconds` have passed."""
    assert process is not None
    deadline = time.monotonic() + seconds
    while (found := look()) is None:
        if time.monotonic() > deadline:
            raise AssertionError(f"timed out after {seconds} s: {log.read_text()}")
        with contextlib.suppress(subprocess.TimeoutExpired):
            code = process.wait(0.01)
            raise AssertionError(f"the process exited with {code}: {log.read_text()}")
    return found


@dataclass
class Node:
    """A `bascule serve` process over one data directory; it can be killed and restarted."""

    directory: Path
    nats: str | None = None
    options: Sequence[str] = ()
    environment: dict[str, str] = field(default_factory=dict)
    keep_ports: bool = False
    """Whether each start has the ports of the first; otherwise each has new ones."""
    ports: Sequence[int] = (0, 0, 0)
    """Of the client listener, HTTP and the embedded NATS server."""
    process: subprocess.Popen[bytes] | None = None
    addresses: dict[str, Any] = field(default_factory=dict)

    @property
    def log(self) -> Path:
        return self.directory / "node.log"

    def start(self) -> None:
        self.spawn_again()
        self.wait_ready()

    def spawn_again(self) -> None:
        """Start the process; `wait_ready` waits for it."""
        ready = self.directory / "ready.json"
        ready.unlink(missing_ok=True)
        self.spawn(ready)

    def wait_ready(self) -> None:
        ready = self.directory / "ready.json"
        self.addresses = json.loads(
            wait_for(lambda: ready.read_text() if ready.exists() else None, self.process, self.log)
        )

    def command(self, ready: Path) -> list[str]:
        if self.keep_ports and not any(self.ports):
            self.ports = reserve_ports(3)
        client, http, nats = map(str, self.ports)
        return [
            str(BIN / "bascule"), "serve", "--data", str(self.directory / "data"),
            "--client-port", client, "--http-port", http, "--ready-file", str(ready),
            *([] if "--peer-port" in self.options else ["--peer-port", "0"]),
            *(["--nats", self.nats] if self.nats else ["--nats-port", nats]),
            *self.options,
        ]  # fmt: skip

    def spawn(self, ready: Path) -> None:
        before = self.process
        with self.log.open("ab") as output:
            self.process = start(
                self.command(ready), {**os.environ, **self.environment}, output.fileno()
            )
        note_started(self.process, before)

    def stop(self, number: int = signal.SIGTERM) -> int:
        assert self.process is not None
        if self.process.poll() is None:
            self.process.send_signal(number)
        return self.process.wait(WAIT_SECONDS_MAX)

    def call(self, method: str, path: str, body: object = None) -> Any:
        """As `http_calls.call` answers."""
        return http_calls.call(self.addresses["http"] + path, method, body)

    def create(self, name: str, subject: str, **config: object) -> Any:
        return self.call("POST", "/v1/streams", {"name": name, "subject": subject, **config})

    def partition(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = self.call("GET", f"/v1/streams/{name}")["partitions"][0]
        return found

    def wait_stored(self, name: str, count: int) -> None:
        def look() -> bool | None:
            return True if (self.partition(name)["high_watermark"] or 0) >= count else None

        wait_for(look, self.process, self.log)

    def wait_failed(self, name: str) -> None:
        """Return once the stream's first partition has stopped."""
        wait_for(lambda: self.partition(name)["failure"], self.process, self.log)

    def wait_replica_failed(self, name: str) -> None:
        """Return once this node's replica of the stream's first partition has stopped."""

        def look() -> bool | None:
            text = http_calls.get(self.addresses["http"] + "/metrics")
            wanted = f'bascule_partition_failed{{stream="{name}",partition="0"}} 1'
            return True if wanted in text else None

        wait_for(look, self.process, self.log)


@contextlib.contextmanager
def running_nats(directory: Path, *options: str) -> Iterator[NatsServer]:
    directory.mkdir(parents=True, exist_ok=True)
    server = NatsServer(directory, options)
    server.start()
    try:
        yield server
    finally:
        server.stop()


@contextlib.contextmanager
def running_node(
    directory: Path,
    *,
    nats: str | None = None,
    options: Sequence[str] = (),
    environment: dict[str, str] | None = None,
    keep_ports: bool = False,
) -> Iterator[Node]:
    directory.mkdir(parents=True, exist_ok=True)
    node = Node(directory, nats, options, environment or {}, keep_ports)
    node.start()
    try:
        yield node
    finally:
        node.stop()


class RawNats:
    """A minimal blocking NATS connection, for fast publishing."""

    def __init__(self, port: int) -> None:
        self.received = b""
        self.socket = socket.create_connection(("127.0.0.1", port), WAIT_SECONDS_MAX)
        while b"\r\n" not in self.received:
            self._receive()
        self.info, self.received = self.received, b""
        self.socket.sendall(b'CONNECT {"verbose":false,"headers":true}\r\n')
        self.flush()

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def flush(self) -> None:
        """Return once the server has processed everything sent."""
        self.socket.sendall(b"PING\r\n")
        while b"PONG\r\n" not in self.received:
            self._receive()
        self.received = self.received.replace(b"PONG\r\n", b"", 1)

    def messages(self) -> list[tuple[bytes, bytes]]:
        """(subject, payload) of each complete message; reads once if there is none."""
        found = self._parse()
        if not found:
            self._receive()
            found = self._parse()
        return found

    def _receive(self) -> None:
        """Raises: ConnectionResetError if the server closed the connection."""
        data = self.socket.recv(1 << 16)
        if not data:
            raise ConnectionResetError("the NATS server closed the connection")
        self.received += data

    def _parse(self) -> list[tuple[bytes, bytes]]:
        found = []
        while True:
            line, separator, rest = self.received.partition(b"\r\n")
            if not separator:
                return found
            if line == b"PING":
                self.socket.sendall(b"PONG\r\n")
                self.received = rest
                continue
            words = line.split()
            assert words[0] == b"MSG", line
            size = int(words[-1])
            if len(rest) < size + 2:
                return found
            found.append((words[1], rest[:size]))
            self.received = rest[size + 2 :]

    def close(self) -> None:
        self.socket.close()

    def __del__(self) -> None:
        if hasattr(self, "socket"):
            self.close()
