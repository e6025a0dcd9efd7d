"""The driver of one node, without a network: results, outcomes, snapshots, failures and stop."""

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
from bascule.raft.multi.multi_raft import MultiRaft
from bascule.raft.store import RaftStore
from bascule.raft.testing.memory_store import MemoryStore
from bascule.raft_driver.driver import DriverSettings, RaftDriver
from bascule.raft_driver.group import RaftGroup
from bascule.raft_driver.state_machine import FrozenChunks

CONFIG = RaftConfig(election_ticks=2, heartbeat_ticks=1, commit_count_to_take_snapshot=10)


class PayloadList:
    """Stores the payloads; the result of an entry is the number of payloads."""

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


def run_with_driver(
    scene: Callable[[RaftDriver], Awaitable[None]], *, directory: Path | None = None
) -> None:
    """Run a scene with a driver whose ticks last a millisecond, then stop the driver."""

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


async def open_single_group(
    driver: RaftDriver, store: RaftStore | None, words: PayloadList
) -> RaftGroup:
    group = await driver.open_group(7, words, initial_members=Members.of(1), store=store)
    assert await group.wait_leader() == 1
    return group


def test_the_result_of_a_proposal_is_that_of_its_apply() -> None:
    async def scene(driver: RaftDriver) -> None:
        words = PayloadList()
        group = await open_single_group(driver, MemoryStore(), words)
        futures = [group.propose_nowait(b"%d" % number) for number in range(100)]
        answers = await asyncio.gather(*futures)
        assert [answer.result for answer in answers] == list(range(1, 101))
        assert [answer.index for answer in answers] == list(range(2, 102)), "after the no-op"
        assert {answer.term for answer in answers} == {group.node.term}
        assert (await group.propose(b"last")).result == 101
        index = await group.read()
        assert (index, group.applied) == (102, 102), "one entry is the no-op of the leader"
        assert await group.barrier(102) == 102
        found = driver.statistics()
        assert found.entries_applied == 102
        assert found.requests_waiting == 0
        assert found.store.syncs < 60, "proposals of a turn share a write"
        assert group.report().log.last == 102

    run_with_driver(scene)


def test_statistics_include_the_database(tmp_path: Path) -> None:
    async def scene(driver: RaftDriver) -> None:
        group = await open_single_group(driver, None, PayloadList())
        before = driver.statistics().database
        assert before is not None
        assert (await group.propose(b"one")).result == 1
        after = driver.statistics().database
        assert after is not None
        assert after.entries == 2, "one entry is the no-op of the leader"
        assert after.syncs >= before.syncs + 1
        assert after.groups == 1

    run_with_driver(scene, directory=tmp_path)


def test_a_generator_of_chunks_is_consumed_on_another_thread() -> None:
    store = MemoryStore()

    async def scene(driver: RaftDriver) -> None:
        words = PayloadList()
        group = await open_single_group(driver, store, words)
        for number in range(25):
            assert (await group.propose(b"%d" % number)).result == number + 1
        assert words.drained_on
        assert words.drained_on != threading.current_thread().name

    async def again(driver: RaftDriver) -> None:
        words = PayloadList()
        group = await open_single_group(driver, store, words)
        await group.read()
        assert words.words == [str(number) for number in range(25)]
        assert group.report().log.snapshot_index == 20

    run_with_driver(scene)
    store.crash(RealRandom(1))
    run_with_driver(again)


def test_a_directory_keeps_the_group_and_is_locked(tmp_path: Path) -> None:
    async def scene(driver: RaftDriver) -> None:
        group = await open_single_group(driver, None, PayloadList())
        assert (await group.propose(b"kept")).result == 1
        other = RaftDriver(1, DriverSettings(cluster="t"))
        with pytest.raises(DataDirectoryInUse, match="in use by process"):
            await other.start(directory=str(tmp_path / "raft"))

    async def again(driver: RaftDriver) -> None:
        words = PayloadList()
        group = await open_single_group(driver, None, words)
        await group.read()
        assert words.words == ["kept"]

    run_with_driver(scene, directory=tmp_path / "raft")
    run_with_driver(again, directory=tmp_path / "raft")


def test_a_group_is_closed_and_opened_again(tmp_path: Path) -> None:
    async def scene(driver: RaftDriver) -> None:
        group = await open_single_group(driver, None, PayloadList())
        last = group.propose_nowait(b"kept")
        assert (await last).result == 1
        await driver.close_group(7)
        with pytest.raises(Closed, match="group 7 is closed on this node"):
            group.propose_nowait(b"late")
        with pytest.raises(KeyError):
            driver.group(7)
        words = PayloadList()
        again = await open_single_group(driver, None, words)
        await again.read()
        assert words.words == ["kept"]
        assert (await again.propose(b"more")).result == 2

    run_with_driver(scene, directory=tmp_path / "raft")


def test_a_group_with_an_unreadable_store_is_not_opened(tmp_path: Path) -> None:
    async def scene(driver: RaftDriver) -> None:
        refused = MemoryStore("closed")
        refused.close()
        with pytest.raises(Closed, match="store closed is closed"):
            await driver.open_group(7, PayloadList(), store=refused)
        group = await open_single_group(driver, None, PayloadList())
        assert (await group.propose(b"x")).result == 1

    run_with_driver(scene, directory=tmp_path / "raft")


