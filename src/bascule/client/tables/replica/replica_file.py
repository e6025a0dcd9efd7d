"""The file of a copy of a table: rows, the position they stand at, and writes to be offered.

The rows of a page and the position behind it are one transaction. It is not synced: after a power
loss the file is as it was some transactions before, and what is missing comes again. A write that
is queued is synced.

Each row has a checksum of what is in it, and so has the state: SQLite has none, and would return a
value with a bit that is not as it was written.
"""

from __future__ import annotations

import logging
import sqlite3
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import compress
from pathlib import Path
from typing import Any, Final

from bascule.client.tables.replica import statements as sql
from bascule.client.tables.replica.conflicts import LocalWrite, RemoteState
from bascule.client.tables.replica.copy_rows import (
    DIGEST_BYTES,
    CopyState,
    KnownState,
    PendingWrite,
    RefusedWrite,
    ReplicaEntry,
    ReplicaValues,
    digest_of,
    row_crc,
)
from bascule.client.tables.replica.recent_changes import (
    WatchedCopy,
    add_row,
    last_row,
    rows_behind,
)
from bascule.errors import ConfigError, CopyDamaged, LogFailed
from bascule.errors.tables import shown_key
from bascule.wire.tables.sync_pages import SyncPage, SyncRow

log = logging.getLogger(__name__)

FORMAT: Final = 5
"""2 has checksums; 3 what a table stood at when rows were read, and which writes it has taken; 4
which keys have changed last; 5 since when the changes of the keys of writes are known."""
TAKEN_OVER: Final = {
    3: (sql.ADD_LOG, sql.ADD_SINCE, sql.SET_SINCE),
    4: (sql.ADD_SINCE, sql.SET_SINCE),
}
"""What makes a file of an earlier format one of this format."""
REFUSED_MAX: Final = 10_000
"""Refused writes that are kept; older ones go."""
SENT_BYTES_MAX: Final = 64 * DIGEST_BYTES
"""Of the writes of a key that were sent without an answer, one after the other."""
BUSY_SECONDS: Final = 30.0
"""For another process that writes to the file."""


