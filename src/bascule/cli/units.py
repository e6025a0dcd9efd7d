"""Parses and formats sizes, durations and times."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from fractions import Fraction
from typing import Final

import typer

from bascule.errors.wording import counted as counted

NO_LIMIT: Final = frozenset({"none", "no", "off", "unlimited"})
"""Words for no limit, which is 0 on the node."""

UNKNOWN_MARK: Final = "[dim]-"
"""What a table has in place of a value that is not known, as rich markup."""

VALUE_MAX: Final = (1 << 63) - 1
"""Requests and records have 64 bits for a number."""

_NUMBER: Final = re.compile(r"([0-9][0-9_,]*(?:\.[0-9]+)?)\s*([A-Za-z]*)")
_PART: Final = re.compile(r"([0-9][0-9_,]*(?:\.[0-9]+)?)\s*([A-Za-z]+)\s*")
_DURATION: Final = re.compile(f"(?:{_PART.pattern})+")

_SIZES: Final = {
    "": 1, "b": 1,
    "k": 1 << 10, "kib": 1 << 10, "m": 1 << 20, "mib": 1 << 20,
    "g": 1 << 30, "gib": 1 << 30, "t": 1 << 40, "tib": 1 << 40,
    "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12,
}  # fmt: skip

_SECOND: Final = 1_000
_TIMES: Final = {
    "ms": 1, "s": _SECOND, "sec": _SECOND, "m": 60 * _SECOND, "min": 60 * _SECOND,
    "h": 3_600 * _SECOND, "d": 86_400 * _SECOND, "w": 7 * 86_400 * _SECOND,
}  # fmt: skip


def parse_size(text: str) -> int:
    """Parse `10GiB`, `1.5 MB` (decimal), `512k` or a plain number to bytes; `none` is 0."""
    return _parse(text, _SIZES, "a size", "10GiB, 512MiB, 1.5GB or plain bytes")


def parse_rate(text: str) -> int:
    """Parse a size, of what may go in a second; `none` and 0 are no limit, which is 0."""
    return _parse(text, _SIZES, "a size", "50MiB, 1.5GB, plain bytes, or none for no limit")


def parse_duration(text: str) -> int:
    """Parse `7d`, `90s`, `250ms`, `1.5h` or `1h30m` to milliseconds; `none` is 0. Other numbers
    need a unit."""
    if _is_zero(text):
        return 0
    parts = _duration_parts(text)
    sizes = [size for _, size in parts]
    what, examples = "a duration", "7d, 12h, 1h30m, 90s or 250ms"
    # 30m1h is more likely a mistake than 90 minutes.
    if not parts or sizes != sorted(set(sizes), reverse=True):
        raise typer.BadParameter(f"{text!r} is not {what}: expected {examples}")
    return _whole(sum(number * size for number, size in parts), text, what, examples)


def _duration_parts(text: str) -> list[tuple[Fraction, int]]:
    """The numbers of a duration and their units in milliseconds; empty for other texts."""
    word = text.strip().lower()
    parts = _PART.findall(word) if _DURATION.fullmatch(word) else []
    if not all(unit in _TIMES for _, unit in parts):
        return []
    return [(_number(digits), _TIMES[unit]) for digits, unit in parts]


def parse_count(text: str) -> int:
    """Parse an integer, also as `10k` or `1M` (decimal); `none` is 0."""
    units = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9}
    return _parse(text, units, "a number", "5000, 10k or 1M")


def parse_moment(text: str, *, now_ms: int) -> int:
    """Parse an ISO 8601 time (local without a zone), or a duration before now, to Unix
    milliseconds.

    Raises: typer.BadParameter.
    """
    if _duration_parts(text):
        return now_ms - parse_duration(text)
    try:
        return int(datetime.fromisoformat(text.strip()).astimezone().timestamp() * 1_000)
    except (ValueError, OverflowError):
        raise typer.BadParameter(
            f"{text!r} is not a time: expected 2026-01-31T12:00:00Z, or 7d for a week ago"
        ) from None


def _parse(text: str, units: dict[str, int], what: str, examples: str) -> int:
    if _is_zero(text):
        return 0
    matched = _NUMBER.fullmatch(text.strip().lower())
    if matched is None or matched[2] not in units:
        raise typer.BadParameter(f"{text!r} is not {what}: expected {examples}")
    return _whole(_number(matched[1]) * units[matched[2]], text, what, examples)


def _is_zero(text: str) -> bool:
    word = text.strip().lower()
    return word in NO_LIMIT or word == "0"


def _number(digits: str) -> Fraction:
    return Fraction(digits.replace("_", "").replace(",", ""))


def _whole(value: Fraction | int, text: str, what: str, examples: str) -> int:
    if value.denominator != 1:
        raise typer.BadParameter(f"{text!r} is not {what} in whole units: expected {examples}")
    if value > VALUE_MAX:
        raise typer.BadParameter(f"{text!r} is too large for {what}: expected {examples}")
    return int(value)


def bytes_text(count: float) -> str:
    """`1.5 MiB`."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(count) < 1_024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1_024
    return f"{count:.1f} TiB"


def count_text(count: float) -> str:
    """At most five characters: `0`, `950`, `12.3k`, `4.5M`."""
    for unit in ("", "k", "M", "G"):
        if abs(count) < 999.5:
            return f"{count:.0f}{unit}" if unit == "" or count >= 99.95 else f"{count:.1f}{unit}"
        count /= 1_000
    return f"{count:.1f}T"


def duration_text(ms: int) -> str:
    """`7 d`, `90 s`, `250 ms`: the largest unit that divides evenly."""
    for unit, size in (("d", 86_400_000), ("h", 3_600_000), ("min", 60_000), ("s", 1_000)):
        if ms >= size and ms % size == 0:
            return f"{ms // size} {unit}"
    return f"{ms} ms"


def moment_text(ms: int) -> str:
    """UTC, to the second; milliseconds where that is no date, as a publisher may say."""
    try:
        return datetime.fromtimestamp(ms / 1_000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    except (ValueError, OverflowError, OSError):
        return f"{ms} ms"
