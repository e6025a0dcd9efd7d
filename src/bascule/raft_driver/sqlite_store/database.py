"""`SqliteDatabase`: one file, one connection, one transaction for a flush of all groups."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator
from typing import Any, Final

import msgspec

from bascule.errors import Closed, CorruptData, LogFailed
from bascule.host.api import Files
from bascule.host.real import RealFiles
from bascule.raft_driver.sqlite_store import schema
from bascule.raft_driver.sqlite_store.commit_mark import CommitMark
from bascule.raft_driver.sqlite_store.opening import MARK_SUFFIX, Opened, open_checked
from bascule.raft_driver.sqlite_store.schema import GroupRow
from bascule.raft_driver.sqlite_store.store import SqliteStore

MIB: Final = 1 << 20
BUFFERED_BYTES_MAX: Final = 8 * MIB
"""What the stores of a database buffer together before they commit without being asked to."""
CHECKPOINT_BYTES: Final = 8 * MIB
"""About how large the write-ahead log becomes. A checkpoint costs two syncs and the pages written
since the last one; a larger log makes it rarer and opening after a crash slower."""
PAGE_BYTES: Final = 4096
COMMIT_PAGES: Final = 4
"""Pages that a commit writes besides those of its entries: leaves of runs, groups and node."""
CHECKPOINT_SYNCS: Final = 3
"""The write-ahead log, the database, and the new beginning of the write-ahead log."""


class DatabaseStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """What a database has done since it was opened."""

    commits: int
    checkpoints: int
    syncs: int
    """What SQLite asked of the disk: one for a commit, and those of the checkpoints."""
    entries: int
    bytes: int
    """Of entries and chunks, encoded."""
    groups: int
    size_bytes: int
    """Of the database without its write-ahead log."""


class SqliteDatabase:
    """The Raft logs of one node. Use it from one thread at a time, whichever that is."""

    def __init__(
        self,
        opened: Opened,
        *,
        path: str,
        node_id: int,
        files: Files,
        mark: CommitMark,
        checkpoint_bytes: int,
    ) -> None:
        """Use `open`."""
        self._files = files
        self.path = path
        self.node_id = node_id
        self.connection = opened.connection
        self._commits = opened.commits
        self._groups = opened.groups
        self._groups_check = opened.groups_check
        self._crcs = {row.group: row.crc() for row in opened.groups.values()}
        self._mark = mark
        self._checkpoint_bytes = checkpoint_bytes
        self._open: dict[int, SqliteStore] = {}
        self._dirty: dict[int, SqliteStore] = {}
        self._buffered_bytes = 0
        self._wal_bytes = 0
        self._failure: LogFailed | None = None
        self._closed = False
        self._statistics = {"commits": 0, "checkpoints": 0, "syncs": 0, "entries": 0, "bytes": 0}

    @classmethod
    def open(
        cls,
        path: str,
        *,
        node_id: int,
        files: Files | None = None,
        checkpoint_bytes: int = CHECKPOINT_BYTES,
        factory: type[sqlite3.Connection] = sqlite3.Connection,
    ) -> SqliteDatabase:
        """Open the database at `path`, or make one in a directory that exists.

        All that was confirmed is on the disk when this returns, also where the process before
        ended in the middle of a commit.

        Raises: CorruptData where anything is not as it was written, or confirmed commits are
        missing; DataDirectoryInUse where another process, or this one, has it open; ConfigError
        where it is another node's; UnsupportedFormat; LogFailed where the disk fails.
        """
        files = files or RealFiles()
        opened = open_checked(files, path, node_id=node_id, factory=factory)
        mark = CommitMark(files, path + MARK_SUFFIX, node_id)
        database = cls(
            opened,
            path=path,
            node_id=node_id,
            files=files,
            mark=mark,
            checkpoint_bytes=checkpoint_bytes,
        )
        try:
            # A file that cannot be written to is better found now than with the first vote.
            database.write_rows((), removed=())
        except BaseException:
            database.close()
            raise
        return database

    def store(self, group: int) -> SqliteStore:
        """The store of `group`, which nobody else has open."""
        self.check_usable()
        assert group not in self._open, "a group's store is opened once at a time"
        row = self._groups.setdefault(group, GroupRow(group))
        store = SqliteStore(self, row)
        self._open[group] = store
        return store

    def groups(self) -> tuple[int, ...]:
        """The groups that anything is kept of."""
        return tuple(sorted(self._crcs))

    def remove(self, group: int) -> None:
        """Forget all of a group whose store is closed; durable on return."""
        self.check_usable()
        assert group not in self._open, "a group is removed after its store is closed"
        self._groups.pop(group, None)
        with _Failing(self):
            self.connection.execute("BEGIN IMMEDIATE")
            for table in ("runs", "chunks", "groups"):
                self.connection.execute(f"DELETE FROM {table} WHERE group_id = ?", (group,))  # noqa: S608
            self.write_rows((), removed=(group,))

    def flush(self) -> None:
        """Commit what all stores have buffered, in one transaction, on the disk on return.

        Raises: LogFailed, and then at every later call.
        """
        self.check_usable()
        if not self._dirty:
            return
        stores = list(self._dirty.values())
        self._dirty.clear()
        self._buffered_bytes = 0
        with _Failing(self):
            if all(store.only_appends for store in stores):
                self._append(stores)
            else:
                self.connection.execute("BEGIN IMMEDIATE")
                for store in stores:
                    self._count(*store.write_out())
                self.write_rows([store.row for store in stores], removed=())

    def close(self) -> None:
        """Close the file; what was not flushed is lost."""
        if self._closed:
            return
        self._closed = True
        try:
            self.connection.close()
        except sqlite3.Error:
            pass  # it checkpoints at last, and what that did not write the next opening will
        self._mark.close()

    def statistics(self) -> DatabaseStatistics:
        """Any thread may ask: this does not wait for a commit that is being made."""
        return DatabaseStatistics(
            **self._statistics, groups=len(self._crcs), size_bytes=self._files.size(self.path)
        )

    # What stores call.

    def buffered(self, store: SqliteStore, size: int) -> None:
        """`store` has `size` more bytes to be written."""
        if self._failure is not None or self._closed:
            self.check_usable()
        self._dirty[store.group] = store
        self._buffered_bytes += size
        if self._buffered_bytes > BUFFERED_BYTES_MAX:
            self.flush()

    def let_go(self, store: SqliteStore) -> None:
        """`store` is closed."""
        self._open.pop(store.group, None)
        self._dirty.pop(store.group, None)
        self._groups[store.group] = store.row

    def has_row(self, group: int) -> bool:
        """Whether anything was ever committed for `group`."""
        return group in self._crcs

    def select(self, sql: str, values: tuple[object, ...]) -> Iterator[tuple[Any, ...]]:
        """The rows that `sql` finds. Raises: CorruptData, LogFailed, and then at every call."""
        try:
            yield from self.connection.execute(sql, values)
        except schema.ERRORS as error:
            found = schema.translated(self.path, error)
            self.fail(str(found))
            raise found from error

    def check_usable(self) -> None:
        """Raises: LogFailed after a failure, Closed after `close`."""
        if self._failure is not None:
            raise LogFailed(self.path, self._failure.cause)
        if self._closed:
            raise Closed(f"{self.path} is closed")

    def fail(self, cause: str) -> LogFailed:
        """Refuse everything from now on."""
        self._failure = self._failure or LogFailed(self.path, cause)
        return self._failure

    # How a commit is made.

    def _append(self, stores: list[SqliteStore]) -> None:
        """Commit runs of entries alone: one statement, unless there are very many groups."""
        runs = [store.next_run() for store in stores]
        crcs = [self._changed(store.row) for store in stores]
        commits, node_crc = self._next_node_row()
        values: list[object] = []
        for run, store, crc in zip(runs, stores, crcs, strict=True):
            values += run
            values += (store.row.first, crc, commits, self._groups_check, node_crc)
            self._count(store.take_appended(), len(run[5]))
        width, at_once = len(values) // len(runs), schema.APPENDED_AT_ONCE
        execute = self.connection.execute
        if len(runs) <= at_once:
            execute(schema.APPEND[len(runs)], values)
        else:
            execute("BEGIN IMMEDIATE")
            for start in range(0, len(runs), at_once):
                part = values[start * width : (start + at_once) * width]
                execute(schema.APPEND[len(part) // width], part)
            execute("COMMIT")
        self._committed(commits, len(runs))

    def write_rows(self, rows: Iterable[GroupRow], *, removed: Iterable[int]) -> None:
        """Write the rows of groups and of the node, and commit the transaction, or these alone."""
        with _Failing(self):
            connection = self.connection
            if not connection.in_transaction:
                connection.execute("BEGIN IMMEDIATE")
            count = 0
            for row in rows:
                connection.execute(
                    "INSERT OR REPLACE INTO groups (group_id, term, voted_for, first, last, tail,"
                    " chunks, chunks_check, founding, crc) VALUES (?,?,?,?,?,?,?,?,?,?)",
                    row.values(self._changed(row)),
                )
                count += 1
            for group in removed:
                self._groups_check ^= self._crcs.pop(group, 0)
            commits, crc = self._next_node_row()
            connection.execute(
                "UPDATE node SET commits = ?, groups = ?, groups_check = ?, crc = ?",
                (commits, len(self._crcs), self._groups_check, crc),
            )
            connection.execute("COMMIT")
            self._committed(commits, count)

    def _changed(self, row: GroupRow) -> int:
        """The new CRC of a group's row."""
        crc = row.crc()
        self._groups_check ^= self._crcs.get(row.group, 0) ^ crc
        self._crcs[row.group] = crc
        return crc

    def _next_node_row(self) -> tuple[int, int]:
        commits = self._commits + 1
        return commits, schema.node_crc(self.node_id, commits, len(self._crcs), self._groups_check)

    def _committed(self, commits: int, groups: int) -> None:
        self._commits = commits
        self._mark.set(commits)
        self._statistics["commits"] += 1
        self._statistics["syncs"] += 1
        self._wal_bytes += (COMMIT_PAGES + groups) * PAGE_BYTES
        if self._wal_bytes >= self._checkpoint_bytes:
            self._checkpoint()

    def _checkpoint(self) -> None:
        """Bring the write-ahead log into the database; the next commit begins it anew."""
        self._wal_bytes = 0
        self.connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
        self._statistics["checkpoints"] += 1
        self._statistics["syncs"] += CHECKPOINT_SYNCS

    def _count(self, entries: int, size: int) -> None:
        self._statistics["entries"] += entries
        self._statistics["bytes"] += size
        self._wal_bytes += size


class _Failing:
    """An error inside fails the database for good."""

    __slots__ = ("_database",)

    def __init__(self, database: SqliteDatabase) -> None:
        self._database = database

    def __enter__(self) -> None:
        """Nothing to prepare."""

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, schema.ERRORS):
            found = schema.translated(self._database.path, error)
            cause = found.cause if isinstance(found, LogFailed) else str(found)
            raise self._database.fail(cause) from error
        if isinstance(error, CorruptData):
            self._database.fail(str(error))
        elif error is not None:
            self._database.fail(f"{type(error).__name__}: {error}")
