"""One run: load, rounds of faults, and at the end every check."""

from __future__ import annotations

import asyncio
import contextlib
import json
import shutil
import signal
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np

from support import http_calls
from torture.checks import Evidence, Place, check, read_replicas
from torture.damage import Damage
from torture.faults import Faults
from torture.machines import COUNT, SPARE, Machines, can_mount
from torture.messages import STREAMS, read_acks
from torture.plan import VERSIONS, Round, plan
from torture.report import Acked, Happened, happened, rows_of
from torture.versions import begin_with_earlier, upgrade_all
from torture.watch import Watch, unexpected_lines

SYNC_SECONDS: Final = 60.0
"""Beyond this the cluster is not in sync again: reported as slow."""
SYNC_SECONDS_MAX: Final = 240.0
"""Beyond this: a finding, and the end of the run."""
CALM_SECONDS: Final = 2.0
"""Between two rounds."""
END_SECONDS_MAX: Final = 240.0
"""For the publishers to get all acks, and for the consumers to read everything."""
PARTITIONS_MAX: Final = 100
LINE_BYTES_MAX: Final = 1 << 20
ABORT_SECONDS_MAX: Final = 10.0
"""For a process to say where its threads are, once it is asked by a signal."""
SILENCE_SECONDS_MAX: Final = 60.0
"""Of a process that says how far it is each half second."""
THREADS_BYTES_MAX: Final = 8 << 10


@dataclass
class Settings:
    """What a run is to be."""

    directory: Path
    seed: int
    seconds: float
    kinds: Sequence[str]
    rate: float
    rounds: int | None = None
    """This many, however long they take; None: as many as fit into `seconds`, at least one."""


@dataclass
class Progress:
    """How far a run is, for who watches it."""

    seconds: float = 0.0
    acked: int = 0
    acks_per_second: float = 0.0
    oldest_s: float = 0.0
    faults: int = 0
    rounds: int = 0
    findings: int = 0
    now: str = "starting"


@dataclass
class Outcome:
    """What a run has found, and what its report is made of."""

    result: dict[str, Any]
    faults: list[Happened]
    acked: Acked


class LoadProcess:
    """A process of the run that says how far it is, a line of JSON at a time."""

    def __init__(self, module: str, settings: dict[str, Any], log: Path) -> None:
        self._module, self._settings, self._log = module, settings, log
        self._process: asyncio.subprocess.Process | None = None
        self._reading: asyncio.Task[None] | None = None
        self.state: dict[str, Any] = {}
        self._said_at = 0.0

    async def start(self) -> None:
        with self._log.open("ab") as errors:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable, "-X", "faulthandler", "-m", self._module,
                json.dumps(self._settings),
                stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=errors,
                cwd=Path(__file__).parents[1], limit=LINE_BYTES_MAX,
            )  # fmt: skip
        self._said_at = time.monotonic()
        self._reading = asyncio.create_task(self._read())

    async def _read(self) -> None:
        assert self._process is not None
        assert self._process.stdout is not None
        while line := await self._process.stdout.readline():
            with contextlib.suppress(ValueError):
                self.state = json.loads(line)
            self._said_at = time.monotonic()

    def use(self, **settings: Any) -> None:
        """Change settings before it starts."""
        self._settings.update(settings)

    @property
    def has_ended(self) -> bool:
        return self._process is not None and self._process.returncode is not None

    @property
    def silence_s(self) -> float:
        """Since it has last said how far it is."""
        return time.monotonic() - self._said_at

    async def finish(self, line: str, seconds: float) -> str | None:
        """Ask it to end, and wait for that; what is wrong."""
        assert self._process is not None
        assert self._process.stdin is not None
        if not self.has_ended:
            with contextlib.suppress(OSError):
                self._process.stdin.write(line.encode() + b"\n")
                await self._process.stdin.drain()
        try:
            code = await asyncio.wait_for(self._process.wait(), seconds)
        except TimeoutError:
            threads = await self.abort()
            return f"{self._module} did not end within {seconds:.0f} s: {self.state}; {threads}"
        if self._reading is not None:
            await self._reading
        return f"{self._module} ended with {code}, see {self._log}" if code else None

    async def abort(self) -> str:
        """Kill it; where its threads were."""
        assert self._process is not None
        begin = self._log.stat().st_size
        self._process.send_signal(signal.SIGABRT)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._process.wait(), ABORT_SECONDS_MAX)
        with self._log.open("rb") as log:
            log.seek(begin)
            return log.read(THREADS_BYTES_MAX).decode(errors="replace")

    async def kill(self) -> None:
        if self._process is not None and self._process.returncode is None:
            self._process.kill()
            await self._process.wait()
        if self._reading is not None:
            await self._reading


