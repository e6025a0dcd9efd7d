"""Which keys of a table are due to be removed: their time to live is over.

The deadline of a row is its timestamp and its time to live: its own, of the header `Nats-TTL`, or
that of the table. Rows that have neither are in no index, and cost nothing.
"""

from __future__ import annotations

import sqlite3
from typing import Final, NamedTuple

from bascule.tables import _hot
from bascule.tables.rows import Rows

COLUMN: Final = "ttl integer"
"""Milliseconds, 0 for ever, null: as the table has it."""
SCHEMA: Final = """
create index own_deadlines on entries (timestamp + ttl) where ttl > 0 and value is not null;
"""
_OWN: Final = " from entries indexed by own_deadlines where ttl > 0 and value is not null "
_OF_TABLE: Final = " from entries indexed by ages where ttl is null and value is not null "
_AGES: Final = (
    "create index if not exists ages on entries (timestamp) where ttl is null and value is not null"
)
_FIRST_OWN: Final = "select min(timestamp + ttl)" + _OWN
_FIRST_OF_TABLE: Final = "select min(timestamp)" + _OF_TABLE
_EXPIRED_OWN: Final = (
    "select key, version" + _OWN + "and timestamp + ttl <= ? order by timestamp + ttl limit ?"
)
_EXPIRED_OF_TABLE: Final = (
    "select key, version" + _OF_TABLE + "and timestamp <= ? order by timestamp limit ?"
)
_KEEP: Final = "update entries set ttl = 0 where id in (select id"
"""Rows that were purged from the stream have no value to remove; they are not looked at again."""
_KEEP_OWN: Final = _KEEP + _OWN + "and version < ?)"
_KEEP_OF_TABLE: Final = _KEEP + _OF_TABLE + "and version < ?)"


class ExpiredKey(NamedTuple):
    """A key whose deadline has passed."""

    key: bytes
    version: int


class NextDeadline:
    """When the next key of a table may expire, without reading."""

    __slots__ = ("indexed_ttl_ms", "next_ms")

    def __init__(self) -> None:
        self.indexed_ttl_ms: int | None = None
        """The table's time to live that the open file is prepared for."""
        self.next_ms: float = 0
        """No key expires before, in Unix time; 0 where that has to be looked up."""

    def note(self, deadline_ms: int) -> None:
        """A key expires then."""
        self.next_ms = min(self.next_ms, deadline_ms)

    def note_rows(self, applied: Rows, ttl_ms: int) -> None:
        """The table has these rows now; `ttl_ms` is its own time to live."""
        first = _hot.first_deadline(applied.rows, ttl_ms)
        if first >= 0:
            self.note(first)


def index_ages(writer: sqlite3.Connection, ttl_ms: int) -> None:
    """Have the index that a table with a time to live of its own needs, and no other one.

    Reads the whole table when it is created. Raises: sqlite3.Error.
    """
    writer.execute(_AGES if ttl_ms else "drop index if exists ages")


def first_deadline(reader: sqlite3.Connection, ttl_ms: int) -> int | None:
    """The earliest deadline, as Unix time in milliseconds; None if no row has one.

    `ttl_ms` is the table's own, 0 for none. Raises: sqlite3.Error.
    """
    (first,) = reader.execute(_FIRST_OWN).fetchone()
    if ttl_ms:
        (oldest,) = reader.execute(_FIRST_OF_TABLE).fetchone()
        if oldest is not None:
            first = min(oldest + ttl_ms, oldest + ttl_ms if first is None else first)
    return None if first is None else int(first)


def expired_keys(
    reader: sqlite3.Connection, ttl_ms: int, now_ms: int, limit: int
) -> list[ExpiredKey]:
    """At most `limit` keys whose deadline has passed, the earliest first of either kind.

    Raises: sqlite3.Error.
    """
    found = [ExpiredKey(*row) for row in reader.execute(_EXPIRED_OWN, (now_ms, limit))]
    if ttl_ms and len(found) < limit:
        bounds = (now_ms - ttl_ms, limit - len(found))
        found += (ExpiredKey(*row) for row in reader.execute(_EXPIRED_OF_TABLE, bounds))
    return found


def keep_purged(writer: sqlite3.Connection, ttl_ms: int, oldest: int) -> None:
    """Give up the deadlines of rows of a version below `oldest`. Raises: sqlite3.Error."""
    writer.execute(_KEEP_OWN, (oldest,))
    if ttl_ms:
        writer.execute(_KEEP_OF_TABLE, (oldest,))
