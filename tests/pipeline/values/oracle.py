"""What a JSON value becomes, worked out slowly by the standard library alone."""

from __future__ import annotations

import base64
import codecs
import datetime
import json
import math
import re
from decimal import Decimal
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import pyarrow as pa

UTC = ZoneInfo("UTC")
BAD = object()
"""Stands for a value that does not parse."""


class Malformed(Exception):
    pass


class Number(str):
    """A JSON number as it is written."""


class Members(list[tuple[str, Any]]):
    """The members of a JSON object as they are written, names perhaps twice."""


NOT_A_CHARACTER = "\U0010fffe"
"""Stands for bytes that are not UTF-8, which do no harm where nobody looks."""
codecs.register_error("not-a-character", lambda error: (NOT_A_CHARACTER, error.end))  # type: ignore[attr-defined]


def decoded(value: bytes | None, kind: pa.StructType) -> Any:
    """The row of one value; None for null, BAD where it is malformed."""
    if value is None:
        return None
    try:
        found = json.loads(
            value.decode("utf-8", "not-a-character"),
            parse_int=Number,
            parse_float=Number,
            parse_constant=refuse,
            object_pairs_hook=members,
        )
        no_surrogates(found)
        return convert(found, kind)
    except (Malformed, ValueError, ArithmeticError, RecursionError):
        return BAD


def members(pairs: list[tuple[str, Any]]) -> Members:
    return Members(pairs)


def no_surrogates(found: Any) -> None:
    """Half a pair of escapes is no text, wherever it stands. How deep that may be is up to the
    parser, and differs between versions of Python."""
    left = [found]
    while left:
        item = left.pop()
        if isinstance(item, str):
            item.encode()
        elif isinstance(item, (list, tuple)):
            left += item


def refuse(word: str) -> Any:
    raise Malformed(word)


def convert(found: Any, kind: pa.DataType) -> Any:
    if pa.types.is_struct(kind):
        need(isinstance(found, Members))
        return {field.name: member(found, field) for field in kind}
    if pa.types.is_list(kind):
        need(type(found) is list)
        return [None if item is None else convert(item, kind.value_type) for item in found]
    if pa.types.is_map(kind):
        need(isinstance(found, Members))
        entries = {}
        for key, item in found:
            entries[text(key)] = None if item is None else convert(item, kind.item_type)
        return list(entries.items())
    if pa.types.is_boolean(kind):
        need(isinstance(found, bool))
        return found
    if pa.types.is_integer(kind):
        need(isinstance(found, Number) and re.fullmatch(r"-?\d{1,30}", found))
        need(-(1 << kind.bit_width - 1) <= int(found) < 1 << kind.bit_width - 1)
        return int(found)
    if pa.types.is_floating(kind):
        need(isinstance(found, Number))
        number = float(int(found)) if re.fullmatch(r"-?\d{1,400}", found) else float(found)
        if kind.bit_width == 32:
            with np.errstate(over="ignore", under="ignore"):
                number = float(np.float32(number))
        need(math.isfinite(number))
        return number
    if pa.types.is_decimal(kind):
        return decimal(found, kind)
    return textual(text(found), kind)


def member(found: Members, field: pa.Field) -> Any:
    """The last member of the field's name counts; all of them must be right."""
    last = None
    for value in (value for name, value in found if name == field.name):
        need(value is not None or field.nullable)
        last = None if value is None else convert(value, field.type)
    need(field.nullable or last is not None)
    return last


def decimal(found: Any, kind: pa.DataType) -> Decimal:
    number = Decimal(found) if isinstance(found, Number) else Decimal(text(found))
    need(number.is_finite())
    need(abs(number.adjusted()) <= 200)
    need(number == 0 or number.adjusted() < kind.precision - kind.scale)
    rounded = round(number, kind.scale) if number else Decimal(0)
    need(rounded == number)
    return Decimal(0).scaleb(-kind.scale) + rounded


def text(found: Any) -> str:
    need(isinstance(found, str))
    need(not isinstance(found, Number))
    need(NOT_A_CHARACTER not in found)
    return str(found)


def textual(found: str, kind: pa.DataType) -> Any:
    if pa.types.is_string(kind):
        need(True)
        return found
    if pa.types.is_binary(kind):
        need(re.fullmatch(r"[A-Za-z0-9+/=]*", found))
        return base64.b64decode(found, validate=True)
    if pa.types.is_date(kind):
        need(re.fullmatch(r"\d{4}-\d\d-\d\d", found, re.ASCII))
        return datetime.date.fromisoformat(found)
    return time(found, kind.tz is not None)


TIME = re.compile(
    r"(\d{4}-\d\d-\d\d)(?:[T ](\d\d)(?::(\d\d)(?::(\d\d)(?:\.(\d{1,9}))?)?)?"
    r"(Z|[+-]\d\d(?::?\d\d)?)?)?",
    re.ASCII,
)


def time(found: str, has_zone: bool) -> datetime.datetime:
    match = TIME.fullmatch(found)
    need(match)
    assert match is not None
    day, hour, minute, second, fraction, zone = match.groups()
    need(has_zone or zone is None)
    moment = datetime.datetime.combine(
        datetime.date.fromisoformat(day),
        datetime.time(
            int(hour or 0),
            int(minute or 0),
            int(second or 0),
            int((fraction or "0")[:6].ljust(6, "0")),
        ),
    )
    if not has_zone:
        return moment
    if zone not in (None, "Z"):
        hours, minutes = int(zone[1:3]), int(zone[3:].strip(":") or 0)
        need(hours < 24)
        need(minutes < 60)
        away = datetime.timedelta(hours=hours, minutes=minutes)
        moment -= away if zone[0] == "+" else -away
    return moment.replace(tzinfo=UTC)


def need(fact: object) -> None:
    if not fact:
        raise Malformed
