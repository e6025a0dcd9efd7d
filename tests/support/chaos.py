"""Faults drawn at random on a cluster of real processes, and what has to hold after they end.

A run has phases. In each, faults overlap under load; then everything is healed, and the cluster has
to work again by itself: every partition takes and serves, all replicas are in sync, every view says
so. Nothing acknowledged is lost, doubled or moved. `python tests/support/chaos.py SEED PHASES`
runs one seed and leaves everything in a directory.
"""

from __future__ import annotations

import asyncio
import contextlib
import faulthandler
import json
import random
import signal
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from support.chaos_links import PeerLinks
from support.chaos_load import KafkaReader, StreamLoad
from support.ports import reserve_ports
from support.processes import NatsServer, Node

HEAL_SECONDS = 30.0
"""Beyond this a recovery is reported as slow."""
HEAL_SECONDS_MAX = 150.0
"""Beyond this it counts as never."""
STREAMS: dict[str, dict[str, Any]] = {
    "one": {"replicas": 3, "partitions": 1},
    "subjects": {"replicas": 3, "partitions": 3, "partition_by": "subject"},
    "pair": {"replicas": 2, "partitions": 2, "partition_by": "key", "min_isr": 1},
    "grouped": {"replicas": 3, "partitions": 2, "partition_by": "group"},
    "single": {"replicas": 1, "partitions": 3, "partition_by": "subject"},
    "compacted": {
        "replicas": 3,
        "partitions": 1,
        "cleanup": ["compact"],
        "segment_bytes_max": 16384,
        "min_isr": 1,
    },
    "quick": {"replicas": 3, "partitions": 2, "partition_by": "key", "ack_policy": "leader"},
}


class Violation(Exception):
    """What was promised does not hold."""


