"""Strict parsing of Spark options. Error texts name the option, its value and what was expected.

`given` maps lower-case names to texts, because Spark ignores the case of option names. Every
function raises ConfigError for a text that it cannot parse.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from difflib import get_close_matches
from typing import Final, TypeVar

from bascule.errors import ConfigError

_MS: Final = {"ms": 1, "s": 1_000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}
_DURATION: Final = re.compile(r"(\d+)\s*([a-z]+)")

T = TypeVar("T", int, int | None)


def unknown_option_text(name: str, known: Mapping[str, str], *, of: str = "") -> str:
    """Return the error text for a name that is not in `known`, a map from lower-case name to
    name."""
    near = get_close_matches(name, known, n=1, cutoff=0.5)
    hint = f"did you mean {known[near[0]]!r}?" if near else f"known: {', '.join(known.values())}"
    return f"option {name!r} is unknown{of}; {hint}"


def count_of(name: str, given: Mapping[str, str], default: T) -> int | T:
    """Parse an integer of at least 1."""
    text = given.get(name.lower())
    if text is None:
        return default
    if not text.strip().isdecimal() or int(text) < 1:
        raise ConfigError(f"option {name!r} is {text!r}: expected a whole number of at least 1")
    return int(text)


def ms_of(name: str, given: Mapping[str, str], default: int) -> int:
    """Parse a duration with a unit; return milliseconds."""
    text = given.get(name.lower())
    if text is None:
        return default
    matched = _DURATION.fullmatch(text.strip().lower())
    if matched is None or matched[2] not in _MS or not int(matched[1]):
        raise ConfigError(f"option {name!r} is {text!r}: expected a time such as 500ms, 30s or 15m")
    return int(matched[1]) * _MS[matched[2]]


def flag_of(name: str, given: Mapping[str, str], *, default: bool) -> bool:
    return word_of(name, given, ("true", "false"), default=str(default).lower()) == "true"


def word_of(name: str, given: Mapping[str, str], words: tuple[str, ...], *, default: str) -> str:
    """Parse one of `words`; case is ignored."""
    text = given.get(name.lower(), default)
    word = text.strip().lower()
    if word not in words:
        expected = f"{', '.join(words[:-1])} or {words[-1]}"
        raise ConfigError(f"option {name!r} is {text!r}: expected {expected}")
    return word
