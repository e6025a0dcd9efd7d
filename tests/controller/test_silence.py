"""Reports of silent leaders: from the follower to the controller, and to the next controller."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from itertools import pairwise
from typing import Any, cast

import pytest

from bascule.controller.cluster import silence as silence_module
from bascule.controller.cluster.duties import ControllerDuties
from bascule.controller.cluster.metadata_group import ControllerCounts, MetadataGroup
from bascule.controller.cluster.silence import SILENCE, SilentLeaders
from bascule.errors import Broken, NotLeader
from bascule.metadata.image import Image
from bascule.metadata.requests import ControllerRequest, decide
from bascule.sim.disk import SimClock
from support.deciding_controller import DecidingController

SECOND_MS = 1_000


class Group:
    """The metadata group as one node sees it; the nodes share the decisions."""

    def __init__(self, node: int, shared: DecidingController, world: World) -> None:
        self._node, self._shared, self._world = node, shared, world
        self.counts = ControllerCounts()

    @property
    def image(self) -> Image:
        return self._shared.image

    @property
    def controller_id(self) -> int:
        return self._world.controller

    @property
    def is_controller(self) -> bool:
        return self._world.controller == self._node

    @property
    def term(self) -> int:
        return self._world.term

    async def decide_here(self, request: ControllerRequest) -> int:
        assert self.is_controller
        return self._shared.commit(decide(self.image, request))


class Duties:
    def __init__(self, node: int, shared: DecidingController) -> None:
        self._node, self._shared = node, shared

    @property
    def node_epoch(self) -> int:
        return self._shared.image.nodes[self._node].epoch


class World:
    """Three nodes, one of them the controller. Each has its own clock."""

    def __init__(self) -> None:
        self.decisions = DecidingController()
        self.decisions.register(1, 2, 3)
        self.decisions.create("a", replicas=3)
        self.controller, self.term = 0, 1
        self.clocks = {node: SimClock(1_000 * node) for node in (1, 2, 3)}
        self.groups = {node: Group(node, self.decisions, self) for node in (1, 2, 3)}
        self.nodes = {
            node: SilentLeaders(
                node,
                cast(MetadataGroup, self.groups[node]),
                self,
                cast(ControllerDuties, Duties(node, self.decisions)),
                self.clocks[node],
            )
            for node in (1, 2, 3)
        }
        self.leader = self.decisions.state("a").leader
        self.followers = [node for node in (1, 2, 3) if node != self.leader]
        self.sent: list[int] = []

    async def control(self, node: int, kind: str, body: bytes, *, timeout_s: float) -> bytes:
        assert kind == SILENCE
        self.sent.append(node)
        if node == 0:
            raise Broken("nobody")
        return await self.nodes[node].answer_report(body)

    async def report(self, *followers: int) -> None:
        """These followers have no answer of the leader."""
        for node in followers:
            self.nodes[node].on_silent(self.leader, "silent for 1.5 s")
        reports = [task for node in followers for task in self.nodes[node]._reporting.values()]
        await asyncio.gather(*reports)

    def elect(self, node: int) -> None:
        self.controller, self.term = node, self.term + 1


def run(scenario: Callable[[World], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(scenario(World()))


def test_reports_reach_the_controller_and_a_majority_decides() -> None:
    async def scenario(world: World) -> None:
        one, other = world.followers
        world.elect(one)
        await world.report(other)
        assert world.sent == [one]
        assert world.decisions.state("a").leader == world.leader
        await world.report(one)
        assert world.sent == [one], "the controller reports to itself"
        state = world.decisions.state("a")
        assert state.leader in (one, other)
        assert world.leader not in state.isr
        counts = world.groups[one].counts
        assert (counts.silence_reports, counts.silent_leaders_replaced) == (2, 1)

    run(scenario)


def test_a_leader_that_is_the_controller_gives_way_too() -> None:
    async def scenario(world: World) -> None:
        world.elect(world.leader)
        await world.report(*world.followers)
        assert world.decisions.state("a").leader in world.followers

    run(scenario)


def test_reports_that_are_too_far_apart_do_not_add_up() -> None:
    async def scenario(world: World) -> None:
        one, other = world.followers
        world.elect(one)
        await world.report(other)
        world.clocks[one].ms += 6 * SECOND_MS
        await world.report(one)
        assert world.decisions.state("a").leader == world.leader
        await world.report(other)
        assert world.decisions.state("a").leader != world.leader

    run(scenario)


def test_a_new_controller_begins_anew_and_hears_what_is_repeated() -> None:
    async def scenario(world: World) -> None:
        one, other = world.followers
        world.elect(one)
        await world.report(other)
        world.elect(other)
        await world.report(one)
        assert world.decisions.state("a").leader == world.leader, "one report in this term"
        world.elect(one)
        await world.report(one)
        assert world.decisions.state("a").leader == world.leader, "those of older terms are gone"
        await world.report(other)
        assert world.decisions.state("a").leader != world.leader

    run(scenario)


def test_other_work_comes_between_the_parts_of_a_look(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each report makes the controller look at all partitions; those that come meanwhile count."""
    monkeypatch.setattr(silence_module, "LOOKED_AT_MAX", 10)
    plain = silence_module.changes_after_silence
    looks: list[int] = []

    async def scenario(world: World) -> None:
        def look(image: Image, *about: Any) -> Any:
            looks.append(sum(len(image.partitions[each]) for each in about[-1]))
            return plain(image, *about)

        monkeypatch.setattr(silence_module, "changes_after_silence", look)
        for number in range(30):
            world.decisions.create(f"s{number}", replicas=3, partitions=2)
        led = world.decisions.image.index.loads[world.leader].led
        turns: list[int] = []

        def count() -> None:
            nonlocal counting
            turns.append(sum(looks))
            counting = asyncio.get_running_loop().call_soon(count)

        counting = asyncio.get_running_loop().call_soon(count)
        one, other = world.followers
        world.elect(one)
        await world.report(one, other)
        counting.cancel()
        assert world.decisions.image.index.loads[world.leader].led == 0
        counts = world.groups[one].counts
        assert (counts.silence_reports, counts.silent_leaders_replaced) == (2, led)
        assert max(looks) <= 11, "one stream more than fits"
        assert max(after - before for before, after in pairwise(turns)) <= 11

    run(scenario)


def test_without_a_controller_reports_wait_for_their_repetition() -> None:
    async def scenario(world: World) -> None:
        one, other = world.followers
        await world.report(one, other)
        assert world.sent == []
        with pytest.raises(NotLeader):
            await world.nodes[one].answer_report(b"")
        world.elect(world.leader)
        await world.report(one, other)
        assert world.decisions.state("a").leader != world.leader

    run(scenario)
