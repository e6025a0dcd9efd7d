"""Encodes typed rows to bytes, for records that are published again."""

from __future__ import annotations

from typing import Final, Literal

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from bascule.pipeline.values.conversion import is_finite, rebuild_nested

_ENCODERS: Final[dict[str, msgspec.json.Encoder | msgspec.msgpack.Encoder]] = {
    "json": msgspec.json.Encoder(decimal_format="number"),
    "msgpack": msgspec.msgpack.Encoder(),
}
_FIRST_US: Final = -62_135_596_800_000_000
"""The start of the year 1. ISO 8601 has four-digit years."""
_LAST_US: Final = 253_402_300_799_999_999
"""The end of the year 9999."""


class RowEncoder:
    """Encodes rows so that the decoder of the same format returns equal rows.

    A null field is written as null. Times and dates are ISO 8601 text in both formats.
    """

    def __init__(self, value_format: Literal["json", "msgpack"], kind: pa.StructType) -> None:
        self._kind = kind
        self._is_json = value_format == "json"
        self._encode = _ENCODERS[value_format].encode

    def encode(self, rows: pa.Array) -> pa.Array:
        """See `ValueEncoder`."""
        assert rows.type == self._kind, f"rows of {rows.type}, expected {self._kind}"
        plain = self._plain(rows)
        names = [field.name for field in self._kind]
        columns = [column.to_pylist(maps_as_pydicts="strict") for column in plain.flatten()]
        encode = self._encode
        values = [encode(dict(zip(names, row, strict=True))) for row in zip(*columns, strict=True)]
        found = pa.array(values, pa.binary())
        return pc.if_else(rows.is_valid(), found, None) if rows.null_count else found

    def _plain(self, column: pa.Array) -> pa.Array:
        """Convert times in the column to text. Raises: ValueError for a value without a text
        form."""
        kind = column.type
        if column.offset:
            column = column.take(pa.array(range(len(column)), pa.int64()))
        if pa.types.is_struct(kind):
            parts = [self._plain(part) for part in column.flatten()]
            fields = [f.with_type(p.type) for f, p in zip(kind, parts, strict=True)]
            return rebuild_nested(column, pa.struct(fields), 1, parts)
        if pa.types.is_list(kind):
            items = self._plain(column.values)
            return rebuild_nested(
                column, pa.list_(kind.value_field.with_type(items.type)), 2, [items]
            )
        if pa.types.is_map(kind):
            keys, items = self._plain(column.keys), self._plain(column.items)
            fields = [kind.key_field, kind.item_field.with_type(items.type)]
            entries = pa.StructArray.from_arrays([keys, items], fields=fields)
            return rebuild_nested(column, pa.map_(*fields), 2, [entries])
        if pa.types.is_floating(kind) and self._is_json and not is_finite(column):
            raise ValueError("NaN and infinity cannot be written as json")
        return _as_text(column) if pa.types.is_temporal(kind) else column


def _as_text(column: pa.Array) -> pa.Array:
    """Convert times and dates to ISO 8601. UTC times end in Z."""
    if not pa.types.is_timestamp(column.type):
        return column.cast(pa.string())
    span = pc.min_max(column.cast(pa.int64())).as_py()
    if span["min"] is not None and not _FIRST_US <= span["min"] <= span["max"] <= _LAST_US:
        raise ValueError("a time outside of the years 1 to 9999 cannot be written")
    return pc.replace_substring(column.cast(pa.string()), " ", "T")
