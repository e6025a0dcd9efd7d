"""Replicas of tables forget rows on their own: what readers, writers and the disk see of it."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from bascule.client.tables.replica.replica_file import ReplicaFile
from bascule.config.sections import TablesConfig
from bascule.errors import LogFailed
from bascule.publish.preconditions import UNKNOWN_VERSION
from bascule.replica.partition import Partition
from bascule.tables import Tables
from bascule.tables.ageing import forgetting
from bascule.tables.oplog.changes import Changes
from bascule.tables.rows import TablePosition
from bascule.tables.table_file import TableFile
from bascule.tables.table_replica import TableReplica
from bascule.tables.watching import Restarted, WatchPosition
from bascule.wire.tables.patterns import KeyPattern
from support.metadata_groups import until
from support.table_followers import as_sent, may_go_on
from support.tables_harness import TablesHarness

OPLOG_BYTES = 8 * 300
"""Eight files of some ten operations."""


@pytest.fixture
def harness(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TablesHarness:
    monkeypatch.setattr(forgetting, "LOOK_SECONDS", 0.005)
    monkeypatch.setattr(forgetting, "PAUSE_SECONDS", 0)
    made = TablesHarness(tmp_path)
    made.config = TablesConfig(oplog_bytes_max=OPLOG_BYTES)
    return made


def retain(harness: TablesHarness, tombstone_retention_ms: int) -> None:
    """What is removed is old enough after that time."""
    definition = harness.partition.definition
    config = replace(definition.config, tombstone_retention_ms=tombstone_retention_ms)
    harness.partition.configure(replace(definition, config=config))


async def fill_oplog(harness: TablesHarness, replica: TableReplica) -> None:
    """The oplog has no operation from before any more."""
    harness.clock.wall_ms += 1
    for _ in range(20):
        await replica.wait_position(harness.put(*[(b"busy", b"%d" % n) for n in range(10)]))


def purge(partition: Partition, offset: int) -> None:
    assert partition.log is not None
    partition.log.advance_start(offset, high_watermark=partition.high_watermark.offset)


def data_of(harness: TablesHarness) -> bytes:
    (path,) = (harness.directory / "tables").glob("*/0.db")
    return path.read_bytes()


def test_a_purged_value_is_on_the_disk_no_more(harness: TablesHarness) -> None:
    harness.put((b"a", b"secret" * 150))
    harness.put((b"b", b"2" * 900))

    async def test(tables: Tables) -> None:
        replica = tables.replica("t", 0)
        await replica.wait_position(2)
        purge(harness.partition, 1)
        await until(lambda: tables.forgetting_counts.rows == 1)
        assert await replica.count() == 1

    harness.run(test)
    assert b"secret" not in data_of(harness)


def test_keys_that_are_used_once_do_not_fill_the_disk(harness: TablesHarness) -> None:
    retain(harness, 0)

    async def test(tables: Tables) -> None:
        replica = tables.replica("t", 0)
        removed = 0
        for number in range(40):
            keys = [b"token.%d.%d" % (number, n) for n in range(20)]
            harness.put(*[(key, b"x" * 100) for key in keys])
            await replica.wait_position(harness.put(*[(key, None) for key in keys]))
            removed += len(keys)
            harness.clock.wall_ms += 1
            # The oplog names some 100 of them.
            await until(lambda: removed - tables.forgetting_counts.rows < 120)  # noqa: B023
        assert await replica.count_quickly() == 0

    harness.run(test)
    assert len(data_of(harness)) < 200_000  # 800 rows were there


def test_a_removal_is_kept_as_long_as_the_stream_says(harness: TablesHarness) -> None:
    """And looked for again when that is altered, though nothing is written."""
    retain(harness, 1 << 50)
    harness.put((b"a", b"1"), (b"a", None), (b"b", b"2"))

    async def test(tables: Tables) -> None:
        replica = tables.replica("t", 0)
        looks, forget = 0, replica.forget

        async def counted(*arguments: object) -> object:
            nonlocal looks
            looks += 1
            return await forget(*arguments)  # type: ignore[arg-type]

        replica.forget = counted  # type: ignore[assignment,method-assign]
        await fill_oplog(harness, replica)
        looks = 0
        await replica.wait_position(harness.put((b"busy", b"x")))
        await until(lambda: looks > 0)
        assert list(await replica.last([b"a"])) == [b"a"]
        assert tables.forgetting_counts.rows == 0
        retain(harness, 0)
        await until(lambda: tables.forgetting_counts.rows == 1)
        assert not await replica.last([b"a"])

    harness.run(test)


def test_a_key_that_was_forgotten_can_be_created(harness: TablesHarness) -> None:
    retain(harness, 0)
    harness.put((b"a", b"1"), (b"a", None), (b"b", b"2"))

    async def test(tables: Tables) -> None:
        replica = tables.replica("t", 0)
        end = harness.partition.high_watermark.offset
        assert list(replica.key_versions.find([b"a", b"b"], end)) == [1, 0, 2, 1]
        await fill_oplog(harness, replica)
        await until(lambda: tables.forgetting_counts.rows == 1)
        end = harness.partition.high_watermark.offset
        found = list(replica.key_versions.find([b"a", b"b"], end))
        assert found == [-1, 0, 2, 1]
        assert UNKNOWN_VERSION not in found
        await replica.wait_position(harness.put((b"a", b"3")))
        assert (await replica.get([b"a"]))[b"a"].value == b"3"

    harness.run(test)


def test_a_watcher_from_before_is_shown_the_state(harness: TablesHarness) -> None:
    retain(harness, 0)
    harness.put((b"a", b"1"), (b"b", b"2"))

    async def test(tables: Tables) -> None:
        replica = tables.replica("t", 0)
        await replica.wait_position(2)
        before = WatchPosition(2, replica.epoch_of(1))
        harness.put((b"a", None))
        await fill_oplog(harness, replica)
        await until(lambda: tables.forgetting_counts.rows == 1)
        watcher = replica.watches.watch(KeyPattern(b">"), before)
        assert isinstance(await anext(watcher), Restarted)
        changes = await anext(watcher)
        assert isinstance(changes, list)
        assert [each.key for each in changes] == [b"b", b"busy"]
        await watcher.aclose()

    harness.run(test)


def test_a_copy_from_before_loses_the_key(harness: TablesHarness) -> None:
    """The file of a copy outside the cluster, of which nothing was heard for long."""
    retain(harness, 0)
    harness.put((b"a", b"1"), (b"b", b"2"))
    copy = ReplicaFile(harness.directory / "copy", "t", "id")

    async def page(replica: TableReplica) -> Changes:
        state = copy.state()
        found = await replica.changes(
            state.position, epoch=state.epoch, after=state.after, rows_max=2, bytes_max=1 << 20,
            seen=TablePosition(state.seen, state.seen_epoch),
        )  # fmt: skip
        await asyncio.to_thread(copy.apply, as_sent(found))
        return found

    async def follow(replica: TableReplica) -> int:
        """Return the number of full pages."""
        full = 0
        while may_go_on(found := await page(replica)):
            full += found.is_full
        return full

    async def test(tables: Tables) -> None:
        replica = tables.replica("t", 0)
        await replica.wait_position(2)
        await follow(replica)
        assert await follow(replica) == 0
        harness.put((b"a", None))
        await fill_oplog(harness, replica)
        await until(lambda: tables.forgetting_counts.rows == 1)
        assert await follow(replica) > 0
        held = {entry.key: entry.value for entry in copy.scan(b"", None, 9)}
        assert held == {b"b": b"2", b"busy": b"9"}
        assert await follow(replica) == 0

    harness.run(test)
    copy.close()


def test_a_disk_that_fails_is_tried_again(
    harness: TablesHarness, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    harness.put((b"a", b"1" * 900))
    harness.put((b"b", b"2" * 900))
    forget, failures = TableFile.forget, 0

    def failing(file: TableFile, *arguments: object) -> object:
        nonlocal failures
        if failures < 3:
            failures += 1
            raise LogFailed(file.path, "disk I/O error")
        return forget(file, *arguments)  # type: ignore[arg-type]

    async def test(tables: Tables) -> None:
        await tables.replica("t", 0).wait_position(2)
        purge(harness.partition, 1)
        monkeypatch.setattr(TableFile, "forget", failing)
        await until(lambda: tables.forgetting_counts.rows == 1)

    harness.run(test)
    assert failures == 3
    warned = [each.message for each in caplog.records if "forgotten" in each.message]
    assert warned == ["rows of a table not forgotten"]
