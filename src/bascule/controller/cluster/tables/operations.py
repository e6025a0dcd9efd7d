"""What one node asks another about tables, as messages between them."""

from __future__ import annotations

from typing import Final, TypeAlias

import msgspec

TABLES: Final = "tables"
"""The kind of control request for reading a table."""
TABLE_WRITES: Final = "table-writes"
"""The kind of control request for writing a key, to the leader of the partition."""


class ReadKeys(msgspec.Struct, tag=True):
    """The values of keys; the answer is a `TableValues`."""

    table: str
    keys: list[bytes]
    at_least: int = 0
    linearizable: bool = False


class ReadRange(msgspec.Struct, tag=True):
    """Keys in a range with their values; the answer is a `TablePage`, without values a
    `TableKeyPage`."""

    table: str
    first: bytes
    end: bytes | None
    limit: int
    at_least: int = 0
    pattern: bytes | None = None
    linearizable: bool = False
    has_values: bool = True


class DescribeTable(msgspec.Struct, tag=True):
    """The answer is a `TableInfo`."""

    table: str


ReadOperation: TypeAlias = ReadKeys | ReadRange | DescribeTable


class WriteKey(msgspec.Struct, array_like=True):
    """Set or remove a key; the answer is the version. With a message id it may be repeated."""

    table: str
    key: bytes
    value: bytes | None
    """None: remove the key."""
    message_id: str
    sequence: int | None = None
    """See `wire.tables.conditions`."""
    content_type: str | None = None
    ttl: float | None = None
    """Seconds, infinite: for ever; None: as the table has it."""
