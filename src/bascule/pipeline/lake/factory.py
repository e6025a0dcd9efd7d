"""Opens and creates tables of every format. A format's library is imported only when it is used."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

import pyarrow as pa

from bascule.errors import ConfigError, MissingExtra, TableExists, UnknownTable
from bascule.pipeline.lake import storage
from bascule.pipeline.lake.address import check_address
from bascule.pipeline.lake.model import LakeTable, TableAddress


def open_table(address: TableAddress) -> LakeTable:
    """Open the table at an address.

    Raises: UnknownTable; ForeignTable if the location holds something else; MissingExtra;
    ConfigError; OSError.
    """
    address = _absolute(address)
    if address.format == "parquet":
        from bascule.pipeline.lake.parquet.table import open_table as open_parquet

        return open_parquet(address)
    with _libraries(address.format):
        if address.format == "iceberg":
            from bascule.pipeline.lake.iceberg.table import open_table as open_iceberg

            return open_iceberg(address)
        from bascule.pipeline.lake.delta.table import open_table as open_delta

        return open_delta(address)


def create_table(
    address: TableAddress,
    schema: pa.Schema,
    partitioning: Sequence[str] = (),
    *,
    stream: str = "",
    stream_id: str = "",
) -> LakeTable:
    """Create an empty table.

    `partitioning` has fields such as "day(timestamp)", "hour(timestamp)", "subject" and
    "value.carrier". With a stream id, the table refuses commits of another stream from the first
    one on.

    Raises: TableExists, ForeignTable, ConfigError, MissingExtra, OSError.
    """
    address = _absolute(address)
    if address.format == "parquet":
        from bascule.pipeline.lake.parquet.table import create_table as create_parquet

        return create_parquet(address, schema, partitioning, stream=stream, stream_id=stream_id)
    with _libraries(address.format):
        if address.format == "iceberg":
            from bascule.pipeline.lake.iceberg.table import create_table as create_iceberg

            return create_iceberg(address, schema, partitioning, stream=stream, stream_id=stream_id)
        from bascule.pipeline.lake.delta.table import create_table as create_delta

        return create_delta(address, schema, partitioning, stream=stream, stream_id=stream_id)


def open_or_create(
    address: TableAddress,
    schema: pa.Schema,
    partitioning: Sequence[str] = (),
    *,
    stream: str = "",
    stream_id: str = "",
) -> LakeTable:
    """Open the table at an address; create it if it does not exist. Concurrent calls are safe.

    Raises: ConfigError if an existing table has other columns or another partitioning; errors of
    `open_table` and `create_table`.
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


@contextmanager
def _libraries(form: str) -> Iterator[None]:
    """Raises: MissingExtra."""
    package = {"iceberg": "pyiceberg", "delta": "deltalake"}[form]
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] in (package, "sqlalchemy"):
            raise MissingExtra(f"the table format {form}", package, "lake") from error
        raise


def _absolute(address: TableAddress) -> TableAddress:
    """Raises: ConfigError."""
    address = check_address(address)
    if not address.location:
        return address
    return replace(address, location=storage.absolute(address.location))
