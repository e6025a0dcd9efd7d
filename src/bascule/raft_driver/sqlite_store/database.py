"""`SqliteDatabase` and `SqliteStore`: one file, one transaction for a flush of all groups."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence
from typing import Any, Final

import msgspec

from bascule.host.api import Files
from bascule.host.real import RealFiles
from bascule.raft.membership import Members
from bascule.raft.messages import Chunk, Entry
from bascule.raft.recovery import StoreContents, recover
from bascule.raft.store import PersistentState
from bascule.raft_driver.sqlite_store import schema
from bascule.raft_driver.sqlite_store.commit_mark import NOTHING_KNOWN, CommitMark, KnownCommits
from bascule.raft_driver.sqlite_store.connection import GuardedConnection
from bascule.raft_driver.sqlite_store.group_tables import RUN_BYTES_MAX, GroupTables, RunRow
from bascule.raft_driver.sqlite_store.opening import MARK_SUFFIX, Opened, open_checked
from bascule.raft_driver.sqlite_store.schema import GroupRow

MIB: Final = 1 << 20
BUFFERED_BYTES_MAX: Final = 8 * MIB
"""Bytes that all stores of a database buffer; when they are exceeded, they are committed."""
CHECKPOINT_BYTES: Final = 8 * MIB
"""Approximate size of the write-ahead log. A checkpoint costs two syncs and the pages written since
the last one. A larger log makes checkpoints rarer, and opening after a crash slower."""
PAGE_BYTES: Final = 4096
COMMIT_PAGES: Final = 4
"""Pages that a commit writes in addition to its entries: leaves of runs, groups and node."""
CHECKPOINT_SYNCS: Final = 3
"""Of the write-ahead log, the database, and the new start of the write-ahead log."""


class DatabaseStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """What a database has done since it was opened."""

    commits: int
    checkpoints: int
    syncs: int
    """Syncs by SQLite: one for each commit, and those of checkpoints."""
    entries: int
    bytes: int
    """Of entries and chunks, encoded."""
    groups: int
    size_bytes: int
    """Of the database without its write-ahead log."""


class SqliteDatabase:
    """The Raft logs of one node. One thread at a time uses it."""

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
        """Call `open` instead."""
        self._files = files
        self.path = path
        self.node_id = node_id
        self.connection = GuardedConnection(opened.connection, path)
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
        known: KnownCommits = NOTHING_KNOWN,
    ) -> SqliteDatabase:
        """Open the database at `path`, or create it in an existing directory, unless more commits
        of it are `known`.

        Everything that was acknowledged is durable when this returns, even if the previous process
        ended within a commit.

        Raises: CorruptData if anything is not as it was written, or acknowledged commits are
        missing; DataDirectoryInUse if a process has it open; ConfigError if it is another node's;
        UnsupportedFormat; LogFailed if the disk fails.
        """
        files = files or RealFiles()
        opened = open_checked(files, path, node_id=node_id, factory=factory, known=known)
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
            # A read-only file is reported now rather than at the first vote.
            database.write_rows((), removed=())
        except BaseException:
            database.close()
            raise
        return database

    @property
    def commits(self) -> int:
        """How many it has had; these are durable. Any thread may read it."""
        return self._commits

    def store(self, group: int) -> SqliteStore:
        """The store of `group`, which must not be open."""
        self.connection.check_usable()
        assert group not in self._open, "a group's store is opened once at a time"
        row = self._groups.setdefault(group, GroupRow(group))
        store = SqliteStore(self, row)
        self._open[group] = store
        return store

    def groups(self) -> tuple[int, ...]:
        """The groups that have a row."""
        return tuple(sorted(self._crcs))

    def remove(self, group: int) -> None:
        """Delete all rows of a group whose store is closed; durable on return."""
        self.connection.check_usable()
        assert group not in self._open, "a group is removed after its store is closed"
        self._groups.pop(group, None)
        with self.connection.failing_for_good():
            self.connection.execute("BEGIN IMMEDIATE")
            for table in ("runs", "chunks", "groups"):
                self.connection.execute(f"DELETE FROM {table} WHERE group_id = ?", (group,))  # noqa: S608
            self.write_rows((), removed=(group,))

    def flush(self) -> None:
        """Commit the buffered changes of all stores in one transaction; durable on return.

        Raises: LogFailed; every later call raises it, too.
        """
        self.connection.check_usable()
        if not self._dirty:
            return
        stores = list(self._dirty.values())
        self._dirty.clear()
        self._buffered_bytes = 0
        with self.connection.failing_for_good():
            if all(store.only_appends for store in stores):
                self._append(stores)
            else:
                self.connection.execute("BEGIN IMMEDIATE")
                for store in stores:
                    self._count(*store.write_changes())
                self.write_rows([store.row for store in stores], removed=())

    def close(self) -> None:
        """Close the file; buffered changes are lost."""
        if self.connection.close():
            self._mark.close()

    def statistics(self) -> DatabaseStatistics:
        """Any thread may call this; it does not wait for a commit."""
        return DatabaseStatistics(
            **self._statistics, groups=len(self._crcs), size_bytes=self._files.size(self.path)
        )

    # For the stores.

    def on_buffered(self, store: SqliteStore, size: int) -> None:
        """`store` has buffered a change with `size` bytes of payload."""
        if not self.connection.is_usable:
            self.connection.check_usable()
        self._dirty[store.group] = store
        self._buffered_bytes += size
        if self._buffered_bytes > BUFFERED_BYTES_MAX:
            self.flush()

    def on_closed(self, store: SqliteStore) -> None:
        """`store` is closed."""
        self._open.pop(store.group, None)
        self._dirty.pop(store.group, None)
        self._groups[store.group] = store.row

    def has_row(self, group: int) -> bool:
        """Whether `group` has a row."""
        return group in self._crcs

    # Commits.

    def _append(self, stores: list[SqliteStore]) -> None:
        """Commit runs of entries only: one statement, unless there are many groups."""
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
        """Write rows of groups and the node's row, in the open transaction or a new one; commit."""
        with self.connection.failing_for_good():
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
        """Copy the write-ahead log into the database; the next commit starts it again."""
        self._wal_bytes = 0
        self.connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
        self._statistics["checkpoints"] += 1
        self._statistics["syncs"] += CHECKPOINT_SYNCS

    def _count(self, entries: int, size: int) -> None:
        self._statistics["entries"] += entries
        self._statistics["bytes"] += size
        self._wal_bytes += size