@dataclass
class Run:
    """One run. `progress` changes while it runs."""

    settings: Settings
    say: Callable[[str], None] = print
    progress: Progress = field(default_factory=Progress)

    def __post_init__(self) -> None:
        self._begin = time.monotonic()
        self._log = (self.settings.directory / "torture.log").open("a")
        self._findings: list[str] = []
        self._slow: list[float] = []
        self._rounds = 0
        self._machines = Machines(self.settings.directory, can_mount(), self._note)
        self._damage = Damage(self._machines)
        self._watch = Watch(self._machines)
        self._faults = Faults(
            self._machines, self._damage, self.settings.directory / "events.jsonl"
        )
        place = self.settings.directory
        self._publishers = LoadProcess(
            "torture.publishers",
            {
                "nats": "",
                "rate": self.settings.rate,
                "acks": str(place / "acks.bin"),
                "streams": [stream.name for stream in STREAMS],
            },
            place / "publishers.log",
        )
        self._readers = LoadProcess(
            "torture.readers",
            {
                "servers": self._machines.clients(),
                "racks": ["r2", "r4"],
                "seed": self.settings.seed,
                "reads": str(place / "reads.npz"),
                "streams": [stream.name for stream in STREAMS],
            },
            place / "readers.log",
        )
        self._tables = LoadProcess(
            "torture.tables",
            {"servers": self._machines.servers(), "seed": self.settings.seed},
            place / "tables.log",
        )
        self._children = [self._publishers, self._readers]
        if VERSIONS not in self.settings.kinds:  # the earlier release may not have all of it
            self._children.append(self._tables)

    def _note(self, text: str) -> None:
        line = f"{time.monotonic() - self._begin:8.2f} {text}"
        self._log.write(line + "\n")
        self._log.flush()
        self.say(line)

    def _find(self, text: str) -> None:
        self._note(f"FINDING {text}")
        self._findings.append(text)
        self.progress.findings = len(self._findings)

    async def run(self) -> Outcome:
        watching = None
        try:
            if VERSIONS in self.settings.kinds:
                earlier = self.settings.directory / "earlier"
                await asyncio.to_thread(begin_with_earlier, self._machines, earlier)
            await asyncio.to_thread(self._machines.start)
            self._begin = self._faults.begin = time.monotonic()
            self._publishers.use(nats=self._machines.nats.url)
            for child in self._children:
                await child.start()
            watching = asyncio.create_task(self._look())
            await self._recover()
            await self._rounds_until(self._begin + self.settings.seconds)
            await self._finish()
            return await asyncio.to_thread(self._outcome)
        finally:
            self._faults.healing = True
            if watching is not None:
                watching.cancel()
            for child in self._children:
                await child.kill()
            await asyncio.to_thread(self._machines.close)
            self._faults.close()
            self._log.close()

    async def _rounds_until(self, deadline: float) -> None:
        for each in plan(self.settings.seed, self.settings.kinds):
            is_late = time.monotonic() + each.seconds > deadline and each.number > 0
            if self.settings.rounds is not None:
                is_late = each.number >= self.settings.rounds
            if is_late or self._is_hopeless():
                break
            await self._round(each)
            self._rounds = self.progress.rounds = each.number + 1
            await self._recover()

    def _is_hopeless(self) -> bool:
        return any("not in sync" in finding for finding in self._findings)

    async def _round(self, planned: Round) -> None:
        kinds = " ".join(fault.kind for fault in planned.faults)
        self._note(f"round {planned.number}: {kinds}")
        self.progress.now = kinds
        self._faults.healing = False
        begin, tasks = time.monotonic(), []
        for fault in planned.faults:
            await asyncio.sleep(max(0.0, begin + fault.after_s - time.monotonic()))
            tasks.append(asyncio.create_task(self._faults.carry_out(fault, planned.number)))
            self.progress.faults += 1
        await asyncio.sleep(max(0.0, begin + planned.seconds - time.monotonic()))
        self._faults.healing = True
        await asyncio.gather(*tasks)

    async def _recover(self) -> None:
        """Heal everything, and wait until everything is in sync and takes messages."""
        self.progress.now = "recovering"
        begin = time.monotonic()
        await asyncio.to_thread(self._heal)
        problems = ["not looked at"]
        settled = False
        while problems:
            await asyncio.sleep(0.2)
            self._machines.check_ended()
            await self._check_children()
            problems = await asyncio.to_thread(self._problems)
            took = time.monotonic() - begin
            if not settled and (not problems or took > 5):
                settled = True
                deadline = time.monotonic() + SYNC_SECONDS_MAX
                await asyncio.to_thread(self._damage.settle, deadline)
                problems = problems or ["damage was looked at"]
            if took > SYNC_SECONDS_MAX:
                self._find(f"not in sync after {took:.0f} s: {problems[:5]}")
                return
        self._note(f"in sync after {time.monotonic() - begin:.1f} s; {self.progress.acked} acks")
        self._faults.write("in sync", seconds=round(time.monotonic() - begin, 2))
        if time.monotonic() - begin > SYNC_SECONDS:
            self._slow.append(round(time.monotonic() - begin, 1))
        for text in (*self._machines.findings, *self._damage.findings):
            self._find(text)
        self._machines.findings.clear()
        self._damage.findings.clear()
        self.progress.now = "calm"
        await asyncio.sleep(CALM_SECONDS)

    def _heal(self) -> None:
        machines = self._machines
        machines.heal_links()
        machines.empty_disks()
        process = machines.nats.process
        if process is None or process.poll() is not None:
            machines.nats.start()
        else:
            process.send_signal(signal.SIGCONT)
        if SPARE in machines.nodes and SPARE in machines.down and not machines.is_up(SPARE):
            machines.leave(SPARE)
        for number in list(machines.nodes):
            machines.begin(number)
            machines.send(number, signal.SIGCONT)
        machines.down.clear()

    def _problems(self) -> list[str]:
        """What the views of the nodes say is not in sync."""
        found: list[str] = []
        controllers = set()
        for number in sorted(self._machines.nodes):
            try:
                view = self._machines.call("GET", "/v1/cluster", at=number, seconds=5)
                streams = self._machines.call("GET", "/v1/streams", at=number, seconds=5)
            except (OSError, ValueError) as error:
                found.append(f"node {number}: {http_calls.told(error)}")
                continue
            controllers.add((view["controller"], view["term"]))
            dead = [each["node_id"] for each in view["nodes"] if not each["alive"]]
            counts = {
                key: view[key]
                for key in ("leaderless_count", "under_replicated_count", "failed_count")
                if view[key]
            }
            if dead or counts:
                found.append(f"node {number}: dead {dead} {counts}")
            moving = [
                f"{stream['name']} {each['partition']}"
                for stream in streams["streams"]
                for each in stream.get("partitions", ())
                if each.get("target")
            ]
            if moving:
                found.append(f"node {number}: moving {moving}")
        if len(controllers) != 1 or (0, 0) in controllers:
            found.append(f"controllers {controllers}")
        if not found and self.progress.oldest_s > 5:
            found.append(f"a message has waited {self.progress.oldest_s:.1f} s for its ack")
        return found

    async def _check_children(self) -> None:
        for child in self._children:
            if child.has_ended:
                raise RuntimeError(f"{child._module} has ended: see {child._log}")
            if child.silence_s > SILENCE_SECONDS_MAX:
                # What comes after it would not be looked at.
                silence = f"{child._module} says nothing for {child.silence_s:.0f} s"
                raise RuntimeError(f"{silence}; {await child.abort()}")

    async def _look(self) -> None:
        """Keep `progress` up to date, and look at the processes."""
        before, at = 0, time.monotonic()
        while True:
            await asyncio.sleep(1.0)
            await asyncio.to_thread(self._watch.look)
            state = self._publishers.state
            now, acked = time.monotonic(), sum(state.get("acked", {}).values())
            self.progress.seconds = now - self._begin
            self.progress.acks_per_second = (acked - before) / (now - at)
            self.progress.acked = acked
            self.progress.oldest_s = state.get("oldest_s", 0.0)
            before, at = acked, now

    # -- the end --------------------------------------------------------------------------------

    async def _finish(self) -> None:
        self.progress.now = "upgrading"
        for text in await asyncio.to_thread(upgrade_all, self._machines):
            self._find(text)
        self.progress.now = "waiting for the last acks"
        if problem := await self._publishers.finish("", END_SECONDS_MAX):
            self._find(problem)
        await asyncio.sleep(1.0)
        self.progress.now = "reading everything once more"
        streams = await asyncio.to_thread(self._machines.call, "GET", "/v1/streams")
        self._layout = {
            (stream["name"], each["partition"]): each
            for stream in streams["streams"]
            for each in stream["partitions"]
        }
        ends = {
            f"{name}/{index}": state["high_watermark"]
            for (name, index), state in self._layout.items()
            if name in {stream.name for stream in STREAMS}
        }
        if problem := await self._readers.finish(json.dumps(ends), 2 * END_SECONDS_MAX):
            self._find(problem)
        for text in self._readers.state.get("findings", ()):
            self._find(f"consumers: {text}")
        if self._tables in self._children:
            self.progress.now = "checking the table"
            if problem := await self._tables.finish("", END_SECONDS_MAX):
                self._find(problem)
            for text in self._tables.state.get("findings", ()):
                self._find(f"table: {text}")
        await asyncio.to_thread(self._watch.look)
        for text in self._watch.findings():
            self._find(text)
        self.progress.now = "scrubbing"
        for stream in STREAMS:
            for text in await asyncio.to_thread(self._scrub, stream.name):
                self._find(text)
        self.progress.now = "stopping"
        for number, code in (await asyncio.to_thread(self._machines.stop)).items():
            if code:
                self._find(f"node {number} ended with {code} after SIGTERM")

    def _scrub(self, name: str) -> list[str]:
        """Have the nodes read and compare their replicas of a stream; what they find."""
        path, rows = f"/v1/streams/{name}/scrub", list[dict[str, Any]]()
        self._machines.call("POST", path, {})

        def is_done() -> bool:
            found = self._machines.call("GET", path)
            rows[:] = found["replicas"]
            return bool(found["is_done"])

        if not self._machines.wait(f"scrub of {name}", is_done, END_SECONDS_MAX):
            return [f"{name} is not scrubbed: {rows[:3]}"]
        return [
            f"{name} {each['partition']} on node {each['node']}: scrub: {each['result']}, "
            f"{each['found']}"
            for each in rows
            if each["result"] != "ok"
        ]

    def _evidence(self) -> Evidence:
        place = self.settings.directory
        replicas: dict[Place, dict[int, Any]] = {}
        for stream in STREAMS:
            for partition in range(stream.partitions):
                state = self._layout[stream.name, partition]
                data = {node: self._machines.nodes[node].data for node in state["replicas"]}
                replicas[stream.name, partition] = read_replicas(
                    {n: d / "streams" / stream.name / str(partition) for n, d in data.items()}
                )
        read: dict[Place, np.ndarray] = {}
        if (place / "reads.npz").exists():
            with np.load(place / "reads.npz") as arrays:
                for key in arrays.files:
                    name, _, index = key.rpartition("/")
                    read[name, int(index)] = arrays[key]
        return Evidence(STREAMS, read_acks(place / "acks.bin"), replicas, read)

    def _outcome(self) -> Outcome:
        self.progress.now = "checking"
        evidence = self._evidence()
        for text in check(evidence):
            self._find(text)
        faults = happened(self._faults.events)
        logs = sorted(self.settings.directory.glob("node*/node.log"))
        for text in unexpected_lines(logs, {fault.kind for fault in faults}):
            self._find(text)
        if self._findings:
            self._keep()
        first = evidence.acks[evidence.acks["is_again"] == 0]
        order = np.argsort(first["acked"])
        first = first[order]
        acked = Acked(
            first["acked"] - self._begin,
            first["acked"] - first["sent"],
            first["publisher"] * PARTITIONS_MAX + first["partition"],
        )
        result = {
            "seed": self.settings.seed,
            "kinds": list(self.settings.kinds),
            "seconds": round(float(acked.times[-1]) if len(first) else 0.0, 1),
            "rounds": self._rounds,
            "acked": len(first),
            "acked_again": int(np.sum(first["times"] > 1)),
            "read": self._readers.state.get("read", 0),
            "read_damaged": self._readers.state.get("damaged", 0),
            "consumers_stuck": self._readers.state.get("stuck", 0),
            "table": {k: n for k, n in self._tables.state.items() if k != "findings"},
            "refusals": self._publishers.state.get("refusals", {}),
            "flips": self._damage.flips,
            "cuts": self._damage.cuts,
            "healed": self._damage.healed,
            "healed_by_scrub": self._damage.healed_by_scrub,
            "repaired": self._damage.repaired,
            "slow_recoveries_s": self._slow,
            "has_disks": self._machines.has_disks,
            "faults": rows_of(faults, acked),
            "processes": self._watch.rows(),
            "findings": self._findings,
        }
        return Outcome(result, faults, acked)

    def _keep(self) -> None:
        """Copy the data directories out of file systems that end with the run."""
        for number in range(1, COUNT + 1):
            node = self._machines.nodes.get(number)
            if node is not None and self._machines.has_disks:
                kept = node.directory / "kept-data"
                shutil.copytree(node.data, kept, dirs_exist_ok=True)
