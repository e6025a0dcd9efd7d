"""Converts columns, partitioning and data files between Iceberg's types and the pipeline's."""

from __future__ import annotations

import datetime
import itertools
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
from pyiceberg.conversions import from_bytes, to_bytes
from pyiceberg.io.pyarrow import (
    UnsupportedPyArrowTypeException,
    pyarrow_to_schema,
    schema_to_pyarrow,
)
from pyiceberg.manifest import DataFile as IcebergFile
from pyiceberg.manifest import DataFileContent, FileFormat
from pyiceberg.partitioning import PartitionField as IcebergField
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER, SortField, SortOrder
from pyiceberg.transforms import parse_transform
from pyiceberg.typedef import Record
from pyiceberg.types import (
    BooleanType,
    DateType,
    DecimalType,
    IcebergType,
    IntegerType,
    LongType,
    PrimitiveType,
)

from bascule.errors import ConfigError, ForeignTable
from bascule.pipeline.lake.columns import with_common_types
from bascule.pipeline.lake.model import ColumnBounds, DataFile
from bascule.pipeline.lake.partitioning import TIME_TRANSFORMS, PartitionField

FIELD_ID: Final = b"PARQUET:field_id"
PARTITION_IDS_FROM: Final = 1000
"""First id of partition fields in Iceberg's specification."""
OFFSET_ORDER: Final = ("partition", "offset")
UNITS: Final = {"year": "Y", "month": "M", "day": "D", "hour": "h"}


def to_iceberg(schema: pa.Schema) -> Schema:
    """Raises: ConfigError for a type that Iceberg does not support."""
    counter = itertools.count(1)
    numbered = pa.schema([_numbered(field, counter) for field in schema])
    try:
        return pyarrow_to_schema(numbered)
    except (TypeError, ValueError, UnsupportedPyArrowTypeException) as error:
        raise ConfigError(f"an iceberg table does not support these columns: {error}") from error


def _numbered(field: pa.Field, counter: itertools.count[int]) -> pa.Field:
    kind = field.type
    identified = {FIELD_ID: str(next(counter)).encode()}
    if pa.types.is_struct(kind):
        kind = pa.struct([_numbered(child, counter) for child in kind])
    elif pa.types.is_map(kind):
        kind = pa.map_(_numbered(kind.key_field, counter), _numbered(kind.item_field, counter))
    elif pa.types.is_list(kind) or pa.types.is_large_list(kind):
        kind = pa.list_(_numbered(kind.value_field, counter))
    return pa.field(field.name, kind, field.nullable, identified)


def to_arrow(schema: Schema, *, field_ids: bool) -> pa.Schema:
    """The columns with Arrow's common types instead of large ones."""
    found = schema_to_pyarrow(schema, include_field_ids=field_ids)
    return pa.schema([with_common_types(field, metadata=field_ids) for field in found])


def to_spec(fields: Sequence[PartitionField], schema: Schema) -> PartitionSpec:
    return PartitionSpec(
        *(
            IcebergField(
                source_id=schema.find_field(field.source).field_id,
                field_id=PARTITION_IDS_FROM + number,
                transform=parse_transform(field.transform),
                name=field.name,
            )
            for number, field in enumerate(fields)
        )
    )


def to_sort_order(schema: Schema) -> SortOrder:
    """The order of rows in every file: by stream partition, then by offset. Unsorted for a table
    without these columns."""
    if not all(name in schema.column_names for name in OFFSET_ORDER):
        return UNSORTED_SORT_ORDER
    return SortOrder(
        *(SortField(source_id=schema.find_field(name).field_id) for name in OFFSET_ORDER)
    )


def offset_metrics(schema: Schema) -> dict[str, str]:
    """Properties by which other programs keep the bounds of partitions and offsets, whatever the
    number of columns before them."""
    return {
        f"write.metadata.metrics.column.{name}": "full"
        for name in OFFSET_ORDER
        if name in schema.column_names
    }


def to_fields(table: str, spec: PartitionSpec, schema: Schema) -> tuple[PartitionField, ...]:
    """Raises: ForeignTable for a partitioning that Bascule does not write."""
    found = []
    for each in spec.fields:
        source = schema.find_column_name(each.source_id) or ""
        field = PartitionField(str(each.transform), source)
        if field.transform not in ("identity", *TIME_TRANSFORMS) or field.name != each.name:
            raise ForeignTable(table, f"it is partitioned by {each.transform} of {source!r}")
        found.append(field)
    return tuple(found)