_APPEND: Final = 0
_TRUNCATE_FROM: Final = 1
_TRUNCATE_UNTIL: Final = 2
_CHUNK: Final = 3
_DELETE_CHUNKS: Final = 4
_ROW: Final = 5
"""Kinds of buffered changes."""


class SqliteStore:
    """The `RaftStore` of one group; made by `SqliteDatabase.store`."""

    __slots__ = ("_bytes", "_changes", "_closed", "_database", "_last", "_tables", "group", "row")

    def __init__(self, database: SqliteDatabase, row: GroupRow) -> None:
        self._database = database
        self.group = row.group
        self._tables = GroupTables(database.connection, row)
        self.row = row
        """As the table has it, or will have it after the commit that is being made. Term, vote and
        initial members are set when they are buffered."""
        self._changes: list[tuple[int, Any]] = []
        """Buffered changes in order; never two appends in a row."""
        self._bytes = 0
        """Payload of the entries in `_changes`."""
        self._last = row.last
        """Index of the last entry, including buffered ones; 0: any entry may come next."""
        self._closed = False

    # The contract.

    def load(self) -> PersistentState:
        self._database.connection.check_usable()
        assert not self._changes, "a store is loaded before it is written to"
        found = StoreContents(
            initial_members=self._tables.initial_members(),
            term=self.row.term,
            voted_for=self.row.voted_for,
            chunks=self._tables.load_chunks(),
            entries=self._tables.load_entries(),
        )
        restored = recover(found, file=self._database.path, group=f"group {self.group}")
        self._remove_leftovers(found, restored)
        return restored

    def bootstrap(self, members: Members) -> None:
        assert self.row.founding is None, "bootstrap is called once"
        self.row.founding = schema.encode(members)
        self._change(_ROW, None, 0)
        self._database.flush()

    def persist_term(self, term: int, voted_for: int) -> None:
        self.buffer_term(term, voted_for)
        self._database.flush()

    def buffer_term(self, term: int, voted_for: int) -> None:
        """Like `persist_term`, but durable when the next flush returns, so that the votes of many
        groups need one sync."""
        self.row.term, self.row.voted_for = term, voted_for
        self._change(_ROW, None, 0)

    def persist_entries(self, entries: Sequence[Entry]) -> None:
        if not entries:
            return
        assert self._last in (0, entries[0].index - 1), "entries follow the last one"
        self._last = entries[-1].index
        changes = self._changes
        if changes and changes[-1][0] == _APPEND:
            changes[-1][1].extend(entries)
        else:
            changes.append((_APPEND, list(entries)))
        size = sum([len(entry.payload) for entry in entries])
        self._bytes += size
        self._database.on_buffered(self, size)

    def truncate_from(self, index: int) -> None:
        self._change(_TRUNCATE_FROM, index, 0)
        self._last = min(self._last, index - 1)

    def persist_chunk(self, chunk: Chunk) -> None:
        self._change(_CHUNK, chunk, len(chunk.data))

    def truncate_until(self, index: int) -> None:
        self._change(_TRUNCATE_UNTIL, index, 0)
        if index >= self._last:
            self._last = 0

    def delete_chunks(self, index: int, count: int) -> None:
        self._change(_DELETE_CHUNKS, (index, range(count)), 0)

    def flush(self) -> None:
        self._database.flush()

    def close(self) -> None:
        """Close the group's store; the database stays open."""
        if not self._closed:
            self._closed = True
            self._changes.clear()
            self._database.on_closed(self)

    # For the database, within a flush.

    @property
    def only_appends(self) -> bool:
        """Whether the buffered changes are one row of entries, of a group that has its row."""
        changes = self._changes
        return (
            len(changes) == 1
            and changes[0][0] == _APPEND
            and self._bytes <= RUN_BYTES_MAX
            and self._database.has_row(self.group)
        )

    def next_run(self) -> RunRow:
        """The row for the buffered entries, which are the only change; `row` is updated."""
        return self._tables.next_run(self._changes[0][1])

    def take_appended(self) -> int:
        """The buffered entries were taken with `next_run`; their number."""
        count = len(self._changes[0][1])
        self._changes.clear()
        self._bytes = 0
        return count

    def write_changes(self) -> tuple[int, int]:
        """Make all buffered changes within the transaction; (entries, bytes) written."""
        entries = size = 0
        for kind, argument in self._changes:
            if kind == _APPEND:
                size += self._tables.append(argument)
                entries += len(argument)
            elif kind == _TRUNCATE_FROM:
                self._tables.truncate_from(argument)
            elif kind == _TRUNCATE_UNTIL:
                self._tables.truncate_until(argument)
            elif kind == _CHUNK:
                size += self._tables.put_chunk(argument)
            elif kind == _DELETE_CHUNKS:
                index, numbers = argument
                for number in numbers:
                    self._tables.delete_chunk(index, number)
        self._changes.clear()
        self._bytes = 0
        return entries, size

    # Internals.

    def _change(self, kind: int, argument: object, size: int) -> None:
        self._changes.append((kind, argument))
        self._database.on_buffered(self, size)

    def _remove_leftovers(self, found: StoreContents, restored: PersistentState) -> None:
        """Remove the records that are not part of the restored state."""
        kept = restored.snapshot.as_chunks() if restored.snapshot else ()
        places = {(chunk.index, chunk.number) for chunk in kept}
        for chunk in found.chunks:
            if (chunk.index, chunk.number) not in places:
                self._change(_DELETE_CHUNKS, (chunk.index, (chunk.number,)), 0)
        if found.entries and not restored.entries:
            self.truncate_until(found.entries[-1].index)
        if self._changes:
            self._database.flush()
