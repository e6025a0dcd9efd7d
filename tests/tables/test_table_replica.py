"""Tables that follow real logs: restarts, purges, compaction, lost records, damage, deletion."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from pathlib import Path

import pytest

from bascule.errors import CorruptData, NotATable, PartitionFailed, UnknownStream
from bascule.host.real import RealFiles
from bascule.replica.partition import Partition
from bascule.storage.partition_log import LogConfig
from bascule.storage.truncation.partial_copy import PartialCopy
from bascule.tables import Tables, table_replica
from bascule.tables.table_file import TableFile
from bascule.tables.table_replica import TableReplica
from bascule.tables.watching import Begin, Caught, Restarted
from bascule.wire.tables.patterns import KeyPattern
from support.keyed_logs import close_segment, compact
from support.served_stream import TIMESTAMP
from support.tables_harness import TablesHarness


@pytest.fixture
def harness(tmp_path: Path) -> TablesHarness:
    return TablesHarness(tmp_path)


async def contents(tables: Tables, at_least: int) -> dict[bytes, bytes | None]:
    replica = tables.replica("t", 0)
    await replica.wait_position(at_least)
    return {row.key: row.value for row in await replica.scan(b"", None, 1_000, bytes_max=1 << 20)}


def test_a_table_follows_its_log_and_goes_on_after_a_restart(harness: TablesHarness) -> None:
    harness.open(table=False)  # a table stores no message without a key
    end = harness.put((b"a", b"1"), (b"b", b"2"), (None, b"no key"))
    harness.open()

    async def first(tables: Tables) -> None:
        assert await contents(tables, end) == {b"a": b"1", b"b": b"2"}
        later = harness.put((b"a", b"3"), (b"b", None))
        assert await contents(tables, later) == {b"a": b"3"}
        assert tables.replica("t", 0).skipped == 1
        assert await tables.replica("t", 0).count() == 1

    async def second(tables: Tables) -> None:
        assert await contents(tables, 5) == {b"a": b"3"}
        replica = tables.replica("t", 0)
        assert replica.skipped == 0, "it has read the log from its beginning again"
        found = await replica.get([b"a", b"b", b"c"])
        assert {key: (row.version, row.value) for key, row in found.items()} == {b"a": (3, b"3")}

    harness.run(first)
    harness.run(second)


def test_the_log_asks_the_table_before_it_removes_a_tombstone(harness: TablesHarness) -> None:
    """After a loss of power the table reads the log from where it was synced. Tombstones behind it
    have to be there still, else it would keep what they remove."""
    harness.put((b"a", b"1"), (b"b", b"1"))

    async def test(tables: Tables) -> None:
        end = harness.put((b"a", None))
        reader = harness.partition.commitment.tombstone_reader
        assert reader is tables.replica("t", 0)
        await contents(tables, end)
        assert not reader.has_synced(end), "it is not synced"
        assert reader.sync_to(end) == end
        assert reader.has_synced(end)
        harness.put((b"b", None))
        assert reader.sync_to(end) == end, "there is nothing to sync for that"
        harness.open(table=False)
        assert harness.partition.commitment.tombstone_reader is None

    harness.run(test)


def test_a_table_that_a_sync_finds_damaged_is_made_anew(
    harness: TablesHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else its log would keep all tombstones until somebody reads or writes."""
    end = harness.put((b"a", b"1"), (b"b", None))

    async def test(tables: Tables) -> None:
        await contents(tables, end)
        reader = tables.replica("t", 0)
        before = reader._file

        def sync(file: TableFile) -> None:
            raise CorruptData(file.path, 0, "a database of SQLite", "a page")

        with monkeypatch.context() as patch:
            patch.setattr(TableFile, "sync", sync)
            await asyncio.to_thread(reader.sync_to, end)
        await reader.wait_position(end)
        assert reader._file is not before
        assert await asyncio.to_thread(reader.sync_to, end) == end

    harness.run(test)


