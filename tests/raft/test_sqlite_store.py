"""The SQLite store, in addition to the contract: one commit for many groups, faults, growth,
threads."""

from __future__ import annotations

import sqlite3
import threading
from glob import glob
from pathlib import Path
from typing import Any, ClassVar

import pytest

from bascule.errors import BasculeError, Closed, LogFailed
from bascule.host.real import RealRandom
from bascule.raft.membership import Members
from bascule.raft.messages import Chunk, Entry
from bascule.raft.store import PersistentState
from bascule.raft.testing.random_calls import RandomCalls
from bascule.raft.testing.store_model import Bootstrap, PersistTerm, StoreModel, make_call
from bascule.raft_driver.sqlite_store import SqliteDatabase, SqliteStore

NAME = "raft.sqlite"


def open_in(directory: Path, **options: Any) -> SqliteDatabase:
    return SqliteDatabase.open(str(directory / NAME), node_id=1, **options)


def new_group(database: SqliteDatabase, group: int, term: int = 1) -> SqliteStore:
    store = database.store(group)
    store.load()
    store.bootstrap(Members.of(1, 2, 3))
    store.persist_term(term, 1)
    return store


def entries(first: int, count: int, size: int = 10, term: int = 1) -> list[Entry]:
    return [Entry(n, term, 0, b"%d" % n * size) for n in range(first, first + count)]


def killed(directory: Path, to: Path) -> Path:
    """A copy of the current files, as a kill of this process would leave them."""
    to.mkdir()
    for name in glob(str(directory / f"{NAME}*")):
        (to / Path(name).name).write_bytes(Path(name).read_bytes())
    return to


# Many groups.


@pytest.mark.parametrize("count", [2, 32, 33, 100])
def test_one_commit_for_all_groups(tmp_path: Path, count: int) -> None:
    database = open_in(tmp_path)
    stores = [new_group(database, group) for group in range(1, count + 1)]
    before = database.statistics()
    for store in stores:
        store.persist_entries(entries(1, 3))
    stores[-1].flush()
    for store in stores:
        store.flush()  # nothing is left to flush
    after = database.statistics()
    assert after.commits == before.commits + 1
    assert after.entries == before.entries + 3 * count
    copy = open_in(killed(tmp_path, tmp_path / "copy"))
    assert copy.groups() == tuple(range(1, count + 1))
    for group in copy.groups():
        assert len(copy.store(group).load().entries) == 3
    copy.close()
    database.close()


def test_one_commit_has_changes_of_every_kind_and_group(tmp_path: Path) -> None:
    database = open_in(tmp_path)
    stores = [new_group(database, group) for group in (1, 2, 3, 1 << 40)]
    for store in stores:
        store.persist_entries(entries(1, 8))
    stores[0].flush()
    before = database.statistics().commits
    stores[0].truncate_from(4)
    stores[1].persist_chunk(Chunk(5, 1, Members((1,)), 0, 1, b"state"))
    stores[1].truncate_until(3)
    stores[2].persist_entries(entries(9, 1))
    stores[0].flush()
    assert database.statistics().commits == before + 1
    database.close()
    database = open_in(tmp_path)
    found = [database.store(group).load() for group in (1, 2, 3, 1 << 40)]
    database.close()
    assert [(s.entries[0].index, s.entries[-1].index) for s in found] == [
        (1, 3), (4, 8), (1, 9), (1, 8),
    ]  # fmt: skip
    assert found[1].snapshot is not None


def test_a_group_is_removed(tmp_path: Path) -> None:
    database = open_in(tmp_path)
    for group in (1, 2):
        store = new_group(database, group)
        store.persist_entries(entries(1, 3))
        store.persist_chunk(Chunk(2, 1, Members((1,)), 0, 1, b"state"))
        store.flush()
        store.close()
    database.remove(1)
    database.close()
    database = open_in(tmp_path)
    assert database.groups() == (2,)
    assert database.store(1).load() == PersistentState()
    assert len(database.store(2).load().entries) == 3
    database.close()


