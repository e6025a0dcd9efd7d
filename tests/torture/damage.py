"""Bits that are flipped, and logs that are cut, in a minority of replicas, and how they heal.

At most one replica of a partition is damaged at a time, and only while all are in sync. Damage that
nobody reads is not noticed, so the run has the scrubbers read the stream after `UNREAD_SECONDS`, as
they would do once a week. The replica is to heal by itself then. It is repaired, as an operator
would do it, only where its node says that it heals no more: after three times in 24 h.
"""

from __future__ import annotations

import contextlib
import os
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
from support.page_cache import drop_from_page_cache
from torture.machines import Machines
from torture.messages import STREAMS
from torture.synced_journal import synced_sizes

UNREAD_SECONDS: Final = 2.0
"""Between damage and the first scrub."""
SCRUB_SECONDS: Final = 8.0
"""Between two scrubs of a stream whose damage was not found or not healed yet."""
LOOK_SECONDS: Final = 0.5
HEALS_NO_MORE: Final = "not healed: "
"""In what a node says of a failed replica, before the reason."""
TAIL_BYTES: Final = 16 << 10
"""Half of the cuts are so near to the end of what was synced."""


@dataclass
class DamagedReplica:
    """One replica with a flipped bit, or a log that was cut."""

    node: int
    stream: str
    partition: int
    path: Path
    position: int
    inode: int
    byte: int | None
    """Before the flip; None: the file was cut at `position`."""
    since: float = field(default_factory=time.monotonic)
    scrub_at: float = 0.0
    scrubs: int = 0
    is_repaired: bool = False

    def __post_init__(self) -> None:
        self.scrub_at = self.since + UNREAD_SECONDS

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
        self.cuts = 0
        self.healed = 0
        """By themselves, with those that only a scrub has found."""
        self.healed_by_scrub = 0
        self.repaired = 0
        self.findings: list[str] = []

    def flip(self, node: int, dice: Random) -> str:
        """Flip one bit of what a node has synced; says which, or why none."""
        candidates = self._candidates(node)
        sizes = synced_sizes(self._machines.nodes[node].journal)
        for path in dice.sample(candidates, len(candidates)):
            with contextlib.suppress(OSError):
                found = path.stat()
                size = min(sizes.get(found.st_ino, 0), found.st_size)
                if size > 0:
                    return self._flip_in(node, path, dice.randrange(size), 1 << dice.randrange(8))
        return "no replica of it may be damaged"

    def choose(self, node: int, dice: Random) -> Path | None:
        """A file of a log of a node that may be damaged."""
        candidates = self._candidates(node)
        return dice.choice(candidates) if candidates else None

    def truncate(self, node: int, path: Path, dice: Random) -> str:
        """Cut a file of a log of a node that has ended, within what was synced; says where."""
        stream, partition = path.parts[-3], int(path.parts[-2])
        if self._is_damaged(stream, partition):
            return "another replica was damaged meanwhile"
        try:
            found = path.stat()
        except FileNotFoundError:
            return f"{path.name} was removed meanwhile"
        synced = synced_sizes(self._machines.nodes[node].journal).get(found.st_ino, 0)
        size = min(synced, found.st_size)
        if size == 0:
            return f"nothing of {path.name} is synced"
        first = dice.choice([0, max(0, size - TAIL_BYTES)])
        position = dice.randrange(first, size)
        os.truncate(path, position)
        self.cuts += 1
        damaged = DamagedReplica(node, stream, partition, path, position, found.st_ino, None)
        self.damaged.append(damaged)
        return f"{stream}/{partition}/{path.name} cut at byte {position} of {found.st_size}"

    def _candidates(self, node: int) -> list[Path]:
        return [
            path
            for path in sorted(self._machines.nodes[node].data.glob("streams/*/*/*.log"))
            if self._may_damage(node, path.parts[-3], int(path.parts[-2]))
        ]

    def _is_damaged(self, stream: str, partition: int) -> bool:
        return any((each.stream, each.partition) == (stream, partition) for each in self.damaged)

    def _may_damage(self, node: int, stream: str, partition: int) -> bool:
        if stream not in {each.name for each in STREAMS}:
            return False
        if self._is_damaged(stream, partition):
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
            inode = os.fstat(file.fileno()).st_ino
            # The disk has done it, so the node gets it from there.
            drop_from_page_cache(file.fileno())
        stream, partition = path.parts[-3], int(path.parts[-2])
        self.flips += 1
        self.damaged.append(DamagedReplica(node, stream, partition, path, position, inode, byte))
        return f"byte {position} of {stream}/{partition}/{path.name}: {byte:#04x} ^ {mask:#04x}"

    def settle(self, deadline: float) -> None:
        """Return once no replica is damaged; all nodes run. What is not healed is a finding."""
        while self.damaged and time.monotonic() < deadline:
            for each in list(self.damaged):
                if self._is_whole(each):
                    self.damaged.remove(each)
                    self.healed += not each.is_repaired
                    self.healed_by_scrub += bool(each.scrubs) and not each.is_repaired
                    self._machines.note(f"whole again: {each}, {each.scrubs} scrubs")
            failed = dict(self._failed())
            for each in self.damaged:
                failure = failed.get((each.stream, each.partition, each.node))
                if failure is not None and HEALS_NO_MORE in failure:
                    self._repair(each)
                elif (
                    failure is None and time.monotonic() > each.scrub_at and self._is_on_disk(each)
                ):
                    self._scrub(each)
            time.sleep(LOOK_SECONDS)
        for each in self.damaged:
            self.findings.append(f"{each}: still damaged, {damage_of(each.path.parent)}")
        self.damaged.clear()

    def _is_on_disk(self, each: DamagedReplica) -> bool:
        """Whether the files of a replica still have damage."""
        with contextlib.suppress(OSError):
            if each.byte is not None and each.path.stat().st_ino == each.inode:
                with each.path.open("rb") as file:
                    file.seek(each.position)
                    if file.read(1) not in (bytes([each.byte]), b""):
                        return True
        return damage_of(each.path.parent) is not None

    def _is_whole(self, each: DamagedReplica) -> bool:
        if self._is_on_disk(each):
            return False
        with contextlib.suppress(OSError, ValueError):
            states = self._machines.call("GET", f"/v1/streams/{each.stream}")["partitions"]
            state = states[each.partition]
            return set(state["isr"]) == set(state["replicas"])
        return False

    def _failed(self) -> Iterator[tuple[tuple[str, int, int], str]]:
        with contextlib.suppress(OSError, ValueError):
            for each in self._machines.call("GET", "/v1/cluster")["failed"]:
                yield (each["stream"], each["partition"], each["node"]), each["failure"]

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

    def _scrub(self, each: DamagedReplica) -> None:
        """Have the partition read on all of its nodes, as their scrubbers do once a period."""
        each.scrub_at = time.monotonic() + SCRUB_SECONDS
        each.scrubs += 1
        self._machines.note(f"scrub {each}: its damage was not noticed")
        with contextlib.suppress(OSError, ValueError):
            body = {"partition": each.partition}
            self._machines.call("POST", f"/v1/streams/{each.stream}/scrub", body)
