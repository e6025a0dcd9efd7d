"""Which bytes a request asks for, and under which conditions (RFC 9110, 13 and 14). Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

_RANGE: Final = re.compile(r"bytes=\s*([0-9]*)\s*-\s*([0-9]*)\s*", re.IGNORECASE)
DIGITS_MAX: Final = 18
NUMBER_MAX: Final = 10**DIGITS_MAX
"""More than any size. Numbers of a range may have any length."""


def has_tag(field: str, tag: str, *, weak: bool) -> bool:
    """Whether a list of entity tags has `tag`, or is `*`. `weak`: also as a weak one."""
    tags = [each.strip() for each in field.split(",")]
    return "*" in tags or tag in tags or (weak and f"W/{tag}" in tags)


def range_of(headers: Mapping[str, str], tag: str, size: int) -> tuple[int, int] | None:
    """The bytes [start, end) to send; None if the whole is asked for.

    Several ranges at once count as none, which a server may do. Raises: ValueError if no byte of
    the range is there.
    """
    if headers.get("if-range", tag).strip() != tag:
        return None
    found = _RANGE.fullmatch(headers.get("range", "").strip())
    if found is None or not (found[1] or found[2]):
        return None
    if not found[1]:
        count = min(_number(found[2]), size)
        if not count:
            raise ValueError("an empty range")
        return size - count, size
    start = _number(found[1])
    if found[2] and _number(found[2]) < start:
        return None
    if start >= size:
        raise ValueError("a range behind the end")
    return start, min(_number(found[2]) + 1, size) if found[2] else size


def _number(digits: str) -> int:
    """Python takes no numbers of many thousand digits."""
    digits = digits.lstrip("0")
    return int(digits or "0") if len(digits) <= DIGITS_MAX else NUMBER_MAX
