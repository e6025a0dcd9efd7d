"""The machines of a run: five nodes with links and disks that can fail, and one NATS server.

Every node reaches the others by proxies on loopback, so each link can be held up or slowed down.
Where file systems can be mounted, each data directory is a tmpfs of its own, which is made as small
as its contents to fill it. Each node runs under `synced_journal`, so that what was not synced can
be thrown away.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any, Final

from support import http_calls
from support.chaos_links import PeerLinks
from support.ports import reserve_ports
from support.processes import NatsServer, Node
from torture.messages import STREAMS
from torture.synced_journal import synced_sizes

COUNT: Final = 5
SPARE: Final = 6
"""The number of the node that joins and leaves again."""
DISK_BYTES: Final = 3 << 30
PAGE_BYTES: Final = 4096
START_SECONDS_MAX: Final = 120.0
JOURNALED: Final = Path(__file__).with_name("synced_journal.py")


class MachineNode(Node):
    """A node that notes what it has synced."""

    @property
    def journal(self) -> Path:
        return self.directory / "synced.journal"

    @property
    def data(self) -> Path:
        return self.directory / "data"

    @property
    def is_ready(self) -> bool:
        """Whether it has been ready since its start; before, SIGTERM ends it at once."""
        return (self.directory / "ready.json").exists()

    def command(self, ready: Path) -> list[str]:
        _, *arguments = super().command(ready)
        return [sys.executable, str(JOURNALED), str(self.journal), *arguments]

    @property
    def is_up(self) -> bool:
        return self.process is not None and self.process.poll() is None


@dataclass
class Machines:
    """All of them. `note` is called with what is worth a line of the run's log."""

    directory: Path
    has_disks: bool
    """Whether each node has a file system of its own."""
    note: Callable[[str], None]
    nodes: dict[int, MachineNode] = field(default_factory=dict)
    down: set[int] = field(default_factory=set)
    """Nodes that the run has ended; no other may end."""
    findings: list[str] = field(default_factory=list)
    _full: set[int] = field(default_factory=set)
    """Nodes whose disks have no room."""
    earlier: Path | None = None
    """The source of the release before, with which all nodes begin; None: with this release."""

    def __post_init__(self) -> None:
        self._lives = dict.fromkeys(range(1, SPARE + 1), 0)
        ports = iter(reserve_ports(5 * SPARE))
        numbers = range(1, SPARE + 1)
        self._listening = {number: next(ports) for number in numbers}
        self._reached = {number: next(ports) for number in numbers}
        self._ports = {number: [next(ports) for _ in range(3)] for number in numbers}
        self.links = PeerLinks({n: (self._reached[n], self._listening[n]) for n in numbers})
        (self.directory / "nats").mkdir(parents=True)
        self.nats = NatsServer(self.directory / "nats")

    # -- beginning and end ----------------------------------------------------------------------

    def start(self) -> None:
        """Start NATS and the five nodes, and create the streams."""
        self.nats.start()
        for number in range(1, COUNT + 1):
            self._make(number, ["--peers", self._addresses(founders=True)])
        for node in self.nodes.values():
            node.spawn_again()
        for node in self.nodes.values():
            node.wait_ready()
        for stream in STREAMS:
            self.call("POST", "/v1/streams", stream.body())

    def _addresses(self, *, founders: bool = False) -> str:
        prefix = "{}@" if founders else ""
        return ",".join(
            f"{prefix.format(number)}127.0.0.1:{self._reached[number]}"
            for number in range(1, COUNT + 1)
        )

    def _make(self, number: int, options: Iterable[str]) -> MachineNode:
        self._lives[number] += 1
        place = self.directory / f"node{number}"
        if self._lives[number] > 1:
            place = self.directory / f"node{number}-{self._lives[number]}"
        (place / "data").mkdir(parents=True)
        if self.has_disks:
            mount(place / "data", DISK_BYTES)
        node = self.nodes[number] = MachineNode(
            place,
            self.nats.url,
            [
                *("--node-id", str(number), "--peer-port", str(self._listening[number])),
                *("--rack", f"r{number}", *options),
            ],
            {
                "BASCULE_CLUSTER_LEADER_BALANCE_MS": "3000",
                "BASCULE_PEER_ADVERTISED": f"127.0.0.1:{self._reached[number]}",
            },
            keep_ports=True,
            ports=self._ports[number],
        )
        if self.earlier is not None:
            self.choose_release(number, is_earlier=True)
        return node

    def with_earlier(self) -> list[int]:
        """The nodes whose next process has the release before."""
        return [number for number, node in self.nodes.items() if "PYTHONPATH" in node.environment]

    def choose_release(self, number: int, *, is_earlier: bool) -> None:
        """The next process of a node has the release before, or this one."""
        environment = self.nodes[number].environment
        environment.pop("PYTHONPATH", None)
        if is_earlier:
            environment["PYTHONPATH"] = str(self.earlier)

    def stop(self) -> dict[int, int]:
        """End all nodes by SIGTERM; their exit codes."""
        self.heal_links()
        running = {number: node for number, node in self.nodes.items() if node.is_up}
        for node in running.values():
            assert node.process is not None
            node.process.send_signal(signal.SIGCONT)
            node.process.terminate()
        self.down |= set(running)
        codes = {}
        for number, node in running.items():
            # Not again by `Node.stop`: a process that exits no longer takes a second SIGTERM.
            assert node.process is not None
            codes[number] = node.process.wait(START_SECONDS_MAX)
        return codes

    def close(self) -> None:
        """End whatever still runs."""
        for node in self.nodes.values():
            if node.is_up:
                node.stop(signal.SIGKILL)
        self.links.stop()
        if self.nats.process is not None:
            self.nats.stop(signal.SIGKILL)

    # -- single nodes ---------------------------------------------------------------------------

    def is_up(self, number: int) -> bool:
        return number in self.nodes and self.nodes[number].is_up

    def check_ended(self) -> None:
        """Find nodes that have ended although nobody has ended them."""
        for number, node in self.nodes.items():
            if number not in self.down and not node.is_up and node.process is not None:
                self.down.add(number)
                self.findings.append(f"node {number} ended by itself with {node.process.poll()}")

    def end(self, number: int, how: signal.Signals) -> bool:
        """End a process and wait for that. False: it does not run."""
        if not self.is_up(number):
            return False
        self.down.add(number)
        process = self.nodes[number].process
        assert process is not None
        was_ready = self.nodes[number].is_ready
        process.send_signal(how)
        process.send_signal(signal.SIGCONT)
        code = process.wait(START_SECONDS_MAX)
        # Another fault may have killed it before it had stopped.
        if how == signal.SIGTERM and was_ready and code not in (0, -signal.SIGKILL):
            self.findings.append(f"node {number} ended with {code} after SIGTERM")
        return True

    def begin(self, number: int) -> None:
        """Start a process that has ended."""
        if number in self.nodes and not self.nodes[number].is_up:
            self.nodes[number].spawn_again()
            self.down.discard(number)

    def send(self, number: int, signal_number: signal.Signals) -> bool:
        """Send a signal. False: the process does not run."""
        if not self.is_up(number):
            return False
        process = self.nodes[number].process
        assert process is not None
        process.send_signal(signal_number)
        return True

    def join(self, number: int) -> MachineNode:
        """Start a node with an empty directory that is to join."""
        self._forget(number)
        node = self._make(number, ["--join", self._addresses()])
        node.spawn_again()
        self.down.discard(number)
        return node

    def _forget(self, number: int) -> None:
        """Free the disk of a node that was removed, but keep its log."""
        if old := self.nodes.pop(number, None):
            if self.has_disks:
                unmount(old.data)
            shutil.rmtree(old.data, ignore_errors=True)

    def leave(self, number: int) -> None:
        """Forget a node that has left the cluster."""
        self.end(number, signal.SIGKILL)
        self._forget(number)

    # -- links, disks and power -----------------------------------------------------------------

    def heal_links(self) -> None:
        ends = range(SPARE + 1)
        every = [(one, other) for one in ends for other in ends]
        self.links.slow(every, 0.0)
        self.links.release(every)

    def fill_disk(self, number: int) -> bool:
        """Leave no byte free on a node's disk. False: it has no disk of its own, or that is full:
        what is free there is the reserve that the node has given back, without which it ends."""
        if not self.has_disks or number not in self.nodes or number in self._full:
            return False
        data = self.nodes[number].data
        for _ in range(50):  # the node writes meanwhile
            found = os.statvfs(data)
            used = (found.f_blocks - found.f_bfree) * found.f_frsize
            with contextlib.suppress(subprocess.CalledProcessError):
                remount(data, used)
                self._full.add(number)
                return True
        return False

    def empty_disks(self) -> None:
        """Give all disks room again."""
        self._full.clear()
        if self.has_disks:
            for node in self.nodes.values():
                remount(node.data, DISK_BYTES)

    def lose_unsynced(self, number: int, dice: Random) -> int:
        """What a power loss does to the logs of a node that was killed; bytes thrown away.

        The tail after what was synced is lost, or a part of it; a page within the rest may have
        been written by nobody. The boot id of the node's last run becomes another one.
        """
        node, lost = self.nodes[number], 0
        sizes = synced_sizes(node.journal)
        for path in sorted(node.data.glob("streams/*/*/*.log")):
            found = path.stat()
            synced = min(sizes.get(found.st_ino, 0), found.st_size)
            if synced == found.st_size:
                continue
            kept = dice.choice([synced, dice.randint(synced, found.st_size)])
            lost += found.st_size - kept
            with path.open("r+b") as file:
                file.truncate(kept)
                first = -(-synced // PAGE_BYTES) * PAGE_BYTES
                if first < kept and dice.random() < 0.5:
                    page = dice.randrange(first, kept, PAGE_BYTES)
                    file.seek(page)
                    file.write(bytes(min(PAGE_BYTES, kept - page)))
        run = node.data / "last-run.json"
        if run.exists():
            run.write_text(json.dumps({**json.loads(run.read_text()), "boot_id": "another"}))
        return lost

    # -- what the nodes say ---------------------------------------------------------------------

    def call(
        self, method: str, path: str, body: object = None, *, at: int = 0, seconds: float = 25.0
    ) -> Any:
        """Ask a node, or the first that answers. Raises: OSError, ValueError."""
        numbers = [at] if at else [number for number in self.nodes if self.is_up(number)]
        error: Exception = ConnectionError("no node runs")
        for number in numbers:
            url = f"http://127.0.0.1:{self.nodes[number].ports[1]}{path}"
            try:
                return http_calls.call(url, method, body, seconds=seconds)
            except (OSError, ValueError) as caught:
                error = caught
                if getattr(caught, "code", 0):
                    break
        raise error

    def wait(self, what: str, look: Callable[[], object], seconds: float) -> bool:
        """Whether `look` became true within the time; it may raise OSError and ValueError."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            with contextlib.suppress(OSError, ValueError, KeyError):
                if look():
                    return True
            time.sleep(0.1)
        self.note(f"not within {seconds:.0f} s: {what}")
        return False

    def is_in_sync(self) -> bool:
        """Whether all nodes are alive and all replicas in sync. Raises: OSError, ValueError."""
        found = self.call("GET", "/v1/cluster", seconds=3)
        return not found["under_replicated"] and all(each["alive"] for each in found["nodes"])

    def is_back(self, number: int) -> bool:
        """Whether a node that was started again serves, and all are in sync. Until it serves, the
        others may not have noticed that it was away. Raises: OSError, ValueError."""
        return self.nodes[number].is_ready and self.is_in_sync()

    def servers(self) -> list[str]:
        """The HTTP addresses of the nodes that found the cluster."""
        return [f"http://127.0.0.1:{self._ports[n][1]}" for n in range(1, COUNT + 1)]

    def clients(self) -> str:
        """The bootstrap servers of a Kafka client."""
        return ",".join(f"127.0.0.1:{self._ports[n][0]}" for n in range(1, COUNT + 1))


def can_mount() -> bool:
    """Whether this process may mount a tmpfs, so that nobody else sees it."""
    return os.environ.get("TORTURE_NAMESPACE") == "1"


def mount(place: Path, size: int) -> None:
    command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "none", str(place)]
    subprocess.run(command, check=True)


def remount(place: Path, size: int) -> None:
    command = ["mount", "-o", f"remount,size={size}", str(place)]
    subprocess.run(command, check=True, capture_output=True)


def unmount(place: Path) -> None:
    subprocess.run(["umount", "-l", str(place)], check=True)
