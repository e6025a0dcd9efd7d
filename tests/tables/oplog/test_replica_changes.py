"""Changes of tables that follow real logs: restarts, purges, compaction, lost records, damage."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path
from random import Random

import pytest

from bascule.client.tables.replica.replica_file import ReplicaFile
from bascule.errors import Indeterminate
from bascule.host.real import RealFiles
from bascule.replica.partition import Partition
from bascule.storage.partition_log import LogConfig
from bascule.tables import Tables
from bascule.tables.rows import TablePosition
from bascule.tables.table_replica import TableReplica
from bascule.tables.watching import WatchPosition
from support.keyed_logs import close_segment, compact
from support.served_stream import TIMESTAMP
from support.table_followers import TableFollower, as_sent, may_go_on
from support.tables_harness import TablesHarness

DAY_MS = 86_400_000


@dataclass
class ReplicaFollower(TableFollower):
    """A follower that asks a replica."""

    async def page_from(self, replica: TableReplica, rows_max: int = 3) -> bool:
        page = await replica.changes(
            self.position,
            epoch=self.epoch,
            after=self.after,
            seen=self.seen,
            rows_max=rows_max,
            bytes_max=1 << 20,
        )
        self.apply(page, oldest=page.oldest)
        self.epoch = page.epoch
        return may_go_on(page)

    async def follow(self, replica: TableReplica, rows_max: int = 3) -> None:
        while await self.page_from(replica, rows_max):
            pass


class FileFollower:
    """The copy of a client: pages as they are sent, into a file that is opened anew at times."""

    def __init__(self, path: Path, random: Random) -> None:
        self._path = path
        self._random = random
        self._open()

    def _open(self) -> None:
        self._file = ReplicaFile(self._path, "t", "id")
        self._state = self._file.state()

    async def page_from(self, replica: TableReplica, rows_max: int = 3) -> bool:
        state = self._state
        found = await replica.changes(
            state.position, epoch=state.epoch, after=state.after, rows_max=rows_max,
            bytes_max=1 << 20, seen=TablePosition(state.seen, state.seen_epoch),
        )  # fmt: skip
        self._state = await asyncio.to_thread(self._file.apply, as_sent(found))
        if self._random.random() < 0.1:
            self._file.close()
            self._open()
        return may_go_on(found)

    async def follow(self, replica: TableReplica) -> None:
        while await self.page_from(replica):
            pass

    def values(self) -> dict[bytes, bytes | None]:
        return {entry.key: entry.value for entry in self._file.scan(b"", None, 1_000)}


@pytest.fixture
def harness(tmp_path: Path) -> TablesHarness:
    return TablesHarness(tmp_path)


async def contents(tables: Tables, at_least: int) -> dict[bytes, bytes | None]:
    replica = tables.replica("t", 0)
    await replica.wait_position(at_least)
    return {row.key: row.value for row in await replica.scan(b"", None, 1_000, bytes_max=1 << 20)}


def compact_log(harness: TablesHarness, now_ms: int) -> None:
    log = harness.partition.log
    assert log is not None
    log.configure(LogConfig(segment_bytes_max=1_000, gaps_allowed=True))
    close_segment(log)
    compact(RealFiles(), log, now_ms=now_ms, retention_ms=1_000)


def test_a_follower_goes_on_after_a_restart(harness: TablesHarness) -> None:
    follower = ReplicaFollower()
    end = harness.put(*[(b"%d" % n, b"x") for n in range(10)])

    async def first(tables: Tables) -> None:
        assert await contents(tables, end) != {}
        await follower.follow(tables.replica("t", 0))
        assert follower.full_pages == 4

    async def second(tables: Tables) -> None:
        later = harness.put((b"1", None), (b"2", b"y"), (None, b"no key"))
        await contents(tables, later)
        replica = tables.replica("t", 0)
        await follower.follow(replica)
        assert follower.values() == await contents(tables, later)
        assert (follower.position, follower.full_pages) == (later, 4)

    harness.run(first)
    harness.run(second)


def test_a_page_waits_for_a_replica_that_is_behind(harness: TablesHarness) -> None:
    end = harness.put((b"a", b"1"))

    async def test(tables: Tables) -> None:
        await contents(tables, end)
        replica = tables.replica("t", 0)
        later = harness.put((b"b", b"2"))
        page = await replica.changes(later, rows_max=9, bytes_max=999)
        assert (page.rows, page.position, page.is_full) == ([], later, False)

    harness.run(test)


def test_records_that_were_purged_are_dropped(harness: TablesHarness) -> None:
    harness.put((b"a", b"1" * 900))
    harness.put((b"b", b"2" * 900))
    follower = ReplicaFollower()

    async def test(tables: Tables) -> None:
        await contents(tables, 2)
        replica = tables.replica("t", 0)
        await follower.follow(replica)
        assert list(follower.rows) == [b"a", b"b"]
        log = harness.partition.log
        assert log is not None
        log.advance_start(1, high_watermark=2)
        await follower.follow(replica)
        assert list(follower.rows) == [b"b"]
        assert follower.full_pages == 1

    harness.run(test)


def test_a_removal_that_compaction_took_is_not_missed(harness: TablesHarness) -> None:
    """The table is made anew from a log that does not say any more that a key was removed."""
    follower = ReplicaFollower()
    harness.put((b"gone", b"1"), (b"kept", b"1"))

    async def before(tables: Tables) -> None:
        await contents(tables, 2)
        await follower.follow(tables.replica("t", 0))
        assert list(follower.rows) == [b"gone", b"kept"]

    async def after(tables: Tables) -> None:
        end = harness.put((b"last", b"1"))
        assert sorted(await contents(tables, end)) == [b"kept", b"last", b"other"]
        await follower.follow(tables.replica("t", 0))
        assert sorted(follower.rows) == [b"kept", b"last", b"other"]
        assert follower.full_pages > 1
        harness.put((b"kept", None))
        full_pages = follower.full_pages
        await contents(tables, end + 1)
        await follower.follow(tables.replica("t", 0))
        assert sorted(follower.rows) == [b"last", b"other"]
        assert follower.full_pages == full_pages

    harness.run(before)
    harness.put((b"gone", None), (b"other", b"1"))
    for day in (1, 2):
        compact_log(harness, TIMESTAMP + day * DAY_MS)
    for path in (harness.directory / "tables").glob("*/0.db*"):
        path.unlink()
    harness.run(after)


def test_records_that_the_log_has_lost_are_taken_back(harness: TablesHarness) -> None:
    """As after an unclean election: other records have the offsets."""
    follower = ReplicaFollower()
    end = harness.put((b"a", b"1"), (b"b", b"2"))

    async def before(tables: Tables) -> None:
        await contents(tables, end)
        await follower.follow(tables.replica("t", 0))

    harness.run(before)
    other = TablesHarness(harness.directory / "other")
    other.put((b"c", b"3"))

    async def shorter(tables: Tables) -> None:
        assert await contents(tables, 1) == {b"c": b"3"}
        await follower.follow(tables.replica("t", 0))
        assert follower.values() == {b"c": b"3"}
        assert follower.position == 1

    other.run(shorter)
    assert follower.epoch >= 0
    follower.epoch += 1
    follower.position = 1

    async def another_epoch(tables: Tables) -> None:
        later = other.put((b"d", b"4"))
        await contents(tables, later)
        pages = follower.full_pages
        await follower.follow(tables.replica("t", 0))
        assert follower.full_pages > pages
        assert follower.values() == {b"c": b"3", b"d": b"4"}

    other.run(another_epoch)


@pytest.mark.parametrize("loss", ["its record", "the epoch of another"])
def test_a_state_that_was_left_to_a_later_page_is_not_lost_with_it(
    harness: TablesHarness, loss: str
) -> None:
    """The log is the same up to the position of the follower, which lacks a key there: the key had
    changed again, behind that page, and that change is lost."""
    follower = ReplicaFollower()
    present = (b"k", b"2"), (b"a", b"x"), (b"b", b"x")
    harness.put((b"k", b"1"))
    end = harness.put(*present, (b"k", b"3"))

    async def before(tables: Tables) -> None:
        follower.position, follower.epoch = 1, 0
        await contents(tables, end)
        replica = tables.replica("t", 0)
        await follower.page_from(replica, rows_max=1)
        assert (follower.values(), follower.position) == ({b"a": b"x"}, 3)
        assert follower.seen == (end, follower.epoch)
        watched = WatchPosition(follower.position, follower.epoch, follower.seen)
        assert await replica.reaches(watched, 0)

    harness.run(before)
    other = TablesHarness(harness.directory / "other")
    other.put((b"k", b"1"))
    expected = dict(present)
    if loss == "its record":
        left = other.put(*present)
    else:
        left = other.put(*present, (b"c", b"x"))
        expected[b"c"] = b"x"
        follower.seen = follower.seen._replace(epoch=follower.epoch + 1)

    async def after(tables: Tables) -> None:
        assert await contents(tables, left) == expected
        replica = tables.replica("t", 0)
        watched = WatchPosition(follower.position, follower.epoch)
        assert await replica.reaches(watched, 0)
        if loss == "its record":  # a log without a later epoch may have it to come
            assert not await replica.reaches(watched._replace(seen=follower.seen), 0)
        await follower.follow(replica)
        assert follower.values() == expected
        assert follower.seen == (left, follower.epoch)

    other.run(after)


def test_records_that_are_found_lost_while_a_reader_waits_are_taken_back(
    harness: TablesHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A replica that follows and is behind does not know yet that others have the offsets."""
    follower = ReplicaFollower()
    end = harness.put((b"a", b"1"), (b"b", b"2"))

    async def before(tables: Tables) -> None:
        await contents(tables, end)
        await follower.follow(tables.replica("t", 0))

    harness.run(before)
    other = TablesHarness(harness.directory / "other")
    other.put((b"c", b"3"))
    follower.epoch += 1

    async def behind(tables: Tables) -> None:
        await contents(tables, 1)
        replica = tables.replica("t", 0)
        monkeypatch.setattr(Partition, "is_leader", property(lambda _: False))
        waiting = asyncio.create_task(follower.page_from(replica))
        await asyncio.wait([waiting], timeout=0)  # it begins
        other.put((b"d", b"4"))
        await waiting
        await follower.follow(replica)
        assert follower.values() == {b"c": b"3", b"d": b"4"}

    other.run(behind)


