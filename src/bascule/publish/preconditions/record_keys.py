"""The keys of the records that expect a sequence of their key."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from typing import Final

from bascule.model import StreamConfig
from bascule.publish.acks import NO_KEY, AckError
from bascule.publish.headers import PublishHeaders
from bascule.publish.preconditions import _hot, _hot_keys
from bascule.record import _hot as record_hot
from bascule.record.header import HEADER_BYTES
from bascule.wire.tables.keys import KEY_BYTES_MAX, TableKeys

KEY_VERDICT: Final = 128
"""The first verdict for a message without a key of the table: each text has one."""
KEY_ERRORS_MAX: Final = 100
"""Different texts in the answers for one batch; beyond these all get the same."""
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


class TableKeyCheck:
    """Which messages of a table have no key that the table can hold."""

    def __init__(self, config: StreamConfig) -> None:
        self._keys = TableKeys(config)
        self._prefix = self._keys.prefix or b""

    def refuse(
        self, data: memoryview, record_count: int, verdicts: bytearray
    ) -> dict[int, AckError]:
        """The errors of these messages, by the verdict that `verdicts` gets for each of them.

        Messages with keys of their own subjects only are looked at one by one if a byte of the key
        has to be escaped.
        """
        found = array("q", bytes(24 * record_count))
        count = _hot_keys.find_odd_keys(
            data, HEADER_BYTES, record_count, self._prefix, KEY_BYTES_MAX, found
        )
        errors: dict[int, AckError] = {}
        by_text: dict[str, int] = {}
        for place in range(0, 3 * count, 3):
            index, at, length = found[place : place + 3]
            key = bytes(data[at : at + length]) if length >= 0 else None
            if key is not None and self._keys.table_key(key) is not None:
                continue
            text = self._keys.why_no_key(key)
            if text not in by_text and len(by_text) >= KEY_ERRORS_MAX:
                text = NO_KEY.description
            verdicts[index] = verdict = by_text.setdefault(text, KEY_VERDICT + len(by_text))
            errors[verdict] = AckError(NO_KEY.code, NO_KEY.err_code, text)
        return errors


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
