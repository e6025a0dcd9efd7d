"""Decodes records one by one: the exact way of every format.

    values --one()--> rows (dictionaries) --Arrow--> read columns --finish()--> declared columns

Steps two and three take many rows at once. If one of them refuses, the rows are halved until each
malformed row is alone.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, Final, TypeAlias

import msgspec
import pyarrow as pa

from bascule.pipeline.values.conversion import PATTERN_NAMES, finish
from bascule.pipeline.values.model import DecodedValues

REASON_CHARACTERS_MAX: Final = 200

MALFORMED: Final = (
    msgspec.MsgspecError,
    pa.ArrowException,
    ValueError,
    TypeError,
    LookupError,
    ArithmeticError,
    EOFError,
    RecursionError,
    StopIteration,
    struct.error,
)
"""Exceptions that decoders raise for malformed bytes."""

DecodeOne: TypeAlias = Callable[[Any], Any]
"""Returns the row of a value as Python objects. Raises one of MALFORMED."""


class DecodedRows:
    """Collects the rows of one column for a `DecodedValues`."""

    def __init__(self, kind: pa.DataType, count: int) -> None:
        self._kind = kind
        self._count = count
        self._pieces: list[pa.Array] = []
        self._numbers: list[int] = []
        self._bad: dict[int, str] = {}

    def add(self, piece: pa.Array, numbers: list[int]) -> None:
        """Add valid rows and their numbers, which are greater than all earlier ones."""
        self._pieces.append(piece)
        self._numbers += numbers

    def add_bad(self, number: int, error: BaseException | str) -> None:
        """Add a malformed row and the reason."""
        self._bad[number] = reason_of(error)

    def finish(self) -> DecodedValues:
        """Build the column. Rows that were not added are null."""
        values = pa.concat_arrays(self._pieces) if self._pieces else pa.nulls(0, self._kind)
        if len(self._numbers) < self._count:
            places: list[int | None] = [None] * self._count
            for place, number in enumerate(self._numbers):
                places[number] = place
            values = values.take(pa.array(places, pa.int64()))
        bad = sorted(self._bad)
        return DecodedValues(
            values, pa.array(bad, pa.int64()), [self._bad[number] for number in bad]
        )


class RecordDecoder:
    """Decodes values one by one with `one` to columns of type `read`, then converts them.

    `check` receives each row before Arrow does. It returns the row, or raises as `one` does.
    """

    def __init__(
        self, kind: pa.DataType, read: pa.DataType, one: DecodeOne, check: DecodeOne | None = None
    ) -> None:
        self._kind = kind
        self._read = read
        self._one = one if check is None else lambda value: check(one(value))

    def decode(self, values: pa.Array) -> DecodedValues:
        """See `ValueDecoder`."""
        rows = DecodedRows(self._kind, len(values))
        self.decode_into(rows, values.to_pylist(), range(len(values)))
        return rows.finish()

    def decode_into(
        self, rows: DecodedRows, values: list[bytes | None], numbers: range | list[int]
    ) -> None:
        """Decode `values`, which are the rows `numbers`. Null values are skipped."""
        one = self._one
        objects: list[Any] = []
        whose: list[int] = []
        for number, value in zip(numbers, values, strict=True):
            if value is None:
                continue
            try:
                objects.append(one(value))
            except MALFORMED as error:
                rows.add_bad(number, error)
            else:
                whose.append(number)
        self._build(rows, objects, whose)

    def _build(self, rows: DecodedRows, objects: list[Any], whose: list[int]) -> None:
        """Convert all objects, or those that can be converted, first rows first."""
        waiting = [(0, len(objects))]
        while waiting:
            start, end = waiting.pop()
            if start == end:
                continue
            try:
                column = finish(pa.array(objects[start:end], self._read), self._kind)
            except MALFORMED as error:
                if end - start == 1:
                    rows.add_bad(whose[start], error)
                    continue
                middle = (start + end) // 2
                waiting += [(middle, end), (start, middle)]
            else:
                rows.add(column, whose[start:end])


def reason_of(error: BaseException | str) -> str:
    """The reason as one short line in lower case."""
    text = " ".join(str(error).split()) or type(error).__name__
    if "matching regex" in text:
        for pattern, shape in PATTERN_NAMES.items():
            text = text.replace(f"`str` matching regex {pattern!r}", shape)
    if text[1:2].islower():
        text = text[0].lower() + text[1:]
    if len(text) > REASON_CHARACTERS_MAX:
        text = text[: REASON_CHARACTERS_MAX - 3] + "..."
    return text