def test_closing_a_store_drops_its_buffered_calls(tmp_path: Path) -> None:
    database = open_in(tmp_path)
    one, two = new_group(database, 1), new_group(database, 2)
    one.persist_entries(entries(1, 3))
    two.persist_entries(entries(1, 3))
    one.close()
    two.flush()
    assert database.store(1).load().entries == ()
    database.close()
    with pytest.raises(Closed):
        two.persist_term(2, 2)
    with pytest.raises(Closed):
        database.store(3)


# The cost of a flush, and sizes.


def test_a_flush_of_nothing_commits_nothing(tmp_path: Path) -> None:
    database = open_in(tmp_path)
    store = new_group(database, 1)
    before = database.statistics()
    for _ in range(5):
        store.flush()
        store.persist_entries([])
    assert database.statistics() == before
    database.close()


def test_buffering_is_bounded(tmp_path: Path) -> None:
    """Chunks of a snapshot are not flushed one by one, and not all are buffered."""
    database = open_in(tmp_path)
    store = new_group(database, 1)
    before = database.statistics().commits
    members, data = Members((1,)), bytes(1 << 20)
    for number in range(20):
        store.persist_chunk(Chunk(5, 1, members, number, 20, data))
    commits = database.statistics().commits - before
    assert commits == 2
    store.flush()
    database.close()
    database = open_in(tmp_path)
    snapshot = database.store(1).load().snapshot
    database.close()
    assert snapshot is not None
    assert snapshot.chunks == (data,) * 20


def test_large_batches_are_split_into_rows(tmp_path: Path) -> None:
    database = open_in(tmp_path)
    store = new_group(database, 1)
    written = [Entry(n, 1, 0, bytes([n]) * 400_000) for n in range(1, 11)]
    store.persist_entries(written)
    store.flush()
    rows = database.connection.execute("SELECT first, last FROM runs").fetchall()
    assert rows == [(1, 2), (3, 4), (5, 6), (7, 8), (9, 10)]
    store.truncate_from(6)
    store.flush()
    database.close()
    database = open_in(tmp_path)
    assert database.store(1).load().entries == tuple(written[:5])
    database.close()


def test_truncated_entries_free_their_space(tmp_path: Path) -> None:
    database = open_in(tmp_path, checkpoint_bytes=200_000)
    store = new_group(database, 1)
    sizes = []
    for number in range(30):
        first = 1 + number * 500
        for start in range(first, first + 500, 50):
            store.persist_entries(entries(start, 50, size=20))
            store.flush()
        index = first + 450
        store.persist_chunk(Chunk(index, 1, Members((1,)), 0, 1, bytes(20_000)))
        store.truncate_until(index)
        if number:
            store.delete_chunks(index - 500, 1)
        store.flush()
        sizes.append(database.statistics().size_bytes)
    assert max(sizes[5:]) <= 1.5 * sizes[3]
    # The write-ahead log starts again at each checkpoint, so it does not grow either.
    assert (tmp_path / f"{NAME}-wal").stat().st_size < 10 * 200_000
    assert database.statistics().checkpoints > 5
    database.close()


def test_another_thread_may_take_over(tmp_path: Path) -> None:
    database = open_in(tmp_path)
    store = new_group(database, 1)
    failures: list[BaseException] = []

    def work() -> None:
        try:
            store.persist_entries(entries(1, 3))
            store.flush()
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert not failures
    database.close()
    database = open_in(tmp_path)
    assert len(database.store(1).load().entries) == 3
    database.close()


# Faults.


class Failing(sqlite3.Connection):
    """The n-th statement fails, before or after its execution."""

    left: ClassVar[int] = 0
    after: ClassVar[bool] = False
    code: ClassVar[str] = "disk I/O error"

    def execute(self, *arguments: Any) -> sqlite3.Cursor:
        Failing.left -= 1
        if Failing.left != 0:
            return super().execute(*arguments)
        if Failing.after:
            super().execute(*arguments)
        error = sqlite3.OperationalError(Failing.code)
        error.sqlite_errorname = "SQLITE_IOERR_FSYNC"
        raise error


