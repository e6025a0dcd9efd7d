"""Partitioning of rows over folders: fields such as `day(timestamp)`, and the split of batches.

Values have the texts of Iceberg's folders in every format: hour `2026-11-21-14`, day `2026-11-21`,
month `2026-11`, year `2026`, all in UTC. Other values are printed as they are.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final
from urllib.parse import quote

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from bascule.errors import ConfigError
from bascule.pipeline.lake.columns import leaves, type_of

TIME_TRANSFORMS: Final = ("year", "month", "day", "hour")
FIELD: Final = re.compile(r"(?:(\w+)\(\s*([\w.]+)\s*\)|([\w.]+))")
ARGUMENTS: Final = re.compile(r"\s*(truncate|bucket)\s*\(")
HIVE_NULL: Final = "__HIVE_DEFAULT_PARTITION__"
NULL: Final = np.iinfo(np.int64).min
HOUR_US: Final = 3_600_000_000

Codes = npt.NDArray[np.int64]
Values = tuple[tuple[str, str | None], ...]


@dataclass(frozen=True, slots=True)
class PartitionField:
    """One level of a table's partitioning."""

    transform: str
    """`identity`, `year`, `month`, `day` or `hour`."""
    source: str
    """Column, or struct field of the value: `value.carrier`."""

    @property
    def name(self) -> str:
        plain = self.source.replace(".", "_")
        return plain if self.transform == "identity" else f"{plain}_{self.transform}"

    def __str__(self) -> str:
        return self.source if self.transform == "identity" else f"{self.transform}({self.source})"


def parse_partitioning(texts: Sequence[str], schema: pa.Schema) -> tuple[PartitionField, ...]:
    """Parse the fields in `texts`. Each names a column of `schema`.

    Raises: ConfigError.
    """
    fields = tuple(_parse(text, schema) for text in texts)
    names = [field.name for field in fields]
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(f"partition field {name!r} is given twice", field="partition_by")
        if name in schema.names and not any(
            field.name == name and field.source == name for field in fields
        ):
            raise ConfigError(
                f"partition field {name!r} has the name of a column", field="partition_by"
            )
    return fields


def _parse(text: str, schema: pa.Schema) -> PartitionField:
    def wrong(why: str) -> ConfigError:
        return ConfigError(f"partition field {text!r}: {why}", field="partition_by")

    if found := ARGUMENTS.match(text):
        raise wrong(
            f"{found[1]} is not supported; expected a column, or year, month, day, hour of a time"
        )
    match = FIELD.fullmatch(text.strip())
    if match is None:
        raise wrong("expected a column, or year, month, day or hour of one: day(timestamp)")
    transform, source = (match[1].lower(), match[2]) if match[1] else ("identity", match[3])
    if transform not in ("identity", *TIME_TRANSFORMS):
        raise wrong(f"{transform} is not one of {', '.join(TIME_TRANSFORMS)}")
    kind = type_of(schema, source)
    if kind is None:
        raise wrong(f"there is no column {source!r} in {', '.join(leaves(schema))}")
    if transform == "identity":
        if not _is_identity(kind):
            raise wrong(f"{source} is of type {kind}; expected text, integer, date or boolean")
    elif not (pa.types.is_timestamp(kind) or (pa.types.is_date(kind) and transform != "hour")):
        raise wrong(f"{source} is of type {kind}, not a time")
    return PartitionField(transform, source)


def _is_identity(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_string(kind)
        or pa.types.is_large_string(kind)
        or pa.types.is_integer(kind)
        or pa.types.is_date32(kind)
        or pa.types.is_boolean(kind)
    )


def folder_of(values: Values) -> str:
    """`timestamp_day=2026-11-21/carrier=AA`, escaped as Hive's readers expect it."""
    return "/".join(
        f"{name}={HIVE_NULL if value is None else quote(value, safe=' -_.')}"
        for name, value in values
    )


def split(
    batch: pa.RecordBatch, fields: Sequence[PartitionField]
) -> list[tuple[Values, pa.RecordBatch]]:
    """Split the rows of `batch` by their values of `fields`. Rows keep their order.

    The same values may occur twice if rows of few values alternate, because slices cost no copy.
    """
    if not fields or not batch.num_rows:
        return [((), batch)] if batch.num_rows else []
    columns = [_codes(batch, field) for field in fields]
    group = np.zeros(batch.num_rows, np.int64)
    for codes, _ in columns:
        low = codes.min()
        if low != codes.max():
            _, inverse = np.unique(codes, return_inverse=True)
            group = group * (int(inverse.max()) + 1) + inverse

    def values_at(row: int) -> Values:
        return tuple(
            (field.name, None if codes[row] == NULL else text(int(codes[row])))
            for field, (codes, text) in zip(fields, columns, strict=True)
        )

    changes = np.flatnonzero(np.diff(group)) + 1
    if not len(changes):
        return [(values_at(0), batch)]
    _, first, inverse = np.unique(group, return_index=True, return_inverse=True)
    if len(changes) < 2 * len(first):
        edges = [0, *changes.tolist(), batch.num_rows]
        return [
            (values_at(start), batch.slice(start, end - start)) for start, end in pairwise(edges)
        ]
    ordered = batch.take(pa.array(np.argsort(inverse, kind="stable")))
    ends = np.cumsum(np.bincount(inverse)).tolist()
    return [
        (values_at(int(row)), ordered.slice(start, end - start))
        for row, start, end in zip(first, [0, *ends], ends, strict=False)
    ]


def column_at(batch: pa.RecordBatch, path: str) -> pa.Array:
    """A column or struct field. It is null where a struct is null."""
    first, *rest = path.split(".")
    column = batch.column(first)
    for name in rest:
        column = pc.struct_field(column, name)
    return column


def _codes(batch: pa.RecordBatch, field: PartitionField) -> tuple[Codes, Callable[[int], str]]:
    """An integer per row (NULL for null), and a function from the integer to its text."""
    column = column_at(batch, field.source)
    if field.transform == "identity":
        encoded = column.dictionary_encode()
        texts = [_text(value) for value in encoded.dictionary.to_pylist()]
        codes = encoded.indices.cast(pa.int64()).fill_null(NULL).to_numpy(zero_copy_only=False)
        return codes, texts.__getitem__
    zone = column.type.tz if pa.types.is_timestamp(column.type) else None
    micros = column.cast(pa.timestamp("us", zone), safe=False).cast(pa.int64())
    hours = pc.fill_null(micros, NULL).to_numpy(zero_copy_only=False)
    absent = hours == NULL if column.null_count else None
    codes = _unit(hours // HOUR_US, field.transform)
    if absent is not None:
        codes[absent] = NULL
    unit = {"hour": "h", "day": "D", "month": "M", "year": "Y"}[field.transform]
    return codes, lambda code: str(np.datetime64(code, unit)).replace("T", "-")  # type: ignore[call-overload]


def _unit(hours: Codes, transform: str) -> Codes:
    if transform == "hour":
        return hours
    days = hours // 24
    if transform == "day":
        return days
    unit = "M8[M]" if transform == "month" else "M8[Y]"
    return days.astype("M8[D]").astype(unit).astype(np.int64)


def _text(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)