def test_outcomes_are_raised_as_errors() -> None:
    async def scene(driver: RaftDriver) -> None:
        group = await driver.open_group(
            8, PayloadList(), initial_members=Members.of(1, 2), store=MemoryStore()
        )
        with pytest.raises(NotLeader) as caught:
            group.propose_nowait(b"x")
        assert caught.value.leader is None
        with pytest.raises(LaggingIndex) as lagging:
            await group.barrier(5, timeout_s=0.01)
        assert (lagging.value.asked, lagging.value.applied) == (5, 0)
        with pytest.raises(NotLeader):
            await group.read()
        alone = await open_single_group(driver, MemoryStore(), PayloadList())
        await alone.propose(b"x")
        learner = await alone.change_members(MemberChange.ADD_LEARNER, 2)
        assert alone.members.index == learner
        with pytest.raises(MembersChanged):
            await alone.change_members(MemberChange.ADD_VOTER, 2, expected_index=learner - 1)
        # The change is in force from its append on and needs node 2, which does not run.
        with pytest.raises(Indeterminate):
            await alone.change_members(MemberChange.ADD_VOTER, 2, timeout_s=0.01)
        with pytest.raises(ConfigError, match="already open"):
            await driver.open_group(7, PayloadList(), store=MemoryStore())

    run_with_driver(scene)


