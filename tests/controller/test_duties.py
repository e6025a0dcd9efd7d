"""What a node does as the controller for itself: it may have lapsed before."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from dataclasses import replace
from math import inf
from typing import Any, cast

import msgspec
import pytest

from bascule.controller.cluster import duties
from bascule.controller.cluster.duties import ControllerDuties
from bascule.controller.cluster.sessions import LAPSE_SECONDS, Pong
from bascule.controller.plan import NodeState
from bascule.errors import Broken, Indeterminate
from bascule.metadata.image import Image
from bascule.metadata.nodes import note_stopping
from bascule.metadata.requests import (
    ControllerRequest,
    Drain,
    Leave,
    LoseNode,
    RegisterProcess,
    decide,
)
from bascule.model import NO_LEADER
from bascule.raft.membership import Members
from bascule.sim.disk import SimClock
from support.deciding_controller import DecidingController, registration
from support.metadata_groups import some_turns, until
from support.virtual_time import elapse, run_virtually

SECONDS_MAX = 10.0


class Group:
    """A metadata group of which this node is the leader, or of which nobody is."""

    applied = 0
    controller_id = 0
    members = Members((1,))

    def __init__(self, deciding: DecidingController) -> None:
        self._deciding = deciding
        self.is_controller = False
        self.term = 1
        self.requests: list[type[ControllerRequest]] = []
        self.on_role_changed: Callable[[], None] = lambda: None
        self.on_image: Callable[[Image], None] = lambda image: None
        self.refusals = 0
        """How many requests get no answer."""

    @property
    def image(self) -> Image:
        return self._deciding.image

    async def settle(self) -> None:
        pass

    async def submit(self, request: ControllerRequest) -> int:
        self.requests.append(type(request))
        if self.refusals:
            self.refusals -= 1
            raise Indeterminate("no controller has answered")
        index = self._deciding.commit(decide(self.image, request))
        self.on_image(self.image)
        return index


def test_a_controller_that_had_lapsed_is_elected_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """No other node pings it, so it sees to that itself: otherwise it would lead nothing for ever,
    while the image says that it leads."""
    monkeypatch.setattr(duties, "LAPSE_SECONDS", 0.02)
    monkeypatch.setattr(duties, "RETRY_SECONDS", 0.001)

    async def scene() -> None:
        deciding = DecidingController()
        deciding.register(1)
        deciding.create("s", replicas=1)
        group, state = Group(deciding), NodeState(1)
        mine = ControllerDuties(
            1,
            cast(Any, group),
            cast(Any, None),
            state,
            on_changed=lambda: None,
            process_loss=lambda *_: "",
            clock=SimClock(1_000),
        )
        group.on_image = mine.on_image
        await mine.register(registration(1))
        before = deciding.state("s")
        run = asyncio.create_task(mine.run())
        async with asyncio.timeout(SECONDS_MAX):
            await until(lambda: state.is_suspended)
        group.requests.clear()
        group.is_controller, group.term = True, 2
        group.on_role_changed()
        async with asyncio.timeout(SECONDS_MAX):
            await until(lambda: not state.is_suspended)
        run.cancel()
        await asyncio.gather(run, return_exceptions=True)
        mine.close()
        assert group.requests == [LoseNode, RegisterProcess]
        after = deciding.state("s")
        assert before.leader != NO_LEADER
        assert after.leader == before.leader
        assert after.leader_epoch > before.leader_epoch

    asyncio.run(scene())


class SilentNodes:
    """Peers that answer pings until they are cut off."""

    def __init__(self, deciding: DecidingController) -> None:
        self._deciding = deciding
        self.are_reached = True

    async def control(self, node: int, kind: str, body: bytes, *, timeout_s: float) -> bytes:
        if not self.are_reached:
            await elapse(timeout_s)
            raise Broken("cut off")
        incarnation = self._deciding.image.nodes[node].incarnation
        return msgspec.msgpack.encode(Pong(incarnation, 0))


def one_of_three() -> tuple[ControllerDuties, Group, NodeState, SilentNodes]:
    """The duties of node 1 of three, which has registered."""
    deciding = DecidingController()
    deciding.register(1, 2, 3)
    group, state, peers = Group(deciding), NodeState(1), SilentNodes(deciding)
    group.members = Members((1, 2, 3))
    mine = ControllerDuties(
        1, cast(Any, group), cast(Any, peers), state, on_changed=lambda: None,
        process_loss=lambda *_: "", clock=SimClock(1_000),
    )  # fmt: skip
    mine._registration = registration(1)
    return mine, group, state, peers


def test_a_controller_that_is_cut_off_knows_it_and_leads_nothing_once_it_is_deposed() -> None:
    """It may be deposed 6 s later only, and then went on for 3 s more."""

    async def scene() -> None:
        mine, group, state, peers = one_of_three()
        group.on_image = mine.on_image
        group.is_controller, group.controller_id = True, 1
        run = asyncio.create_task(mine.run())
        await elapse(20)
        assert not mine.is_cut_off
        peers.are_reached = False
        group.refusals = 1_000  # the loss of the others cannot be committed
        await elapse(LAPSE_SECONDS - 0.5)
        assert not mine.is_cut_off
        await elapse(1.0)
        assert mine.is_cut_off
        assert not state.is_suspended, "it is the controller yet, and may hear the others again"
        peers.are_reached = True
        await elapse(2.0)
        assert not mine.is_cut_off
        peers.are_reached = False
        await elapse(5.0)
        group.is_controller = False
        group.on_role_changed()
        mine._is_due.set()
        await elapse(0.1)
        assert state.is_suspended
        run.cancel()
        await asyncio.gather(run, return_exceptions=True)
        mine.close()

    run_virtually(scene())


def test_a_controller_that_is_deposed_by_others_goes_on_leading() -> None:
    async def scene() -> None:
        mine, group, state, _ = one_of_three()
        group.is_controller, group.controller_id = True, 1
        run = asyncio.create_task(mine.run())
        await elapse(20)
        group.is_controller, group.controller_id, group.term = False, 2, 2
        mine._is_due.set()
        await elapse(LAPSE_SECONDS - 0.5)
        assert not state.is_suspended
        assert not mine.is_cut_off
        run.cancel()
        await asyncio.gather(run, return_exceptions=True)
        mine.close()

    run_virtually(scene())


@pytest.mark.parametrize("leads", [True, False])
def test_a_process_registers_its_versions_where_the_controller_did_not_know_them(
    leads: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A controller of a release before there were any has left them out."""
    monkeypatch.setattr(duties, "RETRY_SECONDS", 0.001)

    async def scene() -> None:
        deciding = DecidingController()
        deciding.register(1, 2)
        group = Group(deciding)
        mine = ControllerDuties(
            1, cast(Any, group), cast(Any, None), NodeState(1), on_changed=lambda: None,
            process_loss=lambda *_: "", clock=SimClock(1_000),
        )  # fmt: skip
        monkeypatch.setattr(mine, "_sessions", Nothing())
        group.on_image = mine.on_image
        group.controller_id = 2
        await mine.register(registration(1))
        group.requests.clear()
        mine._registration = replace(registration(1), cluster_version_max=3)  # as it was told
        run = asyncio.create_task(mine.run())
        await some_turns()
        assert group.requests == [], "the controller does not know them"
        group.term = 2
        if leads:
            group.is_controller, group.controller_id = True, 1
            group.on_role_changed()
        else:
            other = replace(registration(2), cluster_version_max=3)
            deciding.submit(RegisterProcess(other))
            group.on_image(deciding.image)
        async with asyncio.timeout(SECONDS_MAX):
            await until(lambda: deciding.image.nodes[1].cluster_version_max == 3)
        run.cancel()
        await asyncio.gather(run, return_exceptions=True)
        assert group.requests == [RegisterProcess]

    asyncio.run(scene())