def test_a_stream_becomes_a_table_and_is_none_any_more(harness: TablesHarness) -> None:
    harness.open(table=False)
    end = harness.put((b"a", b"1"))

    async def test(tables: Tables) -> None:
        with pytest.raises(NotATable, match="alter --table"):
            tables.replica("t", 0)
        with pytest.raises(UnknownStream):
            tables.replica("u", 0)
        harness.open()
        assert await contents(tables, end) == {b"a": b"1"}
        harness.open(table=False)
        with pytest.raises(NotATable):
            tables.replica("t", 0)

    harness.run(test)
    assert harness.files() == []


def test_a_table_that_is_opened_again_at_once_keeps_its_files(harness: TablesHarness) -> None:
    """Those of the earlier table are removed in the background."""
    end = harness.put((b"a", b"1"))

    async def test(tables: Tables) -> None:
        await contents(tables, end)
        for _ in range(3):
            harness.open(table=False)
            harness.open()
        assert await contents(tables, end) == {b"a": b"1"}
        while tables._removals:
            await asyncio.wait(tables._removals.values())
        assert harness.files() == ["0.db"]
        later = harness.put((b"b", b"2"))
        assert await contents(tables, later) == {b"a": b"1", b"b": b"2"}
        assert await tables.replica("t", 0).count() == 2

    harness.run(test)


def test_files_of_deleted_streams_are_removed(harness: TablesHarness) -> None:
    end = harness.put((b"a", b"1"))

    async def test(tables: Tables) -> None:
        await contents(tables, end)
        harness.partitions.remove(harness.partition.definition)

    harness.run(test)
    assert harness.files() == []
    (harness.directory / "tables" / "00" / "0.db").parent.mkdir()
    (harness.directory / "tables" / "00" / "0.db").touch()
    harness.partitions.add((harness.partition,))
    harness.run(lambda tables: contents(tables, end))  # type: ignore[arg-type,return-value]
    assert harness.files() == ["0.db"]
    assert not (harness.directory / "tables" / "00").exists()


def test_what_was_purged_is_in_the_table_no_more(harness: TablesHarness) -> None:
    harness.put((b"a", b"1" * 900))
    harness.put((b"b", b"2" * 900))

    async def test(tables: Tables) -> None:
        assert list(await contents(tables, 2)) == [b"a", b"b"]
        purge(harness.partition, 1)
        assert list(await contents(tables, 2)) == [b"b"]
        replica = tables.replica("t", 0)
        assert list(await replica.get([b"a", b"b"])) == [b"b"]
        assert await replica.count() == 1
        for keys in ([b"a"], [b"a", b"b"]):
            found = replica.read_now(keys, bytes_max=1 << 20)
            assert found is not None
            assert list(found[1]) == [key for key in keys if key == b"b"]
        assert await replica.changed_since(0, rows_max=9, bytes_max=1 << 20) is None

    async def made_anew(tables: Tables) -> None:
        assert list(await contents(tables, 2)) == [b"b"]

    harness.run(test)
    harness.run(made_anew)
    for path in (harness.directory / "tables").glob("*/0.db*"):
        path.unlink()
    harness.run(made_anew)


def purge(partition: Partition, offset: int) -> None:
    assert partition.log is not None
    partition.log.advance_start(offset, high_watermark=partition.high_watermark.offset)


def test_key_value_clients_are_not_given_what_was_purged(harness: TablesHarness) -> None:
    """They ask for the last message of a key, and for the one with a sequence."""
    harness.put((b"a", b"1" * 900), (b"b", b"1"), (b"b", None))
    harness.put((b"c", b"2" * 900))

    async def test(tables: Tables) -> None:
        replica = tables.replica("t", 0)
        assert list(await contents(tables, 4)) == [b"a", b"c"]
        assert sorted(await replica.last([b"a", b"b", b"c"])) == [b"a", b"b", b"c"]
        found = [await replica.at_version(version) for version in range(4)]
        assert [row and row.key for row in found] == [b"a", None, b"b", b"c"]
        purge(harness.partition, 3)
        assert list(await replica.last([b"a", b"b", b"c"])) == [b"c"]
        found = [await replica.at_version(version) for version in range(4)]
        assert [row and row.key for row in found] == [None, None, None, b"c"]

    harness.run(test)


