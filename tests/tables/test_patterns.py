"""Patterns of keys."""

from __future__ import annotations

import pytest

from bascule.errors import InvalidKey, InvalidPattern
from bascule.wire.tables.patterns import KeyPattern, is_pattern


def test_patterns() -> None:
    keys = [
        b"user",
        b"user.1",
        b"user.1.name",
        b"user.2.name",
        b"u.*",
        b"a b.\xff",
        b"..",
        b"x\n.y",
    ]

    def matching(text: bytes) -> list[bytes]:
        pattern = KeyPattern(text)
        found = [key for key in keys if pattern.matches(key)]
        assert all(key.startswith(pattern.prefix) for key in found)
        return found

    assert matching(b">") == keys
    assert matching(b"*") == [b"user"]
    assert matching(b"user.*") == [b"user.1"]
    assert matching(b"user.>") == [b"user.1", b"user.1.name", b"user.2.name"]
    assert matching(b"user.*.name") == [b"user.1.name", b"user.2.name"]
    assert matching(b"*.*") == [b"user.1", b"u.*", b"a b.\xff", b"x\n.y"]
    assert matching(b"user") == [b"user"]
    assert KeyPattern(b"user").literal == b"user"
    assert KeyPattern(b"user.*").literal is None
    assert [is_pattern(text) for text in (b"user", b"a.*", b">", b"a*")] == [
        False,
        True,
        True,
        False,
    ]
    for text in (b"", b">.a", b"a.b*", b"a>", b"x" * 1025):
        with pytest.raises(InvalidPattern):
            KeyPattern(text)


def test_an_escaped_wildcard_in_a_subject_is_a_part_of_a_key() -> None:
    keys = [b"*", b">", b"a*b", b"other", b"q.>", b"q.*", b"q.z", b"q.z.y", b"a b", b"a..b", b"%zz"]

    def matching(part: bytes) -> list[bytes]:
        pattern = KeyPattern.of_subject(part)
        found = [key for key in keys if pattern.matches(key)]
        assert all(key.startswith(pattern.prefix) for key in found)
        assert pattern.literal is None or found == [pattern.literal]
        return found

    assert matching(b"%2A") == [b"*"]
    assert matching(b"%3E") == [b">"]
    assert matching(b"a%2Ab") == [b"a*b"]
    assert matching(b"q.%3E") == [b"q.>"]
    assert matching(b"*.%2A") == [b"q.*"]
    assert matching(b"q.*") == [b"q.>", b"q.*", b"q.z"]
    assert matching(b"q.>") == [b"q.>", b"q.*", b"q.z", b"q.z.y"]
    assert matching(b"a%20b") == [b"a b"]
    assert matching(b"a.%2Eb") == [b"a..b"]
    assert matching(b"%25zz") == [b"%zz"]
    assert KeyPattern.of_subject(b"%FF" * 1024).literal == b"\xff" * 1024
    for part, says in (
        (b"", "0 bytes"), (b"%zz", "expected %25zz"), (b"a%2ab", "expected a%2Ab"),
        (b"a%2E.b", "expected a.%2Eb"), (b"%zz.*", "expected %25zz"), (b">.a", "the rest"),
    ):  # fmt: skip
        with pytest.raises(InvalidPattern, match=says):
            KeyPattern.of_subject(part)
    with pytest.raises(InvalidKey):
        KeyPattern.of_subject(b"k" * 1025)