def test_a_failed_store_stops_the_node() -> None:
    async def scene(driver: RaftDriver) -> None:
        store = MemoryStore()
        group = await open_single_group(driver, store, PayloadList())
        other = await driver.open_group(
            8, PayloadList(), initial_members=Members.of(1), store=MemoryStore()
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
            await driver.open_group(9, PayloadList(), store=MemoryStore())

    run_with_driver(scene)


@pytest.mark.parametrize("method", ["tick", "advance", "ready", "on_process_lost"])
def test_a_failed_core_stops_the_node(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without its timer or a completion it would do nothing any more, and wait."""

    def fail(*_: object, **__: object) -> None:
        raise AssertionError("a bug")

    async def scene(driver: RaftDriver) -> None:
        asyncio.get_running_loop().set_exception_handler(lambda *_: None)
        group = await open_single_group(driver, MemoryStore(), PayloadList())
        waiting = asyncio.ensure_future(group.barrier(1_000))
        await asyncio.wait([waiting], timeout=0)
        monkeypatch.setattr(MultiRaft, method, fail)
        if method == "on_process_lost":
            with pytest.raises(AssertionError):
                driver.on_process_lost(2)
        elif method == "advance":
            group.propose_nowait(b"x").add_done_callback(lambda done: done.exception())
        async with asyncio.timeout(60):
            assert await driver.failed == "AssertionError: a bug"
            with pytest.raises(Broken, match="this node has failed"):
                await waiting
        with pytest.raises(Broken):
            await group.read()

    run_with_driver(scene)


def test_a_failed_state_machine_stops_only_its_group() -> None:
    raised: list[str] = []

    async def scene(driver: RaftDriver) -> None:
        asyncio.get_running_loop().set_exception_handler(
            lambda _, context: raised.append(str(context["exception"]))
        )
        group = await open_single_group(driver, MemoryStore(), PayloadList())
        other = await driver.open_group(
            8, PayloadList(), initial_members=Members.of(1), store=MemoryStore()
        )
        await other.wait_leader()
        poison, fine = group.propose_nowait(b"poison"), other.propose_nowait(b"fine")
        with pytest.raises(Indeterminate, match="poison"):
            await poison
        assert (await fine).result == 1
        with pytest.raises(Broken, match="state machine of group 7 failed: poison"):
            group.propose_nowait(b"more")
        assert (await other.propose(b"more")).result == 2

    run_with_driver(scene)
    assert raised == ["poison"], "the loop got the exception itself"


class SlowSnapshot(PayloadList):
    """Its snapshot is consumed when the test allows it, and may fail then."""

    def __init__(self, *, fails: bool) -> None:
        super().__init__()
        self.begun = threading.Event()
        self.go_on = threading.Event()
        self.fails = fails

    def _chunks(self) -> Iterable[bytes]:
        self.begun.set()
        assert self.go_on.wait(60)
        if self.fails:
            raise ZeroDivisionError("snapshot")
        yield b"late"


@pytest.mark.parametrize("fails", [False, True])
def test_a_late_snapshot_of_a_closed_group_does_not_reach_its_successor(fails: bool) -> None:
    async def scene(driver: RaftDriver) -> None:
        slow = SlowSnapshot(fails=fails)
        group = await open_single_group(driver, MemoryStore(), slow)
        waiting = [group.propose_nowait(b"%d" % number) for number in range(12)]
        await asyncio.get_running_loop().run_in_executor(None, slow.begun.wait, 60)
        await driver.close_group(7)
        await asyncio.wait(waiting)
        for future in waiting:
            future.exception()
        again = await open_single_group(driver, MemoryStore(), PayloadList())
        slow.go_on.set()
        while driver._background:
            await asyncio.wait(list(driver._background))
        for number in range(12):
            assert (await again.propose(b"%d" % number)).result == number + 1
        assert again.report().log.snapshot_index == 10
        assert not driver.failed.done()

    raised: list[object] = []

    async def watched(driver: RaftDriver) -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: raised.append(context))
        await scene(driver)

    run_with_driver(watched)
    assert not raised


class Image(PayloadList):
    """Its state is an immutable tuple; snapshots and restores are made on other threads."""

    def __init__(self) -> None:
        super().__init__()
        self.begun, self.go_on = threading.Event(), threading.Event()
        self.restored_on = ""

    def take_snapshot(self) -> FrozenChunks:  # type: ignore[override]
        return FrozenChunks(self._frozen(tuple(self.words)))

    def _frozen(self, words: tuple[str, ...]) -> Iterable[bytes]:
        self.begun.set()
        assert self.go_on.wait(60)
        yield from (word.encode() for word in words)

    async def restore(self, snapshot: RaftSnapshot) -> None:  # type: ignore[override]
        def decode() -> list[str]:
            self.restored_on = threading.current_thread().name
            return [chunk.decode() for chunk in snapshot.chunks]

        self.words = await asyncio.to_thread(decode)


def test_entries_are_applied_while_a_frozen_image_is_written() -> None:
    store = MemoryStore()

    async def scene(driver: RaftDriver) -> None:
        image = Image()
        group = await open_single_group(driver, store, image)
        # Up to the entry before the next snapshot: the first one is not complete yet.
        for number in range(18):
            assert (await group.propose(b"%d" % number)).result == number + 1
        await asyncio.get_running_loop().run_in_executor(None, image.begun.wait, 60)
        assert group.report().log.snapshot_index == 0
        last = [group.propose_nowait(b"%d" % number) for number in range(18, 25)]
        image.go_on.set()
        assert (await asyncio.gather(*last))[-1].result == 25
        while group.report().log.snapshot_index < 20:
            await group.read()

    async def again(driver: RaftDriver) -> None:
        image = Image()
        group = await open_single_group(driver, store, image)
        await group.read()
        assert image.words == [str(number) for number in range(25)]
        assert image.restored_on != threading.current_thread().name

    run_with_driver(scene)
    store.crash(RealRandom(1))
    run_with_driver(again)


def test_a_restore_that_fails_later_stops_only_its_group() -> None:
    store = MemoryStore()

    class Failing(PayloadList):
        async def restore(self, snapshot: RaftSnapshot) -> None:  # type: ignore[override]
            raise ZeroDivisionError("restore")

    async def scene(driver: RaftDriver) -> None:
        group = await open_single_group(driver, store, PayloadList())
        for number in range(12):
            await group.propose(b"%d" % number)
        while not group.report().log.snapshot_index:
            await group.read()

    async def again(driver: RaftDriver) -> None:
        group = await driver.open_group(7, Failing(), store=store)
        other = await driver.open_group(
            8, PayloadList(), initial_members=Members.of(1), store=MemoryStore()
        )
        with pytest.raises(Broken, match="state machine of group 7 failed: restore"):
            await group.barrier(12)
        await other.wait_leader()
        assert (await other.propose(b"fine")).result == 1

    run_with_driver(scene)
    store.crash(RealRandom(1))
    run_with_driver(again)


def test_a_group_is_opened_once_at_a_time() -> None:
    async def scene(driver: RaftDriver) -> None:
        opening = [
            asyncio.ensure_future(
                driver.open_group(
                    7, PayloadList(), initial_members=Members.of(1), store=MemoryStore()
                )
            )
            for _ in range(2)
        ]
        first, second = await asyncio.gather(*opening, return_exceptions=True)
        assert isinstance(first, RaftGroup)
        assert isinstance(second, ConfigError)

    run_with_driver(scene)


def test_stop_answers_all_requests() -> None:
    async def run() -> None:
        driver = RaftDriver(1, DriverSettings(cluster="t", tick_ms=1), config=CONFIG)
        await driver.start()
        group = await open_single_group(driver, MemoryStore(), PayloadList())
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


def test_nobody_waits_for_a_driver_that_has_stopped() -> None:
    async def run() -> None:
        driver = RaftDriver(1, DriverSettings(cluster="t", tick_ms=1), config=CONFIG)
        await driver.start()
        group = await driver.open_group(7, PayloadList(), store=MemoryStore())
        opening = asyncio.ensure_future(
            driver.open_group(8, PayloadList(), initial_members=Members.of(1), store=MemoryStore())
        )
        await asyncio.wait([opening], timeout=0)
        await driver.stop()
        async with asyncio.timeout(60):
            with pytest.raises(Closed):
                await opening
            with pytest.raises(Closed):
                await driver.open_group(9, PayloadList(), store=MemoryStore())
            with pytest.raises(Closed):
                await group.wait_leader()
        with pytest.raises(Closed):
            group.campaign()

    asyncio.run(run())
