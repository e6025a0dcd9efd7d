"""Which keys of a copy have changed last: a bounded log in its file, for watchers.

A row of the log has the changes of a page, or of a write that was taken: keys and versions, without
values. Its number is the bytes of all rows up to it, so that the oldest ones are found by it, and
a reader knows whether rows behind the one that it has seen are gone. A row without changes says
that any key may have changed. The newest row is never dropped, so that numbers only rise.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from bascule.client.tables.replica import statements as sql
from bascule.client.tables.replica.copy_rows import CopyState, row_crc
from bascule.table_results import TableChange

CHANGES_BYTES_MAX: Final = 4 << 20
"""Some 100,000 keys. A watcher that is further behind is shown the state again."""
ROW_BYTES: Final = 32
"""Of a row, without its changes."""


class KeyChange(NamedTuple):
    """A key has got a version."""

    key: bytes
    version: int
    removed_at: int | None
    """The time of the record where it is a removal, which leaves no row; milliseconds."""


class ChangesRow(NamedTuple):
    """A row of the log."""

    number: int
    repeated: int
    """Changes below this version may come once more, with a later page."""
    changes: bytes | None
    """MessagePack; None: any key may have changed."""
    crc: int

    @property
    def before(self) -> int:
        """The number of the row before it."""
        return self.number - _cost(self.changes)

    def decoded(self) -> list[KeyChange]:
        return [] if self.changes is None else _decode(self.changes)


_decode: Final = msgspec.msgpack.Decoder(list[KeyChange]).decode


def _cost(changes: bytes | None) -> int:
    return ROW_BYTES + (0 if changes is None else len(changes))


def last_row(connection: sqlite3.Connection) -> ChangesRow:
    """The newest row; one with the number 0 if there is none."""
    found = connection.execute(sql.CHANGES + "order by number desc limit 1").fetchone()
    return ChangesRow(0, 0, None, 0) if found is None else ChangesRow._make(found)


def rows_behind(connection: sqlite3.Connection, number: int) -> Iterator[ChangesRow]:
    """The rows behind one, in their order."""
    select = sql.CHANGES + "where number > ? order by number"
    return map(ChangesRow._make, connection.execute(select, (number,)))


def add_row(
    writer: sqlite3.Connection,
    changes: Sequence[tuple[bytes, int, int | None]] | None,
    *,
    repeated: int = 0,
) -> None:
    """Add a row with the fields of each `KeyChange`, and drop those that are too old.

    `repeated` is no less than that of the row before.
    """
    last = last_row(writer)
    data = None if changes is None else msgspec.msgpack.encode(changes)
    number, repeated = last.number + _cost(data), max(last.repeated, repeated)
    crc = row_crc(number, repeated, data)
    writer.execute(sql.ADD_CHANGES, (number, repeated, data, crc))
    writer.execute(sql.DROP_CHANGES, (number - CHANGES_BYTES_MAX,))


class WatchedCopy:
    """What a watcher reads of a copy, within one transaction. Raises: CopyDamaged."""

    def __init__(
        self,
        reader: sqlite3.Connection,
        state: CopyState,
        check_entry: Callable[[Sequence[Any]], None],
        check: Callable[[str, Sequence[Any], object], None],
    ) -> None:
        self.state = state
        self._reader = reader
        self._check_entry = check_entry
        self._check = check

    @property
    def last(self) -> int:
        """The number of the newest row of the log."""
        return last_row(self._reader).number

    def rows_behind(self, number: int) -> Iterator[ChangesRow]:
        for row in rows_behind(self._reader, number):
            self._check("a row of the log of changes", row[:3], row.crc)
            yield row

    def now(self, change: KeyChange) -> TableChange | None:
        """The change with its value; None: the key has changed again since."""
        found = self._reader.execute(sql.ENTRY, (change.key,)).fetchone()
        if change.removed_at is not None:
            if found is not None and found[1] > change.version:
                return None
            return TableChange(change.key, change.version, change.removed_at, None)
        if found is None or found[1] != change.version:
            return None
        self._check_entry(found)
        return TableChange(*found[:5])

    def entries(self, first: bytes, end: bytes | None) -> Iterator[TableChange]:
        """Keys from `first` on and below `end` that have a value in the table, by key."""
        select = sql.state_rows(has_end=end is not None)
        for row in self._reader.execute(select, {"first": first, "end": end}):
            self._check_entry(row)
            yield TableChange(*row[:5])