def test_a_new_controller_says_why_there_is_another_one(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(duties, "RETRY_SECONDS", 0.001)
    caplog.set_level("INFO", "bascule.controller")

    async def scene() -> None:
        deciding = DecidingController()
        deciding.register(1, 2)
        group = Group(deciding)
        losses = {2: "no answer for 0.6 s"}
        mine = ControllerDuties(
            1,
            cast(Any, group),
            cast(Any, None),
            NodeState(1),
            on_changed=lambda: None,
            process_loss=lambda node, _: losses.get(node, ""),
            clock=SimClock(1_000),
        )
        monkeypatch.setattr(mine, "_sessions", Nothing())
        group.on_image = mine.on_image
        await mine.register(registration(1))
        run = asyncio.create_task(mine.run())

        async def look(is_controller: bool, controller: int) -> None:
            group.term += 1
            group.is_controller, group.controller_id = is_controller, controller
            group.on_role_changed()
            expected = group.term if is_controller else 0
            async with asyncio.timeout(SECONDS_MAX):
                await until(lambda: mine._term == expected)

        await look(True, 1)
        await look(False, 2)
        await look(False, 0)
        await look(True, 1)
        losses.clear()
        await look(False, 2)
        await look(True, 1)
        for request in (Drain(2, empties=False), Leave(2, force=False)):
            await look(False, 2)
            deciding.submit(request)
            await look(True, 1)
        await look(False, 2)
        deciding.commit(note_stopping(deciding.image, 2, deciding.image.nodes[2].epoch))
        await look(True, 1)
        run.cancel()
        await asyncio.gather(run, return_exceptions=True)

    asyncio.run(scene())
    reasons = [vars(r)["reason"] for r in caplog.records if r.msg == "this node is the controller"]
    assert reasons == [
        "no other node was",
        "node 2 was: no answer for 0.6 s",
        "node 2 was: it was not heard of, or has stopped",
        "node 2 was: it is drained, and has handed over",
        "node 2 was: it is to be removed, and has handed over",
        "node 2 was: it stops, and has handed over",
    ]


class Nothing:
    """Sessions that are not held."""

    def follow(self, image: Image) -> None:
        pass

    def heard_at(self, voters: Collection[int]) -> float:
        return inf

    def close(self) -> None:
        pass


def test_a_process_registers_however_long_there_is_no_controller() -> None:
    """Also the second time, with the addresses of its listeners: it would end otherwise."""

    async def scene() -> None:
        deciding = DecidingController()
        group = Group(deciding)
        mine = ControllerDuties(
            1,
            cast(Any, group),
            cast(Any, None),
            NodeState(1),
            on_changed=lambda: None,
            process_loss=lambda *_: "",
            clock=SimClock(1_000),
        )
        for client in ("", "127.0.0.1:9092"):
            group.refusals = 2
            await mine.register(replace(registration(1), client=client))
            assert deciding.image.nodes[1].client == client
        mine.close()

    asyncio.run(scene())
