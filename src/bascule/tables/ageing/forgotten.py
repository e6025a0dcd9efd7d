"""Which rows of a table nobody needs any more, and their removal.

Two kinds of rows are *forgotten*, deleted from the database:

* Rows of a version below the start of the log: they were purged, and no reader sees them.
* Removed keys, once the stream's time for tombstones is over and the oplog does not name them.

The table keeps how far it has forgotten: the highest operation id of such a row. Who asks for
changes since an earlier position gets all rows, for it may lack a removal; the oplog may still name
rows that were purged, but to nobody else. The row with the highest id stays, without its value: the
next key gets an id that no other one has had.

What is deleted is overwritten with zeros, first in the write-ahead log. Purged rows count as
forgotten once that was written back, and begins anew without them.
"""

from __future__ import annotations

import sqlite3
from typing import Final, NamedTuple

from bascule.tables import _hot

WALKED_ROWS: Final = 20_000
"""Rows that are looked at at a time for purged ones, some 10 ms."""
BYTES_AT_ONCE: Final = 4 << 20
"""Of keys and values that were purged, deleted in one transaction: the zeros that are written over
them go through the write-ahead log. What is larger is deleted alone."""
COLUMNS: Final = """forgotten integer not null,
    forgotten_rows integer not null,
    purged integer not null"""
"""Of the state: the highest operation id of a row that was forgotten, how many were, and the
version below which no row has a value."""
SCHEMA: Final = """
create index removals on entries (version, timestamp, value) where value is null;
"""
"""With the value, which is null, for SQLite does not look at the rows then."""
_LAST: Final = "select coalesce(max(id), 0) from entries"
_REMOVALS: Final = (
    "select id, version, timestamp from entries indexed by removals "
    "where value is null and version < ? and id < ? order by version limit ?"
)
_WALKED: Final = (
    "select max(id), count(*) "
    "from (select id from entries not indexed where id > ? order by id limit ?)"
)
_PURGED: Final = (
    "select id, version, length(key) + length(value) from entries not indexed "
    "where id > ? and id <= ? and value is not null and version < ? order by id limit ?"
)
"""SQLite knows the length of a value without reading it."""
_DELETE: Final = "delete from entries where id = ? and version = ?"
_EMPTY: Final = (
    "update entries set value = null, content_type = ?, ttl = null where id = ? and version = ?"
)
_NOTE: Final = "update state set forgotten = max(forgotten, ?), forgotten_rows = forgotten_rows + ?"
_NOTE_PURGED: Final = "update state set purged = max(purged, ?)"
_WRITE_BACK: Final = "pragma wal_checkpoint(truncate)"
_ROWS: Final = "select (select coalesce(max(id), 0) from entries) - forgotten_rows from state"
_COUNT: Final = "select count(*) from entries indexed by removals where value is null"


class ForgetLimits(NamedTuple):
    """What may be forgotten."""

    oldest: int
    """Rows of a lower version were purged from the log."""
    removed_before_ms: int
    """Nobody is shown removals of an earlier time, Unix time."""


class Walk(NamedTuple):
    """How far a table was looked through for rows that were purged."""

    oldest: int
    """Those of a lower version."""
    at: int
    """All ids up to it were looked at."""


class Forgotten(NamedTuple):
    """What was forgotten, and what is left."""

    rows: int
    walk: Walk | None
    """Where to go on; None: there is nothing purged."""
    is_done: bool
    """Whether nothing more can be forgotten now."""
    due_ms: int | None
    """Unix time of the first removal that was too young; None: there is none."""
    has_to_wait: bool = False
    """Whether it can go on only once others are through: who reads the table."""


class Forgettable(NamedTuple):
    """Rows that can go, and how far was looked."""

    rows: list[tuple[int, int]]
    """Ids and versions."""
    last: int
    """The highest id."""
    walk: Walk | None
    is_done: bool
    due_ms: int | None
    purged: int
    """Once they are gone no row of a lower version has a value; 0: others are to be looked for."""

    def remove(self, writer: sqlite3.Connection) -> Forgotten:
        """Remove those that were not written since. Raises: sqlite3.Error."""
        rows = self._remove(writer) if self.rows else 0
        if not self.purged:
            return Forgotten(rows, self.walk, self.is_done, self.due_ms)
        if not _write_back(writer):
            return Forgotten(rows, self.walk, False, self.due_ms, has_to_wait=True)
        writer.execute(_NOTE_PURGED, (self.purged,))
        return Forgotten(rows, None, self.is_done, self.due_ms)

    def _remove(self, writer: sqlite3.Connection) -> int:
        writer.execute("begin")
        try:
            rows = self._remove_rows(writer)
            writer.execute("commit")
        finally:
            if writer.in_transaction:
                writer.execute("rollback")
        return rows

    def _remove_rows(self, writer: sqlite3.Connection) -> int:
        gone = [row for row in self.rows if row[0] != self.last]
        rows = writer.executemany(_DELETE, gone).rowcount if gone else 0
        for row in self.rows:
            if row[0] == self.last:
                writer.execute(_EMPTY, (_hot.FORGOTTEN, *row))
        highest = max(version + 1 for _, version in self.rows)
        writer.execute(_NOTE, (highest, rows))
        return rows


