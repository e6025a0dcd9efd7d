"""What a group tells its observer, and settings of one group, with drivers that have a network."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from bascule.errors import Broken, Indeterminate
from bascule.host.real import RealRandom
from bascule.raft.config import RaftConfig
from bascule.raft.effects import Role
from bascule.raft.membership import MemberChange, Members
from bascule.raft.testing.memory_store import MemoryStore
from bascule.raft_driver.driver import DriverSettings, RaftDriver
from bascule.raft_driver.group import RaftGroup
from bascule.raft_driver.observer import GroupObserver
from raft_driver.test_driver import CONFIG, PayloadList, run_with_driver


class Recording(GroupObserver):
    """The calls as tuples."""

    def __init__(self) -> None:
        self.calls: list[tuple[object, ...]] = []
        self.told = asyncio.Event()

    def on_role(self, role: Role, *, term: int, leader: int) -> None:
        self.note("role", role.value, term, leader)

    def on_members(self, members: Members, *, is_committed: bool) -> None:
        self.note("members", members.voters, members.learners, is_committed)

    def on_removed(self, members: Members) -> None:
        self.note("removed", members.voters)

    def note(self, *call: object) -> None:
        self.calls.append(call)
        self.told.set()

    async def until(self, *call: object) -> None:
        """Return when the call was made."""
        async with asyncio.timeout(60):
            while call not in self.calls:
                self.told.clear()
                await self.told.wait()


class Nodes:
    """Drivers connected over loopback."""

    def __init__(self) -> None:
        self.drivers: dict[int, RaftDriver] = {}
        self.addresses: dict[int, tuple[str, int]] = {}
        self.observers: dict[int, Recording] = {}
        self.groups: dict[int, RaftGroup] = {}

    async def start(self, *ids: int) -> None:
        for node in ids:
            settings = DriverSettings(cluster="t", tick_ms=20)
            driver = RaftDriver(node, settings, random=RealRandom(node))
            address = await driver.start(listen=("127.0.0.1", 0))
            assert address is not None
            self.drivers[node] = driver
            self.addresses[node] = address
        for driver in self.drivers.values():
            driver.transport.set_peers(self.addresses)

    async def open(self, node: int, members: Members | None) -> None:
        self.observers[node] = Recording()
        self.groups[node] = await self.drivers[node].open_group(
            1,
            PayloadList(),
            initial_members=members,
            store=MemoryStore(),
            observer=self.observers[node],
        )

    async def leader(self) -> RaftGroup:
        async with asyncio.timeout(60):
            return self.groups[await next(iter(self.groups.values())).wait_leader()]

    async def stop(self) -> None:
        for driver in self.drivers.values():
            await driver.stop()


def run_with_nodes(scene: Callable[[Nodes], Awaitable[None]]) -> None:
    async def run() -> None:
        nodes = Nodes()
        try:
            await scene(nodes)
        finally:
            await nodes.stop()

    asyncio.run(run())


def test_a_leader_is_told_of_its_election_and_of_members_before_the_answer() -> None:
    async def scene(driver: RaftDriver) -> None:
        seen = Recording()
        group = await driver.open_group(
            7, PayloadList(), initial_members=Members.of(1), store=MemoryStore(), observer=seen
        )
        assert group.state.role is Role.FOLLOWER
        assert group.state.members == Members.of(1)
        await group.wait_leader()
        await seen.until("role", "leader", group.node.term, 1)
        await group.read()
        index = await group.change_members(MemberChange.ADD_LEARNER, 2)
        assert seen.calls[-1] == ("members", (1,), (2,), True)
        assert group.state.members.index == index
        assert group.state.is_members_committed

    run_with_driver(scene)


def test_all_members_are_told_of_a_removal() -> None:
    async def scene(nodes: Nodes) -> None:
        await nodes.start(1, 2, 3)
        for node in (1, 2, 3):
            await nodes.open(node, Members.of(1, 2, 3))
        leader = await nodes.leader()
        await leader.read()
        gone, stays = (node for node in (1, 2, 3) if node != leader.node.id)
        await leader.change_members(MemberChange.REMOVE, gone)
        left = tuple(sorted((leader.node.id, stays)))
        for node in left:
            await nodes.observers[node].until("members", left, (), True)
        await nodes.observers[gone].until("removed", left)
        assert nodes.groups[gone].state.is_removed
        assert ("removed", left) not in nodes.observers[stays].calls

    run_with_nodes(scene)


def test_an_observer_that_fails_stops_only_its_group() -> None:
    raised: list[str] = []

    class Failing(GroupObserver):
        def on_role(self, role: Role, *, term: int, leader: int) -> None:
            if role is Role.LEADER:
                raise ZeroDivisionError("observer")

    async def scene(driver: RaftDriver) -> None:
        asyncio.get_running_loop().set_exception_handler(
            lambda _, context: raised.append(str(context["exception"]))
        )
        group = await driver.open_group(
            7, PayloadList(), initial_members=Members.of(1), store=MemoryStore(),
            observer=Failing(),
        )  # fmt: skip
        other = await driver.open_group(
            8, PayloadList(), initial_members=Members.of(1), store=MemoryStore()
        )
        await other.wait_leader()
        assert (await other.propose(b"fine")).result == 1
        with pytest.raises(Broken, match="observer"):
            await group.read()

    run_with_driver(scene)
    assert raised == ["observer"]


def test_a_group_has_settings_of_its_own() -> None:
    async def scene(driver: RaftDriver) -> None:
        own = RaftConfig(
            election_ticks=2, heartbeat_ticks=1, commit_count_to_take_snapshot=5, lease_reads=True,
            lease_margin_ticks=1,
        )  # fmt: skip
        groups = [
            await driver.open_group(
                number, PayloadList(), initial_members=Members.of(1), store=MemoryStore(),
                config=config,
            )
            for number, config in ((7, own), (8, None))
        ]  # fmt: skip
        for group in groups:
            await group.wait_leader()
            for number in range(7):
                await group.propose(b"%d" % number)
        assert [group.node.config for group in groups] == [own, CONFIG]
        first, second = (group.report().log.snapshot_index for group in groups)
        assert (first, second) == (5, 0)

    run_with_driver(scene)


def test_an_indeterminate_proposal_names_its_entry() -> None:
    async def scene(driver: RaftDriver) -> None:
        # It leads without a quorum for longer than the test takes.
        config = RaftConfig(election_ticks=500, heartbeat_ticks=1)
        group = await driver.open_group(
            7, PayloadList(), initial_members=Members.of(1), store=MemoryStore(), config=config
        )
        await group.wait_leader()
        first = await group.propose(b"x")
        await group.change_members(MemberChange.ADD_LEARNER, 2)
        # In force from its append on, so it needs node 2, which does not run.
        change = asyncio.ensure_future(
            group.change_members(MemberChange.ADD_VOTER, 2, timeout_s=0.01)
        )
        await asyncio.wait([change], timeout=0)
        late = group.propose_nowait(b"y", timeout_s=0.01)
        waiting = group.propose_nowait(b"z")
        await asyncio.wait([change, late])
        await driver.close_group(7)
        for behind, request in ((2, change), (3, late), (4, waiting)):
            with pytest.raises(Indeterminate) as caught:
                await request
            assert (caught.value.index, caught.value.term) == (first.index + behind, first.term)

    run_with_driver(scene)