class FileConverter:
    """Converts data files of one schema and partitioning in both directions."""

    def __init__(self, schema: Schema, spec: PartitionSpec) -> None:
        self._spec = spec
        self._types: dict[str, tuple[int, PrimitiveType]] = {
            name: (number, kind)
            for number in schema.field_ids
            if (name := schema.find_column_name(number))
            and isinstance(kind := schema.find_type(number), PrimitiveType)
        }
        self._paths = {number: (path, kind) for path, (number, kind) in self._types.items()}
        self._values = [
            (field.name, str(field.transform), schema.find_type(field.source_id))
            for field in spec.fields
        ]

    def to_iceberg(self, file: DataFile) -> IcebergFile:
        known = [
            (*self._types[each.path], each) for each in file.bounds if each.path in self._types
        ]
        lower: dict[int, bytes] = {}
        upper: dict[int, bytes] = {}
        for number, kind, each in known:
            if each.low is None or each.high is None or isinstance(kind, DecimalType):
                continue
            lower[number] = to_bytes(kind, each.low)
            upper[number] = to_bytes(kind, each.high)
        values = dict(file.partition_values)
        return IcebergFile.from_args(
            content=DataFileContent.DATA,
            file_path=file.path,
            file_format=FileFormat.PARQUET,
            partition=Record(
                *(_number(values[name], how, kind) for name, how, kind in self._values)
            ),
            record_count=file.rows,
            file_size_in_bytes=file.bytes,
            column_sizes={},
            value_counts={number: file.rows for number, _, _ in known},
            null_value_counts={number: each.nulls for number, _, each in known},
            nan_value_counts={},
            lower_bounds=lower,
            upper_bounds=upper,
            key_metadata=None,
            split_offsets=None,
            equality_ids=None,
            sort_order_id=None,
            spec_id=self._spec.spec_id,
        )

    def from_iceberg(self, file: IcebergFile, *, deleted_rows: bytes = b"") -> DataFile:
        """Convert a file of a manifest, without its span."""
        bounds = []
        lower, upper = file.lower_bounds or {}, file.upper_bounds or {}
        for number, nulls in (file.null_value_counts or {}).items():
            if number not in self._paths:
                continue
            path, kind = self._paths[number]
            low = from_bytes(kind, lower[number]) if number in lower else None
            high = from_bytes(kind, upper[number]) if number in upper else None
            bounds.append(ColumnBounds(path, nulls, _plain(low), _plain(high)))
        values: tuple[tuple[str, str | None], ...] = ()
        if file.spec_id == self._spec.spec_id:
            values = tuple(
                (name, _text(file.partition[at], how, kind))
                for at, (name, how, kind) in enumerate(self._values)
            )
        return DataFile(
            file.file_path,
            file.record_count,
            file.file_size_in_bytes,
            None,
            values,
            tuple(bounds),
            deleted_rows=deleted_rows,
        )


def _plain(value: Any) -> Any:
    if isinstance(value, bool | int | float | str):
        return value
    return None


def _number(text: str | None, transform: str, kind: IcebergType) -> object:
    """The value of a partition field in manifests, from its text in folder names."""
    if text is None:
        return None
    if transform != "identity":
        if transform == "hour":
            day, _, hour = text.rpartition("-")
            text = f"{day}T{hour}"
        return int(np.datetime64(text, UNITS[transform]).astype(np.int64))  # type: ignore[call-overload]
    if isinstance(kind, BooleanType):
        return text == "true"
    if isinstance(kind, IntegerType | LongType):
        return int(text)
    if isinstance(kind, DateType):
        return (datetime.date.fromisoformat(text) - datetime.date(1970, 1, 1)).days
    return text


def _text(value: Any, transform: str, kind: IcebergType) -> str | None:
    if value is None:
        return None
    if isinstance(value, datetime.date):
        value = (value - datetime.date(1970, 1, 1)).days
    if transform != "identity":
        return str(np.datetime64(value, UNITS[transform])).replace("T", "-")  # type: ignore[call-overload]
    if isinstance(kind, BooleanType):
        return "true" if value else "false"
    if isinstance(kind, DateType):
        return str(np.datetime64(value, "D"))
    return str(value)
