"""Starts members of a consumer group as processes, and follows what they own and read."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from support import http_calls
from support.processes import WAIT_SECONDS_MAX, Node, note_started, wait_for

SESSION_MS_MIN = 6_000
SESSION_MS_LONG = 60_000
"""For tests in which nobody may be taken for dead, however loaded the machine is."""
WAIT_SECONDS_OF_MEMBERS = 300.0
"""A member that gets no time of a core for a session is taken for dead, and joins again: a loaded
machine needs several rounds until all share."""
PROGRAM = Path(__file__).with_name("group_member.py")


def command_of(
    client: str, address: str, group: str, topic: str, instance: str | None
) -> Sequence[str | Path]:
    """The command of a member with a client for Python."""
    more = [instance] if instance else []
    return [sys.executable, PROGRAM, client, address, group, topic, *more]


def read_line(line: str) -> list[dict[str, Any]]:
    """What a line says: {"owned": [partition, ...]}, {"added": [...]} or {"removed": [...]}, or
    {"at": [partition, offset]}."""
    return [json.loads(line)]


@dataclass(frozen=True)
class MemberProgram:
    """A program that is a member of a group."""

    command: Callable[[str, str, str, str, str | None], Sequence[str | Path]] = command_of
    read_line: Callable[[str], list[dict[str, Any]]] = read_line


PYTHON = MemberProgram()


@dataclass
class GroupMember:
    """One process that has subscribed."""

    process: subprocess.Popen[bytes]
    output: Path
    program: MemberProgram

    def lines(self) -> list[dict[str, Any]]:
        text = self.output.read_text()
        whole = text[: text.rfind("\n") + 1].splitlines()
        lines, owned = [], set[int]()
        for said in (said for line in whole for said in self.program.read_line(line)):
            if "at" not in said:
                owned = (set(said.get("owned", owned)) | set(said.get("added", ()))) - set(
                    said.get("removed", ())
                )
                said = {**said, "owned": sorted(owned)}
            lines.append(said)
        return lines

    def owned(self) -> list[int]:
        """The partitions of its last assignment."""
        return next((line["owned"] for line in reversed(self.lines()) if "owned" in line), [])

    def assignments(self) -> int:
        """How often partitions were assigned or revoked."""
        return sum("owned" in line for line in self.lines())

    def read(self) -> list[tuple[int, int]]:
        """Partition and offset of each record, in the order in which they were read."""
        return [tuple(line["at"]) for line in self.lines() if "at" in line]

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(WAIT_SECONDS_MAX)

    def stop(self) -> None:
        """Let it commit and leave."""
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(WAIT_SECONDS_MAX)


@dataclass
class GroupMembers:
    """The members of one group, over a node whose log is shown where a wait fails."""

    directory: Path
    node: Node
    address: str
    group: str
    topic: str
    partitions: int
    session_ms: int = SESSION_MS_MIN
    members: list[GroupMember] = field(default_factory=list)

    def add(
        self, client: str, instance: str | None = None, *, program: MemberProgram = PYTHON
    ) -> GroupMember:
        output = self.directory / f"{self.group}-{len(self.members)}.jsonl"
        with output.open("wb") as file, output.with_suffix(".err").open("wb") as errors:
            process = subprocess.Popen(
                program.command(client, self.address, self.group, self.topic, instance),
                stdout=file,
                stderr=errors,
                env={
                    **os.environ,
                    "SESSION_MS": str(self.session_ms),
                    "BASCULE_SERVER": self.node.addresses["http"],
                },
            )
        note_started(process, None)
        member = GroupMember(process, output, program)
        self.members.append(member)
        return member

    def alive(self) -> list[GroupMember]:
        return [each for each in self.members if each.process.poll() is None]

    def share(self) -> list[list[int]] | None:
        """What the living members own, if all partitions are owned once and nobody owns none."""
        owned = [each.owned() for each in self.alive()]
        whole = sorted(p for each in owned for p in each) == list(range(self.partitions))
        return owned if whole and all(owned) else None

    def wait_shared(self, count: int | None = None) -> list[list[int]]:
        """Return once the living members share the partitions, `count` of them, or some.

        On a slow machine a member may lose its place for a moment.
        """

        def look() -> list[list[int]] | None:
            found = self.share()
            return found if found is not None and count in (None, len(found)) else None

        return self.wait(look)

    def wait_settled(self, *nodes: Node) -> list[list[int]]:
        """Return once the living members share the partitions, and nothing will move any more.

        In a group of the consumer protocol partitions move one by one. `nodes` are those that may
        coordinate the group, by default its only one.
        """

        def look() -> list[list[int]] | None:
            texts = [http_calls.get(n.addresses["http"] + "/metrics") for n in nodes or [self.node]]
            is_stable = any('bascule_groups{state="Stable"} 1' in text for text in texts)
            return self.share() if is_stable else None

        return self.wait(look)

    def read(self) -> set[tuple[int, int]]:
        """What all members have read, the dead ones included."""
        return {at for each in self.members for at in each.read()}

    def check_order(self) -> None:
        """Each member has read every partition that it owned without a gap, in order."""
        for number, each in enumerate(self.members):
            last: dict[int, int] = {}
            for line in each.lines():
                if "owned" in line:
                    last = {p: last[p] for p in line["owned"] if p in last}
                elif "at" in line:
                    partition, offset = line["at"]
                    expected = last.get(partition, offset - 1) + 1
                    assert offset == expected, (number, partition, offset, expected)
                    last[partition] = offset

    def wait(self, look: Callable[[], Any]) -> Any:
        try:
            return wait_for(look, self.node.process, self.node.log, WAIT_SECONDS_OF_MEMBERS)
        except AssertionError as error:
            said = [each.output.read_text()[-500:] for each in self.members]
            wrong = [each.output.with_suffix(".err").read_text()[-2000:] for each in self.members]
            raise AssertionError(f"members: {said} {wrong}") from error


@contextlib.contextmanager
def group_members(
    directory: Path,
    node: Node,
    group: str,
    topic: str,
    partitions: int,
    *,
    address: str = "",
    session_ms: int = SESSION_MS_MIN,
) -> Iterator[GroupMembers]:
    """Members of a group, all ended when the block ends."""
    members = GroupMembers(
        directory, node, address or node.addresses["client"], group, topic, partitions, session_ms
    )
    try:
        yield members
    finally:
        for each in members.members:
            if each.process.poll() is None:
                each.kill()
