"""Typed rows back to bytes, for records that are published again."""

from __future__ import annotations

from typing import Final, Literal

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

_ENCODERS: Final[dict[str, msgspec.json.Encoder | msgspec.msgpack.Encoder]] = {
    "json": msgspec.json.Encoder(decimal_format="number"),
    "msgpack": msgspec.msgpack.Encoder(),
}


class RowEncoder:
    """Writes what the decoder of the same format reads back as equal rows."""

    def __init__(self, value_format: Literal["json", "msgpack"], kind: pa.StructType) -> None:
        self._kind = kind
        self._format = value_format
        self._encode = _ENCODERS[value_format].encode

    def encode(self, rows: pa.Array) -> pa.Array:
        """See `ValueEncoder`."""
        assert rows.type == self._kind, f"rows of {rows.type}, expected {self._kind}"
        if self._format == "json":
            _check_finite(rows)
        objects = rows.to_pylist(maps_as_pydicts="strict")
        encode = self._encode
        return pa.array([None if row is None else encode(row) for row in objects], pa.binary())


def _check_finite(column: pa.Array) -> None:
    """Raises: ValueError for NaN and infinity, which JSON has no words for."""
    kind = column.type
    if pa.types.is_floating(kind):
        if pc.any(pc.invert(pc.is_finite(column))).as_py():
            raise ValueError("NaN and infinity cannot be written as json")
    elif pa.types.is_struct(kind):
        for inner in column.flatten():
            _check_finite(inner)
    elif pa.types.is_list(kind):
        _check_finite(column.flatten())
    elif pa.types.is_map(kind):
        _check_finite(pc.list_flatten(column.cast(pa.list_(column.type.field(0)))))
