"""The write thread: order, one flush per round, and the end at the first failure."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest

from bascule.errors import Broken, Closed
from bascule.host.real import RealClock
from bascule.raft.effects import Write
from bascule.raft.membership import Members
from bascule.raft.messages import Chunk, Entry
from bascule.raft.store import persist_write
from bascule.raft.testing.memory_store import MemoryStore
from bascule.raft_driver.sqlite_store import SqliteDatabase
from bascule.raft_driver.write_thread import WriteJob, WriteThread


def entry(index: int) -> Entry:
    return Entry(index, 1, 0, b"")


class RecordingStore:
    """A store that records its calls, and blocks in a flush until the test releases it."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.flushing = threading.Event()
        self.go_on = threading.Event()
        self.go_on.set()

    def persist_term(self, term: int, voted_for: int) -> None:
        self.calls.append(f"term {term} {voted_for}")

    def persist_entries(self, entries: Sequence[Entry]) -> None:
        self.calls.append(f"entries {[entry.index for entry in entries]}")

    def truncate_from(self, index: int) -> None:
        self.calls.append(f"from {index}")

    def truncate_until(self, index: int) -> None:
        self.calls.append(f"until {index}")

    def persist_chunk(self, chunk: Chunk) -> None:
        self.calls.append(f"chunk {chunk.number}")

    def delete_chunks(self, index: int, count: int) -> None:
        self.calls.append(f"delete {index} {count}")

    def flush(self) -> None:
        self.flushing.set()
        assert self.go_on.wait(20)
        self.calls.append("flush")


class ThreadHarness:
    """A write thread, and a record of its reports."""

    def __init__(self) -> None:
        self.done: list[int] = []
        self.failed: list[str] = []
        self.told = asyncio.Event()
        self.thread = WriteThread(
            asyncio.get_running_loop(), RealClock(), on_done=self.on_done, on_failed=self.on_failed
        )
        self.thread.start()

    def on_done(self, jobs: Sequence[WriteJob]) -> None:
        self.done += [write.number for _, _, write in jobs]
        self.told.set()

    def on_failed(self, cause: str) -> None:
        self.failed.append(cause)
        self.told.set()

    async def wait_for_reports(self) -> None:
        await self.told.wait()
        self.told.clear()


def test_a_write_is_carried_out_in_the_order_of_its_fields() -> None:
    store = RecordingStore()
    chunk = Chunk(9, 1, Members((1,)), 0, 1, b"")
    write = Write(
        number=1, vote=(3, 2), truncate_from=5, entries=(entry(5), entry(6)), chunks=(chunk,),
        truncate_until=4, delete_chunks=((3, 2),), sync=True,
    )  # fmt: skip
    persist_write(store, write)  # type: ignore[arg-type]
    assert store.calls == [
        "term 3 2", "from 5", "until 4", "entries [5, 6]", "chunk 0", "delete 3 2",
    ]  # fmt: skip


def test_writes_during_a_flush_share_the_next_flush() -> None:
    async def run() -> None:
        house, store = ThreadHarness(), RecordingStore()
        store.go_on.clear()

        def write(number: int, *, sync: bool = True) -> list[WriteJob]:
            job = Write(number=number, entries=(entry(number),), sync=sync)
            return [(1, store, job)]  # type: ignore[list-item]

        house.thread.submit(write(1))
        await asyncio.get_running_loop().run_in_executor(None, store.flushing.wait, 20)
        for number in range(2, 6):
            house.thread.submit(write(number))
        store.go_on.set()
        while len(house.done) < 5:
            await house.wait_for_reports()
        assert house.done == [1, 2, 3, 4, 5]
        assert store.calls == [
            "entries [1]", "flush",
            "entries [2]", "entries [3]", "entries [4]", "entries [5]", "flush",
        ]  # fmt: skip
        house.thread.submit(write(6, sync=False))
        await house.wait_for_reports()
        assert store.calls[-1] == "entries [6]", "no write is queued"
        found = house.thread.statistics()
        assert (found.writes, found.entries, found.rounds, found.syncs) == (6, 6, 3, 2)
        assert found.round_writes_max == 4
        await house.thread.stop()

    asyncio.run(run())


def test_a_task_runs_after_earlier_writes() -> None:
    async def run() -> None:
        house, store = ThreadHarness(), RecordingStore()
        store.go_on.clear()
        job = Write(number=1, entries=(entry(1),), sync=True)
        house.thread.submit([(1, store, job)])  # type: ignore[list-item]
        seen = house.thread.run(lambda: list(store.calls))
        store.go_on.set()
        assert await seen == ["entries [1]", "flush"]
        refused = MemoryStore("closed")
        refused.close()
        with pytest.raises(Closed, match="store closed is closed"):
            await house.thread.run(refused.load)
        assert not house.failed, "the error went to the caller; the thread continues"
        await house.thread.stop()

    asyncio.run(run())


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_bug_on_the_thread_is_reported_and_raised() -> None:
    async def run() -> None:
        house = ThreadHarness()

        def task() -> None:
            raise ZeroDivisionError("a bug")

        with pytest.raises(Broken, match="ZeroDivisionError: a bug"):
            await house.thread.run(task)
        assert house.failed == ["ZeroDivisionError: a bug"]
        await house.thread.stop()

    asyncio.run(run())


