"""The file of a copy of a table: rows, the position they stand at, and writes to be offered.

The rows of a page and the position behind it are one transaction. It is not synced: after a power
loss the file is as it was some transactions before, and what is missing comes again. A write that
is queued is synced.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import Final, NamedTuple

from bascule.client.tables.replica.conflicts import LocalWrite, RemoteState
from bascule.errors import ConfigError, CorruptData, LogFailed
from bascule.wire.tables.sync_pages import SyncPage

FORMAT: Final = 1
REFUSED_MAX: Final = 10_000
"""Refused writes that are kept; older ones go."""
DIGEST_BYTES: Final = 32
SENT_BYTES_MAX: Final = 64 * DIGEST_BYTES
"""Of the writes of a key that were sent without an answer, one after the other."""
BUSY_SECONDS: Final = 30.0
"""For another process that writes to the file."""

_SCHEMA: Final = """
create table entries (
    id integer primary key,
    key blob not null unique,
    version integer not null,
    timestamp integer not null,
    value blob,
    content_type text
);
create table state (
    one integer primary key check (one = 1),
    format integer not null,
    name text not null,
    replica_id text not null,
    table_id blob,
    position integer not null,
    epoch integer not null,
    after blob,
    oldest integer not null,
    high_watermark integer not null,
    keys integer not null
);
create table pending (
    number integer primary key autoincrement,
    key blob not null unique,
    base integer,
    timestamp integer not null,
    value blob,
    content_type text,
    sent blob not null
);
create table refused (
    number integer primary key autoincrement,
    key blob not null,
    base integer,
    timestamp integer not null,
    value blob,
    content_type text,
    reason text not null
);
"""
_FIRST: Final = "insert into state values (1, ?, ?, ?, null, 0, -1, null, 0, 0, 0)"
_STATE: Final = "select table_id, position, epoch, after, oldest, high_watermark, keys from state"
_SET_STATE: Final = (
    "update state set table_id = ?, position = ?, epoch = ?, after = ?, oldest = ?, "
    "high_watermark = ?, keys = ?"
)
_UPSERT: Final = (
    "insert into entries (key, version, timestamp, value, content_type) values (?, ?, ?, ?, ?) "
    "on conflict (key) do update set version = excluded.version, value = excluded.value, "
    "timestamp = excluded.timestamp, content_type = excluded.content_type "
    "where excluded.version >= entries.version"
)
_REMOVE: Final = "delete from entries where key = ? and version <= ?"
_FORGET_REMOVED: Final = (
    "delete from entries where key = ? and value is null "
    "and not exists (select 1 from pending where pending.key = entries.key)"
)
"""A conflict is decided by the time of the removal, so those of pending writes are kept."""
_ENTRY: Final = "select key, version, timestamp, value, content_type from entries where key = ?"
_PENDING: Final = "select number, key, base, timestamp, value, content_type, sent from pending "
_REFUSED: Final = "select number, key, base, timestamp, value, content_type, reason from refused "
_SCAN: Final = (
    "select * from ("
    "select key, version, timestamp, value, content_type, 0 from entries "
    "where key >= :first and (:end is null or key < :end) and value is not null "
    "and not exists (select 1 from pending where pending.key = entries.key) "
    "union all "
    "select key, base, timestamp, value, content_type, 1 from pending "
    "where key >= :first and (:end is null or key < :end) and value is not null"
    ") order by key limit :limit"
)
_QUEUE: Final = (
    "insert into pending (key, base, timestamp, value, content_type, sent) "
    "values (?, ?, ?, ?, ?, ?)"
)
_REFUSE: Final = (
    "insert into refused (key, base, timestamp, value, content_type, reason) "
    "values (?, ?, ?, ?, ?, ?)"
)
_FORGET_REFUSED: Final = "delete from refused where number <= ?"


class CopyState(NamedTuple):
    """What a copy stands at."""

    table: bytes | None
    """The id of the table; None before the first page."""
    position: int
    epoch: int
    after: bytes | None
    """The last key that the copy has of full pages; None: it has all keys."""
    oldest: int
    high_watermark: int
    """What was committed below it when the last page was sent."""
    keys: int
    """About how many keys the table had when full pages began."""

    @property
    def is_whole(self) -> bool:
        """Whether it is a state that the table has been in, or nearly."""
        return self.table is not None and self.after is None


class ReplicaEntry(NamedTuple):
    """A key with a value, of a copy of a table."""

    key: bytes
    version: int | None
    """The offset of the record; of a write that is not in the table yet, that of the record that it
    replaces, if there is one."""
    timestamp: int
    """Unix time of the record, or of the write, milliseconds."""
    value: bytes
    content_type: str | None
    is_pending: bool
    """Whether it was written here, and the cluster has not taken it yet."""


class PendingWrite(NamedTuple):
    """A write to be offered."""

    number: int
    write: LocalWrite
    base: int | None
    """The version that it replaces; None: the key had no value."""
    sent: bytes
    """Digests of what was sent for the key without an answer, by this write and those before it."""

    def may_have_made(self, value: bytes | None) -> bool:
        """Whether a value of the key may be what was sent."""
        digests = [
            self.sent[at : at + DIGEST_BYTES] for at in range(0, len(self.sent), DIGEST_BYTES)
        ]
        return digest_of(value) in digests


class RefusedWrite(NamedTuple):
    """A write that the cluster did not take."""

    number: int
    """Later ones have higher numbers."""
    write: LocalWrite
    base: int | None
    reason: str


def digest_of(value: bytes | None) -> bytes:
    """Of what a write makes of a key."""
    return bytes(DIGEST_BYTES) if value is None else sha256(value).digest()


class ReplicaFile:
    """Blocks on the disk. One thread at a time uses each of its two connections."""

    def __init__(self, path: Path, table: str, new_id: str) -> None:
        """Open the file, or create it, with an id. Raises: ConfigError, CorruptData, LogFailed."""
        self.path = path
        self.replica_id = ""
        self._write_lock, self._read_lock = threading.Lock(), threading.Lock()
        with self._failing():
            self._writer = self._connect()
            try:
                self._open(table, new_id)
                self._reader = self._connect()
            except BaseException:
                self._writer.close()
                raise

    def _connect(self) -> sqlite3.Connection:
        connection = sqlite3.connect(
            self.path, isolation_level=None, check_same_thread=False, timeout=BUSY_SECONDS
        )
        connection.execute("pragma journal_mode = wal")
        connection.execute("pragma synchronous = normal")
        return connection

    def _open(self, table: str, new_id: str) -> None:
        with self._transaction(self._writer):
            if not self._writer.execute("select count(*) from sqlite_master").fetchone()[0]:
                for statement in _SCHEMA.split(";")[:-1]:
                    self._writer.execute(statement)
                self._writer.execute(_FIRST, (FORMAT, table, new_id))
            found = self._writer.execute("select format, name, replica_id from state").fetchone()
        if found is None or found[0] != FORMAT:
            what = f"a copy of a table in format {FORMAT}"
            raise CorruptData(str(self.path), 0, what, str(found and found[0]))
        if found[1] != table:
            raise ConfigError(
                f"{self.path} is a copy of the table {found[1]!r}, not of {table!r}: take another "
                "directory"
            )
        self.replica_id = found[2]

    def state(self) -> CopyState:
        """Raises: CorruptData, LogFailed."""
        with self._reading() as reader:
            return CopyState(*reader.execute(_STATE).fetchone())

    def apply(self, page: SyncPage) -> CopyState:
        """Add a page, and stand behind it. Raises: CorruptData, LogFailed; all is as before."""
        with self._writing() as writer:
            before = CopyState(*writer.execute(_STATE).fetchone())
            if before.table is not None and before.table != page.table:
                writer.execute("delete from entries")
                writer.execute("update pending set base = null")
            if page.is_full:
                self._clear_range(writer, page.after, page.next_after)
            writer.executemany(
                _UPSERT,
                [
                    (row.key, row.version, row.timestamp, row.value, row.content_type)
                    for row in page.rows
                ],
            )
            removed = [(row.key,) for row in page.rows if row.value is None]
            writer.executemany(_FORGET_REMOVED, removed)
            if page.oldest > before.oldest:
                writer.execute("delete from entries where version < ?", (page.oldest,))
            keys = page.keys if page.keys >= 0 else before.keys
            state = CopyState(
                page.table, page.position, page.epoch, page.next_after, page.oldest,
                page.high_watermark, keys,
            )  # fmt: skip
            writer.execute(_SET_STATE, state)
        return state

    def _clear_range(self, writer: sqlite3.Connection, after: bytes, end: bytes | None) -> None:
        if end is None:
            writer.execute("delete from entries where key > ?", (after,))
        else:
            writer.execute("delete from entries where key > ? and key <= ?", (after, end))

    def get(self, key: bytes) -> ReplicaEntry | None:
        """Raises: CorruptData, LogFailed."""
        with self._reading() as reader:
            pending = reader.execute(_PENDING + "where key = ?", (key,)).fetchone()
            if pending is not None:
                _, _, base, timestamp, value, content_type, _ = pending
                if value is None:
                    return None
                return ReplicaEntry(key, base, timestamp, value, content_type, True)
            found = reader.execute(_ENTRY, (key,)).fetchone()
        if found is None or found[3] is None:
            return None
        return ReplicaEntry._make((*found, False))

    def scan(self, first: bytes, end: bytes | None, limit: int) -> list[ReplicaEntry]:
        """At most `limit` entries with keys from `first` on and below `end`, by key.

        Raises: CorruptData, LogFailed.
        """
        chosen = {"first": first, "end": end, "limit": limit}
        with self._reading() as reader:
            found = reader.execute(_SCAN, chosen).fetchall()
        return [ReplicaEntry._make((*row[:5], bool(row[5]))) for row in found]

    def count(self) -> int:
        """Keys with a value, without what was written here; reads all keys.

        Raises: CorruptData, LogFailed.
        """
        return self._count("select count(*) from entries where value is not null")

    def count_pending(self) -> int:
        """Raises: CorruptData, LogFailed."""
        return self._count("select count(*) from pending")

    def count_refused(self) -> int:
        """Raises: CorruptData, LogFailed."""
        return self._count("select count(*) from refused")

    def _count(self, select: str) -> int:
        with self._reading() as reader:
            return int(reader.execute(select).fetchone()[0])

    def remote(self, key: bytes) -> RemoteState:
        """The last record of a key, as the cluster has it. Raises: CorruptData, LogFailed."""
        with self._reading() as reader:
            found = reader.execute(_ENTRY, (key,)).fetchone()
        return RemoteState(None, -1, None) if found is None else RemoteState(*found[1:])

    # Writes that were made here

    def queue(self, write: LocalWrite) -> None:
        """Keep a write, synced. It takes the place of an earlier one of its key, and replaces the
        version that that one replaced. Raises: CorruptData, LogFailed.
        """
        with self._writing(is_synced=True) as writer:
            earlier = writer.execute("select base, sent from pending where key = ?", (write.key,))
            if (found := earlier.fetchone()) is None:
                found = writer.execute(
                    "select version, x'' from entries where key = ? and value is not null",
                    (write.key,),
                ).fetchone()
            base, sent = found or (None, b"")
            writer.execute("delete from pending where key = ?", (write.key,))
            row = (write.key, base, write.timestamp, write.value, write.content_type, sent)
            writer.execute(_QUEUE, row)

    def pending(self, limit: int) -> list[PendingWrite]:
        """The oldest of them. Raises: CorruptData, LogFailed."""
        with self._reading() as reader:
            found = reader.execute(_PENDING + "order by number limit ?", (limit,)).fetchall()
        return [
            PendingWrite(number, LocalWrite(key, value, timestamp, content_type), base, sent)
            for number, key, base, timestamp, value, content_type, sent in found
        ]

    def note_sent(self, writes: Sequence[PendingWrite]) -> None:
        """These are about to be sent. Raises: CorruptData, LogFailed."""
        with self._writing() as writer:
            writer.executemany(
                "update pending set sent = ? where number = ?",
                [
                    ((each.sent + digest_of(each.write.value))[-SENT_BYTES_MAX:], each.number)
                    for each in writes
                    if not each.may_have_made(each.write.value)
                ],
            )

    def rebase(self, number: int, write: LocalWrite, base: int | None) -> bool:
        """Have a pending write replace another version, perhaps with another value; False if it is
        there no more. Raises: CorruptData, LogFailed."""
        with self._writing(is_synced=True) as writer:
            found = writer.execute(
                "update pending set base = ?, value = ?, content_type = ?, sent = x'' "
                "where number = ?",
                (base, write.value, write.content_type, number),
            )
            return found.rowcount == 1

    def settle(self, number: int, write: LocalWrite, version: int | None) -> None:
        """A write is in the table with a version; None: the key had no value anyway.

        A later one of its key replaces that version. Raises: CorruptData, LogFailed.
        """
        with self._writing() as writer:
            writer.execute("delete from pending where number = ?", (number,))
            base = version if write.value is not None else None
            writer.execute(
                "update pending set base = ?, sent = x'' where key = ?", (base, write.key)
            )
            if version is not None:
                self._put(writer, write, version)

    def _put(self, writer: sqlite3.Connection, write: LocalWrite, version: int) -> None:
        """The row of a write that was taken, before its page comes."""
        if write.value is None:
            writer.execute(_REMOVE, (write.key, version))
            return
        row = (write.key, version, write.timestamp, write.value, write.content_type)
        writer.execute(_UPSERT, row)

    def refuse(self, number: int, reason: str) -> RefusedWrite | None:
        """A write is not to be offered any more; None if it is there no more.

        Raises: CorruptData, LogFailed.
        """
        with self._writing() as writer:
            found = writer.execute(_PENDING + "where number = ?", (number,)).fetchone()
            if found is None:
                return None
            _, key, base, timestamp, value, content_type, _ = found
            added = writer.execute(_REFUSE, (key, base, timestamp, value, content_type, reason))
            assert added.lastrowid is not None
            writer.execute("delete from pending where number = ?", (number,))
            writer.execute(_FORGET_REFUSED, (added.lastrowid - REFUSED_MAX,))
            writer.execute("delete from entries where key = ? and value is null", (key,))
            write = LocalWrite(key, value, timestamp, content_type)
            return RefusedWrite(added.lastrowid, write, base, reason)

    def refused(self, limit: int) -> list[RefusedWrite]:
        """The latest of them, the newest first. Raises: CorruptData, LogFailed."""
        with self._reading() as reader:
            found = reader.execute(_REFUSED + "order by number desc limit ?", (limit,)).fetchall()
        return [
            RefusedWrite(number, LocalWrite(key, value, timestamp, content_type), base, reason)
            for number, key, base, timestamp, value, content_type, reason in found
        ]

    def forget_refused(self, number: int) -> None:
        """Forget refused writes up to a number. Raises: CorruptData, LogFailed."""
        with self._writing() as writer:
            writer.execute(_FORGET_REFUSED, (number,))

    def close(self) -> None:
        with self._write_lock, self._read_lock:
            self._reader.close()
            self._writer.close()

    @contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection]:
        """All that is read within is of one state."""
        with self._read_lock, self._failing():
            self._reader.execute("begin")
            try:
                yield self._reader
            finally:
                self._reader.execute("commit")

    @contextmanager
    def _writing(self, *, is_synced: bool = False) -> Iterator[sqlite3.Connection]:
        with self._write_lock, self._failing():
            self._writer.execute(f"pragma synchronous = {'full' if is_synced else 'normal'}")
            with self._transaction(self._writer):
                yield self._writer

    @contextmanager
    def _transaction(self, writer: sqlite3.Connection) -> Iterator[None]:
        writer.execute("begin immediate")
        try:
            yield
            writer.execute("commit")
        except BaseException:
            if writer.in_transaction:
                writer.execute("rollback")
            raise

    @contextmanager
    def _failing(self) -> Iterator[None]:
        try:
            yield
        except (sqlite3.OperationalError, sqlite3.ProgrammingError) as error:  # the disk; closed
            raise LogFailed(str(self.path), str(error)) from error
        except sqlite3.Error as error:
            raise CorruptData(str(self.path), 0, "a database of SQLite", str(error)) from error
