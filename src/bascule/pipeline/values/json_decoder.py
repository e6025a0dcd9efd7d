"""JSON: one object a value.

Two ways to the same rows. The exact one takes each value by itself (`records`), and its word is
final. The fast one gives Arrow's JSON reader many values at once, one a line. That reader would
let values disturb each other (`{} {}` makes two rows, an empty value none, `null` ends the
process), so it is only shown values of which msgspec has seen that each is one whole object. Where
it refuses any of them, all go the exact way: it may refuse more than that one does, and does not
say which row it was.
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
"""Arrow's reader takes so much a thread; on 2 cores it read flights fastest with 4 MiB."""
PIECES: Final = 8
"""Where Arrow refuses a batch it is asked again in so many pieces, and not a third time: one bad
record costs an eighth of the batch the exact way, a batch of them two refusals each."""
ROWS_MIN: Final = 512
"""Fewer rows go the exact way at once: Arrow's reader costs about 0.2 ms a call."""

_ONE_LINE: Final = bytes.maketrans(b"\r\n", b"  ")


class JsonDecoder(RecordDecoder):
    """Decodes objects with the declared names; other names are passed over."""

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
        """The rows that hold exactly one JSON object and nothing else but blanks."""
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
        """Add all rows at once; False, with nothing added, where that cannot be."""
        if len(values) < ROWS_MIN:
            return False
        try:
            values.cast(pa.string())  # Arrow's reader would not notice what is not UTF-8
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
    """Line ends as blanks: between tokens they mean the same, and in strings neither may be."""
    validity, ends, data = values.buffers()
    text = data.to_pybytes() if data is not None else b""
    if b"\n" not in text and b"\r" not in text:
        return values
    buffers = [validity, ends, pa.py_buffer(text.translate(_ONE_LINE))]
    return pa.Array.from_buffers(values.type, len(values), buffers, offset=values.offset)


def _has(kind: pa.DataType, fits: Callable[[pa.DataType], bool]) -> bool:
    """Whether `kind` or a type in it fits."""
    inner = [kind.field(n).type for n in range(kind.num_fields)]
    return fits(kind) or any(_has(found, fits) for found in inner)


def _are_agreed(column: pa.Array) -> bool:
    """Whether all numbers with fractions are ones of which msgspec makes the same.

    Arrow's reader makes infinity of 60e308, though it refuses 1e309, and -0.0 of -0.
    """
    kind = column.type
    if pa.types.is_floating(kind):
        negative_zero = pc.any(pc.equal(pc.divide(1.0, column), float("-inf"))).as_py()
        return is_finite(column) and not negative_zero
    if pa.types.is_struct(kind):
        return all(_are_agreed(inner) for inner in column.flatten())
    return not pa.types.is_list(kind) or _are_agreed(column.flatten())


def _is_for_exact_way(kind: pa.DataType) -> bool:
    """Arrow's reader knows no maps, and nothing of required fields further down; of decimals it
    lets pass what has too many digits, and ends the process over 1e-999999999."""
    if pa.types.is_struct(kind):
        return any(not field.nullable or _is_for_exact_way(field.type) for field in kind)
    if pa.types.is_list(kind):
        return _is_for_exact_way(kind.value_type)
    return bool(pa.types.is_map(kind) or pa.types.is_decimal(kind))
