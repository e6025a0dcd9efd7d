"""Time that passed while a process was stopped counts before requests and bundles are handled.

The clock is the test's. The driver's timer runs on real time, once in ten minutes: it stands for a
loop that handles sockets and requests before its timers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from bascule.errors import NotLeader
from bascule.host.real import RealRandom
from bascule.raft.config import RaftConfig
from bascule.raft.effects import ReadPolicy, Role
from bascule.raft.membership import Members
from bascule.raft.messages import (
    AnyMessage,
    AppendReply,
    Heartbeat,
    HeartbeatReply,
    VoteReply,
    VoteRequest,
)
from bascule.raft.multi.bundle import Bundle
from bascule.raft.testing.memory_store import MemoryStore
from bascule.raft_driver.driver import DriverSettings, RaftDriver
from bascule.raft_driver.group import RaftGroup
from raft_driver.test_driver import PayloadList

TICK_MS = 600_000
CONFIG = RaftConfig(lease_reads=True)


class HandClock:
    """A clock that the test moves."""

    def __init__(self) -> None:
        self.ticks = 0

    def monotonic_ns(self) -> int:
        return self.ticks * TICK_MS * 1_000_000

    def now_ms(self) -> int:
        return 0


class Node:
    """Node 1 of a group of three; the test plays the others."""

    def __init__(self, driver: RaftDriver, group: RaftGroup, clock: HandClock) -> None:
        self.driver, self.group, self.clock = driver, group, clock
        self.sent: list[AnyMessage] = []
        self._echo = 0
        self._incarnation = 0
        driver.transport.send = self._send  # type: ignore[method-assign]

    def _send(self, bundle: Bundle) -> None:
        self._echo, self._incarnation = bundle.clock, bundle.incarnation
        self.sent += [message for _, message in bundle.messages]

    async def tick(self, count: int = 1) -> None:
        """Let the timer fire after so many ticks."""
        self.clock.ticks += count
        self.driver._on_timer()
        await self.settle()

    async def settle(self) -> None:
        """Return when the loop and the disk have nothing left to do."""
        for _ in range(8):
            await self.driver._thread.run(lambda: None)
            await asyncio.wait([asyncio.ensure_future(_nothing())])

    async def receive(self, *messages: AnyMessage) -> None:
        for message in messages:
            self.driver.transport.on_bundle(
                Bundle(
                    source=message.source, target=1, incarnation=message.source,
                    heard_incarnation=self._incarnation, clock=self.clock.ticks,
                    echo=self._echo, session=1, heard_session=1, held=0,
                    messages=((1, message),),
                )
            )  # fmt: skip
        await self.settle()

    async def lead(self) -> None:
        """Become leader, and commit the first entry."""
        for _ in range(30):
            await self.tick()
            if self.group.node.role is Role.PRE_CANDIDATE:
                break
        term = self.group.node.term + 1
        await self.receive(VoteReply(2, 1, term, True, True))
        await self.receive(VoteReply(2, 1, term, False, True))
        assert self.group.is_leader
        await self.acknowledge()

    async def acknowledge(self) -> None:
        """Node 2 replies to the last round and has the whole log."""
        node = self.group.node
        rounds = [message.round for message in self.sent if isinstance(message, Heartbeat)]
        await self.receive(AppendReply(2, 1, node.term, True, node.log.last))
        if rounds:
            await self.receive(HeartbeatReply(2, 1, node.term, rounds[-1]))


async def _nothing() -> None:
    """Lets the loop turn."""


def run_with_node(scene: Callable[[Node], Awaitable[None]]) -> None:
    async def run() -> None:
        clock = HandClock()
        driver = RaftDriver(
            1, DriverSettings(cluster="t", tick_ms=TICK_MS), config=CONFIG, clock=clock,
            random=RealRandom(1),
        )  # fmt: skip
        await driver.start()
        group = await driver.open_group(
            1, PayloadList(), initial_members=Members.of(1, 2, 3), store=MemoryStore()
        )
        try:
            await scene(Node(driver, group, clock))
        finally:
            await driver.stop()

    asyncio.run(run())


def test_a_leader_that_was_stopped_has_no_lease() -> None:
    async def scene(node: Node) -> None:
        await node.lead()
        await node.tick(2)
        await node.acknowledge()
        assert await node.group.read(ReadPolicy.LEASE), "the lease holds"
        node.clock.ticks += 30
        late = asyncio.ensure_future(node.group.read(ReadPolicy.LEASE))
        await node.settle()
        assert not late.done() or isinstance(late.exception(), NotLeader)
        late.cancel()

    run_with_node(scene)


def test_a_hibernating_leader_that_was_stopped_has_no_lease() -> None:
    """Its node's clock stands still while it hibernates."""

    async def scene(node: Node) -> None:
        await node.lead()
        for _ in range(60):
            await node.tick()
            if node.group.node.hibernating:
                break
            await node.acknowledge()
            await node.receive(
                *[HeartbeatReply(3, 1, node.group.node.term, 0)],
                AppendReply(3, 1, node.group.node.term, True, node.group.node.log.last),
            )
        assert node.group.node.hibernating
        node.clock.ticks += 30
        late = asyncio.ensure_future(node.group.read(ReadPolicy.LEASE))
        await node.settle()
        assert not late.done() or isinstance(late.exception(), NotLeader)
        late.cancel()

    run_with_node(scene)


@pytest.mark.parametrize("stalled", [1, 9, 25])
def test_a_follower_promises_from_the_time_of_its_reply_on(stalled: int) -> None:
    """It was stopped for some ticks, and a heartbeat arrives before its timer. Its vote is refused
    for a whole election timeout from the reply on."""

    async def scene(node: Node) -> None:
        await node.receive(Heartbeat(2, 1, 1, 0, 1))
        await node.tick(3)
        node.clock.ticks += stalled
        node.sent.clear()
        await node.receive(Heartbeat(2, 1, 1, 0, 2))
        assert HeartbeatReply in map(type, node.sent)
        await node.tick(CONFIG.election_ticks - 1)
        node.sent.clear()
        await node.receive(VoteRequest(3, 1, 2, False, 9, 1))
        (reply,) = (message for message in node.sent if isinstance(message, VoteReply))
        assert not reply.granted, "the lease that it extended has not ended"

    run_with_node(scene)
