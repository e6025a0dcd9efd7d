"""What each kind of fault does. Each begins and ends by itself, or when its round ends."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import time
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, Final

from support import http_calls
from torture.damage import Damage
from torture.machines import COUNT, SPARE, Machines
from torture.messages import STREAMS
from torture.plan import PlannedFault

EARLIER_MIN: Final = 2
"""So many nodes keep the release before: with none the cluster version rises, and no node can go
back. One more than that, since `replace` takes one out of the cluster for a while."""
MEMBERS_SECONDS_MAX: Final = 90.0
"""For a node to join or to leave."""


class Faults:
    """Carries out planned faults, and writes when each began and ended to `events.jsonl`."""

    def __init__(self, machines: Machines, damage: Damage, events: Path) -> None:
        self._machines = machines
        self._damage = damage
        self.begin = time.monotonic()
        """The time 0 of events."""
        self._file = events.open("a")
        self.healing = False
        """Whether the round has ended, and faults with it."""
        self.events: list[dict[str, Any]] = []
        self._membership = asyncio.Lock()
        self._kinds: dict[str, Callable[[Random, PlannedFault], Awaitable[object]]] = {
            "kill": self._kill,
            "kill-two": self._kill_two,
            "kill-all": self._kill_all,
            "pause": self._pause,
            "pause-two": self._pause_two,
            "terminate": self._terminate,
            "roll": self._roll,
            "versions": self._versions,
            "isolate": self._isolate,
            "one-way": self._one_way,
            "halves": self._halves,
            "ring": self._ring,
            "delay": self._delay,
            "nats": self._nats,
            "nats-pause": self._pause_nats,
            "disk": self._disk,
            "flip": self._flip,
            "truncate": self._truncate,
            "power": self._power,
            "power-all": self._power_all,
            "reassign": self._reassign,
            "drain": self._drain,
            "join-remove": self._join_remove,
            "replace": self._replace,
        }

    def write(self, event: str, **fields: object) -> None:
        """One line of `events.jsonl`."""
        row = {"at_s": round(time.monotonic() - self.begin, 3), "event": event, **fields}
        self.events.append(row)
        self._file.write(json.dumps(row) + "\n")
        self._file.flush()

    def close(self) -> None:
        self._file.close()

    async def carry_out(self, fault: PlannedFault, round_number: int) -> None:
        """One fault from its beginning to its end."""
        self.write("begin", fault=fault.number, round=round_number, kind=fault.kind)
        try:
            what = await self._kinds[fault.kind](Random(fault.seed), fault)
        except (OSError, ValueError) as error:
            what = http_calls.told(error)
        self.write("end", fault=fault.number, kind=fault.kind, what=what)

    async def _sleep(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end and not self.healing:
            await asyncio.sleep(0.02)

    def _number(self, dice: Random) -> int:
        """A node: the leader of something, the controller, or any one."""
        role = dice.choice(["leader", "leader", "controller", "any"])
        stream, drawn = dice.choice(STREAMS), dice.randint(1, COUNT)
        partition = dice.randrange(stream.partitions)
        with contextlib.suppress(OSError, ValueError, LookupError):
            if role == "controller":
                found = self._machines.call("GET", "/v1/cluster", seconds=2)["controller"]
            else:
                path = f"/v1/streams/{stream.name}"
                found = self._machines.call("GET", path, seconds=2)["partitions"][partition][
                    "leader"
                ]
            if role != "any" and found in self._machines.nodes:
                return int(found)
        return drawn

    async def _draw(self, dice: Random) -> int:
        return await asyncio.to_thread(self._number, dice)

    # -- processes ------------------------------------------------------------------------------

    async def _end(self, number: int, how: signal.Signals, seconds: float) -> bool:
        if not await asyncio.to_thread(self._machines.end, number, how):
            return False
        await self._sleep(seconds)
        self._machines.begin(number)
        return True

    async def _kill(self, dice: Random, fault: PlannedFault) -> str:
        number = await self._draw(dice)
        done = await self._end(number, signal.SIGKILL, fault.seconds * dice.choice([0, 0.2, 1]))
        return f"node {number}" if done else f"node {number} did not run"

    async def _kill_two(self, dice: Random, fault: PlannedFault) -> str:
        one, other = dice.sample(range(1, COUNT + 1), 2)
        between = dice.uniform(0, 2)

        async def later() -> None:
            await self._sleep(between)
            await self._end(other, signal.SIGKILL, fault.seconds)

        await asyncio.gather(self._end(one, signal.SIGKILL, fault.seconds), later())
        return f"nodes {one} and {other}"

    async def _kill_all(self, dice: Random, fault: PlannedFault) -> str:
        numbers = sorted(self._machines.nodes)
        await asyncio.gather(
            *(self._end(n, signal.SIGKILL, dice.uniform(0, fault.seconds)) for n in numbers)
        )
        return f"nodes {numbers}"

    async def _pause(self, dice: Random, fault: PlannedFault) -> str:
        return await self._pause_all([await self._draw(dice)], fault.seconds)

    async def _pause_two(self, dice: Random, fault: PlannedFault) -> str:
        return await self._pause_all(dice.sample(range(1, COUNT + 1), 2), fault.seconds)

    async def _pause_all(self, numbers: list[int], seconds: float) -> str:
        paused = [n for n in numbers if self._machines.send(n, signal.SIGSTOP)]
        await self._sleep(seconds)
        for number in paused:
            self._machines.send(number, signal.SIGCONT)
        return f"nodes {paused}"

    async def _terminate(self, dice: Random, fault: PlannedFault) -> str:
        number = await self._draw(dice)
        done = await self._end(number, signal.SIGTERM, dice.choice([0, 0, fault.seconds]))
        return f"node {number}" if done else f"node {number} did not run"

    async def _roll(self, dice: Random, fault: PlannedFault) -> str:
        """As a new version is rolled out: one node after the other, each once all are in sync."""
        numbers = dice.sample(range(1, COUNT + 1), COUNT)
        done = []
        for number in numbers:
            if await asyncio.to_thread(self._machines.end, number, signal.SIGTERM):
                self._machines.begin(number)
                done.append(number)
                await asyncio.to_thread(
                    self._machines.wait, f"in sync after the restart of {number}",
                    partial(self._is_back, number), 60.0,
                )  # fmt: skip
            if self.healing:
                break
        return f"nodes {done}"

    async def _versions(self, dice: Random, fault: PlannedFault) -> str:
        """One node after the other gets the other release: drained, or by a restart alone."""
        done = []
        for number in dice.sample(range(1, COUNT + 1), dice.randint(1, 3)):
            if self.healing:
                break
            earlier = self._machines.with_earlier()
            goes_back = number not in earlier
            if not goes_back and len(set(earlier) - {SPARE}) <= EARLIER_MIN:
                continue
            how = dice.choice([signal.SIGTERM, signal.SIGTERM, signal.SIGKILL])
            drains = dice.random() < 0.5
            try:
                if drains:
                    path = f"/v1/nodes/{number}/drain"
                    await asyncio.to_thread(self._machines.call, "POST", path, {"replicas": False})
                if await asyncio.to_thread(self._machines.end, number, how):
                    self._machines.choose_release(number, is_earlier=goes_back)
                    self._machines.begin(number)
                    done.append(f"{number} {'back' if goes_back else 'on'} by {how.name}")
                    await asyncio.to_thread(
                        self._machines.wait, f"in sync with another release of {number}",
                        partial(self._is_back, number), 60.0,
                    )  # fmt: skip
            finally:
                if drains:
                    await self._resume(number)
        return f"nodes {', '.join(done)}" if done else "skipped: the others have this release"

    def _is_back(self, number: int) -> bool:
        return self.healing or self._machines.is_back(number)

    # -- the network ----------------------------------------------------------------------------

    async def _cut(self, links: list[tuple[int, int]], seconds: float) -> str:
        self._machines.links.hold(links)
        await self._sleep(seconds)
        self._machines.links.release(links)
        return " ".join(f"{one}>{other}" for one, other in links)

    async def _isolate(self, dice: Random, fault: PlannedFault) -> str:
        number = await self._draw(dice)
        return await self._cut(_between([number], _others([number])), fault.seconds)

    async def _one_way(self, dice: Random, fault: PlannedFault) -> str:
        number = await self._draw(dice)
        others = dice.sample(_others([number]), dice.randint(1, COUNT - 1))
        ways = [(number, n) for n in others], [(n, number) for n in others]
        return await self._cut(dice.choice(ways), fault.seconds)

    async def _halves(self, dice: Random, fault: PlannedFault) -> str:
        some = dice.sample(range(1, COUNT + 1), 2)
        return await self._cut(_between(some, _others(some)), fault.seconds)

    async def _ring(self, dice: Random, fault: PlannedFault) -> str:
        """Each node reaches two others only."""
        order = dice.sample(range(1, COUNT + 1), COUNT)
        cut: list[tuple[int, int]] = []
        for at, number in enumerate(order):
            cut += _between([number], [order[(at + 2) % COUNT]])
        return await self._cut(cut, fault.seconds)

    async def _delay(self, dice: Random, fault: PlannedFault) -> str:
        number, seconds = await self._draw(dice), dice.choice([0.01, 0.05, 0.2])
        links = _between([number], _others([number]))
        self._machines.links.slow(links, seconds)
        await self._sleep(fault.seconds)
        self._machines.links.slow(links, 0.0)
        return f"node {number} by {seconds * 1_000:.0f} ms"

    # -- NATS -----------------------------------------------------------------------------------

    async def _nats(self, dice: Random, fault: PlannedFault) -> str:
        process = self._machines.nats.process
        how = dice.choice([signal.SIGKILL, signal.SIGTERM])
        await asyncio.to_thread(self._machines.nats.stop, how)
        await self._sleep(fault.seconds)
        if self._machines.nats.process is process:
            await asyncio.to_thread(self._machines.nats.start)
        return f"{how.name}, for {fault.seconds:.1f} s"

    async def _pause_nats(self, dice: Random, fault: PlannedFault) -> str:
        process = self._machines.nats.process
        assert process is not None
        process.send_signal(signal.SIGSTOP)
        await self._sleep(fault.seconds)
        process.send_signal(signal.SIGCONT)
        return f"for {fault.seconds:.1f} s"

    # -- disks ----------------------------------------------------------------------------------

    async def _disk(self, dice: Random, fault: PlannedFault) -> str:
        number = await self._draw(dice)
        if not await asyncio.to_thread(self._machines.fill_disk, number):
            return "skipped: no file system of its own, full already, or it could not be filled"
        await self._sleep(fault.seconds)
        await asyncio.to_thread(self._machines.empty_disks)
        return f"node {number} for {fault.seconds:.1f} s"

    async def _flip(self, dice: Random, fault: PlannedFault) -> str:
        number = await self._draw(dice)
        if dice.random() < 0.5:
            return f"node {number}: {await asyncio.to_thread(self._damage.flip, number, dice)}"
        if not await asyncio.to_thread(self._machines.end, number, signal.SIGKILL):
            return f"node {number} did not run"
        what = await asyncio.to_thread(self._damage.flip, number, dice)
        self._machines.begin(number)
        return f"node {number} while it was stopped: {what}"

    async def _truncate(self, dice: Random, fault: PlannedFault) -> str:
        """A log loses its end, or the end of one of its files, while its node is away."""
        number, how = await self._draw(dice), dice.choice([signal.SIGKILL, signal.SIGTERM])
        # Before it ends: its replicas must be in sync.
        chosen = await asyncio.to_thread(self._damage.choose, number, dice)
        if not await asyncio.to_thread(self._machines.end, number, how):
            return f"node {number} did not run"
        what = "no replica of it may be damaged"
        if chosen is not None:
            what = await asyncio.to_thread(self._damage.truncate, number, chosen, dice)
        self._machines.begin(number)
        return f"node {number} after {how.name}: {what}"

    async def _power(self, dice: Random, fault: PlannedFault) -> str:
        return await self._lose_power([await self._draw(dice)], dice, fault.seconds)

    async def _power_all(self, dice: Random, fault: PlannedFault) -> str:
        return await self._lose_power(sorted(self._machines.nodes), dice, fault.seconds)

    async def _lose_power(self, numbers: Iterable[int], dice: Random, seconds: float) -> str:
        # Stopped first: a power loss comes to all of them at one moment.
        running = [n for n in numbers if self._machines.send(n, signal.SIGSTOP)]
        ends = (asyncio.to_thread(self._machines.end, n, signal.SIGKILL) for n in running)
        ended = [n for n, done in zip(running, await asyncio.gather(*ends), strict=True) if done]
        lost = [
            await asyncio.to_thread(self._machines.lose_unsynced, n, Random(dice.random()))
            for n in ended
        ]
        await self._sleep(min(seconds, 2.0))
        for number in ended:
            self._machines.begin(number)
        return f"nodes {ended}, {sum(lost)} bytes thrown away"

    # -- members and replicas -------------------------------------------------------------------

    async def _reassign(self, dice: Random, fault: PlannedFault) -> str:
        stream = dice.choice([each for each in STREAMS if each.name != "wide"])
        partition = dice.randrange(stream.partitions)
        replicas = dice.sample(range(1, COUNT + 1), 3)
        body = {"partition": partition, "replicas": replicas}
        path = f"/v1/streams/{stream.name}/reassign"
        await asyncio.to_thread(self._machines.call, "POST", path, body)
        return f"{stream.name} {partition} to {replicas}"

    async def _drain(self, dice: Random, fault: PlannedFault) -> str:
        """A node gives its leaders up, sometimes its replicas; it may restart, and is resumed."""
        number, empties = dice.randint(1, COUNT), dice.random() < 0.2
        path = f"/v1/nodes/{number}"
        drained = await asyncio.to_thread(
            self._machines.call, "POST", f"{path}/drain", {"replicas": empties}
        )
        what = f"node {number}, {drained['leaders']} leaders left"
        try:
            await self._sleep(fault.seconds)
            if dice.random() < 0.5 and await self._end(number, signal.SIGTERM, 0.0):
                what += ", restarted"
        finally:
            await self._resume(number)
        return what

    async def _resume(self, number: int) -> None:
        """Also after the round has ended: nothing is in sync again while a node is emptied."""
        deadline = time.monotonic() + MEMBERS_SECONDS_MAX
        while True:
            try:
                path = f"/v1/nodes/{number}/resume"
                await asyncio.to_thread(self._machines.call, "POST", path)
                return
            except (OSError, ValueError):
                if time.monotonic() > deadline:
                    raise
            await asyncio.sleep(0.2)

    async def _join_remove(self, dice: Random, fault: PlannedFault) -> str:
        """A sixth node joins, gets a replica, and is removed."""
        async with self._membership:
            stream = dice.choice([each for each in STREAMS if each.name != "wide"])
            partition = dice.randrange(stream.partitions)
            replicas = [SPARE, *dice.sample(range(1, COUNT + 1), 2)]
            what = [f"node {SPARE} with {stream.name} {partition}"]
            await asyncio.to_thread(self._machines.join, SPARE)
            if not await self._wait_member(SPARE, is_member=True):
                return f"{what[0]}: not admitted"
            path = f"/v1/streams/{stream.name}/reassign"
            with contextlib.suppress(OSError, ValueError):
                body = {"partition": partition, "replicas": replicas}
                await asyncio.to_thread(self._machines.call, "POST", path, body)
                what.append("reassigned")
            await self._sleep(fault.seconds)
            self._machines.down.add(SPARE)  # it ends by itself once it is removed
            if await self._remove(SPARE, force=False):
                what.append("removed")
            return ", ".join(what)

    async def _replace(self, dice: Random, fault: PlannedFault) -> str:
        """A machine is lost with its disk, and another one takes its number."""
        async with self._membership:
            number = dice.randint(1, COUNT)
            if not await asyncio.to_thread(self._may_lose, number):
                return f"node {number}: not while other replicas are not in sync"
            if not await asyncio.to_thread(self._machines.end, number, signal.SIGKILL):
                return f"node {number} did not run"
            self._damage.damaged = [e for e in self._damage.damaged if e.node != number]
            await self._sleep(fault.seconds)
            removed = await self._remove(number, force=True)
            if not removed:
                self._machines.begin(number)
                return f"node {number}: not removed, started again"
            await asyncio.to_thread(self._machines.join, number)
            return f"node {number}, with an empty disk"

    def _may_lose(self, number: int) -> bool:
        """Whether nothing but this node's replicas goes with its disk, and no other is damaged."""
        return self._machines.is_in_sync() and all(
            each.node == number for each in self._damage.damaged
        )

    async def _remove(self, number: int, *, force: bool) -> bool:
        """Remove a node from the cluster, also after the round has ended."""
        path = f"/v1/nodes/{number}" + ("?force=true" if force else "")
        deadline = time.monotonic() + MEMBERS_SECONDS_MAX
        while time.monotonic() < deadline:
            with contextlib.suppress(OSError, ValueError):
                await asyncio.to_thread(self._machines.call, "DELETE", path)
            if await self._wait_member(number, is_member=False, seconds=5.0):
                await asyncio.to_thread(self._machines.leave, number)
                return True
        return False

    async def _wait_member(
        self, number: int, *, is_member: bool, seconds: float = MEMBERS_SECONDS_MAX
    ) -> bool:
        def look() -> bool:
            nodes = self._machines.call("GET", "/v1/cluster", seconds=3)["nodes"]
            return (number in {each["node_id"] for each in nodes}) == is_member

        what = f"node {number} is {'' if is_member else 'no '}member"
        return await asyncio.to_thread(self._machines.wait, what, look, seconds)


def _others(numbers: Iterable[int]) -> list[int]:
    return [n for n in range(1, SPARE + 1) if n not in set(numbers)]


def _between(some: Iterable[int], others: Iterable[int]) -> list[tuple[int, int]]:
    """All links between two sets of nodes, both ways."""
    others = list(others)
    return [link for one in some for other in others for link in ((one, other), (other, one))]