@pytest.mark.tier2
@pytest.mark.parametrize("after", [False, True], ids=["not_done", "done"])
def test_every_statement_may_fail(tmp_path: Path, after: bool) -> None:
    """For n = 1, 2, 3, ... until a run has no failure, from the creation of the database on."""
    for n in range(1, 10_000):
        place = tmp_path / f"{n}"
        place.mkdir()
        expected = StoreModel()
        Failing.left, Failing.after = n, after
        failed = worked_until_failure(place, expected)
        Failing.left = 0
        database = open_in(place)
        expected.check_loaded(database.store(1).load(), crashed=True)
        database.close()
        if not failed:
            assert n > 60, "the run should have many statements"
            return
    raise AssertionError("no run without a failure")


def worked_until_failure(place: Path, expected: StoreModel) -> bool:
    try:
        database = open_in(place, factory=Failing, checkpoint_bytes=100_000)
    except BasculeError:
        return True
    calls = RandomCalls(RealRandom(4))
    try:
        store = database.store(1)
        store.load()
        todo = [Bootstrap(Members.of(1, 2, 3)), PersistTerm(1, 1)]
        for number in range(14):
            for call in todo or calls.draw(expected.held):
                # Noted before the call: it may commit the buffered calls and itself, and then fail.
                expected.on_call_begun(call)
                make_call(store, call)
                if isinstance(call, Bootstrap | PersistTerm):
                    expected.on_flush()
            todo = []
            if number % 3 == 0:
                store.flush()
                expected.on_flush()
    except LogFailed:
        for refused in (
            store.flush,
            store.load,
            lambda: store.persist_term(9, 9),
            store_two(database),
        ):
            with pytest.raises(LogFailed, match="disk I/O error"):
                refused()
        return True
    finally:
        database.close()
    return False


def store_two(database: SqliteDatabase) -> Any:
    return lambda: database.store(2)


class Small(sqlite3.Connection):
    """A database that cannot grow, as on a full disk."""

    def execute(self, sql: str, *arguments: Any) -> sqlite3.Cursor:
        found = super().execute(sql, *arguments)
        if sql.startswith("PRAGMA cell_size_check"):
            super().execute("PRAGMA max_page_count=40")
        return found


def test_a_full_disk_stops_the_store_and_loses_nothing(tmp_path: Path) -> None:
    database = open_in(tmp_path, factory=Small)
    store = new_group(database, 1)
    flushed = 0
    with pytest.raises(LogFailed, match="full"):
        for number in range(200):
            store.persist_entries(entries(1 + number, 1, size=2_000))
            store.flush()
            flushed += 1
    assert flushed > 5
    with pytest.raises(LogFailed, match="full"):
        store.persist_entries(entries(flushed + 2, 1))
    database.close()
    database = open_in(tmp_path)  # there is space again
    store = database.store(1)
    assert len(store.load().entries) == flushed
    store.persist_entries(entries(flushed + 1, 1))
    store.flush()
    database.close()


def test_a_database_that_cannot_be_written_is_refused_at_once(tmp_path: Path) -> None:
    database = open_in(tmp_path)
    new_group(database, 1)
    database.close()

    class ReadOnly(sqlite3.Connection):
        def execute(self, sql: str, *arguments: Any) -> sqlite3.Cursor:
            if sql.startswith("PRAGMA cell_size_check"):
                super().execute("PRAGMA query_only=ON")
            return super().execute(sql, *arguments)

    with pytest.raises(LogFailed, match="readonly"):
        open_in(tmp_path, factory=ReadOnly)
    open_in(tmp_path).close()


def test_creating_a_database_survives_an_interruption_anywhere(tmp_path: Path) -> None:
    """The process ends between two statements: the files at that moment are a database."""
    copies: list[Path] = []

    class Copying(sqlite3.Connection):
        def execute(self, *arguments: Any) -> sqlite3.Cursor:
            copies.append(killed(tmp_path, tmp_path / f"copy{len(copies)}"))
            return super().execute(*arguments)

    open_in(tmp_path, factory=Copying).close()
    assert len(copies) > 15
    for copy in copies:
        database = open_in(copy)
        assert database.groups() == ()
        new_group(database, 1)
        database.close()
