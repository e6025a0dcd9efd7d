"""Tables apply late what nobody waits for. The pause is an hour: what is applied was waited for."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from pathlib import Path

import pytest

from bascule.controller.cluster.tables import cluster_watches
from bascule.errors import Indeterminate, LogFailed
from bascule.tables import Tables, table_replica
from bascule.tables.table_file import TableFile
from bascule.tables.table_replica import TableReplica
from bascule.tables.watching import Begin, Caught, WatchStep
from bascule.wire.tables.patterns import KeyPattern
from support.metadata_groups import some_turns
from support.tables_harness import TablesHarness

ALL = KeyPattern(b">")


@pytest.fixture
def harness(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TablesHarness:
    monkeypatch.setattr("bascule.tables.pace.UNAWAITED_SECONDS_MIN", 3_600.0)
    harness = TablesHarness(tmp_path)
    harness.put((b"a", b"1"))
    return harness


async def begun(tables: Tables) -> TableReplica:
    """The table, once it has what was there at the start."""
    replica = tables.replica("t", 0)
    await replica.wait_position(1)
    return replica


async def is_idle(replica: TableReplica) -> None:
    """Return after it could have applied what it is asked to."""
    await some_turns()
    await replica.get([b"a"])  # on a thread
    await some_turns()


def test_what_nobody_waits_for_is_not_applied_in_the_pause(harness: TablesHarness) -> None:
    async def test(tables: Tables) -> None:
        replica = await begun(tables)
        end = harness.put((b"a", b"2"))
        await is_idle(replica)
        assert replica.position == 1
        await asyncio.wait_for(replica.wait_position(end), 5)
        assert replica.position == end
        harness.put((b"a", b"3"))
        await is_idle(replica)
        assert replica.position == end, "nobody waits any more"

    harness.run(test)


def test_who_waits_for_what_is_to_come_has_it_at_once(harness: TablesHarness) -> None:
    async def test(tables: Tables) -> None:
        replica = await begun(tables)
        for end in (2, 3):
            waits = asyncio.create_task(replica.wait_position(end))
            beyond = asyncio.create_task(replica.wait_beyond(end - 1, 5))
            await is_idle(replica)
            assert harness.put((b"a", b"2")) == end
            await asyncio.wait_for(waits, 5)
            await asyncio.wait_for(beyond, 5)
            assert replica.position == end
        end = harness.put((b"a", b"4"))
        await replica.wait_beyond(end - 1, 5)
        assert replica.position == end

    harness.run(test)


def test_a_wait_that_ends_in_vain_leaves_the_pause_as_it_was(harness: TablesHarness) -> None:
    async def test(tables: Tables) -> None:
        replica = await begun(tables)
        with pytest.raises(Indeterminate):
            await replica.wait_position(9, 0.01)
        cancelled = asyncio.create_task(replica.wait_position(9))
        await some_turns()
        cancelled.cancel()
        await asyncio.wait([cancelled])
        await is_idle(replica)
        harness.put((b"a", b"2"))
        await is_idle(replica)
        assert replica.position == 1

    harness.run(test)


def test_a_watcher_has_each_change_at_once(harness: TablesHarness) -> None:
    async def test(tables: Tables) -> None:
        replica = await begun(tables)
        async with aclosing(replica.watches.watch(ALL)) as steps:
            assert isinstance(await anext(steps), Caught)
            for number in range(3):
                harness.put((b"a", b"%d" % number))
                async with asyncio.timeout(30):
                    assert _values(await anext(steps)) == [b"%d" % number]

    harness.run(test)


def test_a_watcher_that_begins_now_is_not_told_of_changes_from_before(
    harness: TablesHarness,
) -> None:
    async def test(tables: Tables) -> None:
        replica = await begun(tables)
        harness.put((b"a", b"before"))
        watch = cluster_watches._steps(replica, harness.partition, ALL, Begin.NOW)
        async with aclosing(watch) as steps:
            first = await anext(steps)
            assert isinstance(first, Caught)
            assert first.position.offset == 2
            harness.put((b"a", b"later"))
            async with asyncio.timeout(30):
                assert _values(await anext(steps)) == [b"later"]

    harness.run(test)


def _values(step: WatchStep) -> list[bytes | None]:
    assert isinstance(step, list)
    return [change.value for change in step]


def test_what_is_not_applied_when_a_table_is_closed_is_applied_later(
    harness: TablesHarness,
) -> None:
    replicas: list[TableReplica] = []

    async def closed_in_the_pause(tables: Tables) -> None:
        replicas.append(await begun(tables))
        harness.put((b"a", b"2"))
        await is_idle(replicas[0])
        assert replicas[0]._pace._timer is not None

    async def again(tables: Tables) -> None:
        replica = tables.replica("t", 0)
        await replica.wait_position(2)
        assert {row.value for row in (await replica.get([b"a"])).values()} == {b"2"}

    harness.run(closed_in_the_pause)
    assert replicas[0]._pace._timer is None
    assert replicas[0]._pace.on_committed not in harness.partition.watchers
    harness.run(again)


def test_a_stream_that_is_removed_in_the_pause_takes_its_table_along(
    harness: TablesHarness,
) -> None:
    async def test(tables: Tables) -> None:
        replica = await begun(tables)
        harness.put((b"a", b"2"))
        await is_idle(replica)
        harness.partitions.remove(harness.partition.definition)
        while tables._removals:
            await asyncio.wait(tables._removals.values())
        assert replica._pace._timer is None

    harness.run(test)
    assert harness.files() == []


def test_what_is_purged_in_the_pause_is_not_applied(harness: TablesHarness) -> None:
    async def test(tables: Tables) -> None:
        replica = await begun(tables)
        harness.put((b"b", b"2" * 900))
        harness.put((b"c", b"3" * 900))
        await is_idle(replica)
        assert harness.partition.log is not None
        harness.partition.log.advance_start(2, high_watermark=3)
        await replica.wait_position(3)
        assert list(await replica.last([b"a", b"b", b"c"])) == [b"c"]
        assert replica.complete_position == 3

    harness.run(test)


def test_a_table_that_could_not_apply_tries_again_without_a_commit(
    harness: TablesHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a full disk that somebody has made room on."""
    monkeypatch.setattr(table_replica, "RETRY_SECONDS", 0.001)
    failures: list[LogFailed] = []
    apply = TableFile.apply

    def fail_twice(file: TableFile, *args: object) -> None:
        if len(failures) < 2:
            failures.append(LogFailed(file.path, "database or disk is full"))
            raise failures[-1]
        apply(file, *args)  # type: ignore[arg-type]

    async def test(tables: Tables) -> None:
        replica = await begun(tables)
        monkeypatch.setattr(TableFile, "apply", fail_twice)
        harness.put((b"a", b"2"))
        replica._pace.hurry()
        async with asyncio.timeout(30):
            # A thread moves the position before the loop ends the failure.
            while replica.position < 2 or replica.failure.reason is not None:
                await some_turns()
        assert len(failures) == 2

    harness.run(test)


def test_what_is_committed_while_a_table_applies_waits_for_the_next_time(
    harness: TablesHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    late: list[int] = []
    apply = TableFile.apply

    def commit_meanwhile(file: TableFile, *args: object) -> None:
        if not late:
            late.append(harness.put((b"a", b"late")))
        apply(file, *args)  # type: ignore[arg-type]

    async def test(tables: Tables) -> None:
        replica = await begun(tables)
        end = harness.put((b"a", b"2"))
        await is_idle(replica)
        monkeypatch.setattr(TableFile, "apply", commit_meanwhile)
        replica._pace.hurry()
        async with asyncio.timeout(30):
            while replica.position < end:
                await some_turns()
        await is_idle(replica)
        assert late == [end + 1]
        assert replica.position == end

    harness.run(test)
