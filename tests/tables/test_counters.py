"""Values that are numbers."""

from __future__ import annotations

import pytest

from bascule.errors import NotANumber
from bascule.wire.tables.counters import NUMBER_MAX, NUMBER_MIN, incremented


@pytest.mark.parametrize(
    ("value", "by", "number"),
    [
        (None, 5, 5),
        (b"7", -9, -2),
        (b"-3", 3, 0),
        (b"007", 1, 8),
        (b"%d" % (NUMBER_MAX - 1), 1, NUMBER_MAX),
        (b"%d" % (NUMBER_MIN + 1), -1, NUMBER_MIN),
    ],
)
def test_numbers_are_added(value: bytes | None, by: int, number: int) -> None:
    assert incremented("t", b"k", value, by) == number


@pytest.mark.parametrize(
    ("value", "by"),
    [
        (b"", 1),
        (b"1.5", 1),
        (b" 1", 1),
        (b"+1", 1),
        (b"1\n", 1),
        ("\u0661".encode(), 1),
        (b"9" * 19, 1),
        (b"%d" % NUMBER_MAX, 1),
        (b"1", NUMBER_MIN - 2),
    ],
)
def test_what_is_no_number_of_64_bits_is_refused(value: bytes, by: int) -> None:
    with pytest.raises(NotANumber, match="key 'k' of table 't' cannot be incremented"):
        incremented("t", b"k", value, by)
