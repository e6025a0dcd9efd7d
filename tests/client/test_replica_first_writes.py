"""Writes that were made on a copy of keys without a value: others may set such a key, and remove it
again, before the write is offered."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final, cast

import pytest

from bascule.client.tables.replica import follower as follower_module
from bascule.client.tables.replica.conflicts import Conflict, Conflicts, LocalWrite, resolver_of
from bascule.client.tables.replica.copy_rows import PendingWrite, row_crc
from bascule.client.tables.replica.follower import ReplicaFollower
from bascule.client.tables.replica.replica_file import ReplicaFile
from bascule.client.tables.replica.rescue import begin_anew
from bascule.errors import WrongVersion
from bascule.table_results import PageAsked
from bascule.wire.tables.sync_pages import SyncPage, SyncRow
from support.table_copies import NOW, TABLE, page, values, write

pytestmark = pytest.mark.tier2

RETENTION_MS: Final = 24 * 3_600_000


class Table:
    """A table as its leader has it, and pages of what has changed."""

    asked_server = "http://node"

    def __init__(self) -> None:
        self.id = TABLE
        self.rows: dict[bytes, SyncRow] = {}
        self.end = 0
        self.ids: dict[str, int] = {}
        self.oplog_start = 0
        """Who asks from an earlier position gets all keys."""
        self.oldest = 0
        self.lost: asyncio.Event | None = None
        """Set once a write was taken whose answer is lost; None: none is."""
        self.offered: list[tuple[bytes | None, int | None]] = []
        self.changed = asyncio.Event()

    def put(self, key: bytes, value: bytes | None, at: int = NOW) -> int:
        self.rows[key] = SyncRow(key, self.end, at, value)
        self.end += 1
        self.changed.set()
        return self.end - 1

    def forget(self, key: bytes) -> None:
        """A removal of long ago."""
        assert self.rows.pop(key).value is None
        self.oplog_start = self.end

    async def table_changes(self, table: str, asked: PageAsked) -> SyncPage:
        while asked.wait and asked.since == self.end and asked.table == self.id:
            self.changed.clear()
            await self.changed.wait()
        is_full = not asked.since or asked.table != self.id or asked.since < self.oplog_start
        rows = [
            (row.key, row.version, row.value)
            for row in sorted(self.rows.values(), key=lambda row: row.version)
            if (row.value is not None if is_full else row.version >= asked.since)
        ]
        return page(*rows, position=self.end, is_full=is_full, table=self.id, oldest=self.oldest)

    async def write_key(
        self, table: str, key: bytes, value: bytes | None, *, if_version: int | None,
        message_id: str, **_: object,
    ) -> int:  # fmt: skip
        self.offered.append((value, if_version))
        if message_id in self.ids:
            return self.ids[message_id]
        row = self.rows.get(key)
        found = None if row is None else row.version
        is_absent = row is None or row.value is None
        if not (is_absent if if_version is None else found == if_version):
            raise WrongVersion(table, key, expected=if_version, found=found)
        if self.lost is None:
            version = self.ids[message_id] = self.put(key, value)
            return version
        self.ids[message_id], self.changed = self.end, asyncio.Event()  # no page comes any more
        self.put(key, value)
        self.lost.set()
        await asyncio.Event().wait()
        raise AssertionError

    async def stream(self, name: str) -> Any:
        config = SimpleNamespace(tombstone_retention_ms=RETENTION_MS)
        return SimpleNamespace(definition=SimpleNamespace(config=config))

    def turn_from(self, server: str) -> None:
        pass


class At:
    """A clock."""

    def __init__(self, ms: int) -> None:
        self.ms = ms

    def now_ms(self) -> int:
        return self.ms

    def monotonic_ns(self) -> int:
        raise AssertionError


async def follow(
    file: ReplicaFile,
    table: Table,
    conflicts: Conflicts = "reject",
    *,
    until: asyncio.Event | None = None,
    now: int = NOW,
) -> list[str]:
    """Follow until no write is left, or `until`; return why writes were refused, in order."""
    follower = ReplicaFollower(
        "t", file, cast("Any", table), resolver=resolver_of(conflicts), on_refused=None,
        clock=At(now),
    )  # fmt: skip
    following = asyncio.create_task(follower.run())

    def is_done() -> bool:
        return follower.is_current and file.count_pending() == 0

    if until is not None:
        await asyncio.wait_for(until.wait(), 20)
    else:
        assert await follower.wait(is_done, 20), follower.failure
    following.cancel()
    await asyncio.wait([following], timeout=20)
    return [each.reason for each in reversed(file.refused(10))]


@pytest.fixture
def file(tmp_path: Path) -> Iterator[ReplicaFile]:
    found = ReplicaFile(tmp_path / "table.db", "t", "me")
    yield found
    found.close()


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(follower_module, "RETRY_SECONDS", (0.001,))
    monkeypatch.setattr(follower_module, "OFFER_SECONDS", 0.01)


async def current(file: ReplicaFile) -> Table:
    """A table with one key, which the copy has."""
    table = Table()
    table.put(b"other", b"1")
    await follow(file, table)
    return table


@pytest.mark.parametrize("conflicts", ["reject", "newer", "function"])
def test_a_removal_that_is_newer_than_a_write_is_a_conflict(
    file: ReplicaFile, conflicts: Any
) -> None:
    asked: list[Conflict] = []

    async def test() -> None:
        table = await current(file)
        file.queue(write(b"x", b"old", NOW - 1))
        table.put(b"x", b"theirs")
        removal = table.put(b"x", None)
        chosen = asked.append if conflicts == "function" else conflicts
        reasons = await follow(file, table, chosen)
        assert reasons == [
            f"others have written: expected no record since, found a removal, version {removal}"
        ]
        assert (table.offered, table.end) == ([], 3)
        assert [each.theirs for each in asked] == (
            [(removal, NOW, None, None)] if conflicts == "function" else []
        )

    asyncio.run(test())


@pytest.mark.parametrize("is_forgotten", [False, True])
def test_a_write_that_was_chosen_over_a_removal_replaces_that_one(
    file: ReplicaFile, is_forgotten: bool
) -> None:
    """Also if the table forgets it before the write comes."""

    async def test() -> None:
        table = await current(file)
        file.queue(write(b"x", b"ours", NOW + 1))
        table.put(b"x", b"theirs")
        removal = table.put(b"x", None)

        def choose(conflict: Conflict) -> LocalWrite:
            if is_forgotten:
                del table.rows[b"x"]
            return conflict.ours

        assert await follow(file, table, choose) == []
        expected: list[tuple[bytes, int | None]] = [(b"ours", removal)]
        assert table.offered == expected + ([(b"ours", None)] if is_forgotten else [])
        assert table.rows[b"x"].value == b"ours"

    asyncio.run(test())


async def taken_without_answer(file: ReplicaFile) -> Table:
    table = await current(file)
    file.queue(write(b"job", b"pay"))
    table.lost = asyncio.Event()
    await follow(file, table, until=table.lost)
    table.lost = None
    table.put(b"job", None)
    return table


@pytest.mark.parametrize("conflicts", ["reject", "newer"])
@pytest.mark.parametrize("oplog", ["whole", "too short", "and forgotten"])
def test_a_write_that_was_taken_and_removed_since_is_not_applied_again(
    tmp_path: Path, conflicts: Any, oplog: str
) -> None:
    path = tmp_path / "table.db"

    async def test() -> None:
        file = ReplicaFile(path, "t", "me")
        table = await taken_without_answer(file)
        table.ids.clear()  # the window is over
        file.close()
        if oplog == "too short":
            table.oplog_start = table.end
        if oplog == "and forgotten":
            table.forget(b"job")
            table.put(b"other", b"2")
        file, end = ReplicaFile(path, "t", "me"), table.end
        asked: list[Conflict] = []
        chosen = asked.append if oplog != "whole" else conflicts
        (reason,) = await follow(file, table, chosen, now=NOW + RETENTION_MS)
        assert table.end == end
        assert len(asked) == (oplog != "whole")
        assert ("may have forgotten" in reason) == (oplog == "and forgotten")
        file.close()

    asyncio.run(test())


def test_a_write_that_was_taken_is_known_by_its_message_id(file: ReplicaFile) -> None:
    async def test() -> None:
        table = await taken_without_answer(file)
        assert await follow(file, table) == []
        assert values(file) == {b"other": b"1"}
        assert table.end == 3

    asyncio.run(test())


@pytest.mark.parametrize(
    ("oplog", "age_ms", "is_taken"),
    [("whole", 9 * RETENTION_MS, True), ("too short", 60_000, True),
     ("too short", RETENTION_MS, False), ("too short", -60_000, False)],
)  # fmt: skip
def test_a_first_write_of_a_key_that_never_was_is_no_conflict(
    file: ReplicaFile, oplog: str, age_ms: int, is_taken: bool
) -> None:
    """But where neither the pages nor the leader would know of a removal since."""

    async def test() -> None:
        table = await current(file)
        file.queue(write(b"new", b"1"))
        table.put(b"other", b"2")
        if oplog == "too short":
            table.oplog_start = table.end
        reasons = await follow(file, table, now=NOW + age_ms)
        assert (b"new" in table.rows, reasons == []) == (is_taken, is_taken)

    asyncio.run(test())


@pytest.mark.parametrize("what", ["nothing yet", "another table"])
def test_what_was_written_before_the_table_was_there_is_offered_to_it(
    file: ReplicaFile, what: str
) -> None:
    async def test() -> None:
        table = await current(file) if what == "another table" else Table()
        file.queue(write(b"never", b"1"))
        file.queue(write(b"removed", b"1"))
        file.queue(write(b"there", b"1"))
        table.id, table.end = bytes(16), 0
        table.rows.clear()
        table.put(b"there", b"2")
        table.put(b"removed", b"2")
        table.put(b"removed", None)
        reasons = await follow(file, table, now=NOW + 9 * RETENTION_MS)
        assert values(file) == {b"never": b"1", b"there": b"2"}
        assert len(reasons) == 2

    asyncio.run(test())


def test_a_write_of_a_key_that_the_copy_has_removed_is_no_conflict(file: ReplicaFile) -> None:
    """The page with the removal comes after its answer, or before."""

    async def test() -> None:
        table = await current(file)
        file.queue(write(b"other", None))
        assert await follow(file, table) == []
        file.queue(write(b"other", b"again"))
        assert await follow(file, table) == []
        assert values(file) == {b"other": b"again"}

    asyncio.run(test())


def test_since_when_changes_are_known(file: ReplicaFile) -> None:
    def since() -> int | None:
        return only(file).since

    file.queue(write(b"a", b"1"))
    assert since() == 0
    file.apply(page((b"b", 0, b"1"), position=1, is_full=True))
    assert since() == 0, "the copy had nothing of the table"
    file.refuse(only(file).number, "why")
    file.queue(write(b"a", b"1"))
    assert since() == 1
    file.apply(page((b"a", 1, b"2"), position=2))
    file.apply(page((b"a", 2, None), position=3))
    file.queue(write(b"a", b"3"))
    assert since() == 1, "of the write that it takes the place of"
    file.apply(page(position=3, oldest=3))
    assert file.remote(b"a").version == 2, "is kept for a write"
    known = file.known(b"a")
    assert file.rebase(only(file).number, only(file).write, known)
    assert since() == 3
    known = file.known(b"a")
    file.apply(page(position=5, is_full=True, next_after=b"a"))
    assert since() is None, "full pages have no removals"
    assert file.rebase(only(file).number, only(file).write, known)
    assert since() is None, "they have begun since it was decided"
    assert file.rebase(only(file).number, only(file).write, file.known(b"a"))
    assert since() == 5
    assert file.verify() == 2


def only(file: ReplicaFile) -> PendingWrite:
    (found,) = file.pending(10)
    return found


def test_a_removal_that_was_taken_before_its_page_came_is_known(file: ReplicaFile) -> None:
    file.apply(page((b"a", 0, b"1"), (b"b", 1, b"1"), position=2, is_full=True))
    file.queue(write(b"a", None))
    file.queue(write(b"b", None))
    first, second = file.pending(10)
    file.queue(write(b"b", b"2"))
    file.settle(first.number, first.write, 5, table=TABLE)
    file.settle(second.number, second.write, 6, table=TABLE)
    file.queue(write(b"a", b"2"))
    assert [(each.base, each.since) for each in file.pending(10)] == [(None, 7), (None, 6)]


def test_a_purge_hides_what_others_have_written(file: ReplicaFile) -> None:
    async def test() -> None:
        table = await current(file)
        file.queue(write(b"x", b"ours"))
        table.put(b"x", b"theirs")
        table.put(b"x", None)
        table.put(b"other", b"2")
        del table.rows[b"x"]
        table.oldest = 3
        (reason,) = await follow(file, table)
        assert "may have forgotten" in reason

    asyncio.run(test())


@pytest.mark.parametrize("format", [3, 4])
def test_a_file_of_an_earlier_format_is_taken_over(tmp_path: Path, format: int) -> None:
    path = tmp_path / "table.db"
    file = ReplicaFile(path, "t", "me")
    file.apply(page((b"a", 0, b"0"), position=1, is_full=True))
    for key in (b"new", b"removed", b"sent"):
        file.queue(write(key, b"v"))
    file.apply(page((b"removed", 2, None), position=3))
    file.note_sent([each for each in file.pending(9) if each.write.key == b"sent"])
    file.close()
    as_in_format_4(path)
    if format == 3:
        change(path, "drop table changes")
    change(path, f"update state set format = {format}")
    anew = tmp_path / "anew.db"
    anew.write_bytes(path.read_bytes())
    file = ReplicaFile(path, "t", "me")
    assert {each.write.key: each.since for each in file.pending(9)} == {
        b"new": 3, b"removed": 0, b"sent": None,
    }  # fmt: skip
    assert file.verify() == 5
    file.close()
    begin_anew(anew, "t", "me")
    file = ReplicaFile(anew, "t", "me")
    assert [each.since for each in file.pending(9)] == [None] * 3
    assert file.verify() == 3
    file.close()


def change(path: Path, statement: str) -> None:
    connection = sqlite3.connect(path)
    connection.execute(statement)
    connection.commit()
    connection.execute("pragma wal_checkpoint(truncate)")
    connection.close()


def as_in_format_4(path: Path) -> None:
    connection = sqlite3.connect(path)
    connection.create_function("row_crc", -1, row_crc)
    connection.execute(
        "update pending set crc = row_crc(key, base, timestamp, value, content_type, sent)"
    )
    connection.execute("alter table pending drop column since")
    connection.commit()
    connection.close()
