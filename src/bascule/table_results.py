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


class TableChange(NamedTuple):
    """The latest record of a key, as a watcher sees it."""

    key: bytes
    version: int
    """The offset of the record."""
    timestamp: int
    """Unix time of the record, milliseconds."""
    value: bytes | None
    """None: the key was removed."""


class TablePage(NamedTuple):
    """Entries by key, and whether there may be more."""

    entries: list[TableEntry]
    is_last: bool


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
