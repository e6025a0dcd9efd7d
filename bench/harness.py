"""What every measurement needs: real servers on free ports, raw NATS connections, paired rounds."""

from __future__ import annotations

import contextlib
import json
import os
import platform
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"
SERVE = (str(Path(sys.executable).parent / "bascule"), "serve")


@dataclass
class Running:
    """A process with an address, ended by its own process id."""

    process: subprocess.Popen[bytes]
    url: str = ""

    @property
    def port(self) -> int:
        return int(self.url.rsplit(":", 1)[1])

    def cpu_seconds(self) -> float:
        """User and system time of the process so far."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def resident_mb(self) -> float:
        """Resident memory of the process, in MB (10^6)."""
        return self._memory_mb("VmRSS:")

    def resident_mb_max(self) -> float:
        """The most that it has had, as the kernel has seen it."""
        return self._memory_mb("VmHWM:")

    def _memory_mb(self, which: str) -> float:
        for line in Path(f"/proc/{self.process.pid}/status").read_text().splitlines():
            if line.startswith(which):
                return int(line.split()[1]) * 1024 / 1e6
        raise AssertionError(f"no {which}")

    def stop(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        self.process.wait(30)

    def end(self) -> None:
        """End the process without its doing anything any more."""
        self.process.kill()
        self.process.wait()


@dataclass
class Node(Running):
    """A `bascule serve` process."""

    addresses: dict[str, Any] = None  # type: ignore[assignment]

    def call(self, method: str, path: str, body: object = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(
            self.addresses["http"] + path,
            data=data,
            method=method,
            headers={"content-type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=60) as response:
            text = response.read()
        return json.loads(text) if text else None

    def create(self, name: str, subject: str, **config: object) -> None:
        self.call("POST", "/v1/streams", {"name": name, "subject": subject, **config})

    def delete(self, name: str) -> None:
        self.call("DELETE", f"/v1/streams/{name}")

    def partition(self, name: str) -> dict[str, Any]:
        info: dict[str, Any] = self.call("GET", f"/v1/streams/{name}")["partitions"][0]
        return info

    def wait_stored(self, name: str, count: int, timeout: float = 120) -> None:
        """Return once `count` records are committed."""
        deadline = time.monotonic() + timeout
        while self.partition(name)["high_watermark"] < count:
            if time.monotonic() > deadline:
                raise TimeoutError(f"{self.partition(name)} after {timeout} s, wanted {count}")
            time.sleep(0.02)


@contextlib.contextmanager
def work_directory() -> Iterator[Path]:
    """A directory on the disk that is measured (TMPDIR chooses it)."""
    path = Path(tempfile.mkdtemp(prefix="bascule-bench-"))
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


@contextlib.contextmanager
def nats_server(
    directory: Path, *, jetstream: bool = False, settings: str = ""
) -> Iterator[Running]:
    """A `nats-server` on a free port, with its defaults but for `settings`."""
    binary = Path(sys.executable).parent / "nats-server"
    command = [str(binary), "-a", "127.0.0.1", "-p", "-1", "--ports_file_dir", str(directory)]
    if jetstream:
        command += ["-js", "-sd", str(directory / "jetstream")]
    if settings:
        (directory / "nats.conf").write_text(settings)
        command += ["-c", str(directory / "nats.conf")]
    with (directory / "nats.log").open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
    server = Running(process)
    try:
        while not (found := list(directory.glob("*.ports"))) or not found[0].read_text():
            assert process.poll() is None, (directory / "nats.log").read_text()
            time.sleep(0.02)
        server.url = json.loads(found[0].read_text())["nats"][0]
        yield server
    finally:
        server.stop()


@contextlib.contextmanager
def node(directory: Path, *, nats: str | None = None) -> Iterator[Node]:
    """A node on free ports, connected to `nats` or with its embedded server."""
    ready = directory / "ready.json"
    command = [
        *SERVE, "--data", str(directory / "data"),
        "--client-port", "0", "--http-port", "0", "--peer-port", "0", "--ready-file", str(ready),
        *(["--nats", nats] if nats else ["--nats-port", "0"]),
    ]  # fmt: skip
    with (directory / "node.log").open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
    running = Node(process)
    try:
        while not ready.exists():
            assert process.poll() is None, (directory / "node.log").read_text()
            time.sleep(0.02)
        running.addresses = json.loads(ready.read_text())
        running.url = running.addresses["nats"]
        yield running
    finally:
        running.stop()


def free_ports(count: int) -> list[int]:
    """Ports on which nothing listens yet, all different."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for sock in sockets:
            sock.bind(("127.0.0.1", 0))
        return [sock.getsockname()[1] for sock in sockets]
    finally:
        for sock in sockets:
            sock.close()


