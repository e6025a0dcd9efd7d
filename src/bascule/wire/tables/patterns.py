"""Patterns of the keys of a table, with the wildcards of NATS subjects."""

from __future__ import annotations

import re
from typing import Final

from bascule.errors import InvalidPattern
from bascule.wire.tables.keys import KEY_BYTES_MAX

_ONE: Final = b"*"
_REST: Final = b">"


class KeyPattern:
    """A pattern: tokens with dots between, of which ``*`` stands for any token and ``>``, as the
    last one, for one or more.
    """

    __slots__ = ("_match", "literal", "prefix", "text")

    def __init__(self, text: bytes) -> None:
        """Raises: InvalidPattern."""
        _check(text)
        self.text = text
        tokens = text.split(b".")
        wild = next((n for n, token in enumerate(tokens) if token in (_ONE, _REST)), len(tokens))
        self.literal: bytes | None = text if wild == len(tokens) else None
        """The only key that matches, if the pattern has no wildcard."""
        self.prefix = text if self.literal else b".".join([*tokens[:wild], b""])
        """What all keys that match begin with."""
        self._match = re.compile(b"\\.".join(map(_expression, tokens)), re.DOTALL).fullmatch

    def matches(self, key: bytes) -> bool:
        return self._match(key) is not None

    def __repr__(self) -> str:
        return f"KeyPattern({self.text!r})"


def is_pattern(text: bytes) -> bool:
    """Whether a text has a wildcard, so that it is a pattern and not a key or a prefix."""
    return any(token in (_ONE, _REST) for token in text.split(b"."))


def _check(text: bytes) -> None:
    if not 0 < len(text) <= KEY_BYTES_MAX:
        raise InvalidPattern(text, f"it has {len(text)} bytes, expected 1 to {KEY_BYTES_MAX}")
    *first, _ = tokens = text.split(b".")
    if _REST in first:
        raise InvalidPattern(text, "> stands for the rest, so it has to be the last token")
    for token in tokens:
        if token not in (_ONE, _REST) and (_ONE in token or _REST in token):
            raise InvalidPattern(text, "a wildcard, * or >, has to be a token of its own")


def _expression(token: bytes) -> bytes:
    if token == _ONE:
        return b"[^.]+"
    return b".+" if token == _REST else re.escape(token)
