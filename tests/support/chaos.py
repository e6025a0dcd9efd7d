"""Faults drawn at random on a cluster of real processes, and what has to hold after they end.

A run has phases. In each, faults overlap under load; then everything is healed, and the cluster has
to work again by itself: every partition takes and serves, all replicas are in sync, every view says
so. Nothing acknowledged is lost, doubled or moved. `python tests/support/chaos.py SEED PHASES`
runs one seed and leaves everything in a directory.
"""

from __future__ import annotations

import asyncio
import faulthandler
import os
import random
import signal
import sys
import time
from pathlib import Path

from support import http_calls
from support.chaos_cluster import STREAMS, Violation
from support.chaos_faults import ChaosFaults
from support.chaos_load import KafkaReader, StreamLoad

HEAL_SECONDS = 30.0
"""Beyond this a recovery is reported as slow."""
HEAL_SECONDS_MAX = 150.0
"""Beyond this it counts as never."""


class Chaos(ChaosFaults):
    """One run."""

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

    async def _phase(self) -> None:
        seconds = self.dice.uniform(3, 18)
        self._healing = False
        tasks, faults = [], self._faults()
        drawn = [
            (self.dice.uniform(0, seconds), self.dice.choice(faults))
            for _ in range(self.dice.randint(1, 9))
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
            except (OSError, ValueError) as error:
                found.append(f"{number}: {http_calls.told(error)}")
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


def drawn_chaos(directory: Path, seed: int) -> Chaos:
    """A run whose cluster is drawn, too."""
    dice = random.Random(-seed)
    count = 5 if dice.random() < 0.15 else 3
    has_links = count == 3 and dice.random() < 0.5
    return Chaos(
        directory,
        seed,
        count=count,
        has_links=has_links,
        embedded=dice.random() < 0.25,
        has_small_disks=os.geteuid() == 0 and dice.random() < 0.3,
    )


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