def nats_connection(port: int) -> socket.socket:
    """A raw connection that is past its handshake."""
    sock = socket.create_connection(("127.0.0.1", port))
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    received = sock.recv(1 << 16)
    assert received.startswith(b"INFO"), received
    sock.sendall(b'CONNECT {"verbose":false,"headers":true,"no_responders":true}\r\nPING\r\n')
    received = b""
    while b"PONG\r\n" not in received:
        received += sock.recv(1 << 16)
    return sock


def confirm(sock: socket.socket) -> None:
    """Return once the server has seen everything sent on this connection."""
    sock.sendall(b"PING\r\n")
    received = b""
    while b"PONG\r\n" not in received:
        received += sock.recv(1 << 16)


def in_child(work: Callable[[], object]) -> int:
    """Run `work` in a forked process; returns its process id."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            work()
            code = 0
        finally:
            os._exit(code)
    return pid


def reap(pid: int) -> None:
    _, status = os.waitpid(pid, 0)
    assert status == 0, f"a measuring process failed with status {status}"


class TimedChild:
    """A forked process that publishes, and when it began to."""

    def __init__(self, publish: Callable[[], float]) -> None:
        """Run `publish` in a child; it returns `time.perf_counter()` of its first byte."""
        self._began, say = os.pipe()
        self._pid = in_child(lambda: os.write(say, b"%.9f" % publish()))
        os.close(say)

    def wait(self) -> float:
        """When the first byte left, once the child has ended; to be called once."""
        reap(self._pid)
        with open(self._began, "rb") as began:
            return float(began.read())


def median_ratio(ours: list[float], others: list[float]) -> dict[str, Any]:
    """The ratios pair by pair, with their median and range."""
    ratios = [a / b for a, b in zip(ours, others, strict=True)]
    return {
        "ratio": round(statistics.median(ratios), 3),
        "ratio_min": round(min(ratios), 3),
        "ratio_max": round(max(ratios), 3),
        "ours": [round(value, 4) for value in ours],
        "others": [round(value, 4) for value in others],
    }


def report(name: str, rows: list[dict[str, Any]]) -> None:
    """Print the rows and keep them as dated JSON."""
    for row in rows:
        show(row)
    keep(name, rows)


def show(row: dict[str, Any]) -> None:
    """Print a row."""
    bar = row.get("bar")
    kept = "" if bar is None else f"  bar {bar}: {'kept' if row['kept'] else 'MISSED'}"
    print(f"{row['figure']}: {row['ratio'] if 'ratio' in row else row['value']}{kept}")
    print(
        "   ",
        json.dumps({k: v for k, v in row.items() if k not in ("figure", "bar", "kept")}),
        flush=True,
    )


def report_one(name: str, row: dict[str, Any]) -> None:
    """Print a row, with the load of the machine in the last minute and in the last five, and keep
    it among those of today; it takes the place of an earlier one of the same figure."""
    row = {**row, "load": [round(load, 1) for load in os.getloadavg()[:2]]}
    row["at"] = f"{datetime.now(UTC):%H:%M}"
    show(row)
    path = RESULTS / f"{datetime.now(UTC):%Y-%m-%d}-{name}.json"
    earlier = json.loads(path.read_text())["rows"] if path.exists() else []
    keep(name, [each for each in earlier if each["figure"] != row["figure"]] + [row])


def keep(name: str, rows: list[dict[str, Any]]) -> None:
    """Write the rows as dated JSON."""
    RESULTS.mkdir(exist_ok=True)
    now = datetime.now(UTC)
    result = {
        "name": name,
        "at": now.isoformat(timespec="seconds"),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, Linux {platform.release()}, "
        f"Python {platform.python_version()}",
        "rows": rows,
    }
    path = RESULTS / f"{now:%Y-%m-%d}-{name}.json"
    path.write_text(json.dumps(result, indent=1) + "\n")


def row(figure: str, measured: dict[str, Any], *, at_least: float | None = None,
        at_most: float | None = None) -> dict[str, Any]:  # fmt: skip
    """One line of a report, held against its bar."""
    value = measured["ratio"] if "ratio" in measured else measured["value"]
    kept = (at_least is None or value >= at_least) and (at_most is None or value <= at_most)
    bar = f">= {at_least}" if at_least is not None else f"<= {at_most}"
    return {"figure": figure, "bar": bar, "kept": kept, **measured}
