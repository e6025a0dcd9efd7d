"""The rows of one partition of a table in an SQLite database, with the position they stand at.

The rows of a piece of the log and the position behind it are one transaction. Nothing is synced
but by checkpoints: after a power loss the file is as it was some transactions before, and the log
has the rest. That holds since the log removes no tombstone before the file was synced behind it
(`TombstoneReader`). A file that is damaged is made anew from the log.

A key that was removed stays as a row without value until it is forgotten (`ageing.forgotten`). The
id of a row is the key id of the oplog.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from functools import cache
from typing import Any, Final

from bascule.errors import CorruptData, LimitExceeded, LogFailed
from bascule.host.api import Files
from bascule.storage.epochs import LeaderEpochs
from bascule.table_results import TableKey
from bascule.tables.ageing import deadlines, forgotten
from bascule.tables.ageing.deadlines import ExpiredKey
from bascule.tables.ageing.forgotten import ForgetLimits, Forgotten, Walk
from bascule.tables.key_ranges import (
    KEYS_AT_ONCE,
    PageRange,
    is_one_key,
    key_parts,
    key_range,
    page_keys,
    shown_since,
)
from bascule.tables.key_state import KeyPart, KeyState
from bascule.tables.oplog.changes import Bounds, ChangesReader, Page
from bascule.tables.oplog.file_header import Mark
from bascule.tables.oplog.oplog import Oplog
from bascule.tables.oplog.recorder import NO_MARK, OplogRecorder
from bascule.tables.rows import Row, Rows, TablePosition
from bascule.wire.tables.keys import prefix_end
from bascule.wire.tables.patterns import KeyPattern

FORMAT: Final = 4
"""A file of another format is made anew from the log. 3 has times to live, 4 what it forgot."""
CACHE_KIB: Final = 8 << 10
"""Of each connection; what is read often is in the page cache, too."""
CHECKPOINT_PAGES: Final = 4_000
"""Pages in the write-ahead log after which it is written back, about 16 MB."""
WAL_BYTES: Final = CHECKPOINT_PAGES * 4096
"""What the file of that log keeps when it begins again."""
COUNTED_KEYS: Final = 200_000
_SUFFIXES: Final = ("", "-wal", "-shm")

_SCHEMA: Final = f"""
create table entries (
    id integer primary key,
    key blob not null unique,
    version integer not null,
    timestamp integer not null,
    value blob,
    content_type text,
    {deadlines.COLUMN}
);
{deadlines.SCHEMA}{forgotten.SCHEMA}
create table state (
    one integer primary key check (one = 1),
    format integer not null,
    partition text not null,
    position integer not null,
    epoch integer not null,
    oplog_first integer,
    oplog_slots integer,
    oplog_crc integer,
    {forgotten.COLUMNS}
);
"""
_UPSERT: Final = (
    "insert into entries (key, version, timestamp, value, content_type, ttl) "
    "values (?, ?, ?, ?, ?, ?) "
    "on conflict (key) do update set version = excluded.version, value = excluded.value, "
    "content_type = excluded.content_type, ttl = excluded.ttl, "
    "timestamp = coalesce(note(id), note(excluded.version), excluded.timestamp)"
)
"""`note` returns null. It is called for rows that are there only: new ones get the next ids."""
_POSITION: Final = (
    "update state set position = ?, epoch = ?, oplog_first = ?, oplog_slots = ?, oplog_crc = ?"
)
_FIRST_STATE: Final = "insert into state values (1, ?, ?, 0, -1, null, null, null, 0, 0, 0)"
_VERSIONS: Final = "select key, version, value is not null from entries where key in "
_SIZE: Final = "select sum(length(value)) from entries where "
_HEAD: Final = "select key, version, timestamp, length(value), content_type from entries where "
_AT_ONCE: Final = (
    "select position, key, version, timestamp, value, content_type from state "
    "left join entries on key in "
)
_ROW: Final = "select key, version, timestamp, value, content_type from entries where "
_ONE_ROW: Final = f"{_ROW}key = ?"


@cache
def _versions_of(keys: int) -> str:
    return _VERSIONS + f"({','.join('?' * keys)})"


@cache
def _rows_at_once(keys: int) -> str:
    """A statement that is one transaction by itself: the position is that of the rows."""
    return f"{_AT_ONCE}({','.join('?' * keys)})"


def _position(reader: sqlite3.Connection) -> int:
    return int(reader.execute("select position from state").fetchone()[0])


def _rows(reader: sqlite3.Connection, keys: Sequence[bytes]) -> dict[bytes, Row]:
    found: dict[bytes, Row] = {}
    for some, where in key_parts(keys):
        found |= {row[0]: Row(*row) for row in reader.execute(_ROW + where, some)}
    return found


def _check_size(reader: sqlite3.Connection, keys: Sequence[bytes], bytes_max: int) -> None:
    """Raises: LimitExceeded. Does not read the values."""
    size = 0
    for some, where in key_parts(keys):
        size += reader.execute(_SIZE + where, some).fetchone()[0] or 0
    if size > bytes_max:
        raise LimitExceeded("bytes of the values of one request", bytes_max, size)


@contextmanager
def _transaction(reader: sqlite3.Connection) -> Iterator[sqlite3.Connection]:
    reader.execute("begin")
    try:
        yield reader
    finally:
        reader.execute("commit")


def remove_files(files: Files, path: str, oplog: Oplog | None) -> None:
    """Remove the file of a table that is closed, and its oplog. Raises: OSError."""
    for suffix in _SUFFIXES:
        if files.exists(each := f"{path}{suffix}"):
            files.remove(each)
    if oplog is not None and files.exists(oplog.directory):
        files.remove_tree(oplog.directory)


class TableFile:
    """One thread at a time writes; others may read meanwhile, from any thread."""

    def __init__(self, path: str, partition: str, oplog: Oplog | None = None) -> None:
        """Open the file, or create it. `partition` says whose rows it has.

        Its operations are recorded in `oplog`; without one all changes are pages of all rows.

        Raises: CorruptData if it is damaged, of another partition, or of a format that is not
        known: make it anew. LogFailed if the disk fails.
        """
        self.path = path
        self._lock = threading.Lock()
        """Held by the reader of keys that uses the connection."""
        self._scan_lock = threading.Lock()
        """Held by the scan that uses the connection. Readers of keys never wait for a scan."""
        self._versions_lock = threading.Lock()
        """The log writer never waits for a reader."""
        self._apart_lock = threading.Lock()
        """Held by who reads the whole file. A connection that outlives the file would remove the
        write-ahead log of the one made anew."""
        self._is_closed = False
        self._epochs = LeaderEpochs()
        """Of the records in it, as the log had them when they were applied."""
        self.synced = 0
        """An offset: rows of records below it survive a loss of power."""
        self._write_lock = threading.Lock()
        """Held by who writes: a task that is cancelled leaves a thread that still does."""
        with self._failing():
            self._writer = self._connect()
            try:
                self.position, mark = self._open(partition)
                self._recorder = OplogRecorder(self._writer, oplog)
                self._recorder.open(mark, self.position.offset)
                self._changes = ChangesReader(self._connect, oplog)
                self._reader = self._connect()
                self._scanner = self._connect()
                self._versions = self._connect()
            except BaseException:
                self._writer.close()
                raise

    def _connect(self) -> sqlite3.Connection:
        connection = sqlite3.connect(self.path, isolation_level=None, check_same_thread=False)
        connection.execute("pragma journal_mode = wal")
        connection.execute("pragma synchronous = normal")
        connection.execute("pragma secure_delete = on")  # what is removed can be read no more
        connection.execute(f"pragma cache_size = -{CACHE_KIB}")
        connection.execute(f"pragma wal_autocheckpoint = {CHECKPOINT_PAGES}")
        connection.execute(f"pragma journal_size_limit = {WAL_BYTES}")
        return connection

    def _open(self, partition: str) -> tuple[TablePosition, Mark | None]:
        tables = self._writer.execute("select count(*) from sqlite_master").fetchone()[0]
        if not tables:
            self._writer.executescript(f"begin; {_SCHEMA}")
            self._writer.execute(_FIRST_STATE, (FORMAT, partition))
            self._writer.execute("commit")
        found = self._writer.execute("select * from state").fetchone()
        if found is None or found[1:3] != (FORMAT, partition):
            raise CorruptData(
                self.path, 0, f"format {FORMAT} of {partition}", str(found and found[1:])
            )
        mark = None if found[5] is None else Mark(*found[5:8])
        return TablePosition(*found[3:5]), mark

    def apply(self, rows: Rows, epoch: int) -> None:
        """Add the rows of the log from `position` on, and stand behind them.

        `epoch` is the leader epoch of the record before `rows.end`.

        Raises: CorruptData, LogFailed; the file is as before.
        """
        with self._write_lock, self._failing():
            self._writer.execute("begin")
            try:
                self._write(rows, epoch)
            except BaseException:
                if self._writer.in_transaction:
                    self._writer.execute("rollback")
                self._recorder.roll_back(self.position.offset)
                raise
            self._recorder.commit()
            for each in rows.epochs:
                if each.number > self._epochs.latest:
                    self._epochs = self._epochs.with_epoch(*each)
            self.position = TablePosition(rows.end, epoch)

    def begin_epochs(self, epochs: LeaderEpochs) -> None:
        """`epochs` are those of the log, which has all records of this table."""
        self._epochs = epochs.before(self.position.offset)

    def epoch_of(self, offset: int) -> int:
        """The leader epoch of a record that is applied; -1 if it is not known."""
        return self._epochs.at(offset)

    def _write(self, rows: Rows, epoch: int) -> None:
        self._recorder.begin()
        self._writer.executemany(_UPSERT, rows.rows)
        mark = self._recorder.record(rows, self.position.offset) or NO_MARK
        self._writer.execute(_POSITION, (rows.end, epoch, *mark))
        self._writer.execute("commit")

    def sync(self) -> None:
        """Have what is applied survive a loss of power, see `synced`. That waits for nobody: while
        somebody reads an earlier state, it may not come to it.

        Raises: CorruptData, LogFailed.
        """
        with self._write_lock, self._failing():
            busy, frames, done = self._writer.execute("pragma wal_checkpoint(passive)").fetchone()
            if not busy and done == frames:
                self.synced = self.position.offset

    def changes(self, since: int, after: bytes | None, bounds: Bounds) -> Page:
        """A page of what has changed; see `ChangesReader.page`.

        Raises: CorruptData, LogFailed, Indeterminate.
        """
        with self._failing():
            return self._changes.page(since, after, bounds)

    @property
    def is_oplog_damaged(self) -> bool:
        """Whether a reader has found that; `mend_oplog` is to be called then."""
        return self._changes.damage is not None

    def mend_oplog(self) -> None:
        """Begin a damaged oplog anew; on the thread that writes.

        Raises: CorruptData, LogFailed.
        """
        with self._write_lock, self._failing():
            self._recorder.begin_anew(self.position.offset, str(self._changes.damage))
        self._changes.forget()

    def get(self, keys: Sequence[bytes]) -> dict[bytes, Row]:
        """The rows of those of the keys that have one, all at one position.

        Raises: CorruptData, LogFailed.
        """
        return self.read(keys)[1]

    def read(self, keys: Sequence[bytes], *, bytes_max: int = 0) -> tuple[int, dict[bytes, Row]]:
        """As `get`, and the offset of that position.

        Also raises: LimitExceeded if several keys have values of more than `bytes_max`; 0: none.
        """
        with self._reading() as reader:
            if bytes_max and len(keys) > 1:
                _check_size(reader, keys, bytes_max)
            return _position(reader), _rows(reader, keys)

    def read_now(
        self, keys: Sequence[bytes], bytes_max: int
    ) -> tuple[int, list[tuple[Any, ...]]] | None:
        """As `read`, the rows as plain tuples, with one statement; None while another one reads.

        None, too, if the values of several keys have more than `bytes_max`. The rows may end with
        one of nulls. Raises: CorruptData, LogFailed.
        """
        if not self._lock.acquire(blocking=False):
            return None
        try:
            if len(keys) == 1:
                return self._read_one(keys)
            return self._read_at_once(keys, bytes_max)
        except sqlite3.Error as error:
            raise self._failure(error) from error
        finally:
            self._lock.release()

    def _read_one(self, key: Sequence[bytes]) -> tuple[int, list[tuple[Any, ...]]]:
        """As `_read_at_once`; half of its time, which is most of that of a node for a get.

        The position is not of the same transaction. The table had at least that when the row was
        read, and it had a row of that version once it was at the position behind it.
        """
        position = self.position.offset
        row = self._reader.execute(_ONE_ROW, key).fetchone()
        if row is None:
            return position, []
        return max(position, row[1] + 1), [row]

    def _read_at_once(
        self, keys: Sequence[bytes], bytes_max: int
    ) -> tuple[int, list[tuple[Any, ...]]] | None:
        # Few statements of different lengths, which stay compiled. A key may be there twice.
        length = 1 << (len(keys) - 1).bit_length()
        asked = [*keys, *[keys[-1]] * (length - len(keys))]
        rows, size = [], 0
        for row in self._reader.execute(_rows_at_once(length), asked):
            size += len(row[4] or b"")
            if size > bytes_max and len(keys) > 1:
                return None
            rows.append(row)
        return int(rows[0][0]), [row[1:] for row in rows]

    def versions(self, keys: Sequence[bytes]) -> Iterator[tuple[bytes, int, int]]:
        """Key, version, and 1 if it has a value, else 0, of those of the keys that have a row.

        Raises: CorruptData, LogFailed.
        """
        with self._versions_lock, self._failing():
            for at in range(0, len(keys), KEYS_AT_ONCE):
                some = keys[at : at + KEYS_AT_ONCE]
                yield from self._versions.execute(_versions_of(len(some)), some).fetchall()

    def scan(
        self,
        first: bytes,
        end: bytes | None,
        limit: int,
        *,
        bytes_max: int,
        oldest: int = 0,
    ) -> list[Row]:
        """At most `limit` rows with a value, with keys from `first` on and below `end`, by key.

        Values of `bytes_max` or more end it early. Rows of a version below `oldest` are left out.

        Raises: CorruptData, LogFailed.
        """
        where, bounds = key_range(first, end, oldest)
        rows: list[Row] = []
        size = 0
        with self._scanning() as reader:
            for found in reader.execute(f"{_ROW}{where} order by key limit ?", (*bounds, limit)):
                row = Row(*found)
                rows.append(row)
                size += len(row.value or b"")
                if size >= bytes_max:
                    break
        return rows

    def page(
        self, asked: PageRange, limit: int, *, bytes_max: int, oldest: int = 0
    ) -> tuple[int, list[Row], bytes | None]:
        """The rows of a page by key, with the offset of their position.

        They have about `bytes_max` of values at most, but for a single one. The last value is the
        key up to which was looked, if there may be more behind it; there may be no rows, and more.

        Raises: CorruptData, LogFailed.
        """
        rows: list[Row] = []
        size = 0
        with self._scanning() as reader:
            keys, after = page_keys(reader, asked, limit, oldest)
            for key in keys:
                row = Row(*reader.execute(_ROW + "key = ?", (key,)).fetchone())
                size += len(row.value or b"")
                if rows and size > bytes_max:
                    after = rows[-1].key
                    break
                rows.append(row)
            return _position(reader), rows, after

    def key_page(
        self, asked: PageRange, limit: int, *, oldest: int = 0
    ) -> tuple[int, list[TableKey], bytes | None]:
        """As `page`, without reading the values. Raises: CorruptData, LogFailed."""
        found: list[TableKey] = []
        with self._scanning() as reader:
            keys, after = page_keys(reader, asked, limit, oldest)
            for some, where in key_parts(keys):
                rows = reader.execute(f"{_HEAD}{where} order by key", some)
                found += (TableKey(*row) for row in rows)
            return _position(reader), found, after

    def at_version(self, version: int) -> Row | None:
        """The row with a version; None in a table of COUNTED_KEYS or more, which takes too long.

        Raises: CorruptData, LogFailed.
        """
        with self._scanning() as reader:
            if forgotten.row_count(reader) >= COUNTED_KEYS:
                return None
            found = reader.execute(f"{_ROW}version = ?", (version,)).fetchone()
        return None if found is None else Row(*found)

    def count(self, *, oldest: int = 0) -> int:
        """The number of keys with a value; reads the whole file, with a connection of its own.

        Raises: CorruptData, LogFailed.
        """
        select = "select count(*) from entries where value is not null and version >= ?"
        with self._apart() as reader:
            found = reader.execute(select, (oldest,))
            return int(found.fetchone()[0])

    def count_quickly(self, *, oldest: int = 0) -> int:
        """As `count`; from COUNTED_KEYS rows on purged ones count until they are forgotten, and
        only the rows of removed keys are read.

        Raises: CorruptData, LogFailed.
        """
        with self._scanning() as reader:
            rows = forgotten.row_count(reader)
            if rows >= COUNTED_KEYS:
                return rows - forgotten.removal_count(reader)
        return self.count(oldest=oldest)

    def forget(self, limits: ForgetLimits, walk: Walk | None, rows_max: int) -> Forgotten:
        """Delete at most `rows_max` rows that nobody needs; see `ageing.forgotten`.

        `walk` is that of the call before. Raises: CorruptData, LogFailed.
        """
        with self._write_lock:
            first, position = self._recorder.first, self.position.offset
        named_from = position if first is None else first - 1
        with self._scanning() as reader:
            found = forgotten.find_forgettable(
                reader, limits, walk, position=position, named_from=named_from, rows_max=rows_max
            )
        with self._write_lock, self._failing():
            return found.remove(self._writer)

    def state(
        self,
        patterns: Sequence[KeyPattern],
        *,
        oldest: int,
        below: int,
        removed_since: int | None = None,
    ) -> KeyState:
        """All keys with a value that match one of the patterns, with versions below `below`.

        Also keys that were removed at `removed_since` (Unix time, ms) or later; None: none.
        Has a connection of its own, so that only its like waits. Raises: CorruptData, LogFailed.
        """
        prefix = patterns[0].prefix if len(patterns) == 1 else b""
        which = shown_since(removed_since)
        where, bounds = key_range(prefix, prefix_end(prefix), oldest, which=which)
        reading = self._scanning if is_one_key(patterns) else self._apart
        found = KeyState()
        with reading() as reader:
            found.fill(
                reader,
                f"{where} and version < ?",
                (*bounds, below),
                lambda key: any(each.matches(key) for each in patterns),
            )
        return found

    def rows_of(self, part: KeyPart, *, bytes_max: int) -> tuple[list[Row], KeyPart | None]:
        """See `KeyPart.read`. Raises: CorruptData, LogFailed."""
        with self._scanning() as reader:
            return part.read(reader, bytes_max=bytes_max)

    def index_ages(self, ttl_ms: int) -> None:
        """Prepare for the table's time to live; 0: none. Raises: CorruptData, LogFailed."""
        with self._write_lock, self._failing():
            deadlines.index_ages(self._writer, ttl_ms)

    def expired(
        self, ttl_ms: int, now_ms: int, limit: int, *, oldest: int = 0
    ) -> tuple[list[ExpiredKey], int | None]:
        """At most `limit` keys whose deadline has passed, and the earliest deadline of all.

        `ttl_ms` is what `index_ages` was called with. Rows of a version below `oldest` are left
        out. Raises: CorruptData, LogFailed.
        """
        with self._scanning() as reader:
            found = deadlines.expired_keys(reader, ttl_ms, now_ms, limit)
            first = deadlines.first_deadline(reader, ttl_ms)
        if any(each.version < oldest for each in found):
            with self._write_lock, self._failing():
                deadlines.keep_purged(self._writer, ttl_ms, oldest)
        return [each for each in found if each.version >= oldest], first

    def close(self) -> None:
        """Wait for who uses it, and close it. Whoever comes later gets LogFailed."""
        self._changes.close()
        self._is_closed = True
        with self._apart_lock, self._write_lock, self._lock, self._scan_lock, self._versions_lock:
            self._recorder.close()
            for connection in (self._reader, self._scanner, self._versions, self._writer):
                connection.close()

    @contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection]:
        """All that is read within is of one position. For what takes no longer than its keys."""
        with self._lock, self._failing(), _transaction(self._reader) as reader:
            yield reader

    @contextmanager
    def _scanning(self) -> Iterator[sqlite3.Connection]:
        """As `_reading`, for pages."""
        with self._scan_lock, self._failing(), _transaction(self._scanner) as reader:
            yield reader

    @contextmanager
    def _apart(self) -> Iterator[sqlite3.Connection]:
        """As `_reading`, for what reads the whole file; the connection is made for it."""
        with self._apart_lock, self._failing():
            if self._is_closed:
                raise sqlite3.ProgrammingError("the file is closed")
            with closing(self._connect()) as connection, _transaction(connection) as reader:
                yield reader

    @contextmanager
    def _failing(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise self._failure(error) from error

    def _failure(self, error: sqlite3.Error) -> LogFailed | CorruptData:
        if isinstance(error, sqlite3.OperationalError | sqlite3.ProgrammingError):
            return LogFailed(self.path, str(error))  # the disk; closed
        return CorruptData(self.path, 0, "a database of SQLite", str(error))
