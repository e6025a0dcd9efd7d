"""The table section of a job's spec, and opening of its table."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

from bascule.errors import ConfigError, TableExists, UnknownTable
from bascule.pipeline.lake import create_table, open_table
from bascule.pipeline.lake.address import check_address
from bascule.pipeline.lake.model import TableAddress, TableFormat

if TYPE_CHECKING:
    import pyarrow as pa

    from bascule.pipeline.lake.model import LakeTable


class TableSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A lake table. Picklable. It is also the `[table]` section of a declaration."""

    format: TableFormat = "parquet"
    location: str = ""
    """Directory or URI of a parquet or delta table; warehouse of an iceberg table."""
    name: str = ""
    """`namespace.table` of an iceberg table."""
    catalog: dict[str, str] = msgspec.field(default_factory=dict)
    """Properties of the iceberg catalog. Empty: SQLite in the warehouse."""
    partition_by: tuple[str, ...] = ()
    """`day(timestamp)`, `subject` and so on; used when the table is created."""

    def address(self) -> TableAddress:
        """Raises: ConfigError if a required key of the format is missing."""
        return check_address(TableAddress(self.format, self.location, self.name, self.catalog))


def open_if_exists(address: TableAddress) -> LakeTable | None:
    """Open the table at `address`; None if it does not exist."""
    try:
        return open_table(address)
    except UnknownTable:
        return None


def ensure_table(
    address: TableAddress,
    schema: pa.Schema,
    partition_by: tuple[str, ...] = (),
    *,
    stream: Callable[[], tuple[str, str]] = lambda: ("", ""),
) -> LakeTable:
    """Open the table at `address`; create it if it does not exist.

    The table may have more columns, which another program added. They are null in new rows.
    `stream` gives the name and the id of the stream that a new table archives.

    Raises: ConfigError if an existing table has other columns or another partitioning.
    """
    table = open_if_exists(address)
    if table is None:
        name, id = stream()
        try:
            table = create_table(address, schema, partition_by, stream=name, stream_id=id)
        except TableExists:
            table = open_table(address)
    check_table(table, schema, partition_by)
    return table


def check_table(table: LakeTable, schema: pa.Schema, partition_by: tuple[str, ...] = ()) -> None:
    """Raises: ConfigError if the table has other columns or another partitioning."""
    held = table.schema.remove_metadata()
    known = [(f.name, f.type) for f in held if f.name in schema.names]
    added = [f for f in held if f.name not in schema.names]
    wanted = [(f.name, f.type) for f in schema]
    if known != wanted or not all(f.nullable for f in added):
        raise ConfigError(
            f"table {table.address} has columns {_text(held)}, expected {_text(schema)}"
        )
    if partition_by and tuple(partition_by) != tuple(table.partitioning):
        by = ", ".join(table.partitioning) or "nothing"
        raise ConfigError(
            f"table {table.address} is partitioned by {by}, "
            f"asked for {', '.join(partition_by)}: partitioning cannot change"
        )


def _text(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name} {field.type}" for field in schema)
