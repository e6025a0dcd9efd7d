"""The Python types that msgspec checks records against, for an Arrow type."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from decimal import Decimal
from typing import Annotated, Any, Final, NotRequired, Required, TypedDict

import msgspec
import pyarrow as pa

from bascule.errors import ConfigError
from bascule.pipeline.values import leaves

_KEYS: Final = {
    "json": (pa.types.is_string,),
    "msgpack": (pa.types.is_string, pa.types.is_integer),
}
_KEYS_TEXT: Final = {"json": "string", "msgpack": "string or an integer"}

_FLOAT_END: Final = 3.4028235677973366e38
"""The least double that becomes an infinite float."""


def check_expressible(value_format: str, kind: pa.DataType) -> None:
    """Raises: ConfigError for a type that no value of this format could hold."""
    if value_format not in _KEYS:
        return
    for found in _maps(kind):
        if not any(fits(found) for fits in _KEYS[value_format]):
            raise ConfigError(
                f"keys of a map are {_KEYS_TEXT[value_format]} in {value_format}, found {found}"
            )


def read_type(value_format: str, kind: pa.DataType) -> pa.DataType:
    """The type in which a column is read before `leaves.finish` makes it `kind`."""
    if pa.types.is_float32(kind):
        return pa.float64()
    if pa.types.is_date(kind):
        return pa.string()
    if value_format == "json" and (pa.types.is_timestamp(kind) or pa.types.is_binary(kind)):
        return pa.string()
    return rebuilt(kind, lambda inner: read_type(value_format, inner))


def rebuilt(kind: pa.DataType, change: Callable[[pa.DataType], pa.DataType]) -> pa.DataType:
    """`kind` with the types directly inside it changed; itself where there are none."""
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(change(field.type)) for field in kind])
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(change(kind.value_type)))
    if pa.types.is_map(kind):
        return pa.map_(
            kind.key_field.with_type(change(kind.key_type)),
            kind.item_field.with_type(change(kind.item_type)),
        )
    return kind


def python_type(value_format: str, kind: pa.DataType) -> Any:
    """What msgspec decodes a value of `kind` into; null is allowed around it, not by it."""
    if pa.types.is_struct(kind):
        return _row_type(value_format, kind)
    if pa.types.is_list(kind):
        return list[python_type(value_format, kind.value_type) | None]  # type: ignore[misc]
    if pa.types.is_map(kind):
        key = python_type(value_format, kind.key_type)
        return dict[key, python_type(value_format, kind.item_type) | None]  # type: ignore[misc,valid-type]
    if pa.types.is_integer(kind):
        most = (1 << (kind.bit_width - 1)) - 1
        return Annotated[int, msgspec.Meta(ge=-most - 1, le=most)]
    if pa.types.is_timestamp(kind) and value_format == "msgpack":
        if kind.tz is None:
            return Annotated[datetime.datetime, msgspec.Meta(tz=False)]
        return datetime.datetime
    if pa.types.is_binary(kind) and value_format == "msgpack":
        return bytes
    if pa.types.is_float32(kind) and value_format == "json":
        return Annotated[float, msgspec.Meta(gt=-_FLOAT_END, lt=_FLOAT_END)]
    return _simple(kind)


def _simple(kind: pa.DataType) -> Any:
    if pa.types.is_boolean(kind):
        return bool
    if pa.types.is_floating(kind):
        return float
    if pa.types.is_decimal(kind):
        return Decimal
    if pa.types.is_date(kind):
        return _shaped(leaves.DATE)
    if pa.types.is_timestamp(kind):
        return _shaped(leaves.TIMESTAMP if kind.tz else leaves.TIMESTAMP_NTZ)
    if pa.types.is_binary(kind):
        return _shaped(leaves.BASE64)
    return str


def _shaped(pattern: str) -> Any:
    """Text that its conversion will take, but for days that a month has not."""
    return Annotated[str, msgspec.Meta(pattern=pattern)]


def _row_type(value_format: str, kind: pa.StructType) -> Any:
    """A dictionary of the declared fields; msgspec passes over the others."""
    fields: dict[str, Any] = {}
    for field in kind:
        inner = python_type(value_format, field.type)
        fields[field.name] = NotRequired[inner | None] if field.nullable else Required[inner]
    return TypedDict("Row", fields)  # type: ignore[operator]


def _maps(kind: pa.DataType) -> list[pa.DataType]:
    """The key types of all maps in `kind`."""
    if pa.types.is_map(kind):
        return [kind.key_type, *_maps(kind.key_type), *_maps(kind.item_type)]
    if pa.types.is_list(kind):
        return _maps(kind.value_type)
    if pa.types.is_struct(kind):
        return [key for field in kind for key in _maps(field.type)]
    return []