@pytest.mark.parametrize("call", [1, 2, 3])
def test_nothing_is_confirmed_after_the_first_failure(call: int) -> None:
    """Writes of other stores are not confirmed either."""

    async def run() -> None:
        house, store, other = ThreadHarness(), MemoryStore("first"), MemoryStore("second")
        store.load()
        other.load()
        store.fail_in(call)
        for number in range(1, 4):
            write = Write(number=number, entries=(entry(number),), sync=True)
            house.thread.submit([(2, other, write), (1, store, write)])
            await house.wait_for_reports()
            if house.failed:
                break
        confirmed = list(house.done)
        assert len(house.failed) == 1
        assert "input/output error" in house.failed[0]
        house.thread.submit([(2, other, Write(number=9, entries=(entry(9),), sync=True))])
        with pytest.raises(Broken, match="the store has failed: LogFailed"):
            await house.thread.run(store.load)
        await house.thread.stop()
        assert house.done == confirmed
        assert house.thread.statistics().failure == house.failed[0]

    asyncio.run(run())


def test_the_votes_of_many_groups_share_one_commit(tmp_path: Path) -> None:
    async def run() -> None:
        house = ThreadHarness()
        database = SqliteDatabase.open(str(tmp_path / "raft.sqlite"), node_id=1)
        stores = [database.store(number) for number in range(1, 101)]
        for store in stores:
            store.load()
            store.bootstrap(Members((1, 2, 3)))
        before = database.statistics().commits
        vote = Write(number=1, vote=(5, 2), sync=True)
        house.thread.submit([(store.group, store, vote) for store in stores])
        await house.wait_for_reports()
        assert database.statistics().commits == before + 1
        await house.thread.stop()
        database.close()
        again = SqliteDatabase.open(str(tmp_path / "raft.sqlite"), node_id=1)
        found = [again.store(number).load() for number in range(1, 101)]
        assert {(restored.term, restored.voted_for) for restored in found} == {(5, 2)}
        again.close()

    asyncio.run(run())


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_after_a_bug_in_a_write_the_thread_refuses_what_waits() -> None:
    """A call that no store allows: it is not one of the errors that a store may raise."""

    async def run() -> None:
        house, store = ThreadHarness(), RecordingStore()
        store.go_on.clear()
        bad = MemoryStore()
        bad.load()
        bad.persist_entries((entry(1),))
        first = Write(number=1, entries=(entry(1),), sync=True)
        house.thread.submit([(1, store, first)])  # type: ignore[list-item]
        await asyncio.get_running_loop().run_in_executor(None, store.flushing.wait, 20)
        # The thread takes these together: a task behind a write that fails.
        house.thread.submit([(2, bad, Write(number=1, entries=(entry(5),), sync=True))])
        waiting = [house.thread.run(bad.load), house.thread.run(bad.load)]
        store.go_on.set()
        for future in (*waiting, house.thread.run(bad.load)):
            with pytest.raises(Broken, match="AssertionError: entries follow the last one"):
                await asyncio.wait_for(future, 60)
        assert house.done == [1]
        assert len(house.failed) == 1
        await asyncio.wait_for(house.thread.stop(), 60)

    asyncio.run(run())


@pytest.mark.parametrize("order", ["sync first", "sync last", "sync between"])
def test_a_round_flushes_every_store_that_owes_it(order: str) -> None:
    """A write that needs no sync takes nothing away from one that does, and no store stands for
    another."""

    async def run() -> None:
        house, stores = ThreadHarness(), [RecordingStore() for _ in range(3)]
        blocker = RecordingStore()
        blocker.go_on.clear()

        def write(store: RecordingStore, number: int, *, sync: bool) -> WriteJob:
            return (1, store, Write(number=number, entries=(entry(number),), sync=sync))  # type: ignore[return-value]

        house.thread.submit([write(blocker, 1, sync=True)])
        await asyncio.get_running_loop().run_in_executor(None, blocker.flushing.wait, 20)
        syncs = {"sync first": (1, 0, 0), "sync last": (0, 0, 1), "sync between": (0, 1, 0)}[order]
        for number, sync in enumerate(syncs, 1):
            for store in stores[:2]:
                house.thread.submit([write(store, number, sync=bool(sync))])
            house.thread.submit([write(stores[2], number, sync=False)])
        blocker.go_on.set()
        while len(house.done) < 10:
            await house.wait_for_reports()
        written = [f"entries [{number}]" for number in (1, 2, 3)]
        assert stores[0].calls == [*written, "flush"]
        assert stores[1].calls == [*written, "flush"]
        assert stores[2].calls == written
        await house.thread.stop()

    asyncio.run(run())
