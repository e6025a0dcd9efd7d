"""The CRC-32C of a span of records. A batch of the log and rows of a lake table have the same one.

The records are serialised column by column, each column as one or more byte streams:

    null flags  one byte per value: 1 for a value, 0 for null
    numbers     integers, booleans, dates (days), times and durations (microseconds): 8 bytes,
                two's complement, little-endian; floats: 8 bytes, IEEE 754 double, little-endian;
                decimals: 16 (or 32) bytes, the unscaled value, little-endian; 0 for null
    texts       the lengths in bytes (8 bytes each, little-endian, 0 for null), then the bytes
    lists, maps the numbers of entries (as lengths), then the streams of the entries; a map's entry
                is a struct of key and value
    structs     the streams of the fields; a field of a null struct is null

A stream continues over all records of the span in offset order, so batch boundaries do not change
the result. Each stream has its own CRC-32C (Castagnoli, as in RFC 3720 and Kafka's batches). The
checksum of the span is the CRC-32C over these, in the order of columns and of the list above, each
as 4 bytes big-endian.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from crc32c import crc32c

Part: TypeAlias = Any
"""Bytes, a memory view or an array of numbers: any object with the buffer interface."""

POLYNOMIAL: Final = 0x82F63B78
"""The Castagnoli polynomial, bit-reversed."""
ONES: Final = b"\1" * 65536


class SpanChecksum:
    """Runs over the records of a span, batch by batch.

    checksum = SpanChecksum()
    for batch in batches:       # in the order of offsets, always with the same columns
        checksum.update(batch)
    checksum.rows, checksum.value
    """

    __slots__ = ("_crcs", "_lengths", "rows")

    def __init__(self) -> None:
        self.rows = 0
        self._crcs: list[int] = []
        self._lengths: list[int] = []

    def update(self, batch: pa.RecordBatch) -> None:
        """Add the next records.

        Raises: TypeError for a column type that records do not have.
        """
        number = 0
        if not self._crcs:
            self._crcs = [0] * sum(_stream_count(field.type) for field in batch.schema)
            self._lengths = [0] * len(self._crcs)
        for column in batch.columns:
            for parts in _streams(column):
                for part in parts:
                    self._crcs[number] = crc32c(part, self._crcs[number])
                    self._lengths[number] += memoryview(part).nbytes
                number += 1
        assert number == len(self._crcs), "batches of one span have the same columns"
        self.rows += batch.num_rows

    def extend(self, following: SpanChecksum) -> None:
        """Add the checksum of the adjacent following span, computed by another task."""
        if not self._crcs:
            self._crcs, self._lengths = list(following._crcs), list(following._lengths)
        elif following._crcs:
            assert len(self._crcs) == len(following._crcs), "the spans have the same columns"
            for number, (crc, length) in enumerate(
                zip(following._crcs, following._lengths, strict=True)
            ):
                self._crcs[number] = combine_crcs(self._crcs[number], crc, length)
                self._lengths[number] += length
        self.rows += following.rows

    @property
    def value(self) -> int:
        """The CRC of the records so far; 0 without records."""
        if not self.rows:
            return 0
        return crc32c(b"".join(crc.to_bytes(4, "big") for crc in self._crcs))


def combine_crcs(first: int, second: int, length: int) -> int:
    """Return the CRC of two concatenated byte strings from their CRCs and the length of the second.

    Source: Mark Adler's crc32_combine. A CRC is linear, so appending `length` zero bytes to the
    first string is a matrix over GF(2), squared once for every bit of the length.
    """
    odd = [POLYNOMIAL, *(1 << bit for bit in range(31))]  # one zero bit
    even = _squared(odd)
    odd = _squared(even)
    matrix = odd  # four zero bits
    while length:
        matrix = _squared(matrix)
        if length & 1:
            first = _times(matrix, first)
        length >>= 1
    return first ^ second


def _times(matrix: list[int], vector: int) -> int:
    total = 0
    row = 0
    while vector:
        if vector & 1:
            total ^= matrix[row]
        vector >>= 1
        row += 1
    return total


def _squared(matrix: list[int]) -> list[int]:
    return [_times(matrix, row) for row in matrix]


def _stream_count(kind: pa.DataType) -> int:
    if pa.types.is_dictionary(kind):
        return _stream_count(kind.value_type)
    if pa.types.is_struct(kind):
        return 1 + sum(_stream_count(field.type) for field in kind)
    if pa.types.is_map(kind):
        return 3 + _stream_count(kind.key_type) + _stream_count(kind.item_type)
    if _is_list(kind):
        return 2 + _stream_count(kind.value_type)
    return 3 if _is_bytes(kind) else 2


def _is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind))


def _is_bytes(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_binary(kind)
        or pa.types.is_string(kind)
        or pa.types.is_large_binary(kind)
        or pa.types.is_large_string(kind)
        or pa.types.is_binary_view(kind)
        or pa.types.is_string_view(kind)
        or pa.types.is_fixed_size_binary(kind)
    )


def _streams(column: pa.Array) -> Iterator[list[Part]]:
    """The streams of one column, each as consecutive parts."""
    kind = column.type
    if pa.types.is_dictionary(kind):
        yield from _streams(column.cast(kind.value_type))
        return
    yield _flags(column)
    if pa.types.is_struct(kind):
        for field in column.flatten():
            yield from _streams(field)
    elif pa.types.is_map(kind):
        yield from _list_streams(_map_as_list(column))
    elif _is_list(kind):
        yield from _list_streams(column)
    elif _is_bytes(kind):
        yield from _byte_streams(column)
    else:
        yield [_numbers(column)]


def _flags(column: pa.Array) -> list[Part]:
    if column.null_count:
        return [pc.is_valid(column).cast(pa.uint8()).to_numpy().tobytes()]
    whole, rest = divmod(len(column), len(ONES))
    return [ONES] * whole + [ONES[:rest]]


def _numbers(column: pa.Array) -> Part:
    kind = column.type
    if pa.types.is_decimal(kind):
        size = kind.bit_width // 8
        column = pc.fill_null(column, pa.scalar(0, kind)) if column.null_count else column
        start = column.offset * size
        return memoryview(column.buffers()[1])[start : start + len(column) * size]
    if pa.types.is_floating(kind):
        column = column.cast(pa.float64())
        if column.null_count:
            column = pc.fill_null(column, 0.0)
        return column.to_numpy()
    if pa.types.is_timestamp(kind):
        column = column.cast(pa.timestamp("us", kind.tz))
    elif pa.types.is_duration(kind):
        column = column.cast(pa.duration("us"))
    elif pa.types.is_time(kind):
        column = column.cast(pa.time64("us"))
    elif pa.types.is_date(kind):
        column = column.cast(pa.date32()).cast(pa.int32())
    elif not (pa.types.is_integer(kind) or pa.types.is_boolean(kind) or pa.types.is_null(kind)):
        raise TypeError(f"records have no columns of type {kind}")
    column = column.cast(pa.int64())
    if column.null_count:
        column = pc.fill_null(column, 0)
    return column.to_numpy()


def _byte_streams(column: pa.Array) -> Iterator[list[Part]]:
    kind = column.type
    if not (pa.types.is_large_binary(kind) or pa.types.is_large_string(kind)):
        is_plain = pa.types.is_binary(kind) or pa.types.is_string(kind)
        column = column if is_plain else column.cast(pa.large_binary())
    if column.null_count:
        # The bytes under a null are arbitrary.
        empty = pa.scalar(b"" if "binary" in str(column.type) else "", column.type)
        column = pc.fill_null(column, empty)
    wide = "large" in str(column.type)
    _, offsets, data = column.buffers()
    ends = np.frombuffer(offsets, np.int64 if wide else np.int32)[
        column.offset : column.offset + len(column) + 1
    ]
    yield [np.diff(ends).astype(np.int64)]
    if data is None or not len(column):
        yield []
    else:
        yield [memoryview(data)[int(ends[0]) : int(ends[-1])]]


def _list_streams(column: pa.Array) -> Iterator[list[Part]]:
    lengths = pc.fill_null(pc.list_value_length(column).cast(pa.int64()), 0)
    yield [lengths.to_numpy(zero_copy_only=False)]
    yield from _streams(column.flatten())


def _map_as_list(column: pa.MapArray) -> pa.Array:
    entry = pa.struct([("key", column.type.key_type), ("value", column.type.item_type)])
    return column.cast(pa.list_(entry))
