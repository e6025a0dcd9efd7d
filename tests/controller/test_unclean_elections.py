"""Which replicas the controller asks before an unclean election, and how long. Time is virtual."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import msgspec
import pytest

from bascule.controller.cluster.metadata_group.watching import Watchers
from bascule.controller.unclean.elections import (
    MISSING_SECONDS_MAX,
    RETRY_SECONDS,
    UncleanElections,
)
from bascule.controller.unclean.log_ends import LOGS, LogEnds
from bascule.errors import Broken, NotLeader
from bascule.metadata.image import Image
from bascule.metadata.requests import ControllerRequest, RegisterProcess
from bascule.model import NO_LEADER
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
    """Four nodes. Stream `a` is on three of them, and the fourth is the controller."""

    def __init__(self) -> None:
        self.decisions = Decisions()
        self.looks = 0
        """At the image."""
        self.decisions.register(1, 2, 3, 4)
        self.decisions.create("a", replicas=3, min_isr=1, unclean=True)
        (controller,) = {1, 2, 3, 4} - set(self.replicas())
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
    def leader(self) -> int:
        return self.decisions.state("a").leader

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


def virtually(
    test: Callable[[Cluster], Coroutine[Any, Any, None]],
) -> Callable[[], None]:
    def run() -> None:
        async def scene() -> None:
            cluster = Cluster()
            task = asyncio.get_running_loop().create_task(cluster.elections.run())
            await test(cluster)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

        run_virtually(scene())

    run.__name__ = test.__name__
    run.__doc__ = test.__doc__
    return run


@virtually
async def test_the_longest_log_of_the_living_replicas_leads(cluster: Cluster) -> None:
    first, second = cluster.lose_the_last_in_sync()
    cluster.said = {first: (0, 40, False), second: (0, 80, False)}
    await elapse(1)
    assert cluster.leader == second
    assert sorted(node for node, _ in cluster.asked) == sorted((first, second))


@virtually
async def test_nobody_is_asked_about_partitions_that_have_a_leader(cluster: Cluster) -> None:
    cluster.decisions.lose(cluster.replicas()[1])
    await elapse(5)
    assert cluster.asked == []


@virtually
async def test_a_replica_that_is_not_open_yet_is_waited_for(cluster: Cluster) -> None:
    first, second = cluster.lose_the_last_in_sync()
    cluster.said = {first: (0, 40, False), second: None}
    await elapse(MISSING_SECONDS_MAX - 2)
    assert cluster.leader == NO_LEADER
    cluster.said[second] = (0, 80, False)
    await elapse(2 * RETRY_SECONDS)
    assert cluster.leader == second


@virtually
async def test_after_some_time_those_decide_that_have_answered(cluster: Cluster) -> None:
    first, _ = cluster.lose_the_last_in_sync()
    cluster.said = {first: (0, 40, False)}
    await elapse(MISSING_SECONDS_MAX / 2)
    assert cluster.leader == NO_LEADER
    await elapse(MISSING_SECONDS_MAX)
    assert cluster.leader == first


@virtually
async def test_a_replica_that_has_stopped_is_not_elected(cluster: Cluster) -> None:
    first, second = cluster.lose_the_last_in_sync()
    cluster.said = {first: (0, 40, False), second: (-1, 0, True)}
    await elapse(1)
    assert cluster.leader == first


@virtually
async def test_without_any_log_the_partition_waits(cluster: Cluster) -> None:
    first, second = cluster.lose_the_last_in_sync()
    cluster.said = {first: (-1, 0, True), second: (-1, 0, True)}
    await elapse(2 * MISSING_SECONDS_MAX)
    assert cluster.leader == NO_LEADER
    cluster.said[second] = (0, 1, False)
    await elapse(2 * RETRY_SECONDS)
    assert cluster.leader == second, "it was repaired"


@virtually
async def test_only_the_controller_asks(cluster: Cluster) -> None:
    cluster.is_controller = False
    first, second = cluster.lose_the_last_in_sync()
    cluster.said = {first: (0, 40, False), second: (0, 80, False)}
    await elapse(5)
    assert (cluster.asked, cluster.leader) == ([], NO_LEADER)
    cluster.is_controller = True
    cluster.watchers.tell()
    await elapse(1)
    assert cluster.leader == second


@virtually
async def test_nothing_is_looked_at_while_nothing_changes(cluster: Cluster) -> None:
    first, second = cluster.lose_the_last_in_sync()
    cluster.said = {first: (0, 40, False), second: (0, 80, False)}
    await elapse(0.1)
    assert cluster.leader == second, "at once"
    await elapse(1)
    looks = cluster.looks
    await elapse(60)
    assert cluster.looks == looks


@virtually
async def test_a_node_that_is_back_is_asked_at_once(cluster: Cluster) -> None:
    first, second, last = cluster.replicas()
    for node in (second, last, first):
        cluster.decisions.lose(node)
    await elapse(60)
    assert cluster.asked == []
    cluster.said = {second: (0, 40, False)}
    cluster.decisions.submit(RegisterProcess(registration(second, incarnation=2)))
    await elapse(0.1)
    assert cluster.leader == second


@virtually
async def test_a_new_controller_asks_again(cluster: Cluster) -> None:
    """The one before ended while it asked; this one was it in an earlier term."""
    first, second = cluster.lose_the_last_in_sync()
    cluster.said = {first: (0, 40, False), second: None}
    await elapse(MISSING_SECONDS_MAX / 2)
    cluster.is_controller = False
    cluster.watchers.tell()
    await elapse(MISSING_SECONDS_MAX)
    cluster.is_controller = True
    cluster.watchers.tell()
    await elapse(MISSING_SECONDS_MAX / 2)
    assert cluster.leader == NO_LEADER, "it waits as long as the one before"
    cluster.said[second] = (0, 80, False)
    await elapse(2 * RETRY_SECONDS)
    assert cluster.leader == second
