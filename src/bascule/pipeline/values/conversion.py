"""Converts columns from the read type to the declared type: text to times, dates, bytes.

The result for a value depends on that value alone. A conversion either converts the whole column or
raises; the caller then tries fewer rows.
"""

from __future__ import annotations

import base64
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

_DATE: Final = (
    r"(?:\d{4}-(?:(?:0[1-9]|1[0-2])-(?:0[1-9]|1\d|2[0-8])|(?:0[13-9]|1[0-2])-(?:29|30)"
    r"|(?:0[13578]|1[02])-31)"
    r"|(?:\d\d(?:0[48]|[2468][048]|[13579][26])|(?:[02468][048]|[13579][26])00)-02-29)"
)
_TIME: Final = r"(?:[01]\d|2[0-3])(?::[0-5]\d(?::[0-5]\d(?:\.\d{1,9})?)?)?"
_ZONE: Final = r"(?:Z|[+-](?:[01]\d|2[0-3])(?::?[0-5]\d)?)?"
DATE: Final = rf"^{_DATE}\Z"
TIMESTAMP: Final = rf"^{_DATE}(?:[T ]{_TIME}{_ZONE})?\Z"
TIMESTAMP_NTZ: Final = rf"^{_DATE}(?:[T ]{_TIME})?\Z"
BASE64: Final = r"^(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?\Z"
PATTERN_NAMES: Final = {
    DATE: "a date such as 2026-01-31",
    TIMESTAMP: "a time such as 2026-01-31T23:59:59.5Z",
    TIMESTAMP_NTZ: "a time without zone such as 2026-01-31T23:59:59.5",
    BASE64: "bytes in base64",
}
"""Regular expression -> description. The expressions accept exactly what the conversions below
accept. A refusal at this stage costs a microsecond and has a position."""

UNSCALED_BYTES_MAX: Final = 64
"""Bytes of a decimal. 16 bytes hold 38 digits, but some writers extend the sign."""

_LONG_FRACTION: Final = r"(\.\d{6})\d{1,3}($|[Z+-])"
"""Nanoseconds, as Go and Java write them. Spark's timestamps hold microseconds."""
_HAS_ZONE: Final = r"[T ][^Z+-]*[Z+-]"
_DATE_ONLY: Final = r"^[^T ]*$"


def finish(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """Convert `column` from its read type (`python_types.read_type`) to `kind`.

    Raises: ValueError (a base class of Arrow's ArrowInvalid) if a value does not fit.
    """
    if column.type == kind:
        return column
    if column.offset:
        column = column.take(pa.array(range(len(column)), pa.int64()))
    if pa.types.is_struct(kind):
        # Flatten, because Arrow may store empty text below a null struct.
        columns = column.flatten()
        children = [finish(c, field.type) for c, field in zip(columns, kind, strict=True)]
        return rebuild_nested(column, kind, 1, children)
    if pa.types.is_list(kind):
        return rebuild_nested(column, kind, 2, [finish(column.values, kind.value_type)])
    if pa.types.is_map(kind):
        parts = [finish(column.keys, kind.key_type), finish(column.items, kind.item_type)]
        entries = pa.StructArray.from_arrays(parts, fields=[kind.key_field, kind.item_field])
        return rebuild_nested(column, kind, 2, [entries])
    return _leaf(column, kind)


def rebuild_nested(
    column: pa.Array, kind: pa.DataType, buffers: int, children: list[pa.Array]
) -> pa.Array:
    """Replace the children of `column` and set its type. It keeps so many buffers of its own."""
    own = column.buffers()[:buffers]
    return pa.Array.from_buffers(
        kind, len(column), own, null_count=column.null_count, children=children
    )


def _leaf(column: pa.Array, kind: pa.DataType) -> pa.Array:
    if pa.types.is_timestamp(kind) and pa.types.is_string(column.type):
        return _timestamps(column, kind)
    if pa.types.is_binary(kind):
        return _from_base64(column)
    if pa.types.is_decimal(kind):
        return _from_twos_complement(column, kind)
    if pa.types.is_float32(kind):
        return _narrow(column)
    return column.cast(kind)


def _timestamps(text: pa.Array, kind: pa.DataType) -> pa.Array:
    """Parse ISO 8601 with a zone. Without a zone it is UTC if `kind` has a zone.

    Text that Arrow accepts unchanged gives the same result as after the rewriting.
    """
    try:
        return text.cast(kind)
    except pa.ArrowInvalid:
        text = pc.replace_substring_regex(text, _LONG_FRACTION, r"\1\2")
    if kind.tz is not None:
        bare = pc.if_else(pc.match_substring_regex(text, _DATE_ONLY), "T00:00Z", "Z")
        zone = pc.if_else(pc.match_substring_regex(text, _HAS_ZONE), "", bare)
        text = pc.binary_join_element_wise(text, zone, "")
    return text.cast(kind)


def _from_base64(text: pa.Array) -> pa.Array:
    return pa.array(
        [
            None if item is None else base64.b64decode(item, validate=True)
            for item in text.to_pylist()
        ],
        pa.binary(),
    )


def _from_twos_complement(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """Convert unscaled big-endian integers, as Avro stores decimals."""
    end = 10**kind.precision
    numbers = []
    for item in column.to_pylist():
        number = 0 if item is None else _unscaled(item)
        if not -end < number < end:
            raise ValueError(f"a decimal of more than {kind.precision} digits")
        numbers.append(number.to_bytes(16, "little", signed=True))
    validity = column.is_valid().buffers()[1]
    return pa.Array.from_buffers(kind, len(column), [validity, pa.py_buffer(b"".join(numbers))])


def _unscaled(item: bytes) -> int:
    """Raises: ValueError for a value of too many bytes, because its cost is unbounded."""
    if not 0 < len(item) <= UNSCALED_BYTES_MAX:
        raise ValueError(f"a decimal of {len(item)} bytes")
    return int.from_bytes(item, "big", signed=True)


def _narrow(column: pa.Array) -> pa.Array:
    """Convert doubles to floats. NaN and infinity are kept; a finite number must stay finite."""
    narrow = column.cast(pa.float32())
    if pc.any(pc.and_(pc.is_inf(narrow), pc.is_finite(column))).as_py():
        raise ValueError("a number beyond the range of float")
    return narrow


def is_finite(column: pa.Array) -> bool:
    """Whether all numbers of a column are finite."""
    return not pc.any(pc.invert(pc.is_finite(column))).as_py()
