"""Values that are whole numbers in decimal digits, as `increment` reads and writes them."""

from __future__ import annotations

import re
from typing import Final

from bascule.errors import NotANumber

NUMBER_MIN: Final = -(1 << 63)
NUMBER_MAX: Final = (1 << 63) - 1
_NUMBER: Final = re.compile(rb"-?[0-9]{1,19}")


def incremented(table: str, key: bytes, value: bytes | None, by: int) -> int:
    """The number in `value`, which is 0 without one, and `by`. Raises: NotANumber."""
    if value is not None and not _NUMBER.fullmatch(value):
        raise NotANumber(table, key, "its value is not a whole number of 64 bits")
    number = int(value or b"0")
    if not NUMBER_MIN <= number <= NUMBER_MAX:
        raise NotANumber(table, key, "its value is not a whole number of 64 bits")
    if not NUMBER_MIN <= number + by <= NUMBER_MAX:
        raise NotANumber(table, key, f"{number} and {by} exceed a whole number of 64 bits")
    return number + by