def _write_back(writer: sqlite3.Connection) -> bool:
    """Have the file of the database have all, and that of the write-ahead log nothing; False where
    somebody reads an earlier state."""
    (waited,) = writer.execute("pragma busy_timeout").fetchone()
    writer.execute("pragma busy_timeout = 0")  # whoever applies rows would wait, too
    try:
        busy, *_ = writer.execute(_WRITE_BACK).fetchone()
    finally:
        writer.execute(f"pragma busy_timeout = {waited}")
    return not busy


def find_forgettable(
    reader: sqlite3.Connection,
    limits: ForgetLimits,
    walk: Walk | None,
    *,
    position: int,
    named_from: int,
    rows_max: int,
) -> Forgettable:
    """At most `rows_max` rows. `walk` is where the last look has come to, and `position` that of
    the table, or an earlier one.

    The oplog names no rows of versions below `named_from`. Raises: sqlite3.Error.
    """
    (last,) = reader.execute(_LAST).fetchone()
    rows, due_ms = _removals(reader, limits, max(named_from, limits.oldest), last, rows_max)
    if len(rows) == rows_max:
        return Forgettable(rows, last, walk, False, None, 0)
    if walk is None:
        walk = _begin_walk(reader, min(limits.oldest, position))
    if walk is None:
        return Forgettable(rows, last, None, True, due_ms, 0)
    end, walked = reader.execute(_WALKED, (walk.at, WALKED_ROWS)).fetchone()
    if end is not None:
        found, is_cut = _purged(reader, walk, end, rows_max - len(rows))
        rows += found
        walk = walk._replace(at=found[-1][0] if is_cut else end)
        if is_cut or walked == WALKED_ROWS:
            return Forgettable(rows, last, walk, False, due_ms, 0)
    is_done = walk.oldest >= min(limits.oldest, position)
    return Forgettable(rows, last, walk, is_done, due_ms, walk.oldest)


def _begin_walk(reader: sqlite3.Connection, oldest: int) -> Walk | None:
    """None: no row of a version below `oldest` has a value.

    Rows that are applied while it goes on have later versions than it looks for.
    """
    (purged,) = reader.execute("select purged from state").fetchone()
    return Walk(oldest, 0) if purged < oldest else None


def _purged(
    reader: sqlite3.Connection, walk: Walk, end: int, rows_max: int
) -> tuple[list[tuple[int, int]], bool]:
    """Ids and versions, and whether there may be more: up to `rows_max`, and BYTES_AT_ONCE."""
    rows: list[tuple[int, int]] = []
    size = 0
    for id, version, length in reader.execute(_PURGED, (walk.at, end, walk.oldest, rows_max)):
        size += length
        if rows and size > BYTES_AT_ONCE:
            return rows, True
        rows.append((id, version))
    return rows, len(rows) == rows_max


def _removals(
    reader: sqlite3.Connection, limits: ForgetLimits, end: int, last: int, rows_max: int
) -> tuple[list[tuple[int, int]], int | None]:
    """Ids and versions, and the time of the first one that is too young."""
    rows: list[tuple[int, int]] = []
    for id, version, timestamp in reader.execute(_REMOVALS, (end, last, rows_max)):
        if version >= limits.oldest and timestamp >= limits.removed_before_ms:
            return rows, timestamp
        rows.append((id, version))
    return rows, None


def row_count(reader: sqlite3.Connection) -> int:
    """The number of rows, also of removed keys; without reading them. Raises: sqlite3.Error."""
    return int(reader.execute(_ROWS).fetchone()[0])


def removal_count(reader: sqlite3.Connection) -> int:
    """The number of removed keys that have a row; reads their index. Raises: sqlite3.Error."""
    return int(reader.execute(_COUNT).fetchone()[0])
