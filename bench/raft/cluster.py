"""A group of three member processes, and what they use while one of them is under load."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from bench.harness import Running, free_ports

MEMBERS: Final = 3
SYNC_CALLS: Final = ("fsync", "fdatasync", "msync")


@dataclass
class Member(Running):
    """A process that obeys the lines of `bench.raft`."""

    errors: Path = Path(os.devnull)

    def stop(self) -> None:
        """Let it end by itself, as a member does that hears no more."""
        self.process.stdin.close()  # type: ignore[union-attr]
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(10)
        super().stop()

    def tell(self, line: str) -> None:
        self.process.stdin.write(line.encode() + b"\n")  # type: ignore[union-attr]
        self.process.stdin.flush()  # type: ignore[union-attr]

    def hear(self) -> dict[str, Any]:
        line = self.process.stdout.readline()  # type: ignore[union-attr]
        if not line:
            said = self.errors.read_text()[-2000:]
            raise RuntimeError(f"a member ended with {self.process.wait(10)}: {said}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def ask(self, line: str) -> dict[str, Any]:
        self.tell(line)
        return self.hear()


class SyncCounter:
    """Counts a process's calls that sync, from outside, by `perf stat`; without perf: nothing."""

    def __init__(self, pid: int, file: Path) -> None:
        self._file = file
        self._perf = None
        if shutil.which("perf"):
            events = ",".join(f"syscalls:sys_enter_{call}" for call in SYNC_CALLS)
            self._perf = subprocess.Popen(
                ["perf", "stat", "-x", ",", "-o", str(file), "-e", events, "-p", str(pid)]
            )

    def stop(self) -> int | None:
        if self._perf is None:
            return None
        self._perf.send_signal(signal.SIGINT)
        self._perf.wait(30)
        counts = [
            line.split(",")[0]
            for line in self._file.read_text().splitlines()
            if "sys_enter" in line
        ]
        if not counts or not all(count.isdigit() for count in counts):
            return None  # The kernel does not let us count.
        return sum(map(int, counts))


class Cluster:
    """A running group. Figures by node stand with the leader's first."""

    def __init__(self, name: str, members: Sequence[Member], directory: Path) -> None:
        self.name = name
        self.members = list(members)
        self._directory = directory

    def led(self, seconds: float = 60) -> list[Member]:
        """The members, the leader first, once there is one."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            leads = [member.ask("leader")["leader"] for member in self.members]
            if sum(leads) == 1:
                at = leads.index(True)
                return [self.members[at], *self.members[:at], *self.members[at + 1 :]]
            time.sleep(0.1)
        raise TimeoutError(f"{self.name} has no leader after {seconds} s")

    def load(self, in_flight: int, seconds: float, size: int) -> dict[str, Any]:
        """Load the leader, and say with its figures what each process used of cores and disk."""
        members = self.led()
        counters = [
            SyncCounter(member.process.pid, self._directory / f"perf-{at}")
            for at, member in enumerate(members)
        ]
        time.sleep(0.5)  # Until perf is attached; nobody syncs while nothing is proposed.
        own = [member.ask("statistics").get("syncs") for member in members]
        cpu = [member.cpu_seconds() for member in members]
        result = members[0].ask(f"load {in_flight} {seconds} {size}")
        time.sleep(0.3)  # The followers learn of the last commit.
        cpu = [member.cpu_seconds() - before for member, before in zip(members, cpu, strict=True)]
        own = [
            None if before is None else member.ask("statistics")["syncs"] - before
            for member, before in zip(members, own, strict=True)
        ]
        result["rate"] = round(result["committed"] / result["seconds"], 1)
        result["cpu_seconds"] = [round(value, 2) for value in cpu]
        result["syncs"] = [counter.stop() for counter in counters]
        result["syncs_own"] = own
        return result


@contextlib.contextmanager
def cluster(
    name: str, command: Sequence[str], directory: Path, environment: dict[str, str]
) -> Iterator[Cluster]:
    """Members of `command`, each told its number, all ports and a directory of its own."""
    ports = ",".join(map(str, free_ports(MEMBERS)))
    members: list[Member] = []
    with contextlib.ExitStack() as stack:
        for number in range(MEMBERS):
            folder = directory / f"{name}-{number}"
            folder.mkdir(parents=True)
            errors = folder / "errors.log"
            output = stack.enter_context(errors.open("wb"))
            process = subprocess.Popen(
                [*command, str(number), ports, str(folder)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=output,
                env={**os.environ, **environment},
            )
            members.append(Member(process, errors=errors))
            stack.callback(members[-1].stop)
        yield Cluster(name, members, directory)
