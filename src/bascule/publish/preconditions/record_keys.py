"""The keys of the records that expect a sequence of their key."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from typing import Final

from bascule.publish.headers import PublishHeaders
from bascule.publish.preconditions import _hot, _hot_keys
from bascule.record import _hot as record_hot
from bascule.record.header import HEADER_BYTES

_ENTRY_NUMBERS: Final = 1 << 32
"""An ack entry holds a number below this."""


def number_keys(
    data: memoryview, record_count: int, headers: PublishHeaders
) -> tuple[list[bytes], array[int]]:
    """The different keys of these records, and for each record of the batch two numbers: the index
    of its key among them, or -1, and whether it has a value.
    """
    batch = bytes(data)
    positions = array("q", bytes(8 * record_hot.POSITION_FIELDS * record_count))
    state = array("q", [0] * 4)
    found = record_hot.index_records(
        batch, HEADER_BYTES, len(batch), record_count, positions, state
    )
    assert found == record_count, "the records are complete"
    keys = array("q", bytes(16 * record_count))
    different = _hot_keys.number_keys(
        batch, positions, record_count, headers.rows, headers.count, keys
    )
    return different, keys


def wrong_key_ranges(verdicts: bytearray, numbers: array[int]) -> Iterator[tuple[bytearray, int]]:
    """The verdicts with those of `WRONG_KEY_SEQUENCE` only where the number less a base fits an ack
    entry, with that base; together they have all of them.
    """
    bounds = array("q", (0, 0))
    _hot_keys.number_range(verdicts, numbers, _hot.WRONG_KEY_SEQUENCE, bounds)
    least, largest = bounds
    if largest - least < _ENTRY_NUMBERS:
        yield verdicts, least
        return
    for base in range(least, largest + 1, _ENTRY_NUMBERS):
        part = bytearray(
            _hot.ACCEPTED
            if verdict == _hot.WRONG_KEY_SEQUENCE and not base <= number < base + _ENTRY_NUMBERS
            else verdict
            for verdict, number in zip(verdicts, numbers, strict=False)
        )
        if _hot.WRONG_KEY_SEQUENCE in part:
            yield part, base
