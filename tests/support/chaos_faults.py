"""The faults that a cluster is exposed to, each of which begins and ends by itself."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Awaitable, Callable

from support import http_calls
from support.chaos_cluster import STREAMS, ChaosCluster


class ChaosFaults(ChaosCluster):
    """Draws faults by `dice`."""

    def _faults(self) -> list[Callable[[], Awaitable[None]]]:
        """Each as often as it is to be drawn."""
        found = [
            *[self._kill] * 4, *[self._pause] * 4, *[self._terminate] * 2,
            *[self._kill_again_while_it_starts] * 2, self._kill_all, *[self._kill_two] * 2,
            *[self._pause_two] * 2, *[self._reassign] * 2, self._alter_replicas,
            self._add_partition, *[self._create_and_delete] * 2, *[self._flap] * 2,
            *[self._kill_controller] * 2, self._create_again, self._kill_while_controller_is_paused,
        ]  # fmt: skip
        if not self.embedded:
            found += [self._restart_nats, self._pause_nats]
        if self.has_small_disks:
            found += [*[self._fill_disk] * 4]
        if self.has_links:
            found += [*[self._hold_link] * 3, *[self._isolate] * 3, self._reset]
        return found

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

    async def _flap(self) -> None:
        """Pauses of about the length of a lapse, one after the other."""
        (number,) = self._some(1)
        for _ in range(self.dice.randint(2, 5)):
            await self._pause_for(number, self.dice.uniform(0.2, 3.5))
            await self._sleep(self.dice.uniform(0, 1))

    def _controller(self) -> int:
        for number in self.nodes:
            with contextlib.suppress(OSError, ValueError):
                found: int = self._call(number, "GET", "/v1/cluster", seconds=1)["controller"]
                if found:
                    return found
        return 1

    async def _kill_controller(self) -> None:
        number = await asyncio.to_thread(self._controller)
        await self._end(number, signal.SIGKILL, self.dice.choice([0, 1, 4]))

    async def _kill_while_controller_is_paused(self) -> None:
        controller = await asyncio.to_thread(self._controller)
        victim = self.dice.choice([n for n in self.nodes if n != controller])
        seconds, down = self.dice.uniform(0.5, 5), self.dice.choice([0, 1, 4])
        await asyncio.gather(
            self._pause_for(controller, seconds), self._end(victim, signal.SIGKILL, down)
        )

    async def _fill_disk(self) -> None:
        (number,) = self._some(1)
        ballast = self.nodes[number].directory / "data/ballast"
        seconds = self.dice.uniform(0.5, 6)
        self._note(f"fill the disk of {number} for {seconds:.1f} s")
        with contextlib.suppress(OSError), ballast.open("ab", buffering=0) as file:
            while file.write(bytes(1 << 16)):
                pass
        with contextlib.suppress(OSError), ballast.open("ab", buffering=0) as file:
            while file.write(b"x"):
                pass
        await self._sleep(seconds)
        ballast.unlink(missing_ok=True)
        self._note(f"the disk of {number} has room again")

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
            self._note(f"{what} at {number}: {http_calls.told(error)}")
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

    async def _create_again(self) -> None:
        """Delete and create a stream of one name, again and again."""
        for _ in range(self.dice.randint(1, 4)):
            replicas = self.dice.randint(1, 3)
            body = {"name": "again", "subject": "again.>", "replicas": replicas}
            await self._ask("create again", "POST", "/v1/streams", body)
            await self._sleep(self.dice.uniform(0, 1))
            await self._ask("delete again", "DELETE", "/v1/streams/again")
