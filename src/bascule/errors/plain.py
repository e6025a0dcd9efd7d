"""Errors as plain values, so that one node can raise what another one found."""

from __future__ import annotations

from typing import Any

from bascule import errors


def to_plain(error: errors.BasculeError) -> tuple[str, str, dict[str, Any]]:
    """Class name, text, and the fields that MessagePack can hold."""
    fields = {name: value for name, value in vars(error).items() if not name.startswith("_")}
    return type(error).__name__, str(error), fields


def from_plain(name: str, text: str, fields: dict[str, Any]) -> errors.BasculeError:
    """The error again; one of an unknown class is a `Broken` with the same text."""
    kind = _classes().get(name, errors.Broken)
    error: errors.BasculeError = kind.__new__(kind)
    Exception.__init__(error, text)
    vars(error).update(fields)
    return error


def _classes() -> dict[str, type[errors.BasculeError]]:
    """All error classes that are loaded, by name."""
    found: dict[str, type[errors.BasculeError]] = {}
    below: list[type[errors.BasculeError]] = [errors.BasculeError]
    while below:
        kind = below.pop()
        found[kind.__name__] = kind
        below += kind.__subclasses__()
    return found
