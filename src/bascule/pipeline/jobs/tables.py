"""The table section of a job's spec, and opening of its table."""

from __future__ import annotations

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
    address: TableAddress, schema: pa.Schema, partition_by: tuple[str, ...] = ()
) -> LakeTable:
    """Open the table at `address`; create it if it does not exist.

    Raises: ConfigError if an existing table has other columns.
    """
    table = open_if_exists(address)
    if table is None:
        try:
            table = create_table(address, schema, partition_by)
        except TableExists:
            table = open_table(address)
    held = table.schema.remove_metadata()
    if [(f.name, f.type) for f in held] != [(f.name, f.type) for f in schema]:
        raise ConfigError(f"table {address} has columns {_text(held)}, expected {_text(schema)}")
    if partition_by and tuple(partition_by) != tuple(table.partitioning):
        raise ConfigError(
            f"table {address} is partitioned by {', '.join(table.partitioning) or 'nothing'}, "
            f"asked for {', '.join(partition_by)}: partitioning cannot change"
        )
    return table


def _text(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name} {field.type}" for field in schema)
