"""Converts data files and columns between Delta's types and the pipeline's."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import Any, Final
from urllib.parse import unquote

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import DeltaTable
from deltalake.transaction import AddAction, RemoveAction

from bascule.errors import ForeignTable
from bascule.pipeline.lake import storage
from bascule.pipeline.lake.columns import type_of
from bascule.pipeline.lake.model import BoundValue, ColumnBounds, DataFile
from bascule.pipeline.lake.partitioning import PartitionField

PARTITION_TYPES: Final = {
    "year": pa.int32(),
    "month": pa.string(),
    "day": pa.date32(),
    "hour": pa.string(),
}
DELETION_VECTORS: Final = "deletionVectors"


def table_schema(schema: pa.Schema, fields: Sequence[PartitionField]) -> pa.Schema:
    """The columns of the records, followed by the columns that are only partition fields."""
    for field in fields:
        if field.name not in schema.names:
            kind = PARTITION_TYPES.get(field.transform) or type_of(schema, field.source)
            schema = schema.append(pa.field(field.name, kind))
    return schema


def add_action(file: DataFile, location: str, schema: pa.Schema, *, is_new: bool) -> AddAction:
    """`is_new` is False for rows that the table already held in other files."""
    statistics: dict[str, Any] = {
        "numRecords": file.rows,
        "minValues": _nested((each.path, _written(each.low, schema, each)) for each in file.bounds),
        "maxValues": _nested(
            (each.path, _written(each.high, schema, each)) for each in file.bounds
        ),
        "nullCount": _nested((each.path, each.nulls) for each in file.bounds),
    }
    return AddAction(
        path=file.path[len(location) + 1 :],
        size=file.bytes,
        partition_values=dict(file.partition_values),
        modification_time=time.time_ns() // 1_000_000,
        data_change=is_new,
        stats=msgspec.json.encode(statistics).decode(),
    )


def remove_action(file: DataFile, location: str, *, is_gone: bool) -> RemoveAction:
    """`is_gone` is False for a file whose rows stay in the table in another file."""
    return RemoveAction(
        path=file.path[len(location) + 1 :],
        data_change=is_gone,
        deletion_timestamp=time.time_ns() // 1_000_000,
        size=file.bytes,
        partition_values=dict(file.partition_values),
    )


def _nested(values: Iterable[tuple[str, object]]) -> dict[str, Any]:
    """Nest values by dotted path, as in Delta's statistics of structs."""
    found: dict[str, Any] = {}
    for path, value in values:
        if value is None:
            continue
        *parents, name = path.split(".")
        at = found
        for parent in parents:
            at = at.setdefault(parent, {})
        at[name] = value
    return found


def _written(bound: BoundValue, schema: pa.Schema, column: ColumnBounds) -> BoundValue:
    kind = type_of(schema, column.path)
    if bound is None or kind is None or pa.types.is_boolean(kind) or isinstance(bound, bool):
        return None
    if pa.types.is_timestamp(kind):
        assert isinstance(bound, int), "bounds of times are microseconds"
        return f"{np.datetime64(bound, 'us')}" + ("Z" if kind.tz else "")
    if pa.types.is_date(kind):
        return str(np.datetime64(bound, "D"))  # type: ignore[call-overload]
    if pa.types.is_decimal(kind):
        return None
    return bound


def data_files(
    name: str, table: DeltaTable, location: str, fields: Sequence[PartitionField]
) -> list[DataFile]:
    """Every file of a loaded version, without spans.

    Raises: ForeignTable for files outside the location.
    """
    actions = pa.table(table.get_add_actions(flatten=True))
    columns = {each: _plain(actions.column(each)) for each in actions.column_names}
    bounded = [each[len("null_count.") :] for each in columns if each.startswith("null_count.")]
    nothing: list[Any] = [None] * actions.num_rows
    texts = {field.name: _texts(actions.column(f"partition.{field.name}")) for field in fields}
    deleted = _deleted_rows(table, location)
    found = []
    for row in range(actions.num_rows):
        path = unquote(columns["path"][row])
        if "://" in path:
            raise ForeignTable(name, f"its file {path} is outside its location")
        bounds = tuple(
            ColumnBounds(
                each,
                columns[f"null_count.{each}"][row],
                columns.get(f"min.{each}", nothing)[row],
                columns.get(f"max.{each}", nothing)[row],
            )
            for each in bounded
            if columns[f"null_count.{each}"][row] is not None
        )
        rows = columns.get("num_records", nothing)[row]
        found.append(
            DataFile(
                f"{location}/{path}",
                _footer_rows(f"{location}/{path}") if rows is None else rows,
                columns["size_bytes"][row],
                None,
                tuple((field.name, texts[field.name][row]) for field in fields),
                bounds,
                deleted_rows=deleted.get(path, b""),
            )
        )
    return found


def _footer_rows(path: str) -> int:
    """The number of rows in a file whose writer recorded none."""
    filesystem, inner = storage.filesystem_of(path)
    with filesystem.open_input_file(inner) as source:
        return int(pq.read_metadata(source).num_rows)


def _deleted_rows(table: DeltaTable, location: str) -> dict[str, bytes]:
    """Path below the location -> positions of the rows that its deletion vector deletes."""
    if DELETION_VECTORS not in (table.protocol().reader_features or ()):
        return {}
    found = {}
    for batch in table.deletion_vectors():
        vectors = pa.record_batch(batch)
        for uri, kept in zip(vectors.column(0).to_pylist(), vectors.column(1), strict=True):
            gone = np.flatnonzero(~kept.values.to_numpy(zero_copy_only=False))
            path = unquote(uri).removeprefix("file://").removeprefix(f"{location}/")
            found[path] = gone.astype("<i8").tobytes()
    return found


def _plain(column: pa.ChunkedArray) -> list[Any]:
    kind = column.type
    if pa.types.is_timestamp(kind):
        column = column.cast(pa.timestamp("us", kind.tz)).cast(pa.int64())
    elif pa.types.is_date32(kind):
        column = column.cast(pa.int32())
    elif pa.types.is_decimal(kind):
        return [None] * len(column)
    return list(column.to_pylist())


def _texts(column: pa.ChunkedArray) -> list[str | None]:
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    if pa.types.is_boolean(column.type):
        column = pc.cast(column, pa.string())
    return [None if value is None else str(value) for value in column.to_pylist()]
