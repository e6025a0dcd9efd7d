"""What a reader has seen of records that its log loses: which replica may answer it, and how."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from pathlib import Path

import pytest

from bascule.errors import Indeterminate
from bascule.record.batch import Record
from bascule.record.builder import build_batch
from bascule.replica.partition import Partition
from bascule.replica.roles.commitment import LogFlags
from bascule.tables import Tables
from bascule.tables.oplog.changes import Changes
from bascule.tables.rows import TablePosition
from bascule.tables.table_replica import TableReplica
from bascule.tables.watching import Begin, Caught, WatchPosition
from bascule.wire.tables.patterns import KeyPattern
from support.served_stream import TIMESTAMP
from support.tables_harness import TablesHarness


@pytest.fixture
def harness(tmp_path: Path) -> TablesHarness:
    return TablesHarness(tmp_path)


class HeldTable:
    """A table that does not look at its log until `may_look` is set."""

    def __init__(self, replica: TableReplica, monkeypatch: pytest.MonkeyPatch) -> None:
        self.may_look = asyncio.Event()
        self._catch_up: Callable[[Partition], Awaitable[None]] = replica._catch_up
        monkeypatch.setattr(replica, "_catch_up", self._look_later)

    async def _look_later(self, partition: Partition) -> None:
        await self.may_look.wait()
        await self._catch_up(partition)


def test_a_watcher_is_told_no_position_of_the_log_that_its_table_does_not_follow_yet(
    harness: TablesHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was shown a record that is lost. With the epoch of what has its offset now, it would go on
    elsewhere as if it had seen that."""
    epoch = harness.partition.leader_epoch
    harness.put((b"k", b"1"))
    end = harness.put((b"a", b"lost"))

    async def test(tables: Tables) -> None:
        replica = tables.replica("t", 0)
        await replica.wait_position(end)
        table = HeldTable(replica, monkeypatch)
        async with aclosing(replica.watches.watch(KeyPattern(b">"), Begin.STATE)) as steps:
            async for step in steps:
                if isinstance(step, Caught):
                    break
            harness.lose_from(1, epoch=epoch + 1)
            assert harness.put((b"b", b"new")) == end
            waiting = asyncio.ensure_future(anext(steps))
            await asyncio.wait([waiting], timeout=0)
            replica.watches.wake()  # as after `IDLE_SECONDS`
            told = await waiting
            assert isinstance(told, Caught)
            assert told.position == WatchPosition(end, epoch)
            assert not await replica.reaches(told.position, 0)
            table.may_look.set()
            await replica.wait_beyond(end - 1, 20)
            assert not await replica.reaches(told.position, 0)

    harness.run(test)


@pytest.mark.parametrize("start", list(Begin))
def test_nobody_begins_to_watch_a_table_that_does_not_follow_its_log_yet(
    harness: TablesHarness, monkeypatch: pytest.MonkeyPatch, start: Begin
) -> None:
    epoch = harness.partition.leader_epoch
    harness.put((b"k", b"1"))
    end = harness.put((b"a", b"lost"))

    async def test(tables: Tables) -> None:
        replica = tables.replica("t", 0)
        await replica.wait_position(end)
        table = HeldTable(replica, monkeypatch)
        harness.lose_from(1, epoch=epoch + 1)
        assert harness.put((b"b", b"new")) == end
        async with aclosing(replica.watches.watch(KeyPattern(b">"), start)) as steps:
            with pytest.raises(Indeterminate, match="records that its log has lost"):
                while not isinstance(await anext(steps), Caught):
                    pass
        table.may_look.set()

    harness.run(test)


async def follow_with_three_records(harness: TablesHarness, tables: Tables, epoch: int) -> None:
    """Have three records of an epoch, and follow a leader of the next one that has sent nothing."""
    harness.take_role(leads=True, epoch=epoch)
    end = harness.put((b"k", b"1"), (b"a", b"2"), (b"b", b"3"))
    await tables.replica("t", 0).wait_position(end)
    harness.take_role(leads=False, epoch=epoch + 1)


def test_a_follower_that_knows_a_later_epoch_does_not_wait_for_what_is_lost(
    harness: TablesHarness,
) -> None:
    """Its log ends before what the reader has seen, and no more of that epoch will come."""
    epoch = harness.partition.leader_epoch + 5

    async def test(tables: Tables) -> None:
        await follow_with_three_records(harness, tables, epoch)
        seen = TablePosition(9, epoch - 5)
        page = await tables.replica("t", 0).changes(
            1, epoch=epoch, seen=seen, rows_max=9, bytes_max=1 << 20
        )
        assert page.is_full
        assert page.after == b""
        assert [row.key for row in page.rows] == [b"a", b"b", b"k"]

    harness.run(test)


def test_a_follower_does_not_answer_before_it_has_what_the_reader_has_seen(
    harness: TablesHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is behind `since`, and what has changed again up to `seen` may be missing there."""
    partition, epoch = harness.partition, harness.partition.leader_epoch + 5
    seen = TablePosition(5, epoch)

    async def test(tables: Tables) -> None:
        await follow_with_three_records(harness, tables, epoch)
        replica = tables.replica("t", 0)

        async def page() -> Changes:
            return await replica.changes(1, epoch=epoch, seen=seen, rows_max=9, bytes_max=1 << 20)

        with monkeypatch.context() as patch:
            patch.setattr(TableReplica.wait_position, "__defaults__", (0.0,))
            with pytest.raises(Indeterminate, match="at offset 3, not 5"):
                await page()
        watched = WatchPosition(1, epoch, seen)
        assert not await replica.reaches(watched, 0)
        waiting = [asyncio.create_task(page()), asyncio.create_task(replica.reaches(watched, 60))]
        await asyncio.wait(waiting, timeout=0)  # they begin
        records = [Record(3, TIMESTAMP, b"k", b"4", ()), Record(4, TIMESTAMP, b"c", b"5", ())]
        sent = build_batch(records, base_offset=3, leader_epoch=epoch)
        partition.append_replicated(memoryview(sent), LogFlags(False, True))
        partition.sync()
        partition.on_leader_watermark(5, partition.leader_epoch)
        found, is_reached = await asyncio.gather(*waiting)
        assert is_reached
        assert isinstance(found, Changes)
        assert found.read_at == seen
        assert [(row.key, row.version) for row in found.rows] == [
            (b"a", 1), (b"b", 2), (b"k", 3), (b"c", 4),
        ]  # fmt: skip

    harness.run(test)


def test_a_watcher_does_not_go_on_where_what_it_has_seen_is_of_another_epoch(
    harness: TablesHarness,
) -> None:
    """The log is the same up to the position, and longer than what the watcher has seen."""
    epoch = harness.partition.leader_epoch
    harness.put((b"k", b"1"))
    harness.take_role(leads=True, epoch=epoch + 5)
    end = harness.put((b"a", b"2"), (b"b", b"3"), (b"c", b"4"))

    async def test(tables: Tables) -> None:
        replica = tables.replica("t", 0)
        await replica.wait_position(end)
        position = WatchPosition(1, epoch)
        assert await replica.reaches(position, 0)
        assert await replica.reaches(position._replace(seen=TablePosition(3, epoch + 5)), 0)
        assert not await replica.reaches(position._replace(seen=TablePosition(3, epoch)), 0)

    harness.run(test)
