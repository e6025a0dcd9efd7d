"""A controller that asks four or five nodes where logs end, in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeAlias

import msgspec
import pytest

from bascule.controller.cluster.metadata_group.watching import Watchers
from bascule.controller.unclean.elections import UncleanElections
from bascule.controller.unclean.log_ends import LOGS, LogEnds
from bascule.errors import Broken, NotLeader
from bascule.metadata.image import Image
from bascule.metadata.requests import ControllerRequest, RegisterProcess, Resign
from bascule.model import NO_LEADER, PartitionState
from bascule.replica.partitions import Partitions
from support.deciding_controller import DecidingController, registration
from support.virtual_time import elapse, run_virtually

Said = tuple[int, int, bool] | None
"""Last leader epoch, end, and whether the replica has failed; None: it is not open."""


class Decisions(DecidingController):
    """Tells a watcher of each change."""

    def __init__(self) -> None:
        super().__init__()
        self.watchers = Watchers()

    def commit(self, commands: Any) -> int:
        index = super().commit(commands)
        self.watchers.tell()
        return index


class Cluster:
    """Five nodes. Stream `a` is on three of them, and another one is the controller."""

    def __init__(self, *, min_isr: int = 1, unclean: bool = False) -> None:
        self.decisions = Decisions()
        self.looks = 0
        """At the image."""
        self.decisions.register(1, 2, 3, 4, 5)
        self.decisions.create("a", replicas=3, min_isr=min_isr, unclean=unclean)
        controller = min({1, 2, 3, 4, 5}.difference(self.replicas()))
        self.is_controller = True
        self.said: dict[int, Said] = {}
        """By node; without an entry it does not answer."""
        self.asked: list[tuple[int, float]] = []
        log_ends = LogEnds(controller, Partitions(), self)  # type: ignore[arg-type]
        self.elections = UncleanElections(self, log_ends)  # type: ignore[arg-type]

    @property
    def watchers(self) -> Watchers:
        return self.decisions.watchers

    @property
    def image(self) -> Image:
        self.looks += 1
        return self.decisions.image

    def replicas(self) -> tuple[int, ...]:
        return self.decisions.state("a").replicas

    @property
    def state(self) -> PartitionState:
        return self.decisions.state("a")

    @property
    def leader(self) -> int:
        return self.state.leader

    async def decide_here(self, request: ControllerRequest) -> int:
        if not self.is_controller:
            raise NotLeader(None, term=1)
        return self.decisions.submit(request)

    async def control(self, node: int, kind: str, body: bytes, *, timeout_s: float) -> bytes:
        assert kind == LOGS
        self.asked.append((node, asyncio.get_running_loop().time()))
        if node not in self.said:
            await elapse(timeout_s)
            raise Broken(f"node {node} does not answer")
        keys = msgspec.msgpack.decode(body, type=list[tuple[bytes, int]])
        return msgspec.msgpack.encode([self.said[node] for _ in keys])

    def lose_the_last_in_sync(self) -> tuple[int, int]:
        """The other two replicas are back."""
        last, first, second = self.replicas()
        for node in (first, second, last):
            self.decisions.lose(node)
        for node in (first, second):
            self.decisions.submit(RegisterProcess(registration(node, incarnation=2)))
        assert self.leader == NO_LEADER
        return first, second

    def lose_power(self) -> tuple[int, int, int]:
        """All replicas are in sync when their machines go down. None is back."""
        first, second, third = self.replicas()
        assert self.state.isr == tuple(sorted((first, second, third)))
        for node in (first, second, third):
            self.decisions.lose(node)
        return first, second, third

    def reboot(self, node: int, said: Said, *, incarnation: int = 2) -> None:
        """The machine of a node is back, and what it had not synced is lost."""
        self.said[node] = said
        process = registration(node, incarnation)
        self.decisions.submit(RegisterProcess(process, has_lost_writes=True))

    def resign(self, node: int, *, is_whole: bool = False) -> None:
        """A node cannot serve its replica."""
        stream_id = self.decisions.image.streams["a"].id
        request = Resign(node, stream_id, 0, self.state.leader_epoch, is_whole)
        self.decisions.submit(request)


Scene: TypeAlias = Callable[[Cluster], Coroutine[Any, Any, None]]


def virtually(**settings: Any) -> Callable[[Scene], Callable[[], None]]:
    """The test, with a stream of these settings."""

    def decorate(test: Scene) -> Callable[[], None]:
        async def scene() -> None:
            cluster = Cluster(**settings)
            task = asyncio.get_running_loop().create_task(cluster.elections.run())
            await test(cluster)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

        def run() -> None:
            run_virtually(scene())

        run.__name__, run.__doc__ = test.__name__, test.__doc__
        return run

    return decorate
