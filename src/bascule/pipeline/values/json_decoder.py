"""JSON values: one object per value.

There are two ways to decode. The exact way takes each value separately (`record_decoder`) and is
authoritative. The fast way passes many values to Arrow's JSON reader, one per line. That reader
lets values affect each other (`{} {}` makes two rows, an empty value none, `null` ends the
process). So it only gets values that msgspec has checked to be exactly one object. If it refuses
any value, all values are decoded the exact way, because it may refuse valid values and does not
report the row.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from bascule.pipeline.values.conversion import finish, is_finite
from bascule.pipeline.values.model import DecodedValues
from bascule.pipeline.values.python_types import decimal_check, python_type, read_type
from bascule.pipeline.values.record_decoder import MALFORMED, DecodedRows, RecordDecoder

BLOCK_BYTES_MIN: Final = 4 << 20
"""Block size per thread of Arrow's reader. On 2 cores it read flights fastest with 4 MiB."""
PIECES: Final = 8
"""If Arrow refuses a batch, each of this many pieces is tried once. So one malformed record costs
an eighth of the batch on the exact way, and a batch of malformed records costs two refusals per
row."""
ROWS_MIN: Final = 512
"""Fewer rows are decoded the exact way, because a call of Arrow's reader costs about 0.2 ms."""

_ONE_LINE: Final = bytes.maketrans(b"\r\n", b"  ")


class JsonDecoder(RecordDecoder):
    """Decodes objects with the declared names. Other names are ignored."""

    def __init__(self, kind: pa.StructType) -> None:
        one = msgspec.json.Decoder(python_type("json", kind)).decode
        super().__init__(kind, read_type("json", kind), one, decimal_check(kind))
        self._is_whole = msgspec.json.Decoder(msgspec.Raw).decode
        self._required = [n for n, field in enumerate(kind) if not field.nullable]
        self._has_fast_way = not any(_is_for_exact_way(field.type) for field in kind)
        self._has_floats = _has(kind, pa.types.is_floating)
        self._lines = pa.schema([field.with_nullable(True) for field in self._read])

    def decode(self, values: pa.Array) -> DecodedValues:
        """See `ValueDecoder`."""
        rows = DecodedRows(self._kind, len(values))
        if not self._has_fast_way:
            self.decode_into(rows, values.to_pylist(), range(len(values)))
            return rows.finish()
        numbers = self._whole_objects(values, rows)
        if len(numbers) < len(values):
            values = values.take(pa.array(numbers, pa.int64()))
        values = _one_line_each(values)
        if not self._decode_fast(rows, values, numbers):
            step = max(-(-len(values) // PIECES), ROWS_MIN)
            for start in range(0, len(values), step):
                piece, whose = values.slice(start, step), numbers[start : start + step]
                if not self._decode_fast(rows, piece, whose):
                    self.decode_into(rows, piece.to_pylist(), whose)
        return rows.finish()

    def _whole_objects(self, values: pa.Array, rows: DecodedRows) -> list[int]:
        """Numbers of the rows that hold exactly one JSON object and otherwise only blanks."""
        is_whole = self._is_whole
        numbers = []
        for number, value in enumerate(values.to_pylist()):
            if value is None:
                continue
            try:
                is_whole(value)
            except MALFORMED as error:
                rows.add_bad(number, error)
                continue
            if value[:1] != b"{" and value.lstrip(b" \t\r\n")[:1] != b"{":
                rows.add_bad(number, "expected `object`, got another value")
                continue
            numbers.append(number)
        return numbers

    def _decode_fast(self, rows: DecodedRows, values: pa.Array, numbers: list[int]) -> bool:
        """Add all rows at once. Return False, with nothing added, if that is not possible."""
        if len(values) < ROWS_MIN:
            return False
        try:
            values.cast(pa.string())  # Arrow's reader does not check UTF-8
            column = self._read_lines(values)
            if self._has_floats and not _are_agreed(column):
                return False
            column = finish(column, self._kind)
        except MALFORMED:
            return False
        if len(column) != len(values):
            return False
        if any(column.field(n).null_count for n in self._required):
            return False
        rows.add(column, numbers)
        return True

    def _read_lines(self, values: pa.Array) -> pa.StructArray:
        import pyarrow.json as pj

        lines = pc.binary_join_element_wise(values, b"", b"\n")
        lengths = pc.binary_length(lines)
        longest = pc.max(lengths).as_py()
        table = pj.read_json(
            pa.BufferReader(lines.buffers()[2].slice(0, pc.sum(lengths).as_py())),
            parse_options=pj.ParseOptions(
                explicit_schema=self._lines, unexpected_field_behavior="ignore"
            ),
            read_options=pj.ReadOptions(block_size=max(BLOCK_BYTES_MIN, 4 * longest)),
        )
        columns = [column.combine_chunks() for column in table.columns]
        return pa.StructArray.from_arrays(columns, fields=list(self._read))


def _one_line_each(values: pa.Array) -> pa.Array:
    """Replace line breaks by blanks. They are equivalent between tokens and not allowed in
    strings."""
    validity, ends, data = values.buffers()
    text = data.to_pybytes() if data is not None else b""
    if b"\n" not in text and b"\r" not in text:
        return values
    buffers = [validity, ends, pa.py_buffer(text.translate(_ONE_LINE))]
    return pa.Array.from_buffers(values.type, len(values), buffers, offset=values.offset)


def _has(kind: pa.DataType, fits: Callable[[pa.DataType], bool]) -> bool:
    """Whether `kind` or a nested type fits."""
    inner = [kind.field(n).type for n in range(kind.num_fields)]
    return fits(kind) or any(_has(found, fits) for found in inner)


def _are_agreed(column: pa.Array) -> bool:
    """Whether Arrow and msgspec agree on all floating-point numbers.

    Arrow's reader makes infinity of 60e308, although it refuses 1e309, and -0.0 of -0.
    """
    kind = column.type
    if pa.types.is_floating(kind):
        negative_zero = pc.any(pc.equal(pc.divide(1.0, column), float("-inf"))).as_py()
        return is_finite(column) and not negative_zero
    if pa.types.is_struct(kind):
        return all(_are_agreed(inner) for inner in column.flatten())
    return not pa.types.is_list(kind) or _are_agreed(column.flatten())


def _is_for_exact_way(kind: pa.DataType) -> bool:
    """Whether Arrow's reader cannot read the type. It does not support maps or nested required
    fields. It accepts decimals with too many digits and ends the process for 1e-999999999."""
    if pa.types.is_struct(kind):
        return any(not field.nullable or _is_for_exact_way(field.type) for field in kind)
    if pa.types.is_list(kind):
        return _is_for_exact_way(kind.value_type)
    return bool(pa.types.is_map(kind) or pa.types.is_decimal(kind))