@dataclass
class Chaos:
    """One cluster under faults."""

    directory: Path
    seed: int
    count: int = 3
    has_links: bool = False
    embedded: bool = False
    say: Callable[[str], None] = print
    nodes: dict[int, Node] = field(default_factory=dict)
    slow: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.dice = random.Random(self.seed)
        self.loads: list[StreamLoad] = []
        self._loading: list[asyncio.Task[None]] = []
        self._ports = reserve_ports(5 * self.count)
        self._begin = time.monotonic()
        self._healing = False
        self._extra = 0
        self._down: set[int] = set()
        """Nodes that this run has ended; others may not end."""
        (self.directory / "nats").mkdir(parents=True, exist_ok=True)
        self.nats = NatsServer(self.directory / "nats")
        self._faults: list[Callable[[], Awaitable[None]]] = [
            *[self._kill] * 4, *[self._pause] * 4, *[self._terminate] * 2,
            *[self._kill_again_while_it_starts] * 2, self._kill_all, *[self._kill_two] * 2,
            *[self._pause_two] * 2, *[self._reassign] * 2, self._alter_replicas,
            self._add_partition, *[self._create_and_delete] * 2,
        ]  # fmt: skip
        if not self.embedded:
            self._faults += [self._restart_nats, self._pause_nats]
        if self.has_links:
            self._faults += [*[self._hold_link] * 3, *[self._isolate] * 3, self._reset]

    # -- the cluster ----------------------------------------------------------------------------

    def _note(self, text: str) -> None:
        stamp = time.strftime("%H:%M:%S")
        line = f"{stamp} {time.monotonic() - self._begin:7.2f} {text}"
        with (self.directory / "chaos.log").open("a") as file:
            file.write(line + "\n")
        self.say(line)

    def _make_nodes(self) -> None:
        count, ports = self.count, self._ports
        listening, reached = ports[:count], ports[4 * count :]
        if self.has_links:
            pairs = {n + 1: (reached[n], listening[n]) for n in range(count)}
            self.links = PeerLinks(pairs)
        else:
            reached = listening
        peers = ",".join(f"{n + 1}@127.0.0.1:{reached[n]}" for n in range(count))
        balance = str(self.dice.choice([1_000, 3_000, 10_000]))
        for n in range(count):
            place = self.directory / f"node{n + 1}"
            place.mkdir(parents=True)
            self.nodes[n + 1] = Node(
                place,
                None if self.embedded else self.nats.url,
                ["--node-id", str(n + 1), "--peers", peers, "--peer-port", str(listening[n])],
                {"BASCULE_CLUSTER_LEADER_BALANCE_MS": balance},
                keep_ports=True,
                ports=ports[count + 3 * n : count + 3 * n + 3],
            )

    def _nats_ports(self) -> list[int]:
        if not self.embedded:
            return [self.nats.port]
        return [int(node.ports[2]) for node in self.nodes.values()]

    def _call(
        self, node: int, method: str, path: str, body: object = None, seconds: float = 25.0
    ) -> Any:
        """Raises: OSError, ValueError."""
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.nodes[node].ports[1]}{path}",
            data=None if body is None else json.dumps(body).encode(),
            method=method,
            headers={"content-type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=seconds) as response:
            text = response.read()
        return json.loads(text) if text else None

    async def run(self, phases: int) -> None:
        """Raises: Violation."""
        if not self.embedded:
            self.nats.start()
        self._make_nodes()
        loads: list[asyncio.Task[None]] = []
        reader = None
        try:
            for node in self.nodes.values():
                node.spawn_again()
            for node in self.nodes.values():
                await asyncio.to_thread(node.wait_ready)
            servers = ",".join(f"127.0.0.1:{node.ports[0]}" for node in self.nodes.values())
            for name, config in STREAMS.items():
                body = {"name": name, "subject": f"{name}.>", **config}
                await asyncio.to_thread(self._call, 1, "POST", "/v1/streams", body)
                self.loads.append(StreamLoad(name, config, self._nats_ports))
            reader = KafkaReader(servers)
            for name, config in STREAMS.items():
                reader.follow(name, config["partitions"])
            self._loading = loads = [asyncio.create_task(load.run()) for load in self.loads]
            await self._recovered(reader)
            for phase in range(phases):
                self._note(f"phase {phase}")
                await self._phase()
                await self._heal()
                await self._recovered(reader)
            await self._finish(loads, reader)
        except Violation as violation:
            self._note(f"VIOLATION seed {self.seed}: {violation}")
            raise
        finally:
            for task in loads:
                task.cancel()
            await asyncio.gather(*loads, return_exceptions=True)
            if reader is not None:
                await asyncio.to_thread(reader.stop)
            await asyncio.to_thread(self._stop)

    def _stop(self) -> None:
        for node in self.nodes.values():
            if node.process is not None and node.process.poll() is None:
                node.process.send_signal(signal.SIGCONT)
                node.process.terminate()
        for node in self.nodes.values():
            if node.process is not None:
                with contextlib.suppress(Exception):
                    node.stop()
                if node.process.poll() is None:
                    node.stop(signal.SIGKILL)
        if self.has_links:
            self.links.stop()
        if self.nats.process is not None:
            self.nats.process.send_signal(signal.SIGCONT)
            self.nats.stop()

    # -- one phase ------------------------------------------------------------------------------

    async def _phase(self) -> None:
        seconds = self.dice.uniform(3, 12)
        self._healing = False
        tasks = []
        drawn = [
            (self.dice.uniform(0, seconds), self.dice.choice(self._faults))
            for _ in range(self.dice.randint(1, 6))
        ]
        begin = time.monotonic()
        for at, fault in sorted(drawn, key=lambda each: each[0]):
            await asyncio.sleep(max(0.0, begin + at - time.monotonic()))
            tasks.append(asyncio.create_task(fault()))
        await asyncio.sleep(max(0.0, begin + seconds - time.monotonic()))
        self._healing = True
        if tasks:
            await asyncio.wait(tasks)
        for task in tasks:
            task.result()

    async def _sleep(self, seconds: float) -> None:
        """Until the time has passed or the phase ends."""
        end = time.monotonic() + seconds
        while time.monotonic() < end and not self._healing:
            await asyncio.sleep(0.02)

    async def _heal(self) -> None:
        if self.has_links:
            self.links.release([(a, b) for a in (0, *self.nodes) for b in (0, *self.nodes)])
        if not self.embedded:
            assert self.nats.process is not None
            if self.nats.process.poll() is not None:
                await asyncio.to_thread(self.nats.start)
            self.nats.process.send_signal(signal.SIGCONT)
        for number, node in self.nodes.items():
            assert node.process is not None
            if node.process.poll() is not None:
                self._check_ended(number)
                node.spawn_again()
            node.process.send_signal(signal.SIGCONT)
        self._down.clear()
        self._note("healed")

    def _check_ended(self, number: int) -> None:
        node = self.nodes[number]
        assert node.process is not None
        code = node.process.poll()
        if code is not None and number not in self._down:
            raise Violation(f"node {number} ended by itself with {code}")

    async def _recovered(self, reader: KafkaReader) -> None:
        begin = time.monotonic()
        problems = ["not looked at"]
        said = begin + HEAL_SECONDS
        while problems:
            await asyncio.sleep(0.3)
            for number in self.nodes:
                self._check_ended(number)
            self._follow(reader)
            problems = await asyncio.to_thread(self._problems)
            problems += self._load_problems(reader, begin)
            self._check_load(reader)
            took = time.monotonic() - begin
            if problems and time.monotonic() > said:
                said += 20
                stall = self.links.take_stall() if self.has_links else 0.0
                self._note(f"not recovered after {took:.0f} s, stalls {stall:.1f} s: {problems}")
            if took > HEAL_SECONDS_MAX:
                raise Violation(f"not recovered after {took:.0f} s: {problems}")
        if took > HEAL_SECONDS:
            self.slow.append(f"{took:.0f} s")
        stalls = self.links.take_stall() if self.has_links else 0.0
        self._note(f"recovered after {took:.1f} s; acked {self._acked()}; stalls {stalls:.1f} s")
        for load in self.loads:
            broken = load.check(*reader.known(load.name))
            if broken:
                raise Violation(f"{len(broken)} of {load.name}: " + "; ".join(broken[:5]))

    def _follow(self, reader: KafkaReader) -> None:
        """Read also partitions whose addition was not answered."""
        for load in self.loads:
            known = max(load.acks_since, default=0) + 1
            reader.follow(load.name, max(known, load.config["partitions"]))

    def _check_load(self, reader: KafkaReader) -> None:
        if reader.errors:
            raise Violation(f"the Kafka client: {reader.errors[:5]}")
        for task in self._loading:
            if task.done() and task.exception() is not None:
                raise Violation(f"a publisher: {task.exception()}")

    def _acked(self) -> dict[str, int]:
        return {load.name: load.acked for load in self.loads}

    def _problems(self) -> list[str]:
        """What the views of the nodes say is wrong."""
        found: list[str] = []
        views = set()
        for number in self.nodes:
            try:
                view = self._call(number, "GET", "/v1/cluster", seconds=5)
                self._call(number, "GET", "/readyz", seconds=5)
                streams = self._call(number, "GET", "/v1/streams", seconds=5)
            except urllib.error.HTTPError as error:
                found.append(f"{number}: {error} {error.read()[-400:]!r}")
                continue
            except (OSError, ValueError) as error:
                found.append(f"{number}: {error!r}")
                continue
            views.add((view["controller"], view["term"]))
            dead = [each["node_id"] for each in view["nodes"] if not each["alive"]]
            troubles = {
                key: [f"{each['stream']}/{each['partition']}" for each in view[key]]
                for key in ("leaderless", "under_min_isr", "under_replicated")
                if view[key]
            }
            if dead or troubles:
                found.append(f"{number}: dead {dead} {troubles}")
            for stream in streams["streams"]:
                for each in stream.get("partitions", ()):
                    if each.get("target") or each.get("failure"):
                        found.append(f"{number}: {stream['name']} {each}")
        if len(views) > 1 or any(not controller for controller, _ in views):
            found.append(f"controllers {views}")
        return found

    def _load_problems(self, reader: KafkaReader, begin: float) -> list[str]:
        found = []
        for load in self.loads:
            for partition in range(load.config["partitions"]):
                if load.acks_since.get(partition, 0.0) < begin:
                    refusals = [each.refusal for each in load.sent[-20:] if each.refusal]
                    found.append(f"{load.name}/{partition} takes nothing {refusals[-1:]}")
                acked = [
                    each.ack["offset"]
                    for each in load.sent[:-100]
                    if each.ack is not None and each.ack["partition"] == partition
                ]
                if reader.ends[load.name].get(partition, 0) <= max(acked, default=-1):
                    found.append(f"{load.name}/{partition} serves nothing")
        return found

    async def _finish(self, loads: list[asyncio.Task[None]], reader: KafkaReader) -> None:
        for load in self.loads:
            load.stopping = True
        _, left = await asyncio.wait(loads, timeout=HEAL_SECONDS_MAX)
        if left:
            raise Violation(f"messages without ack: {self._acked()}")
        self._follow(reader)
        deadline = time.monotonic() + HEAL_SECONDS_MAX
        while left := [load.name for load in self.loads if not self._is_read(load, reader)]:
            self._check_load(reader)
            if time.monotonic() > deadline:
                raise Violation(f"not everything that was acked was read of {left}")
            await asyncio.sleep(0.1)
        for load in self.loads:
            broken = load.check(*reader.known(load.name))
            if broken:
                raise Violation(f"{len(broken)} of {load.name}: " + "; ".join(broken[:5]))
        states = await asyncio.to_thread(lambda: self._call(1, "GET", "/v1/streams")["streams"])
        await asyncio.to_thread(self._stop_nodes)
        for stream in states:
            name = stream["name"]
            if "compact" in stream.get("cleanup", ()) or name == "compacted":
                continue
            for each in stream["partitions"]:
                logs = {
                    node: b"".join(
                        path.read_bytes()
                        for path in sorted(
                            (self.nodes[node].directory / "data/streams" / name
                             / str(each["partition"])).glob("*.log")
                        )
                    )
                    for node in each["replicas"]
                }  # fmt: skip
                if len(set(logs.values())) > 1:
                    sizes = {node: len(data) for node, data in logs.items()}
                    raise Violation(f"replicas of {name} {each['partition']} differ: {sizes}")
        self._note("replicas are equal")

    def _is_read(self, load: StreamLoad, reader: KafkaReader) -> bool:
        ends = reader.ends[load.name]
        return all(
            each.ack is None or each.ack["offset"] < ends.get(each.ack["partition"], 0)
            for each in load.sent
        )

    def _stop_nodes(self) -> None:
        for number, node in self.nodes.items():
            self._down.add(number)
            assert node.process is not None
            node.process.terminate()
        for node in self.nodes.values():
            node.stop()

    # -- faults ---------------------------------------------------------------------------------

    def _is_up(self, number: int) -> bool:
        process = self.nodes[number].process
        return process is not None and process.poll() is None

    async def _end(self, number: int, how: int, seconds: float) -> None:
        """End a process, and start it again after some time unless the phase ends."""
        if not self._is_up(number):
            return
        self._check_ended(number)
        self._down.add(number)
        self._note(f"{signal.Signals(how).name} {number}, down for {seconds:.1f} s")
        process = self.nodes[number].process
        assert process is not None
        process.send_signal(how)
        if how == signal.SIGTERM:
            process.send_signal(signal.SIGCONT)
        ended = asyncio.to_thread(process.wait, 120)
        await ended
        await self._sleep(seconds)
        if not self._is_up(number) and self.nodes[number].process is process:
            self._note(f"start {number}")
            self.nodes[number].spawn_again()
            self._down.discard(number)

    def _some(self, count: int) -> list[int]:
        return self.dice.sample(sorted(self.nodes), count)

    async def _kill(self) -> None:
        (number,) = self._some(1)
        await self._end(number, signal.SIGKILL, self.dice.choice([0, 0.5, 2, 5]))

    async def _kill_two(self) -> None:
        seconds = [self.dice.uniform(0, 4) for _ in range(3)]
        first, second = self._some(2)

        async def later() -> None:
            await self._sleep(seconds[2] / 2)
            await self._end(second, signal.SIGKILL, seconds[1])

        await asyncio.gather(self._end(first, signal.SIGKILL, seconds[0]), later())

    async def _kill_all(self) -> None:
        seconds = [self.dice.uniform(0, 3) for _ in self.nodes]
        await asyncio.gather(
            *(self._end(n, signal.SIGKILL, s) for n, s in zip(self.nodes, seconds, strict=True))
        )

    async def _terminate(self) -> None:
        (number,) = self._some(1)
        await self._end(number, signal.SIGTERM, self.dice.choice([0, 0, 3]))

    async def _kill_again_while_it_starts(self) -> None:
        (number,) = self._some(1)
        alive = self.dice.uniform(0, 3)
        await self._end(number, signal.SIGKILL, 0)
        await self._sleep(alive)
        await self._end(number, signal.SIGKILL, 0)

    async def _pause(self) -> None:
        (number,) = self._some(1)
        await self._pause_for(number, self.dice.uniform(0.5, 8))

    async def _pause_for(self, number: int, seconds: float) -> None:
        process = self.nodes[number].process
        if process is None or process.poll() is not None:
            return
        self._note(f"pause {number} for {seconds:.1f} s")
        process.send_signal(signal.SIGSTOP)
        await self._sleep(seconds)
        process.send_signal(signal.SIGCONT)
        self._note(f"resume {number}")

    async def _pause_two(self) -> None:
        first, second = self._some(2)
        seconds = [self.dice.uniform(0.5, 8) for _ in range(2)]
        await asyncio.gather(
            self._pause_for(first, seconds[0]), self._pause_for(second, seconds[1])
        )

    async def _restart_nats(self) -> None:
        seconds = self.dice.choice([0, 1, 4])
        self._note(f"kill NATS for {seconds} s")
        process = self.nats.process
        await asyncio.to_thread(self.nats.stop, signal.SIGKILL)
        await self._sleep(seconds)
        if self.nats.process is process:
            await asyncio.to_thread(self.nats.start)

    async def _pause_nats(self) -> None:
        seconds = self.dice.uniform(0.5, 6)
        self._note(f"pause NATS for {seconds:.1f} s")
        process = self.nats.process
        assert process is not None
        process.send_signal(signal.SIGSTOP)
        await self._sleep(seconds)
        process.send_signal(signal.SIGCONT)

    async def _hold_link(self) -> None:
        """One way, or between two nodes."""
        first, second = self._some(2)
        links = [(first, second), (second, first)][: self.dice.randint(1, 2)]
        seconds = self.dice.uniform(0.5, 9)
        self._note(f"hold {links} for {seconds:.1f} s")
        self.links.hold(links)
        await self._sleep(seconds)
        self.links.release(links)
        self._note(f"release {links}")

    async def _isolate(self) -> None:
        (number,) = self._some(1)
        others = [n for n in self.nodes if n != number]
        ways = self.dice.choice(["both", "out", "in"])
        links = [(number, n) for n in others if ways != "in"]
        links += [(n, number) for n in others if ways != "out"]
        seconds = self.dice.uniform(0.5, 9)
        self._note(f"hold {links} for {seconds:.1f} s")
        self.links.hold(links)
        await self._sleep(seconds)
        self.links.release(links)
        self._note(f"release {links}")

    async def _reset(self) -> None:
        first, second = self._some(2)
        for _ in range(self.dice.randint(1, 5)):
            self._note(f"reset {first} {second}")
            self.links.reset(first, second)
            await self._sleep(self.dice.uniform(0, 1))

    async def _ask(self, what: str, method: str, path: str, body: object = None) -> bool:
        number = self.dice.choice([n for n in self.nodes if self._is_up(n)] or [1])
        try:
            await asyncio.to_thread(self._call, number, method, path, body)
        except (OSError, ValueError) as error:
            text = error.read()[:300] if isinstance(error, urllib.error.HTTPError) else b""
            self._note(f"{what} at {number}: {error!r} {text!r}")
            return False
        self._note(f"{what} at {number}: done")
        return True

    async def _reassign(self) -> None:
        name = self.dice.choice(["one", "subjects", "grouped", "pair", "single", "compacted"])
        count = STREAMS[name]["replicas"]
        nodes = self._some(min(count, self.count))
        await self._ask(
            f"reassign {name} to {nodes}", "POST", f"/v1/streams/{name}/reassign",
            {"replicas": nodes},
        )  # fmt: skip

    async def _alter_replicas(self) -> None:
        name, replicas = self.dice.choice(["pair", "grouped"]), self.dice.choice([1, 2, 3])
        await self._ask(
            f"alter {name} replicas {replicas}", "PATCH", f"/v1/streams/{name}",
            {"replicas": replicas},
        )  # fmt: skip

    async def _add_partition(self) -> None:
        load = next(each for each in self.loads if each.name == "grouped")
        count = load.config["partitions"] + 1
        if count > 6:
            return
        body = {"partitions": count}
        if await self._ask("add a partition", "PATCH", "/v1/streams/grouped", body):
            load.config = {**load.config, "partitions": count}

    async def _create_and_delete(self) -> None:
        self._extra += 1
        name = f"extra{self._extra}"
        body = {"name": name, "subject": f"{name}.>", "replicas": self.dice.randint(1, 3)}
        await self._ask(f"create {name}", "POST", "/v1/streams", body)
        await self._sleep(self.dice.uniform(0, 2))
        await self._ask(f"delete {name}", "DELETE", f"/v1/streams/{name}")


def drawn_chaos(directory: Path, seed: int) -> Chaos:
    """A run whose cluster is drawn, too."""
    dice = random.Random(-seed)
    count = 5 if dice.random() < 0.15 else 3
    has_links = count == 3 and dice.random() < 0.5
    return Chaos(directory, seed, count=count, has_links=has_links, embedded=dice.random() < 0.25)


def main() -> None:
    seed, phases = int(sys.argv[1]), int(sys.argv[2])
    directory = Path(sys.argv[3] if len(sys.argv) > 3 else f"/tmp/chaos-{seed}")
    chaos = drawn_chaos(directory, seed)
    chaos.say = lambda line: print(line, flush=True)
    faulthandler.register(signal.SIGUSR1)
    asyncio.run(chaos.run(phases))
    print("slow recoveries:", chaos.slow)


if __name__ == "__main__":
    main()
