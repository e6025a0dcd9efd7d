"""`OplogRecorder`: write the operations of the transactions of a table."""

from __future__ import annotations

import logging
import sqlite3
from array import array
from itertools import chain
from typing import Final

from bascule.errors import CorruptData
from bascule.tables.oplog import _hot
from bascule.tables.oplog.file_header import Mark
from bascule.tables.oplog.oplog import Oplog
from bascule.tables.rows import Rows

log = logging.getLogger("bascule.tables")

OPERATIONS_AT_ONCE: Final = 10_000
_SAVE: Final = "update state set oplog_first = ?, oplog_slots = ?, oplog_crc = ?"
_OPERATIONS: Final = (
    "select version + 1, id, 1 + (value is null) from entries where version >= ? order by version"
)
"""1 and 2 are SET and REMOVE."""
NO_MARK: Final = (None, None, None)


class OplogRecorder:
    """Belongs to the thread that writes the table, and uses its connection.

    A table goes on without an oplog where that cannot be written, and the oplog begins anew with
    one of the next transactions.
    """

    def __init__(self, writer: sqlite3.Connection, oplog: Oplog | None) -> None:
        self._writer = writer
        self._oplog = oplog
        self._noted: list[int] = []
        self._next_key = self._pending_key = 1 + int(
            writer.execute("select coalesce(max(id), 0) from entries").fetchone()[0]
        )
        self._mark: Mark | None = None
        """Of the last transaction that was committed."""
        self._pending: Mark | None = None
        self._failed = False
        # Called by the statement for each row whose key the table has: the id, and the version.
        writer.create_function("note", 1, self._noted.append)

    def open(self, mark: Mark | None, position: int) -> None:
        """`mark` and `position` are those of the database. Raises: sqlite3.Error."""
        if self._oplog is None or mark is None:
            return
        try:
            missing = self._oplog.open(mark, position)
            if missing is not None:
                self._complete(missing, position)
            elif self._oplog.mark != mark:
                self._note_new(position, "its newest file is missing or not its own")
                self._save(self._oplog.mark)
            self._mark = self._oplog.mark
        except OSError as error:
            self._give_up(error)
            self._save(None)

    @property
    def first(self) -> int | None:
        """The oplog has no operation below this one; None: it has none at all."""
        return None if self._oplog is None or self._mark is None else self._oplog.first

    def begin(self) -> None:
        """A transaction begins."""
        self._noted.clear()

    def record(self, rows: Rows, position: int) -> Mark | None:
        """Write the operations of a transaction whose rows are written; `position` is the one
        before it. Returns the mark to commit with it.

        Raises: CorruptData, sqlite3.Error.
        """
        if self._oplog is None:
            return None
        operations = array("q", bytes(8 * _hot.OPERATION_FIELDS * len(rows.rows)))
        try:
            next_key = _hot.make_operations(rows.rows, self._noted, self._next_key, operations)
        except ValueError as error:
            raise self._misfit(str(error)) from error
        if next_key > self._next_key:
            last = self._writer.execute("select last_insert_rowid()").fetchone()[0]
            if last != next_key - 1:
                raise self._misfit(f"the last row id {last}, expected {next_key - 1}")
        self._pending_key = next_key
        self._pending = None
        if not rows.missing:
            try:
                if self._mark is None:
                    self._oplog.begin(position + 1)
                self._pending = self._oplog.append(operations)
                self._failed = False
            except OSError as error:
                self._give_up(error)
        return self._pending

    def commit(self) -> None:
        """The transaction is committed."""
        self._next_key, self._mark = self._pending_key, self._pending

    def roll_back(self, position: int) -> None:
        """The transaction is not; the table is at `position` as before."""
        if self._oplog is None or self._mark is None:
            return
        try:
            missing = self._oplog.open(self._mark, position)
            self._mark = self._oplog.mark if missing is None else None
        except OSError as error:
            self._give_up(error)
            self._mark = None

    def begin_anew(self, position: int, error: str) -> None:
        """Give up a damaged oplog. Raises: sqlite3.Error."""
        if self._oplog is None:
            return
        self._note_new(position, error)
        try:
            self._mark = self._oplog.begin(position + 1)
        except OSError as failure:
            self._give_up(failure)
            self._mark = None
        self._save(self._mark)

    def close(self) -> None:
        """Sync, so that the mark that the table is closed with is one of what is on the disk."""
        if self._oplog is None or self._mark is None:
            return
        try:
            self._oplog.sync()
        except OSError as error:
            self._give_up(error)
        self._oplog.close()

    def _complete(self, missing: int, position: int) -> None:
        """Append the operations above `missing`: the last one of each key, by its row."""
        assert self._oplog is not None
        log.warning(
            "oplog of a table completed from its rows",
            extra={"path": self._oplog.directory, "position": position, "start": missing},
        )
        self._writer.execute("begin")
        try:
            rows = self._writer.execute(_OPERATIONS, (missing,))
            while some := rows.fetchmany(OPERATIONS_AT_ONCE):
                self._oplog.append(array("q", chain.from_iterable(some)))
            self._writer.execute(_SAVE, self._oplog.mark)
        finally:
            self._writer.execute("commit")

    def _save(self, mark: Mark | None) -> None:
        self._writer.execute(_SAVE, mark or NO_MARK)

    def _misfit(self, found: str) -> CorruptData:
        path = self._writer.execute("pragma database_list").fetchone()[2]
        return CorruptData(path, 0, "row ids in the order of new keys", found, place="entries")

    def _give_up(self, error: OSError) -> None:
        assert self._oplog is not None
        if not self._failed:
            log.error(
                "oplog of a table cannot be written",
                extra={"path": self._oplog.directory, "error": str(error)},
            )
        self._failed = True

    def _note_new(self, position: int, error: str) -> None:
        assert self._oplog is not None
        log.warning(
            "oplog of a table begun anew",
            extra={"path": self._oplog.directory, "position": position, "error": error},
        )