def test_a_damaged_oplog_is_mended(
    harness: TablesHarness, caplog: pytest.LogCaptureFixture
) -> None:
    follower = ReplicaFollower()
    end = harness.put(*[(b"%d" % (n % 30), b"x") for n in range(300)])

    async def test(tables: Tables) -> None:
        await contents(tables, end)
        replica = tables.replica("t", 0)
        await follower.follow(replica, rows_max=100)
        follower.position = 100
        (path,) = (harness.directory / "tables").glob("*/0.oplog/*")
        data = bytearray(path.read_bytes())
        data[5_000] ^= 1
        path.write_bytes(data)
        await follower.follow(replica, rows_max=100)
        assert follower.full_pages == 2
        later = harness.put((b"new", b"1"))
        await contents(tables, later)
        await follower.follow(replica)
        assert follower.full_pages == 2
        assert follower.values() == await contents(tables, later)

    harness.run(test)
    assert "oplog of a table begun anew" in caplog.text


@pytest.mark.parametrize("seed", range(12))
def test_followers_of_concurrent_writes_end_as_the_table(
    harness: TablesHarness, tmp_path: Path, seed: int
) -> None:
    """With restarts, compaction and purges; each follower asks while the table is written."""
    random = Random(seed)
    followers: list[ReplicaFollower | FileFollower] = [ReplicaFollower(), ReplicaFollower()]
    followers.append(FileFollower(tmp_path / "copy.db", random))
    written = 0

    def write() -> None:
        nonlocal written
        some = [
            (b"%d" % random.randint(0, 25), random.choice((None, b"v" * random.randint(0, 99))))
            for _ in range(random.randint(1, 12))
        ]
        written = harness.put(*some)

    async def follow(
        follower: ReplicaFollower | FileFollower, replica: TableReplica, pages: int
    ) -> None:
        for _ in range(pages):
            await follower.page_from(replica, rows_max=1 + pages % 5)

    async def some(tables: Tables) -> None:
        replica = tables.replica("t", 0)
        await replica.wait_position(1)
        tasks = [
            asyncio.create_task(follow(each, replica, random.randint(0, 15))) for each in followers
        ]
        for _ in range(15):
            write()
            await asyncio.to_thread(lambda: None)
        await asyncio.gather(*tasks)

    async def last(tables: Tables) -> None:
        expected = await contents(tables, written)
        for each in followers:
            await each.follow(tables.replica("t", 0))
            assert each.values() == expected

    write()
    for day in range(1, 6):
        harness.run(some)
        change = random.choice(("compact", "purge", "neither"))
        log = harness.partition.log
        assert log is not None
        if change == "compact":
            compact_log(harness, TIMESTAMP + day * DAY_MS)
        elif change == "purge" and written > 40:
            log.advance_start(written - 40, high_watermark=written)
        if random.random() < 0.3:
            for path in (harness.directory / "tables").glob("*/0.db*"):
                path.unlink()
    harness.run(last)


def test_a_table_whose_log_is_shorter_is_asked_again(harness: TablesHarness) -> None:
    """Before it is made anew, what it has is no answer."""
    end = harness.put((b"a", b"1"), (b"b", b"2"))

    async def test(tables: Tables) -> None:
        await contents(tables, end)
        replica = tables.replica("t", 0)
        file = replica._file
        assert file is not None
        file._writer.execute("update state set epoch = 99")
        with pytest.raises(Indeterminate, match="records that its log has lost"):
            await replica.changes(1, rows_max=1, bytes_max=1)

    harness.run(test)
