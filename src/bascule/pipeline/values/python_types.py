"""The Python types for msgspec that correspond to an Arrow type."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from decimal import Decimal
from typing import Annotated, Any, Final, NotRequired, Required, TypedDict

import msgspec
import pyarrow as pa

from bascule.errors import ConfigError
from bascule.pipeline.values import conversion

_KEYS: Final = {
    "json": (pa.types.is_string,),
    "msgpack": (pa.types.is_string, pa.types.is_integer),
}
_KEYS_TEXT: Final = {"json": "string", "msgpack": "string or an integer"}

_FLOAT_END: Final = 3.4028235677973366e38
"""The smallest double that becomes an infinite float."""

EXPONENT_MAX: Final = 200
"""Greatest exponent of a decimal. Columns hold 38 digits."""


def check_expressible(value_format: str, kind: pa.DataType) -> None:
    """Raises: ConfigError for a type that the format cannot express."""
    if value_format not in _KEYS:
        return
    for found in _maps(kind):
        if not any(fits(found) for fits in _KEYS[value_format]):
            raise ConfigError(
                f"keys of a map are {_KEYS_TEXT[value_format]} in {value_format}, found {found}"
            )


def read_type(value_format: str, kind: pa.DataType) -> pa.DataType:
    """The type in which a column is read before `conversion.finish` converts it to `kind`."""
    if pa.types.is_float32(kind):
        return pa.float64()
    if pa.types.is_date(kind):
        return pa.string()
    if value_format == "json" and (pa.types.is_timestamp(kind) or pa.types.is_binary(kind)):
        return pa.string()
    return rebuilt(kind, lambda inner: read_type(value_format, inner))


def rebuilt(kind: pa.DataType, change: Callable[[pa.DataType], pa.DataType]) -> pa.DataType:
    """`kind` with its directly nested types changed; `kind` itself if it has none."""
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
    """The Python type of `kind` for msgspec. The caller adds null."""
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
        return _shaped(conversion.DATE)
    if pa.types.is_timestamp(kind):
        return _shaped(conversion.TIMESTAMP if kind.tz else conversion.TIMESTAMP_NTZ)
    if pa.types.is_binary(kind):
        return _shaped(conversion.BASE64)
    return str


def _shaped(pattern: str) -> Any:
    """Text that matches what its conversion accepts, except for days beyond the month's end."""
    return Annotated[str, msgspec.Meta(pattern=pattern)]


def _row_type(value_format: str, kind: pa.StructType) -> Any:
    """A TypedDict of the declared fields. msgspec ignores other fields."""
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


def decimal_check(kind: pa.DataType) -> Callable[[Any], Any] | None:
    """Return a check that refuses decimals with extreme exponents; None if `kind` has no decimals.

    Arrow ends the process for a decimal such as 1e-999999999. The check raises ValueError.
    """
    if pa.types.is_decimal(kind):
        return _bounded
    if pa.types.is_list(kind) or pa.types.is_map(kind):
        inner = decimal_check(kind.value_type if pa.types.is_list(kind) else kind.item_type)
        return None if inner is None else _check_of_all(inner)
    if pa.types.is_struct(kind):
        found = [(field.name, decimal_check(field.type)) for field in kind]
        checks = [(name, inner) for name, inner in found if inner is not None]
        return _check_of_members(checks) if checks else None
    return None


def _bounded(number: Decimal) -> Decimal:
    if not number.is_finite() or abs(number.adjusted()) > EXPONENT_MAX:
        raise ValueError(f"a decimal that is not finite, or beyond 10 to the {EXPONENT_MAX}")
    return number


def _check_of_all(inner: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def check(items: Any) -> Any:
        for item in items.values() if isinstance(items, dict) else items:
            if item is not None:
                inner(item)
        return items

    return check


def _check_of_members(checks: list[tuple[str, Callable[[Any], Any]]]) -> Callable[[Any], Any]:
    def check(row: Any) -> Any:
        for name, inner in checks:
            value = row.get(name)
            if value is not None:
                inner(value)
        return row

    return check