class ReplicaFile:
    """Blocks on the disk. One thread at a time uses each of its two connections."""

    def __init__(self, path: Path, table: str, new_id: str, *, follows: bool = False) -> None:
        """Open the file, or create it, with an id. With `follows` no other process may follow: the
        file takes the name of another table as long as it has nothing of the one before.

        Raises: ConfigError, CopyDamaged, LogFailed.
        """
        self.path = path
        self.table, self.replica_id = table, ""
        self._write_lock, self._read_lock = threading.Lock(), threading.Lock()
        self._place = path.absolute()
        self._inode = self._found_inode()
        self._restarts = 0
        """How often full pages have begun, which have no removals."""
        with self._failing():
            self._writer = self._connect()
            self._inode = self._inode or self._found_inode()
            try:
                self._open(table, new_id, follows=follows)
                self._reader = self._connect()
                self._check_inode()
            except BaseException:
                self._writer.close()
                raise

    def _connect(self) -> sqlite3.Connection:
        connection = sqlite3.connect(
            self.path, isolation_level=None, check_same_thread=False, timeout=BUSY_SECONDS
        )
        connection.execute("pragma journal_mode = wal")
        connection.execute("pragma synchronous = normal")
        connection.create_function("row_crc", -1, row_crc, deterministic=True)
        return connection

    def _open(self, table: str, new_id: str, *, follows: bool) -> None:
        with self._transaction(self._writer):
            if not self._writer.execute("select count(*) from sqlite_master").fetchone()[0]:
                for statement in sql.SCHEMA.split(";")[:-1]:
                    self._writer.execute(statement)
                first = row_crc(None, 0, -1, None, 0, 0, 0, 0, -1, table, new_id)
                self._writer.execute(sql.FIRST, (FORMAT, table, new_id, first))
            self._take_over()
            if follows:
                self._rename_unused(table)
            select = "select format, name, replica_id from state"
            found = self._writer.execute(select).fetchone()
        if found is None or found[0] != FORMAT:
            what = f"a copy of a table in format {FORMAT}"
            raise CopyDamaged(str(self.path), 0, what, str(found and found[0]), place="its state")
        if found[1] != table:
            raise ConfigError(
                f"{self.path} is a copy of the table {found[1]!r}, not of {table!r}: take another "
                "directory"
            )
        self.replica_id = found[2]
        self._state(self._writer)

    def _take_over(self) -> None:
        found = self._writer.execute("select format from state").fetchone()
        statements = () if found is None else TAKEN_OVER.get(found[0], ())
        for statement in statements:
            self._writer.execute(statement)
        if statements:
            self._writer.execute("update state set format = ?", (FORMAT,))

    def _rename_unused(self, table: str) -> None:
        """Have the file be of this table if it has neither a page nor a write of another one: that
        has never been there, or its name was mistyped."""
        (found,) = self._writer.execute(sql.IS_UNUSED, (FORMAT,)).fetchone()
        if not found:
            return
        self._state(self._writer)  # is not damaged
        *fields, _, id, _ = self._writer.execute(sql.STATE).fetchone()
        crc = row_crc(*fields, table, id)
        self._writer.execute("update state set name = ?, crc = ?", (table, crc))

    def _found_inode(self) -> tuple[int, int] | None:
        """Device and inode of the file at the path; None: there is none."""
        try:
            found = self._place.stat()
        except FileNotFoundError:
            return None
        return found.st_dev, found.st_ino

    def _check_inode(self) -> None:
        """Raises: LogFailed if another file has taken the place of the open one."""
        if self._found_inode() != self._inode:
            raise LogFailed(str(self.path), "it was begun anew or moved: open it again")

    def _state(self, connection: sqlite3.Connection) -> CopyState:
        """Raises: CopyDamaged."""
        found = connection.execute(sql.STATE).fetchone()
        if found is None:
            raise self._damaged("the state", "a row", "none")
        self._check("the state", found[:-1], found[-1])
        return CopyState(*found[:9])

    def _check(self, what: str, fields: Sequence[Any], crc: object) -> None:
        """`crc` is what the file has: damage changes types, too. Raises: CopyDamaged."""
        if (found := row_crc(*fields)) != crc:
            expected = f"{crc:08x}" if isinstance(crc, int) else repr(crc)
            raise self._damaged(what, f"the checksum {expected}", f"{found:08x}")

    def _damaged(self, place: str, expected: str, found: str) -> CopyDamaged:
        return CopyDamaged(str(self.path), 0, expected, found, place=place)

    def _check_write(self, row: Sequence[Any]) -> None:
        """Of a row of `sql.PENDING` or `sql.REFUSED`. Raises: CopyDamaged."""
        self._check(f"write {row[0]}", row[1:-1], row[-1])

    def state(self) -> CopyState:
        """Raises: CopyDamaged, LogFailed."""
        with self._reading() as reader:
            return self._state(reader)

    def apply(self, page: SyncPage) -> CopyState:
        """Add a page, and stand behind it; at 0, for all rows, if the page shows that the table has
        lost a write that it had taken. Raises: CopyDamaged, LogFailed; all is as before."""
        with self._writing() as writer:
            before = self._state(writer)
            if before.table is not None and before.table != page.table:
                writer.execute("delete from entries")
                writer.execute(sql.FORGET_BASES)
                writer.execute("delete from taken")
                add_row(writer, None)
            rows: Sequence[SyncRow] = page.rows
            if page.is_full:
                if not page.after:
                    self._restarts += 1
                    writer.execute(sql.FORGET_SINCE)
                self._clear_range(writer, page.after, page.next_after)
                writer.execute(sql.CONFIRM_RANGE, (page.read_at, page.after, page.next_after))
                # Changes since where full pages began have these rows once more.
                ends = max((row.version + 1 for row in rows), default=0)
                add_row(writer, None, repeated=max(page.read_at, ends))
            else:
                rows = self._note_changes(writer, rows)
            self._add(writer, rows, oldest=page.oldest)
            if page.oldest > before.oldest:
                writer.execute(sql.PURGE, (page.oldest,))
            keys = page.keys if page.keys >= 0 else before.keys
            state = before.behind(page)._replace(
                oldest=page.oldest, high_watermark=page.high_watermark, keys=keys
            )
            lost = None
            if page.position == page.read_at:  # else the rows of later pages are among these
                lost = writer.execute(sql.IS_LOST, (page.position,)).fetchone()
            if lost is not None:
                log.error(
                    "the table %s has lost the write of key %s at offset %d, which it had taken; "
                    "the copy gets all keys again", self.table, shown_key(lost[0]), lost[1],
                )  # fmt: skip
                writer.execute("delete from taken")
                add_row(writer, None, repeated=max(before.position, page.position))
                state = CopyState(page.table, 0, -1, None, 0, page.high_watermark, keys, 0, -1)
            crc = row_crc(*state, self.table, self.replica_id)
            writer.execute(sql.SET_STATE, (*state, crc))
        return state

    def _note_changes(
        self, writer: sqlite3.Connection, rows: Sequence[SyncRow]
    ) -> Sequence[SyncRow]:
        """Log what rows change, before they are added; return those to be added: not what was there
        before a write of this copy that the table has taken."""
        taken = dict(writer.execute("select key, version from taken").fetchall())
        if taken:
            rows = [row for row in rows if row.version >= taken.get(row.key, 0)]
        repeated = last_row(writer).repeated
        changes = [
            (row.key, row.version, None if row.value is not None else row.timestamp) for row in rows
        ]
        if taken or any(row.version < repeated for row in rows):
            are_new = [
                not (row.version < repeated or row.key in taken)
                or self._changes(writer, row.key, row.version, row.value, taken.get(row.key))
                for row in rows
            ]
            changes = list(compress(changes, are_new))
        if changes:
            add_row(writer, changes)
        return rows

    def _changes(
        self,
        writer: sqlite3.Connection,
        key: bytes,
        version: int,
        value: bytes | None,
        taken: int | None,
    ) -> bool:
        """Whether a version that may be there already is not: the version `taken` of the key is,
        where it is a removal, and no row has a value."""
        found = writer.execute(sql.VISIBLE, (key,)).fetchone()
        if value is not None:
            return found is None or found[0] != version
        return found is not None or (taken is not None and taken != version)

    def _add(self, writer: sqlite3.Connection, rows: Sequence[SyncRow], *, oldest: int) -> None:
        writer.executemany(
            sql.UPSERT,
            [
                (*fields, row_crc(*fields))
                for fields in (
                    (row.key, row.version, row.timestamp, row.value, row.content_type)
                    for row in rows
                )
            ],
        )
        if writer.execute("select exists (select 1 from taken)").fetchone()[0]:
            writer.executemany(sql.CONFIRM, [(row.key, row.version) for row in rows])
            writer.execute(sql.PURGE_TAKEN, (oldest,))
        removed = [(row.key,) for row in rows if row.value is None]
        writer.executemany(sql.FORGET_REMOVED, removed)

    def _clear_range(self, writer: sqlite3.Connection, after: bytes, end: bytes | None) -> None:
        if end is None:
            writer.execute("delete from entries where key > ?", (after,))
        else:
            writer.execute("delete from entries where key > ? and key <= ?", (after, end))

    def get(self, key: bytes) -> ReplicaEntry | None:
        """Raises: CopyDamaged, LogFailed."""
        with self._reading() as reader:
            return self._get(reader, key)

    def get_many(self, keys: Sequence[bytes]) -> ReplicaValues:
        """Those that have a value, all of one state. Raises: CopyDamaged, LogFailed."""
        with self._reading() as reader:
            position = self._state(reader).position
            found = [self._get(reader, key) for key in keys]
        return ReplicaValues(position, {each.key: each for each in found if each is not None})

    def _get(self, reader: sqlite3.Connection, key: bytes) -> ReplicaEntry | None:
        pending = reader.execute(sql.PENDING + "where key = ?", (key,)).fetchone()
        if pending is not None:
            self._check_write(pending)
            _, _, base, timestamp, value, content_type, *_ = pending
            if value is None:
                return None
            return ReplicaEntry(key, base, timestamp, value, content_type, True)
        found = reader.execute(sql.ENTRY, (key,)).fetchone()
        if found is None:
            return None
        self._check_entry(found)
        return None if found[3] is None else ReplicaEntry._make((*found[:5], False))

    def _check_entry(self, row: Sequence[Any]) -> None:
        """Of a row of `sql.ENTRIES`. Raises: CopyDamaged."""
        key = row[0]
        shown = shown_key(key) if isinstance(key, bytes) else repr(key)
        self._check(f"the row of key {shown}", row[:5], row[5])

    def scan(self, first: bytes, end: bytes | None, limit: int) -> list[ReplicaEntry]:
        """At most `limit` entries with keys from `first` on and below `end`, by key.

        Raises: CopyDamaged, LogFailed.
        """
        chosen = {"first": first, "end": end, "limit": limit}
        with self._reading() as reader:
            found = reader.execute(sql.scan(has_end=end is not None), chosen).fetchall()
        for row in found:
            if row[6]:
                self._check("a write", (*row[:5], *row[7:]), row[5])
            else:
                self._check_entry(row)
        return [ReplicaEntry._make((*row[:5], bool(row[6]))) for row in found]

    @contextmanager
    def watched(self) -> Iterator[WatchedCopy]:
        """What a watcher reads, all of it of one state. Raises: CopyDamaged; LogFailed, also if the
        copy was begun anew: nothing more would come."""
        self._check_inode()
        with self._reading() as reader:
            yield WatchedCopy(reader, self._state(reader), self._check_entry, self._check)

    def verify(self) -> int:
        """Read all of the file and compare each checksum; return how many rows it has.

        Raises: CopyDamaged, LogFailed.
        """
        rows = 0
        with self._reading() as reader:
            (said,) = reader.execute("pragma integrity_check(1)").fetchone()
            if said != "ok":
                raise self._damaged("a page", "a database without faults", said)
            self._state(reader)
            for row in rows_behind(reader, 0):
                self._check("a row of the log of changes", row[:3], row.crc)
            for select, check in (
                (sql.ENTRIES, self._check_entry),
                (sql.PENDING, self._check_write),
                (sql.REFUSED, self._check_write),
            ):
                for row in reader.execute(select):
                    check(row)
                    rows += 1
        return rows

    def count(self) -> int:
        """Keys with a value, without what was written here; reads all keys.

        Raises: CopyDamaged, LogFailed.
        """
        return self._count("select count(*) from entries where value is not null")

    def count_pending(self) -> int:
        """Raises: CopyDamaged, LogFailed."""
        return self._count("select count(*) from pending")

    def count_refused(self) -> int:
        """Raises: CopyDamaged, LogFailed."""
        return self._count("select count(*) from refused")

    def _count(self, select: str) -> int:
        with self._reading() as reader:
            return int(reader.execute(select).fetchone()[0])

    def remote(self, key: bytes) -> RemoteState:
        """The last record of a key, as the cluster has it. Raises: CopyDamaged, LogFailed."""
        return self.known(key).remote

    def known(self, key: bytes) -> KnownState:
        """As `remote`, with what the copy stands at. Raises: CopyDamaged, LogFailed."""
        with self._write_lock:  # never behind the rows
            restarts = self._restarts
        with self._reading() as reader:
            found = reader.execute(sql.ENTRY, (key,)).fetchone()
            position = self._state(reader).position
        if found is None:
            return KnownState(RemoteState(None, -1, None), position, restarts)
        self._check_entry(found)
        return KnownState(RemoteState(*found[1:5]), position, restarts)

    # Writes that were made here

    def queue(self, write: LocalWrite) -> None:
        """Keep a write, synced. It takes the place of an earlier one of its key, and replaces the
        version that that one replaced.

        Raises: CopyDamaged; LogFailed, also if the copy was begun anew meanwhile: nobody would
        offer the write.
        """
        with self._writing(is_synced=True) as writer:
            found = writer.execute(sql.EARLIER, (write.key,)).fetchone()
            if found is None:
                (base,) = writer.execute(sql.VISIBLE, (write.key,)).fetchone() or (None,)
                (taken,) = writer.execute(sql.TAKEN, (write.key,)).fetchone() or (-1,)
                found = base, b"", max(self._state(writer).position, taken + 1)
            writer.execute("delete from pending where key = ?", (write.key,))
            row = write.key, found[0], write.timestamp, write.value, write.content_type, *found[1:]
            writer.execute(sql.QUEUE, (*row, row_crc(*row)))
            self._check_inode()  # `begin_anew` waits for the transaction, or has ended

    def restore(self, pending: Sequence[PendingWrite], refused: Sequence[RefusedWrite]) -> None:
        """Keep the writes of a copy that was here before, under their numbers. What becomes of
        their keys until the copy has pages again is not known.

        Raises: CopyDamaged, LogFailed.
        """
        with self._writing(is_synced=True) as writer:
            unknown = [each._replace(since=None) for each in pending]
            for select, kept in ((sql.QUEUE, unknown), (sql.REFUSE, refused)):
                for number, write, base, *more in kept:
                    row = write.key, base, write.timestamp, write.value, write.content_type, *more
                    named = select.replace("(key,", "(number, key,").replace("(?,", "(?, ?,")
                    writer.execute(named, (number, *row, row_crc(*row)))

    def pending(self, limit: int, *, behind: int = 0) -> list[PendingWrite]:
        """The oldest of those behind the write `behind`. A key has one. Raises: CopyDamaged,
        LogFailed."""
        select = sql.PENDING + "where number > ? order by number limit ?"
        with self._reading() as reader:
            found = reader.execute(select, (behind, limit)).fetchall()
        for row in found:
            self._check_write(row)
        return [
            PendingWrite(number, LocalWrite(key, value, timestamp, content_type), base, sent, since)
            for number, key, base, timestamp, value, content_type, sent, since, _ in found
        ]

    def note_sent(self, writes: Sequence[PendingWrite]) -> None:
        """These are about to be sent. Raises: CopyDamaged, LogFailed."""
        with self._writing() as writer:
            writer.executemany(
                sql.NOTE_SENT,
                [
                    ((each.sent + digest_of(each.write.value))[-SENT_BYTES_MAX:], each.number)
                    for each in writes
                    if not each.may_have_made(each.write.value)
                ],
            )

    def rebase(self, number: int, write: LocalWrite, known: KnownState) -> bool:
        """Have a pending write replace what was known of its key, perhaps with another value; False
        if it is there no more. Raises: CopyDamaged, LogFailed."""
        remote = known.remote
        base = None if remote.value is None else remote.version
        with self._writing(is_synced=True) as writer:
            since = known.position if known.restarts == self._restarts else None
            new = base, write.value, write.content_type, since, number
            found = writer.execute(sql.REBASE, new)
            return found.rowcount == 1

    def settle(
        self, number: int, write: LocalWrite, version: int | None, *, table: bytes | None
    ) -> None:
        """A write is in the table with a version; None: the key had no value anyway.

        A later one of its key replaces that version. `table` is the id of the table when the write
        was offered: no version of a former one is one of the table that has taken its place.
        Raises: CopyDamaged, LogFailed.
        """
        with self._writing() as writer:
            writer.execute("delete from pending where number = ?", (number,))
            if self._state(writer).table != table:
                return
            base = version if write.value is not None else None
            since = None if version is None else version + 1
            writer.execute(sql.SET_BASE, (base, since, write.key))
            if version is not None:
                self._put(writer, write, version)

    def _put(self, writer: sqlite3.Connection, write: LocalWrite, version: int) -> None:
        """The row of a write that was taken, before its page comes. One whose page has come, or is
        among full pages to come, may have been overwritten since."""
        if version < self._state(writer).position:
            return
        before = writer.execute(sql.TAKEN, (write.key,)).fetchone()
        taken = None if before is None else before[0]
        if self._changes(writer, write.key, version, write.value, taken):
            removed_at = None if write.value is not None else write.timestamp
            add_row(writer, [(write.key, version, removed_at)])
        writer.execute(sql.TAKE, (write.key, version))
        if write.value is None:
            writer.execute(sql.REMOVE, (write.key, version))
            return
        row = (write.key, version, write.timestamp, write.value, write.content_type)
        writer.execute(sql.UPSERT, (*row, row_crc(*row)))

    def refuse(self, number: int, reason: str) -> RefusedWrite | None:
        """A write is not to be offered any more; None if it is there no more.

        Raises: CopyDamaged, LogFailed.
        """
        with self._writing() as writer:
            found = writer.execute(sql.PENDING + "where number = ?", (number,)).fetchone()
            if found is None:
                return None
            self._check_write(found)
            _, key, base, timestamp, value, content_type, *_ = found
            row = key, base, timestamp, value, content_type, reason
            added = writer.execute(sql.REFUSE, (*row, row_crc(*row)))
            assert added.lastrowid is not None
            writer.execute("delete from pending where number = ?", (number,))
            writer.execute(sql.FORGET_REFUSED, (added.lastrowid - REFUSED_MAX,))
            writer.execute("delete from entries where key = ? and value is null", (key,))
            write = LocalWrite(key, value, timestamp, content_type)
            return RefusedWrite(added.lastrowid, write, base, reason)

    def refused(self, limit: int) -> list[RefusedWrite]:
        """The latest of them, the newest first. Raises: CopyDamaged, LogFailed."""
        with self._reading() as reader:
            found = reader.execute(
                sql.REFUSED + "order by number desc limit ?", (limit,)
            ).fetchall()
        for row in found:
            self._check_write(row)
        return [
            RefusedWrite(number, LocalWrite(key, value, timestamp, content_type), base, reason)
            for number, key, base, timestamp, value, content_type, reason, _ in found
        ]

    def forget_refused(self, number: int) -> None:
        """Forget refused writes up to a number. Raises: CopyDamaged, LogFailed."""
        with self._writing() as writer:
            writer.execute(sql.FORGET_REFUSED, (number,))

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
        except sqlite3.ProgrammingError as error:  # closed
            raise LogFailed(str(self.path), str(error)) from error
        except sqlite3.OperationalError as error:
            # Without a code it is Python's: text that is none. SQLITE_ERROR: tables are not there.
            if getattr(error, "sqlite_errorcode", 1) == sqlite3.SQLITE_ERROR:
                raise self._damaged("a page", "a copy of a table", str(error)) from error
            raise LogFailed(str(self.path), str(error)) from error
        except (sqlite3.Error, UnicodeDecodeError) as error:  # the latter: of SQLite's own message
            raise self._damaged("a page", "a database of SQLite", str(error)) from error
