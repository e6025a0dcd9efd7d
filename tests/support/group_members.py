"""Starts members of a consumer group as processes, and follows what they own and read."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from support.processes import WAIT_SECONDS_MAX, Node, note_started, wait_for

SESSION_MS_MIN = 6_000
SESSION_MS_LONG = 60_000
"""For tests in which nobody may be taken for dead, however loaded the machine is."""
PROGRAM = Path(__file__).with_name("group_member.py")


@dataclass
class GroupMember:
    """One process that has subscribed."""

    process: subprocess.Popen[bytes]
    output: Path

    def lines(self) -> list[dict[str, Any]]:
        text = self.output.read_text()
        return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]

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

    def add(self, client: str, instance: str | None = None) -> GroupMember:
        output = self.directory / f"{self.group}-{len(self.members)}.jsonl"
        with output.open("wb") as file, output.with_suffix(".err").open("wb") as errors:
            process = subprocess.Popen(
                [
                    sys.executable, str(PROGRAM), client, self.address, self.group, self.topic,
                    *([instance] if instance else []),
                ],
                stdout=file,
                stderr=errors,
                env={**os.environ, "SESSION_MS": str(self.session_ms)},
            )  # fmt: skip
        note_started(process, None)
        member = GroupMember(process, output)
        self.members.append(member)
        return member

    def alive(self) -> list[GroupMember]:
        return [each for each in self.members if each.process.poll() is None]

    def share(self) -> list[list[int]] | None:
        """What the living members own, if all partitions are owned once and nobody owns none."""
        owned = [each.owned() for each in self.alive()]
        whole = sorted(p for each in owned for p in each) == list(range(self.partitions))
        return owned if whole and all(owned) else None

    def wait_shared(self) -> list[list[int]]:
        """Return once the living members share the partitions."""
        return self.wait(self.share)

    def read(self) -> set[tuple[int, int]]:
        """What all members have read, the dead ones included."""
        return {at for each in self.members for at in each.read()}

    def wait(self, look: Callable[[], Any]) -> Any:
        try:
            return wait_for(look, self.node.process, self.node.log)
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
