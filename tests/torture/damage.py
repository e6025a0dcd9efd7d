"""Bits that are flipped in a minority of replicas, and how they heal.

At most one replica of a partition is damaged at a time, and only while all are in sync. A replica
that has not healed by itself in `HEAL_SECONDS` is repaired, as an operator would do it: its node is
restarted if it has not noticed, and `repair` with `accept_loss` copies the log again.
"""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Final

from bascule.errors import BasculeError
from bascule.host.real import RealFiles
from bascule.storage.scan import scan_batches
from support import http_calls
from torture.machines import Machines
from torture.messages import STREAMS
from torture.synced_journal import synced_sizes

HEAL_SECONDS: Final = 6.0
LOOK_SECONDS: Final = 0.5


@dataclass
class DamagedReplica:
    """One replica with a flipped bit."""

    node: int
    stream: str
    partition: int
    path: Path
    position: int
    inode: int
    byte: int
    """Before the flip."""
    since: float = field(default_factory=time.monotonic)
    is_repaired: bool = False

    def __str__(self) -> str:
        return f"{self.stream} {self.partition} on node {self.node}"


def damage_of(directory: Path) -> str | None:
    """The first damage of a log's segments, read as the node reads them; None: there is none.

    A batch that is incomplete at the end of the last segment may be one that is being written.
    """
    paths = sorted(directory.glob("*.log"))
    for path in paths:
        try:
            file = RealFiles().open(str(path), write=False)
            size = file.size()
            try:
                for _ in scan_batches(file, start=0, end=size):
                    pass
            except BasculeError as damage:
                is_tail = path == paths[-1] and path.stat().st_size > size
                if not is_tail:
                    return str(damage)
        except FileNotFoundError:
            continue  # removed by compaction
    return None


class Damage:
    """All damaged replicas of a run."""

    def __init__(self, machines: Machines) -> None:
        self._machines = machines
        self.damaged: list[DamagedReplica] = []
        self.flips = 0
        self.healed = 0
        """By themselves."""
        self.noticed_by_restart = 0
        self.repaired = 0
        self.findings: list[str] = []

    def flip(self, node: int, dice: Random) -> str:
        """Flip one bit of what a node has synced; says which, or why none."""
        candidates = [
            path
            for path in sorted(self._machines.nodes[node].data.glob("streams/*/*/*.log"))
            if self._may_flip(node, path.parts[-3], int(path.parts[-2]))
        ]
        sizes = synced_sizes(self._machines.nodes[node].journal)
        for path in dice.sample(candidates, len(candidates)):
            with contextlib.suppress(OSError):
                found = path.stat()
                size = min(sizes.get(found.st_ino, 0), found.st_size)
                if size > 0:
                    return self._flip_in(node, path, dice.randrange(size), 1 << dice.randrange(8))
        return "no replica of it may be damaged"

    def _may_flip(self, node: int, stream: str, partition: int) -> bool:
        if stream not in {each.name for each in STREAMS}:
            return False
        if any((each.stream, each.partition) == (stream, partition) for each in self.damaged):
            return False
        try:
            found = self._machines.call("GET", f"/v1/streams/{stream}", seconds=3)["partitions"]
        except (OSError, ValueError):
            return False
        state = found[partition]
        return (
            node in state["replicas"]
            and set(state["isr"]) == set(state["replicas"])
            and not state["target"]
        )

    def _flip_in(self, node: int, path: Path, position: int, mask: int) -> str:
        with path.open("r+b", buffering=0) as file:
            file.seek(position)
            byte = file.read(1)[0]
            file.seek(position)
            file.write(bytes([byte ^ mask]))
            inode = path.stat().st_ino
        stream, partition = path.parts[-3], int(path.parts[-2])
        self.flips += 1
        self.damaged.append(DamagedReplica(node, stream, partition, path, position, inode, byte))
        return f"byte {position} of {stream}/{partition}/{path.name}: {byte:#04x} ^ {mask:#04x}"

    def settle(self, deadline: float) -> None:
        """Return once no replica is damaged; all nodes run. What is not healed is a finding."""
        restarted: set[int] = set()
        while self.damaged and time.monotonic() < deadline:
            for each in list(self.damaged):
                if self._is_whole(each):
                    self.damaged.remove(each)
                    self.healed += not each.is_repaired
                    self._machines.note(f"whole again: {each}")
            failed = set(self._failed())
            for each in self.damaged:
                is_known = (each.stream, each.partition, each.node) in failed
                if time.monotonic() - each.since < HEAL_SECONDS:
                    continue
                if is_known:
                    self._repair(each)
                elif id(each) not in restarted:
                    restarted.add(id(each))
                    self._restart(each)
            time.sleep(LOOK_SECONDS)
        for each in self.damaged:
            self.findings.append(f"{each}: still damaged, {damage_of(each.path.parent)}")
        self.damaged.clear()

    def _is_whole(self, each: DamagedReplica) -> bool:
        with contextlib.suppress(OSError):
            if each.path.stat().st_ino == each.inode:
                with each.path.open("rb") as file:
                    file.seek(each.position)
                    if file.read(1) not in (bytes([each.byte]), b""):
                        return False
        if damage_of(each.path.parent) is not None:
            return False
        with contextlib.suppress(OSError, ValueError):
            states = self._machines.call("GET", f"/v1/streams/{each.stream}")["partitions"]
            state = states[each.partition]
            return set(state["isr"]) == set(state["replicas"])
        return False

    def _failed(self) -> Iterator[tuple[str, int, int]]:
        with contextlib.suppress(OSError, ValueError):
            for each in self._machines.call("GET", "/v1/cluster")["failed"]:
                yield each["stream"], each["partition"], each["node"]

    def _repair(self, each: DamagedReplica) -> None:
        """Only where another replica has everything: nothing is to be lost."""
        try:
            state = self._machines.call("GET", f"/v1/streams/{each.stream}")["partitions"][
                each.partition
            ]
            if each.node in state["isr"] or not state["isr"]:
                return
            body = {"partition": each.partition, "accept_loss": True}
            self._machines.call("POST", f"/v1/streams/{each.stream}/repair", body, seconds=60)
        except (OSError, ValueError) as error:
            self._machines.note(f"repair of {each}: {http_calls.told(error)}")
            return
        self.repaired += 1
        each.is_repaired = True
        each.since = time.monotonic()
        self._machines.note(f"repaired {each}")

    def _restart(self, each: DamagedReplica) -> None:
        """A node reads all of its logs when it starts."""
        self.noticed_by_restart += 1
        self._machines.note(f"restart node {each.node}: it has not noticed the damage of {each}")
        self._machines.end(each.node, signal.SIGTERM)
        self._machines.begin(each.node)
