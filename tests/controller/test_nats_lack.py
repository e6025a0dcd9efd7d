"""When a node says that it lacks NATS, and when the controller has others lead. Time is virtual."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any, cast

import msgspec

from bascule.cluster_version import NEWEST
from bascule.controller.cluster.nats_lack import (
    LACK_SECONDS,
    SETTLED_SECONDS,
    STEADY_SECONDS,
    LackingNodes,
    NatsWatch,
)
from bascule.controller.cluster.sessions import Pong
from bascule.metadata.commands import SetNatsLack
from bascule.metadata.image import Image
from bascule.metadata.requests import ControllerRequest, RaiseVersion, RegisterProcess, decide
from bascule.sim.disk import SimClock
from support.deciding_controller import DecidingController, registration

LACK_MS, STEADY_MS = int(LACK_SECONDS * 1_000), int(STEADY_SECONDS * 1_000)


class Connection:
    """A connection that is lost and made again when the test says so."""

    def __init__(self, clock: SimClock) -> None:
        self._clock = clock
        self.lost_ns: int | None = None
        self.stands_ns = clock.monotonic_ns()

    def lose(self) -> None:
        if self.lost_ns is None:
            self.lost_ns = self._clock.monotonic_ns()

    def stand(self) -> None:
        self.lost_ns, self.stands_ns = None, self._clock.monotonic_ns()

    def standing_ns(self) -> tuple[int | None, int]:
        return self.lost_ns, self.stands_ns


def watched() -> tuple[SimClock, Connection, NatsWatch]:
    clock = SimClock(10_000)
    watch, connection = NatsWatch(clock), Connection(clock)
    assert watch.lacks_ms() == 0, "it has not begun"
    watch.follow(connection)
    assert watch.lacks_ms() == 0
    return clock, connection, watch


def test_a_short_loss_is_not_told() -> None:
    clock, connection, watch = watched()
    for _ in range(10):
        connection.lose()
        clock.ms += LACK_MS - 1
        assert watch.lacks_ms() == 0
        connection.stand()
        clock.ms += 1


def test_a_loss_is_told_until_the_connection_is_steady() -> None:
    clock, connection, watch = watched()
    connection.lose()
    clock.ms += LACK_MS
    assert watch.lacks_ms() == LACK_MS
    clock.ms += 500
    assert watch.lacks_ms() == LACK_MS + 500
    connection.stand()
    clock.ms += STEADY_MS - 1
    assert watch.lacks_ms() == LACK_MS + 500 + STEADY_MS - 1
    clock.ms += 1
    assert watch.lacks_ms() == 0


def test_a_connection_that_is_lost_again_and_again_is_not_steady() -> None:
    clock, connection, watch = watched()
    connection.lose()
    clock.ms += LACK_MS
    assert watch.lacks_ms()
    for _ in range(10):
        connection.stand()
        clock.ms += STEADY_MS - 1
        connection.lose()
        clock.ms += 1
        assert watch.lacks_ms(), "also where nobody looked while it was lost"


def test_an_earlier_release_says_nothing_of_nats() -> None:
    earlier = msgspec.msgpack.encode([7, 1, False, 5])
    assert msgspec.msgpack.decode(earlier, type=Pong).lacks_nats_ms == 0


class Group:
    """A metadata group of this node alone, which decides at once."""

    def __init__(self) -> None:
        self.deciding = DecidingController()
        for node in (1, 2, 3):
            registered = replace(registration(node), cluster_version_max=NEWEST)
            self.deciding.submit(RegisterProcess(registered))
        self.deciding.submit(RaiseVersion((1, 2, 3)))
        self.notes: list[SetNatsLack] = []

    @property
    def image(self) -> Image:
        return self.deciding.image

    async def submit(self, request: ControllerRequest) -> int:
        commands = decide(self.image, request)
        self.notes += [each for each in commands if isinstance(each, SetNatsLack)]
        return self.deciding.commit(commands)


class Controller:
    """What the controller does at each step, 0.5 s apart."""

    def __init__(self) -> None:
        self.group = Group()
        self.told: dict[int, tuple[int, int]] = {}
        self.clock = SimClock(100_000)
        self.now = 0.0
        self.nodes = LackingNodes(cast(Any, self.group), lambda: self.told, self.clock)

    def say(self, *nodes: int, lacks_ms: int) -> None:
        for node in nodes:
            self.told[node] = (self.group.image.nodes[node].epoch, lacks_ms)

    def step(self, times: int = 1) -> None:
        for _ in range(times):
            self.now += 0.5
            self.clock.ms += 500
            asyncio.run(self._step())

    async def _step(self) -> None:
        await self.nodes.note()
        await self.nodes.give_leaders(self.now)

    def leader(self) -> int:
        return self.group.deciding.state("a").leader


SETTLED = int(SETTLED_SECONDS / 0.5)


def test_each_change_is_noted_once() -> None:
    controller = Controller()
    controller.say(1, 2, 3, lacks_ms=0)
    controller.step(3)
    assert controller.group.notes == []
    epoch = controller.group.image.nodes[2].epoch
    controller.say(2, lacks_ms=1_200)
    controller.step()
    controller.say(2, lacks_ms=1_700)
    controller.step(10)
    since_ms = 100_000 + 4 * 500 - 1_200
    assert controller.group.notes == [SetNatsLack(2, epoch, since_ms)]
    controller.say(2, lacks_ms=0)
    controller.step(10)
    assert controller.group.notes[1:] == [SetNatsLack(2, epoch, 0)]


def test_what_an_earlier_process_has_said_is_not_noted() -> None:
    controller = Controller()
    controller.told[2] = (controller.group.image.nodes[2].epoch - 1, 2_000)
    controller.step()
    assert controller.group.notes == []


def test_others_lead_once_it_is_certain() -> None:
    controller = Controller()
    controller.group.deciding.create("a", replicas=3)
    leader = controller.leader()
    controller.step(SETTLED + 2)
    controller.say(leader, lacks_ms=1_000)
    controller.step(SETTLED)
    assert controller.leader() == leader
    controller.step()
    assert controller.leader() != leader


def test_a_shared_server_that_is_lost_moves_nothing() -> None:
    """The nodes say so one after the other, and so they do when it is back."""
    controller = Controller()
    controller.group.deciding.create("a", replicas=3)
    leader = controller.leader()
    others = {1, 2, 3} - {leader}
    controller.say(1, 2, 3, lacks_ms=0)
    controller.step(SETTLED + 2)
    controller.say(leader, lacks_ms=1_000)
    controller.step(SETTLED)
    controller.say(*others, lacks_ms=1_000)
    controller.step(20)
    controller.say(*others, lacks_ms=0)
    controller.step(SETTLED)
    controller.say(leader, lacks_ms=0)
    controller.step(20)
    assert controller.leader() == leader
    assert len(controller.group.notes) == 6


def test_the_next_controller_waits_as_well() -> None:
    controller = Controller()
    controller.group.deciding.create("a", replicas=3)
    leader = controller.leader()
    controller.say(leader, lacks_ms=1_000)
    controller.step(SETTLED)
    controller.nodes.forget()
    controller.step(SETTLED)
    assert controller.leader() == leader
    controller.step()
    assert controller.leader() != leader


def test_a_replica_that_comes_in_sync_later_leads() -> None:
    controller = Controller()
    deciding = controller.group.deciding
    deciding.create("a", replicas=2)
    leader, other = deciding.state("a").replicas
    deciding.set_isr("a", leader)
    controller.say(leader, lacks_ms=1_000)
    controller.step(20)
    assert controller.leader() == leader
    deciding.set_isr("a", leader, other)
    controller.step()
    assert controller.leader() == other
