"""Opening and making tables, each by its format; the libraries of a format come in only with it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pyarrow as pa

from bascule.errors import ConfigError, TableExists, UnknownTable
from bascule.pipeline.lake import storage
from bascule.pipeline.lake.address import checked
from bascule.pipeline.lake.model import LakeTable, TableAddress


def open_table(address: TableAddress) -> LakeTable:
    """The table at an address.

    Raises: UnknownTable; ForeignTable where something else is; MissingExtra; ConfigError; OSError.
    """
    address = _absolute(address)
    if address.format == "parquet":
        from bascule.pipeline.lake.parquet.table import open_table as open_parquet

        return open_parquet(address)
    raise ConfigError(f"{address.format} tables are not there yet")


def create_table(
    address: TableAddress,
    schema: pa.Schema,
    partitioning: Sequence[str] = (),
    *,
    stream: str = "",
    stream_id: str = "",
) -> LakeTable:
    """A new, empty table.

    `partitioning` has fields such as "day(timestamp)", "hour(timestamp)", "subject" and
    "value.carrier". Given a stream's id, commits of another stream are refused from the first one
    on.

    Raises: TableExists, ForeignTable, ConfigError, MissingExtra, OSError.
    """
    address = _absolute(address)
    if address.format == "parquet":
        from bascule.pipeline.lake.parquet.table import create_table as create_parquet

        return create_parquet(address, schema, partitioning, stream=stream, stream_id=stream_id)
    raise ConfigError(f"{address.format} tables are not there yet")


def open_or_create(
    address: TableAddress,
    schema: pa.Schema,
    partitioning: Sequence[str] = (),
    *,
    stream: str = "",
    stream_id: str = "",
) -> LakeTable:
    """The table at an address, made if there is none, also where others do the same right now.

    Raises: ConfigError where there is one of other columns or another partitioning, and what
    `open_table` and `create_table` raise.
    """
    try:
        table = open_table(address)
    except UnknownTable:
        try:
            return create_table(address, schema, partitioning, stream=stream, stream_id=stream_id)
        except TableExists:
            table = open_table(address)
    if set(table.schema.names) != set(schema.names):
        raise ConfigError(
            f"{table.address} has columns {', '.join(table.schema.names)}, asked for "
            + ", ".join(schema.names)
        )
    asked = tuple(text.replace(" ", "") for text in partitioning)
    if table.partitioning != asked:
        raise ConfigError(
            f"{table.address} is partitioned by {', '.join(table.partitioning) or 'nothing'}, "
            f"asked for {', '.join(asked) or 'nothing'}",
            field="partition_by",
        )
    return table


def _absolute(address: TableAddress) -> TableAddress:
    """Raises: ConfigError."""
    address = checked(address)
    if not address.location:
        return address
    return replace(address, location=storage.absolute(address.location))
