"""Damage to a Raft log in SQLite is reported, and never changes or empties the log."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from glob import glob
from pathlib import Path

import pytest

from bascule.errors import (
    BasculeError,
    ConfigError,
    CorruptData,
    DataDirectoryInUse,
    LogFailed,
)
from bascule.raft.membership import Members
from bascule.raft.messages import Entry, RaftSnapshot
from bascule.raft.store import PersistentState
from bascule.raft_driver.sqlite_store import SqliteDatabase

NODE = 7
NAME = "raft.sqlite"
States = dict[int, PersistentState]


def entries(first: int, count: int, term: int, size: int = 300) -> list[Entry]:
    return [Entry(n, term, 0, bytes([n % 251]) * size) for n in range(first, first + count)]


def write_history(database: SqliteDatabase) -> None:
    """Write two groups with runs, truncations at both ends, snapshots and votes."""
    for group in (1, 2):
        store = database.store(group)
        store.load()
        store.bootstrap(Members.of(1, 2, NODE))
        store.persist_term(3, 2)
        store.persist_entries(entries(1, 20, 1))
        store.flush()
        store.persist_entries(entries(21, 6, 2))
        store.truncate_from(24)
        store.persist_entries(entries(24, 9, 3, size=2_500))
        store.flush()
        for chunk in RaftSnapshot(
            15, 1, Members((1, 2, NODE)), (b"state" * 900, b"more")
        ).as_chunks():
            store.persist_chunk(chunk)
        store.truncate_until(11)
        store.flush()
        store.persist_entries(entries(33, 3, 3))
        store.flush()
        store.close()


def load_all(directory: Path) -> States:
    """The state of every group; the database is closed in any case."""
    database = SqliteDatabase.open(str(directory / NAME), node_id=NODE)
    try:
        return {group: database.store(group).load() for group in database.groups()}
    finally:
        database.close()


class Images:
    """Files as a kill leaves them: one database mostly in its file, one mostly in the write-ahead
    log."""

    def __init__(self, directory: Path, *, in_log: bool) -> None:
        self.directory = directory
        self.files: dict[str, bytes] = {}
        built = directory / "built"
        built.mkdir()
        path = str(built / NAME)
        database = SqliteDatabase.open(path, node_id=NODE)
        write_history(database)
        if not in_log:
            database.close()
            database = SqliteDatabase.open(path, node_id=NODE)
            store = database.store(1)
            store.load()
            store.persist_entries(entries(36, 1, 3))
            store.flush()
        self.files = {Path(name).name: Path(name).read_bytes() for name in glob(f"{path}*")}
        self.expected = {group: database.store(group).load() for group in (2,)}
        database.close()
        self.expected = load_all(built)
        self._count = 0

    def put(self, **changed: bytes | None) -> Path:
        """A directory with the files; those in `changed` (by the end of the name) are replaced."""
        self._count += 1
        place = self.directory / f"{self._count}"
        place.mkdir()
        for name, data in self.files.items():
            end = name.removeprefix(NAME).removeprefix("-") or "main"
            data = changed.get(end, data)
            if data is not None:
                (place / name).write_bytes(data)
        return place

    def file(self, end: str) -> bytes:
        return self.files[NAME if end == "main" else f"{NAME}-{end}"]


@pytest.fixture(params=[False, True], ids=["in_file", "in_log"])
def images(request: pytest.FixtureRequest, tmp_path: Path) -> Images:
    return Images(tmp_path, in_log=request.param)


@pytest.fixture
def image(tmp_path: Path) -> Images:
    return Images(tmp_path, in_log=False)


def opened(place: Path) -> States | str:
    """The state, or the name of the error."""
    try:
        return load_all(place)
    except BasculeError as error:
        return type(error).__name__
    finally:
        shutil.rmtree(place)


# Bytes.


@pytest.mark.tier2
@pytest.mark.parametrize("end", ["main", "wal", "synced"])
def test_flipped_bytes(images: Images, end: str, request: pytest.FixtureRequest) -> None:
    """Each gives the same state or one of our errors; `--torture` flips every byte."""
    data = images.file(end)
    step = 1 if request.config.getoption("--torture") else max(len(data) // 40, 1) | 1
    found: dict[str, int] = {}
    for at in range(0, len(data), step):
        damaged = bytearray(data)
        damaged[at] ^= 0xFF if at % 2 else 1 << at % 8
        state = opened(images.put(**{end: bytes(damaged)}))
        assert state == images.expected or isinstance(state, str), f"byte {at} of {end}"
        name = state if isinstance(state, str) else "same"
        found[name] = found.get(name, 0) + 1
    assert set(found) <= {"same", "CorruptData", "LogFailed", "UnsupportedFormat"}, found
    assert found["same" if end == "synced" else "CorruptData"] >= 1, found


@pytest.mark.parametrize("end", ["main", "wal"])
def test_truncated_files(images: Images, end: str) -> None:
    """A log without its end is damaged, since the missing commits were acknowledged."""
    data = images.file(end)
    for at in range(0, len(data), max(len(data) // 12, 1)):
        state = opened(images.put(**{end: data[:at]}))
        # If everything is in the write-ahead log, SQLite creates the file again from the log.
        healed = end == "main" and at >= 16 and state == images.expected
        assert state == "CorruptData" or healed, f"cut at byte {at} of {len(data)}: {state}"


def test_missing_files(images: Images) -> None:
    assert opened(images.put(main=None)) == "CorruptData"
    assert opened(images.put(main=b"")) == "CorruptData"
    assert opened(images.put(wal=None)) == "CorruptData"
    assert opened(images.put(synced=None)) == "CorruptData"
    assert opened(images.put(synced=b"")) == "CorruptData"
    assert opened(images.put(synced=bytes(48))) == "CorruptData"
    assert opened(images.put(main=None, wal=None)) == "CorruptData"
    # Without any file it is a new node: there is nothing to compare with.
    assert opened(images.put(main=None, wal=None, synced=None)) == {}


def test_one_valid_slot_of_the_mark_is_enough(images: Images) -> None:
    whole = images.file("synced")
    for damaged in (bytes(24) + whole[24:], whole[:24] + bytes(24)):
        assert opened(images.put(synced=damaged)) == images.expected


def test_an_old_copy_is_refused(tmp_path: Path) -> None:
    """A vote must not be lost, and an old copy does not have it."""
    database = SqliteDatabase.open(str(tmp_path / NAME), node_id=NODE)
    write_history(database)
    database.close()
    old = (tmp_path / NAME).read_bytes()
    database = SqliteDatabase.open(str(tmp_path / NAME), node_id=NODE)
    database.store(1).persist_term(9, 1)
    database.close()
    (tmp_path / NAME).write_bytes(old)
    with pytest.raises(CorruptData, match="which were acknowledged"):
        load_all(tmp_path)
    with pytest.raises(CorruptData):  # opening it again gives the same error
        load_all(tmp_path)


def test_a_refused_log_is_kept(images: Images) -> None:
    """SQLite removes unreadable parts of the write-ahead log, but a repair may need them."""
    damaged = bytearray(images.file("wal"))
    damaged[len(damaged) // 2] ^= 1
    place = images.put(wal=bytes(damaged))
    for _ in range(2):
        with pytest.raises(CorruptData):
            load_all(place)
    assert (place / f"{NAME}-wal-refused").read_bytes() == bytes(damaged)


# Rows changed with SQLite itself, so that the structure of the database is valid.


def edited(image: Images, *statements: str) -> States | str:
    place = image.put()
    with closing(sqlite3.connect(place / NAME)) as connection, connection:
        for statement in statements:
            assert connection.execute(statement).rowcount != 0, statement
    connection.close()
    return opened(place)


def keys(image: Images) -> Iterator[tuple[str, str]]:
    """(table, condition) of every row."""
    place = image.put()
    with closing(sqlite3.connect(place / NAME)) as connection:
        for table, columns in (
            ("node", ("id",)),
            ("groups", ("group_id",)),
            ("runs", ("group_id", "first")),
            ("chunks", ("group_id", "snapshot", "number")),
        ):
            for row in connection.execute(f"SELECT {', '.join(columns)} FROM {table}"):
                pairs = zip(columns, row, strict=True)
                yield table, " AND ".join(f"{column} = {value}" for column, value in pairs)


def test_a_missing_row(image: Images) -> None:
    rows = list(keys(image))
    assert len(rows) > 12
    for table, condition in rows:
        assert edited(image, f"DELETE FROM {table} WHERE {condition}") == "CorruptData", condition


def test_a_missing_table(image: Images) -> None:
    for table in ("node", "groups", "runs", "chunks"):
        assert edited(image, f"DELETE FROM {table}") == "CorruptData"
        assert edited(image, f"DROP TABLE {table}") == "CorruptData"
    tables = ("node", "groups", "runs", "chunks")
    assert edited(image, *(f"DROP TABLE {table}" for table in tables)) == "CorruptData"
    assert edited(image, "ALTER TABLE runs ADD COLUMN more INTEGER") == "CorruptData"


@pytest.mark.parametrize(
    ("table", "columns"),
    [
        ("node", ("node_id", "commits", "groups", "groups_check", "crc")),
        ("groups", ("group_id", "term", "voted_for", "first", "last", "tail", "chunks",
                    "chunks_check", "crc")),
        ("runs", ("group_id", "first", "last", "previous", "crc")),
        ("chunks", ("group_id", "snapshot", "number", "crc")),
    ],
)  # fmt: skip
def test_a_changed_value(image: Images, table: str, columns: tuple[str, ...]) -> None:
    for column in columns:
        for value in (f"{column} + 100", "'text'", "1.5", "x'00'"):
            where = "" if table == "node" else " WHERE group_id = 2"
            try:
                state = edited(image, f"UPDATE {table} SET {column} = {value}{where}")
            except sqlite3.IntegrityError:
                continue  # two rows would have one key, which SQLite refuses
            assert state == "CorruptData", (column, value)


def test_changed_blobs(image: Images) -> None:
    for table, column in (("groups", "founding"), ("runs", "entries"), ("chunks", "chunk")):
        for value in (f"substr({column}, 2)", f"{column} || x'00'", "x''", "zeroblob(40)"):
            assert edited(image, f"UPDATE {table} SET {column} = {value}") == "CorruptData"


def test_rows_of_another_group(image: Images) -> None:
    """Valid rows under another key: the CRCs include the key."""
    assert edited(image, "UPDATE runs SET group_id = 3 - group_id + 10") == "CorruptData"
    swap = "UPDATE {0} SET group_id = {2} WHERE group_id = {1}"
    for table in ("groups", "runs", "chunks"):
        moves = ((1, 9), (2, 1), (9, 2))
        state = edited(image, *(swap.format(table, old, new) for old, new in moves))
        assert state == "CorruptData", table
    assert edited(image, "INSERT INTO runs VALUES (5, 1, 1, 0, 0, x'')") == "CorruptData"


def test_an_old_row_that_reappears(tmp_path: Path) -> None:
    """A page whose write was lost, although the disk confirmed it: its rows are valid."""
    database = SqliteDatabase.open(str(tmp_path / NAME), node_id=NODE)
    store = database.store(1)
    store.load()
    store.bootstrap(Members.of(1))
    store.persist_term(2, 1)
    store.persist_entries(entries(1, 3, 1))
    store.flush()
    database.close()
    kept = copied_rows(tmp_path)
    database = SqliteDatabase.open(str(tmp_path / NAME), node_id=NODE)
    store = database.store(1)
    store.persist_term(3, 2)
    store.truncate_from(2)
    store.persist_entries(entries(2, 2, 3))
    store.flush()
    database.close()
    whole = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    for table, rows in kept.items():
        for name, data in whole.items():
            (tmp_path / name).write_bytes(data)
        with closing(sqlite3.connect(tmp_path / NAME)) as connection, connection:
            connection.execute(f"DELETE FROM {table}")
            for row in rows:
                places = ",".join("?" * len(row))
                connection.execute(f"INSERT INTO {table} VALUES ({places})", row)
        connection.close()
        with pytest.raises(CorruptData):
            load_all(tmp_path)


def copied_rows(place: Path) -> dict[str, list[tuple[object, ...]]]:
    connection = sqlite3.connect(place / NAME)
    rows = {
        table: connection.execute(f"SELECT * FROM {table}").fetchall()
        for table in ("node", "groups", "runs")
    }
    connection.close()
    return rows


# Files that are not damaged, but not usable by this node.


def test_another_nodes_database_is_refused(image: Images) -> None:
    place = image.put()
    with pytest.raises(ConfigError, match="is the Raft log of node 7, opened for node 8"):
        SqliteDatabase.open(str(place / NAME), node_id=8)
    assert load_all(place) == image.expected


def test_a_newer_format_is_refused(image: Images) -> None:
    assert edited(image, "PRAGMA user_version = 2") == "UnsupportedFormat"
    assert edited(image, "PRAGMA user_version = 0") == "CorruptData"
    assert edited(image, "PRAGMA application_id = 5") == "CorruptData"


def test_a_file_that_is_no_database(tmp_path: Path) -> None:
    (tmp_path / NAME).write_bytes(b"a text of somebody's, longer than the header of a database")
    with pytest.raises(CorruptData, match="SQLite format 3"):
        load_all(tmp_path)
    (tmp_path / NAME).unlink()
    with closing(sqlite3.connect(tmp_path / NAME)) as connection, connection:
        connection.execute("CREATE TABLE theirs (a)")
    connection.close()
    with pytest.raises(CorruptData, match="application id"):
        load_all(tmp_path)
    with closing(sqlite3.connect(tmp_path / NAME)) as connection, connection:
        assert connection.execute("SELECT count(*) FROM theirs").fetchone() == (0,)
    connection.close()


def test_one_process_at_a_time(tmp_path: Path) -> None:
    first = SqliteDatabase.open(str(tmp_path / NAME), node_id=NODE)
    with pytest.raises(DataDirectoryInUse):
        SqliteDatabase.open(str(tmp_path / NAME), node_id=NODE)
    first.close()
    SqliteDatabase.open(str(tmp_path / NAME), node_id=NODE).close()


def test_errors_name_file_table_group_and_row(image: Images) -> None:
    place = image.put()
    with closing(sqlite3.connect(place / NAME)) as connection, connection:
        connection.execute("UPDATE runs SET crc = 77 WHERE group_id = 2 AND first = 24")
    connection.close()
    with pytest.raises(CorruptData) as caught:
        load_all(place)
    error = caught.value
    assert (error.file, error.at) == (str(place / NAME), 24)
    assert error.place == "table runs, group 2, row 24"
    assert error.expected == "CRC 77"
    assert "only a node without others may restore" in str(error)


def test_damage_found_while_writing_stops_the_database(tmp_path: Path) -> None:
    """A truncation in the middle of a run reads the run, and must not continue from damaged
    entries."""
    database = SqliteDatabase.open(str(tmp_path / NAME), node_id=NODE)
    write_history(database)
    database.connection.execute("UPDATE runs SET entries = x'90' WHERE first = 24")
    store = database.store(1)
    store.truncate_from(30)
    with pytest.raises(CorruptData, match="table runs, group 1, row 24"):
        store.flush()
    for refused in (store.flush, store.load, lambda: store.persist_term(9, 1)):
        with pytest.raises(LogFailed, match="table runs, group 1, row 24"):
            refused()
    database.close()
