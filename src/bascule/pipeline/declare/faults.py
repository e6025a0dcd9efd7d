"""Collects the faults of a declaration, so that one check reports all of them. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Final, Literal, TypeVar, get_args, get_origin

import msgspec

from bascule.errors import BasculeError, InvalidDeclaration
from bascule.pipeline.declare.sections import NAME_PATTERN

FAULTS_MAX: Final = 50
"""Faults that are listed. A file with more is probably not a declaration."""

_AT: Final = re.compile(r"^(.*) - at `(?:key in )?\$(.*)`$", re.DOTALL)
"""Form of msgspec's errors inside a value: `Expected ..., got ... - at `$.format``."""

T = TypeVar("T")


class DeclarationFaults:
    """The faults of one file, in the order in which they were found, and the keys at fault."""

    def __init__(self, origin: str) -> None:
        self._origin = origin
        self._texts: list[str] = []
        self._keys: set[str] = set()
        self._raised: set[str] = set()

    def add(self, key: str, text: str) -> None:
        """Add a fault. `key` is the dotted key at fault; `text` names it for the user."""
        self._keys.add(key)
        shown = f"{self._origin}:{text}"
        if shown not in self._texts:
            self._texts.append(shown)

    def __contains__(self, key: object) -> bool:
        """Whether a fault is about this dotted key or about a key inside it."""
        return any(found == key or found.startswith(f"{key}.") for found in self._keys)

    def attempt(self, key: str, shown: str, call: Callable[[], T]) -> T | None:
        """Return the result of `call`; None if it raised. The error is a fault of `key`.

        An error with the same text is one fault, whichever check found it first.
        """
        try:
            return call()
        except BasculeError as error:
            for text in faults_in(error):
                if text not in self._raised:
                    self.add(key, f"{shown}: {text}")
                self._raised.add(text)
            return None

    def refuse(self) -> None:
        """Raises: InvalidDeclaration if there is a fault."""
        if self._texts:
            more = len(self._texts) - FAULTS_MAX
            rest = [f"{self._origin}: and {more} more"] if more > 0 else []
            raise InvalidDeclaration([*self._texts[:FAULTS_MAX], *rest])


def faults_in(error: BasculeError) -> tuple[str, ...]:
    """The texts of all faults that an error reports."""
    return error.faults if isinstance(error, InvalidDeclaration) else (str(error),)


def faults_of_options(
    parse: Callable[[dict[str, str]], object],
    options: Mapping[str, str],
    *,
    base: Mapping[str, str],
) -> list[str]:
    """The faults of options, although `parse` raises at the first one.

    Each option is parsed beside those in `base`, which the others may need. The options that are
    not wrong alone are then parsed together.
    """
    found: dict[str, None] = {}
    sound = dict(options)
    for name, text in options.items():
        try:
            parse({**base, name: text})
        except BasculeError as error:
            found[str(error)] = None
            del sound[name]
    try:
        parse(sound)
    except BasculeError as error:
        found[str(error)] = None
    return list(found)


def convert(value: Any, kind: Any, faults: DeclarationFaults, key: str) -> Any:
    """Convert the value of a key to a type; None if it does not fit, which is a fault."""
    try:
        return msgspec.convert(value, kind, str_keys=True)
    except msgspec.ValidationError as error:
        faults.add(key, _wrong_text(str(error), key, kind))
    except BasculeError as error:
        faults.add(key, f"{key}: {error}")
    return None


def _wrong_text(text: str, key: str, kind: Any) -> str:
    """Convert msgspec's text about the value of a key to `table.format is wrong: expected ...`."""
    matched = _AT.match(text)
    what, inner = (matched[1], matched[2]) if matched else (text, "")
    missing = re.match(r"Object missing required field `(.+)`", what)
    if missing:
        return f"{key}{inner}.{missing[1]} is missing"
    if "enum value" in what and get_origin(kind) is Literal:
        what += f"; expected one of {', '.join(get_args(kind))}"
    what = what.replace(f"matching regex {NAME_PATTERN!r}", "of letters, digits, dot, _ and -")
    return f"{key}{inner} is wrong: {what[:1].lower()}{what[1:].replace('`', '')}"
