"""The SQL of the file of a copy."""

from __future__ import annotations

from typing import Final

ADD_LOG: Final = """
create table changes (
    number integer primary key,
    repeated integer not null,
    changes blob,
    crc integer not null
);
"""
SCHEMA: Final = (
    ADD_LOG
    + """
create table entries (
    id integer primary key,
    key blob not null unique,
    version integer not null,
    timestamp integer not null,
    value blob,
    content_type text,
    crc integer not null
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
    keys integer not null,
    seen integer not null,
    seen_epoch integer not null,
    crc integer not null
);
create table pending (
    number integer primary key autoincrement,
    key blob not null unique,
    base integer,
    timestamp integer not null,
    value blob,
    content_type text,
    sent blob not null,
    since integer,
    crc integer not null
);
create table taken (
    key blob primary key,
    version integer not null
);
create table refused (
    number integer primary key autoincrement,
    key blob not null,
    base integer,
    timestamp integer not null,
    value blob,
    content_type text,
    reason text not null,
    crc integer not null
);
"""
)
FIRST: Final = "insert into state values (1, ?, ?, ?, null, 0, -1, null, 0, 0, 0, 0, -1, ?)"
STATE: Final = (
    "select table_id, position, epoch, after, oldest, high_watermark, keys, seen, seen_epoch, "
    "name, replica_id, crc from state"
)
IS_UNUSED: Final = (
    "select exists (select 1 from state where format = ? and table_id is null) "
    "and not exists (select 1 from pending) and not exists (select 1 from refused)"
)
SET_STATE: Final = (
    "update state set table_id = ?, position = ?, epoch = ?, after = ?, oldest = ?, "
    "high_watermark = ?, keys = ?, seen = ?, seen_epoch = ?, crc = ?"
)
UPSERT: Final = (
    "insert into entries (key, version, timestamp, value, content_type, crc) "
    "values (?, ?, ?, ?, ?, ?) "
    "on conflict (key) do update set version = excluded.version, value = excluded.value, "
    "timestamp = excluded.timestamp, content_type = excluded.content_type, crc = excluded.crc "
    "where excluded.version >= entries.version"
)
PURGE: Final = (
    "delete from entries where version < ? and (value is not null or "
    "not exists (select 1 from pending where pending.key = entries.key))"
)
TAKEN: Final = "select version from taken where key = ?"
TAKE: Final = "insert or replace into taken values (?, ?)"
CONFIRM: Final = "delete from taken where key = ? and version <= ?"
CONFIRM_RANGE: Final = (
    "delete from taken where version < ?1 and key > ?2 and (?3 is null or key <= ?3)"
)
"""Full pages have no removed keys."""
PURGE_TAKEN: Final = "delete from taken where version < ?"
IS_LOST: Final = "select key, version from taken where version < ? limit 1"
REMOVE: Final = "delete from entries where key = ? and version <= ?"
FORGET_REMOVED: Final = (
    "delete from entries where key = ? and value is null "
    "and not exists (select 1 from pending where pending.key = entries.key)"
)
"""A conflict is decided by the time of the removal, so those of pending writes are kept."""
ENTRIES: Final = "select key, version, timestamp, value, content_type, crc from entries "
ENTRY: Final = ENTRIES + "where key = ?"
PENDING: Final = (
    "select number, key, base, timestamp, value, content_type, sent, since, crc from pending "
)
REFUSED: Final = (
    "select number, key, base, timestamp, value, content_type, reason, crc from refused "
)
VISIBLE: Final = "select version from entries where key = ? and value is not null"
CHANGES: Final = "select number, repeated, changes, crc from changes "
ADD_CHANGES: Final = "insert into changes values (?, ?, ?, ?)"
DROP_CHANGES: Final = "delete from changes where number <= ?"
EARLIER: Final = "select base, sent, since from pending where key = ?"
QUEUE: Final = (
    "insert into pending (key, base, timestamp, value, content_type, sent, since, crc) "
    "values (?, ?, ?, ?, ?, ?, ?, ?)"
)
REFUSE: Final = (
    "insert into refused (key, base, timestamp, value, content_type, reason, crc) "
    "values (?, ?, ?, ?, ?, ?, ?)"
)
FORGET_REFUSED: Final = "delete from refused where number <= ?"
# What is added to each checksum is 0 where the write is as it was written: so one that is damaged
# does not get a right one.
_CHANGE: Final = "update pending set "
_CRC: Final = "crc - row_crc(key, base, timestamp, value, content_type, sent, since)"
FORGET_BASES: Final = (
    f"{_CHANGE}base = null, since = 0, "
    f"crc = row_crc(key, null, timestamp, value, content_type, sent, 0) + {_CRC}"
)
FORGET_SINCE: Final = (
    f"{_CHANGE}since = null, "
    f"crc = row_crc(key, base, timestamp, value, content_type, sent, null) + {_CRC} "
    "where since > 0"
)
NOTE_SENT: Final = (
    f"{_CHANGE}sent = ?1, "
    f"crc = row_crc(key, base, timestamp, value, content_type, ?1, since) + {_CRC} "
    "where number = ?2"
)
REBASE: Final = (
    f"{_CHANGE}base = ?1, value = ?2, content_type = ?3, sent = x'', since = ?4, "
    f"crc = row_crc(key, ?1, timestamp, ?2, ?3, x'', ?4) + {_CRC} "
    "where number = ?5"
)
_BEHIND: Final = "case when since is null then null else coalesce(?2, since) end"
SET_BASE: Final = (
    f"{_CHANGE}base = ?1, sent = x'', since = {_BEHIND}, "
    f"crc = row_crc(key, ?1, timestamp, value, content_type, x'', {_BEHIND}) + {_CRC} "
    "where key = ?3"
)
ADD_SINCE: Final = "alter table pending add column since integer"
_SINCE_BEFORE: Final = (
    "case when exists "
    "(select 1 from entries where entries.key = pending.key and entries.value is null) then 0 "
    "when sent = x'' then (select position from state) end"
)
SET_SINCE: Final = (
    f"{_CHANGE}since = {_SINCE_BEFORE}, "
    f"crc = row_crc(key, base, timestamp, value, content_type, sent, {_SINCE_BEFORE})"
    " + crc - row_crc(key, base, timestamp, value, content_type, sent)"
)
"""Of the writes of a file that did not say it. A removal that it has may have come since, and one
that was sent may have been taken. The others were not offered: no pages have come since."""


_OF_TABLE: Final = (
    "select key, version, timestamp, value, content_type, crc, 0, null, null from entries where "
)
_NOT_PENDING: Final = "and not exists (select 1 from pending where pending.key = entries.key)"
_OF_PENDING: Final = (
    "select key, base, timestamp, value, content_type, crc, 1, sent, since from pending where "
)


def state_rows(*, has_end: bool) -> str:
    """The keys from `:first` on, and below `:end`, that have a value in the table, by key."""
    return f"{ENTRIES}where {_keys(has_end=has_end)} and value is not null order by key"


def scan(*, has_end: bool) -> str:
    """As `state_rows`, with the values of what was written and not sent, up to `:limit` rows.

    SQLite merges the two, each by its index, and reads no rows behind the limit.
    """
    keys = _keys(has_end=has_end)
    return (
        f"{_OF_TABLE}{keys} and value is not null {_NOT_PENDING} union all "
        f"{_OF_PENDING}{keys} and value is not null order by key limit :limit"
    )


def _keys(*, has_end: bool) -> str:
    """Without a test for null: SQLite would read all keys behind the last one."""
    return "key >= :first and key < :end" if has_end else "key >= :first"
