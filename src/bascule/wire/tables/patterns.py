"""Patterns of the keys of a table, with the wildcards of NATS subjects."""

from __future__ import annotations

import re
from collections.abc import Sequence
from enum import Enum
from typing import Final, TypeAlias
from urllib.parse import unquote_to_bytes

from bascule.errors import InvalidPattern
from bascule.wire.tables.keys import KEY_BYTES_MAX, check_key, escape, unescape

SUBJECT_BYTES_MAX: Final = 3 * KEY_BYTES_MAX
"""A byte of a key has up to three in a subject."""


class Wildcard(Enum):
    """A token of a pattern; the value is how it is written."""

    ONE = b"*"
    REST = b">"


Token: TypeAlias = bytes | Wildcard

_WILDCARDS: Final = {each.value: each for each in Wildcard}
_EXPRESSIONS: Final = {Wildcard.ONE: b"[^.]+", Wildcard.REST: b".+"}
_OF_SUBJECTS: Final = b"(?#of subjects)"
"""Matches nothing, so it is a comment: such an expression is compared with subjects."""


class KeyPattern:
    """A pattern: tokens with dots between, of which ``*`` stands for any token and ``>``, as the
    last one, for one or more.

    Tokens are those of keys; of a filter of NATS subjects (`of_subject`) those of their subjects.
    These differ where a dot of a key separates no tokens, and is escaped in its subject.
    """

    __slots__ = ("_is_of_subject", "_match", "expression", "literal", "prefix", "text")

    def __init__(
        self,
        text: bytes,
        tokens: Sequence[Token] | None = None,
        *,
        in_subject: Sequence[Token] | None = None,
    ) -> None:
        """`tokens`: what it consists of, where `text` does not say it; `in_subject`: the same as
        written in subjects, which keys are compared as then. Raises: InvalidPattern."""
        if tokens is None:
            tokens = _tokens(text, KEY_BYTES_MAX)
        self.text = text
        head: list[bytes] = []
        for token in tokens:
            if isinstance(token, Wildcard):
                break
            head.append(token)
        self.literal: bytes | None = b".".join(head) if len(head) == len(tokens) else None
        """The only key that matches, if the pattern has no wildcard."""
        self.prefix = b".".join([*head, b""]) if self.literal is None else self.literal
        """What all keys that match begin with."""
        compared = tokens if in_subject is None else in_subject
        self.expression = (b"" if in_subject is None else _OF_SUBJECTS) + b"\\.".join(
            _EXPRESSIONS[token] if isinstance(token, Wildcard) else re.escape(token)
            for token in compared
        )
        """A regular expression, the same for patterns that match the same keys."""
        self._match = re.compile(self.expression, re.DOTALL).fullmatch
        self._is_of_subject = in_subject is not None

    @classmethod
    def of_key(cls, key: bytes) -> KeyPattern:
        """The pattern that one key matches, with or without a wildcard in it. Raises:
        InvalidKey."""
        check_key(key)
        return cls(key, [key])

    @classmethod
    def of_subject(cls, part: bytes) -> KeyPattern:
        """What a filter of NATS subjects means, without the prefix of the table's subjects: a
        wildcard that is escaped, as ``%2A``, is a part of a key. Raises: InvalidPattern,
        InvalidKey."""
        tokens = _tokens(part, SUBJECT_BYTES_MAX)
        if not any(isinstance(token, Wildcard) for token in tokens):
            return cls.of_key(_unescaped(part, part))
        if tokens == [Wildcard.REST]:
            return cls(part)
        return cls(
            part,
            [each if isinstance(each, Wildcard) else _unescaped(each, part) for each in tokens],
            in_subject=tokens,
        )

    @property
    def has_literal_wildcard(self) -> bool:
        """Whether it is for one key, whose text is that of another pattern or of none."""
        return self.literal is not None and any(each in self.literal for each in _WILDCARDS)

    def matches(self, key: bytes) -> bool:
        return self._match(escape(key) if self._is_of_subject else key) is not None

    def __repr__(self) -> str:
        return f"KeyPattern({self.text!r})"


def is_pattern(text: bytes) -> bool:
    """Whether a text has a wildcard, so that it is a pattern and not a key or a prefix."""
    return any(token in _WILDCARDS for token in text.split(b"."))


def _tokens(text: bytes, bytes_max: int) -> list[Token]:
    """Raises: InvalidPattern."""
    if not 0 < len(text) <= bytes_max:
        raise InvalidPattern(text, f"it has {len(text)} bytes, expected 1 to {bytes_max}")
    tokens: list[Token] = [_WILDCARDS.get(token, token) for token in text.split(b".")]
    if Wildcard.REST in tokens[:-1]:
        raise InvalidPattern(text, "> stands for the rest, so it has to be the last token")
    for token in tokens:
        if isinstance(token, bytes) and any(wildcard in token for wildcard in _WILDCARDS):
            raise InvalidPattern(text, "a wildcard, * or >, has to be a token of its own")
    return tokens


def _unescaped(part: bytes, pattern: bytes) -> bytes:
    """Raises: InvalidPattern if no key of a table has such a subject."""
    key = unescape(part)
    if key is None:
        wanted = escape(unquote_to_bytes(part)).decode() or "1 byte or more"
        found = part.decode("utf-8", "backslashreplace")
        raise InvalidPattern(pattern, f"found {found} in the subject, expected {wanted}")
    return key