def test_a_table_of_a_compacted_log_is_the_same(harness: TablesHarness) -> None:
    for n in range(30):
        harness.put((b"k%d" % (n % 3), b"%d" % n if n % 5 else None), (b"old", b"%d" % n))
    expected: dict[bytes, bytes | None] = {}

    async def before(tables: Tables) -> None:
        expected.update(await contents(tables, 60))

    async def after(tables: Tables) -> None:
        assert await contents(tables, 60) == expected
        end = harness.put((b"new", b"1"))
        assert await contents(tables, end) == {**expected, b"new": b"1"}

    harness.run(before)
    log = harness.partition.log
    assert log is not None
    log.configure(LogConfig(segment_bytes_max=1_000, gaps_allowed=True))
    close_segment(log)
    compact(RealFiles(), log, now_ms=TIMESTAMP + 86_400_000, retention_ms=1_000)
    for path in (harness.directory / "tables").glob("*/0.db*"):
        path.unlink()
    harness.run(after)
    assert expected


def test_a_position_in_the_middle_of_a_compacted_log_is_not_waited_for_in_vain(
    harness: TablesHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client that has written `a` at 20 reads it there, or the later record in its place."""
    for n in range(20):
        harness.put((b"a" if n == 10 else b"k%d" % n, b"%d" % n), (b"last", b"%d" % n))
    harness.put((b"a", b"later"))
    log = harness.partition.log
    assert log is not None
    log.configure(LogConfig(segment_bytes_max=1_000, gaps_allowed=True))
    close_segment(log)
    compact(RealFiles(), log, now_ms=TIMESTAMP + 86_400_000, retention_ms=1_000)
    monkeypatch.setattr(table_replica, "READ_BYTES", 1)
    end, steps = harness.partition.committed_offset, list[tuple[int, int]]()
    note = TableReplica._note_gaps

    def note_and_look(replica: TableReplica, partition: Partition, missing: int) -> None:
        note(replica, partition, missing)
        steps.append((replica.position, replica.complete_position))

    monkeypatch.setattr(TableReplica, "_note_gaps", note_and_look)

    async def test(tables: Tables) -> None:
        await tables.replica("t", 0).wait_position(21)
        found = await tables.replica("t", 0).get([b"a"])
        assert found[b"a"].value == b"later"

    harness.run(test)
    assert any(20 < position < end for position, _ in steps)
    assert all(complete in (0, end) for _, complete in steps), "it was at no position between"


def test_records_that_the_log_has_lost_are_not_in_the_table(harness: TablesHarness) -> None:
    """As after an unclean election, or a log that was copied anew."""
    end = harness.put((b"a", b"1"), (b"b", b"2"))
    harness.run(lambda tables: contents(tables, end))  # type: ignore[arg-type,return-value]
    other = TablesHarness(harness.directory / "other")
    (harness.directory / "tables").rename(other.directory / "tables")
    other.run(lambda tables: shorter_of(other, tables))


async def shorter_of(harness: TablesHarness, tables: Tables) -> None:
    end = harness.put((b"c", b"3"))
    replica: TableReplica = tables.replica("t", 0)
    await replica.wait_position(end)
    assert [row.key for row in await replica.scan(b"", None, 10, bytes_max=1 << 20)] == [b"c"]


@pytest.mark.parametrize("has_restarted", [False, True])
def test_a_log_that_was_copied_anew_is_not_added_to_the_table(
    harness: TablesHarness, has_restarted: bool
) -> None:
    """The tombstone of a key is removed there, and the log is longer again than the table knows."""
    end = harness.put((b"a", b"1"), (b"b", b"2"))
    harness.run(lambda tables: contents(tables, end))  # type: ignore[arg-type,return-value]
    other = TablesHarness(harness.directory / "other")
    (harness.directory / "tables").rename(other.directory / "tables")
    log = other.partition.log
    assert log is not None
    copy = PartialCopy(RealFiles(), log.directory) if has_restarted else log.partial_copy
    copy.begin(5)
    end = other.put((b"b", b"2"), (b"c", b"3"), (b"c", b"4"))

    async def follow(tables: Tables) -> None:
        replica = tables.replica("t", 0)
        await replica.wait_position(end)
        assert [row.key for row in await replica.scan(b"", None, 10, bytes_max=1 << 20)] == [
            b"b",
            b"c",
        ]

    other.run(follow)


@pytest.mark.parametrize("moves", [True, False])
def test_watchers_of_a_replica_that_has_moved_or_stopped_end(
    harness: TablesHarness, moves: bool
) -> None:
    """They are to go on at another node, from the last position. They waited for ever."""
    partition, log = harness.partition, harness.partition.log
    end = harness.put((b"a", b"1"))

    async def watch(tables: Tables) -> None:
        replica = tables.replica("t", 0)
        await replica.wait_position(end)
        steps = replica.watches.watch(KeyPattern(b">"), Begin.NOW)
        assert isinstance(await anext(steps), Caught)
        if moves:
            partition.log = None
            partition.notify()
        else:
            partition.fail("damaged")
        with pytest.raises(PartitionFailed, match="was removed" if moves else "damaged"):
            await anext(steps)
        if moves:
            async with replica._advanced:
                await replica._advanced.wait_for(lambda: replica.position == 0)
        partition.log, partition.failure = log, None
        partition.notify()
        await replica.wait_position(end)
        async with aclosing(replica.watches.watch(KeyPattern(b">"), Begin.STATE)) as again:
            assert [type(await anext(again)) for _ in range(3)] == [Restarted, list, Caught]

    harness.run(watch)


@pytest.mark.parametrize("moves", [True, False])
def test_who_waits_for_a_replica_that_has_moved_or_stopped_is_told(
    harness: TablesHarness, moves: bool
) -> None:
    """A copy of the table waited 20 s for changes that came to other nodes, a read 5 s."""
    partition = harness.partition
    end = harness.put((b"a", b"1"))

    async def wait(tables: Tables) -> None:
        replica = tables.replica("t", 0)
        await replica.wait_position(end)
        waiting = [
            asyncio.create_task(replica.wait_beyond(end, 60)),
            asyncio.create_task(replica.wait_position(end + 1, 60)),
        ]
        await asyncio.wait(waiting, timeout=0)  # they begin
        if moves:
            partition.log = None
            partition.notify()
        else:
            partition.fail("damaged")
        async with asyncio.timeout(30):
            for each in waiting:
                with pytest.raises(PartitionFailed, match="was removed" if moves else "damaged"):
                    await each

    harness.run(wait)


@pytest.mark.parametrize("at", [0, 4_096])
def test_a_damaged_file_is_made_anew(harness: TablesHarness, at: int) -> None:
    end = harness.put(*[(b"%d" % n, b"x" * 50) for n in range(200)])

    async def test(tables: Tables) -> None:
        assert len(await contents(tables, end)) == 200

    harness.run(test)
    (path,) = (harness.directory / "tables").glob("*/0.db")
    data = bytearray(path.read_bytes())
    data[at : at + 200] = b"?" * 200
    path.write_bytes(data)

    async def again(tables: Tables) -> None:
        later = harness.put((b"new", b"1"))
        try:
            found = await contents(tables, later)
        except CorruptData:  # found by the reader
            found = await contents(tables, later)
        assert len(found) == 201

    harness.run(again)
