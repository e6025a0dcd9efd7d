"""What operations on tables return."""

from __future__ import annotations

from typing import NamedTuple


class TableEntry(NamedTuple):
    """A key with a value."""

    key: bytes
    version: int
    """The offset of the record."""
    timestamp: int
    """Unix time of the record, milliseconds."""
    value: bytes
    content_type: str | None = None
    """What the record's header `Content-Type` says."""


class TableKey(NamedTuple):
    """A key with a value, without the value."""

    key: bytes
    version: int
    """The offset of the record."""
    timestamp: int
    """Unix time of the record, milliseconds."""
    value_bytes: int
    """The size of the value."""
    content_type: str | None = None


class TableValues(NamedTuple):
    """The entries of those of the keys asked for that have a value, all of one position."""

    position: int
    """The first offset that is not in the table."""
    entries: list[TableEntry]


class TableChange(NamedTuple):
    """The latest record of a key, as a watcher sees it."""

    key: bytes
    version: int
    """The offset of the record."""
    timestamp: int
    """Unix time of the record, milliseconds."""
    value: bytes | None
    """None: the key was removed."""
    content_type: str | None = None
    position: str = ""
    """Where to go on behind it: `watch(start=position)`. Empty while the present values are
    shown."""


class TablePage(NamedTuple):
    """Entries by key, all of one position, and where to go on."""

    position: int
    """The first offset that is not in the table."""
    entries: list[TableEntry]
    next_after: bytes | None
    """Behind this key there may be more; None: these are all."""


class TableKeyPage(NamedTuple):
    """Keys, as a `TablePage`."""

    position: int
    keys: list[TableKey]
    next_after: bytes | None


class TableInfo(NamedTuple):
    """A table as one replica sees it."""

    name: str
    node: int
    """The node that was asked."""
    keys: int
    position: int
    """The first offset that is not in the table."""
    high_watermark: int
    skipped: int
    """Records without a key of the table that this node has seen since it started."""


class KeyChoice(NamedTuple):
    """Which keys a page has, as far as these are given: all of it has to hold."""

    prefix: bytes = b""
    pattern: bytes | None = None
    first: bytes | None = None
    end: bytes | None = None
    """Keys are below it."""
    after: bytes | None = None
    """Keys come behind it."""
    limit: int = 1_000


class PageAsked(NamedTuple):
    """Which page of changes is asked for."""

    table: bytes | None
    """The id of the table that the rest is of; None at the first time."""
    since: int
    epoch: int
    after: bytes | None
    rows_max: int
    bytes_max: int
    wait: float
    """Seconds until an empty page is sent if nothing changes."""
    follower: str
    """Who asks."""
    applied: int = 0
    """Everything below it is in the copy."""
    seen: int = 0
    """The furthest offset that a table was at when rows of the copy were read; from `since` on."""
    seen_epoch: int = -1
    """The leader epoch of the record before `seen`, -1 if it is not known."""
