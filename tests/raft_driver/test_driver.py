"""The driver around one node, without a network: results, outcomes, snapshots and ends."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterable, Sequence
from pathlib import Path

import pytest

from bascule.errors import (
    Broken,
    Closed,
    ConfigError,
    DataDirectoryInUse,
    Indeterminate,
    LaggingIndex,
    MembersChanged,
    NotLeader,
)
from bascule.host.real import RealRandom
from bascule.raft.config import RaftConfig
from bascule.raft.membership import MemberChange, Members
from bascule.raft.messages import Entry, RaftSnapshot
from bascule.raft.store import RaftStore
from bascule.raft.testing.memory_store import MemoryStore
from bascule.raft_driver.driver import DriverSettings, RaftDriver
from bascule.raft_driver.group import RaftGroup

CONFIG = RaftConfig(election_ticks=2, heartbeat_ticks=1, commit_count_to_take_snapshot=10)


class Words:
    """Keeps the payloads; a result is how many there are then."""

    def __init__(self) -> None:
        self.words: list[str] = []
        self.drained_on = ""

    def apply(self, entries: Sequence[Entry]) -> list[int]:
        results = []
        for entry in entries:
            if entry.payload == b"poison":
                raise ZeroDivisionError("poison")
            self.words.append(entry.payload.decode())
            results.append(len(self.words))
        return results

    def take_snapshot(self) -> Iterable[bytes]:
        self.drained_on = ""
        return self._chunks()

    def _chunks(self) -> Iterable[bytes]:
        self.drained_on = threading.current_thread().name
        yield from (word.encode() for word in self.words)

    def restore(self, snapshot: RaftSnapshot) -> None:
        self.words = [chunk.decode() for chunk in snapshot.chunks]


def driven(
    scene: Callable[[RaftDriver], Awaitable[None]], *, directory: Path | None = None
) -> None:
    """Run a scene on a driver whose ticks last a millisecond, and stop it."""

    async def run() -> None:
        driver = RaftDriver(
            1, DriverSettings(cluster="t", tick_ms=1), config=CONFIG, random=RealRandom(1)
        )
        await driver.start(directory=None if directory is None else str(directory))
        try:
            await scene(driver)
        finally:
            await driver.stop()

    asyncio.run(run())


async def lone(driver: RaftDriver, store: RaftStore | None, words: Words) -> RaftGroup:
    group = await driver.open_group(7, words, initial_members=Members.of(1), store=store)
    assert await group.wait_leader() == 1
    return group


def test_a_proposal_s_result_is_what_its_apply_returned() -> None:
    async def scene(driver: RaftDriver) -> None:
        words = Words()
        group = await lone(driver, MemoryStore(), words)
        futures = [group.propose_nowait(b"%d" % number) for number in range(100)]
        assert await asyncio.gather(*futures) == list(range(1, 101))
        assert await group.propose(b"last") == 101
        index = await group.read()
        assert (index, group.applied) == (102, 102), "one entry is the leader's own"
        assert await group.barrier(102) == 102
        found = driver.statistics()
        assert found.entries_applied == 102
        assert found.requests_waiting == 0
        assert found.store.syncs < 60, "proposals of a turn share a write"
        assert group.report().log.last == 102

    driven(scene)


def test_statistics_tell_of_the_database(tmp_path: Path) -> None:
    async def scene(driver: RaftDriver) -> None:
        group = await lone(driver, None, Words())
        before = driver.statistics().database
        assert before is not None
        assert await group.propose(b"one") == 1
        after = driver.statistics().database
        assert after is not None
        assert after.entries == 2, "one entry is the leader's own"
        assert after.syncs >= before.syncs + 1
        assert after.groups == 1

    driven(scene, directory=tmp_path)


def test_a_generator_of_chunks_is_drained_beside_the_loop() -> None:
    store = MemoryStore()

    async def scene(driver: RaftDriver) -> None:
        words = Words()
        group = await lone(driver, store, words)
        for number in range(25):
            assert await group.propose(b"%d" % number) == number + 1
        assert words.drained_on
        assert words.drained_on != threading.current_thread().name

    async def again(driver: RaftDriver) -> None:
        words = Words()
        group = await lone(driver, store, words)
        await group.read()
        assert words.words == [str(number) for number in range(25)]
        assert group.report().log.snapshot_index == 20

    driven(scene)
    store.crash(RealRandom(1))
    driven(again)


def test_a_directory_holds_the_group_and_one_process_at_a_time(tmp_path: Path) -> None:
    async def scene(driver: RaftDriver) -> None:
        group = await lone(driver, None, Words())
        assert await group.propose(b"kept") == 1
        other = RaftDriver(1, DriverSettings(cluster="t"))
        with pytest.raises(DataDirectoryInUse, match="in use by process"):
            await other.start(directory=str(tmp_path / "raft"))

    async def again(driver: RaftDriver) -> None:
        words = Words()
        group = await lone(driver, None, words)
        await group.read()
        assert words.words == ["kept"]

    driven(scene, directory=tmp_path / "raft")
    driven(again, directory=tmp_path / "raft")


def test_a_group_is_closed_and_opened_again(tmp_path: Path) -> None:
    async def scene(driver: RaftDriver) -> None:
        group = await lone(driver, None, Words())
        last = group.propose_nowait(b"kept")
        assert await last == 1
        await driver.close_group(7)
        with pytest.raises(Closed, match="group 7 is closed on this node"):
            group.propose_nowait(b"late")
        with pytest.raises(KeyError):
            driver.group(7)
        words = Words()
        again = await lone(driver, None, words)
        await again.read()
        assert words.words == ["kept"]
        assert await again.propose(b"more") == 2

    driven(scene, directory=tmp_path / "raft")


def test_a_store_that_cannot_be_read_is_no_group(tmp_path: Path) -> None:
    async def scene(driver: RaftDriver) -> None:
        refused = MemoryStore("closed")
        refused.close()
        with pytest.raises(Closed, match="store closed is closed"):
            await driver.open_group(7, Words(), store=refused)
        group = await lone(driver, None, Words())
        assert await group.propose(b"x") == 1

    driven(scene, directory=tmp_path / "raft")


def test_outcomes_are_errors_of_their_name() -> None:
    async def scene(driver: RaftDriver) -> None:
        group = await driver.open_group(
            8, Words(), initial_members=Members.of(1, 2), store=MemoryStore()
        )
        with pytest.raises(NotLeader) as caught:
            group.propose_nowait(b"x")
        assert caught.value.leader is None
        with pytest.raises(LaggingIndex) as lagging:
            await group.barrier(5, timeout_s=0.01)
        assert (lagging.value.asked, lagging.value.applied) == (5, 0)
        with pytest.raises(NotLeader):
            await group.read()
        alone = await lone(driver, MemoryStore(), Words())
        await alone.propose(b"x")
        learner = await alone.change_members(MemberChange.ADD_LEARNER, 2)
        assert alone.members.index == learner
        with pytest.raises(MembersChanged):
            await alone.change_members(MemberChange.ADD_VOTER, 2, expected_index=learner - 1)
        # In force from its append on, and node 2, which it needs, is nowhere.
        with pytest.raises(Indeterminate):
            await alone.change_members(MemberChange.ADD_VOTER, 2, timeout_s=0.01)
        with pytest.raises(ConfigError, match="already open"):
            await driver.open_group(7, Words(), store=MemoryStore())

    driven(scene)


def test_a_store_that_fails_silences_the_node() -> None:
    async def scene(driver: RaftDriver) -> None:
        store = MemoryStore()
        group = await lone(driver, store, Words())
        other = await driver.open_group(
            8, Words(), initial_members=Members.of(1), store=MemoryStore()
        )
        await group.propose(b"x")
        reading = asyncio.ensure_future(other.barrier(1_000))
        store.fail_in(1)
        with pytest.raises(Indeterminate, match="input/output error"):
            await group.propose(b"y")
        assert "input/output error" in await driver.failed
        for gone in (group, other):
            with pytest.raises(Broken, match="input/output error"):
                gone.propose_nowait(b"z")
        with pytest.raises(Broken):
            await reading
        with pytest.raises(Broken):
            await driver.open_group(9, Words(), store=MemoryStore())

    driven(scene)


def test_a_state_machine_that_fails_ends_its_group_alone() -> None:
    raised: list[str] = []

    async def scene(driver: RaftDriver) -> None:
        asyncio.get_running_loop().set_exception_handler(
            lambda _, context: raised.append(str(context["exception"]))
        )
        group = await lone(driver, MemoryStore(), Words())
        other = await driver.open_group(
            8, Words(), initial_members=Members.of(1), store=MemoryStore()
        )
        await other.wait_leader()
        poison, fine = group.propose_nowait(b"poison"), other.propose_nowait(b"fine")
        with pytest.raises(Indeterminate, match="poison"):
            await poison
        assert await fine == 1
        with pytest.raises(Broken, match="state machine of group 7 failed: poison"):
            group.propose_nowait(b"more")
        assert await other.propose(b"more") == 2

    driven(scene)
    assert raised == ["poison"], "the loop was told of the bug itself"


def test_a_stop_answers_everybody() -> None:
    async def run() -> None:
        driver = RaftDriver(1, DriverSettings(cluster="t", tick_ms=1), config=CONFIG)
        await driver.start()
        group = await lone(driver, MemoryStore(), Words())
        await group.propose(b"x")
        barrier = asyncio.ensure_future(group.barrier(1_000))
        await asyncio.wait([barrier], timeout=0)
        waiting = group.propose_nowait(b"y")
        await driver.stop()
        with pytest.raises(Indeterminate, match="the node is stopping"):
            await waiting
        with pytest.raises(Closed, match="the node is stopping"):
            await barrier
        with pytest.raises(Closed):
            group.propose_nowait(b"z")

    asyncio.run(run())
