"""Patterns of keys."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from bascule.errors import InvalidKey, InvalidPattern
from bascule.wire.tables.keys import escape
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


def of_nats(pattern: bytes, subject: bytes) -> bool:
    """Whether a subscription gets a subject, as the NATS server compares them."""
    wanted, found = pattern.split(b"."), subject.split(b".")
    for at, token in enumerate(wanted):
        if token == b">":
            return len(found) > at
        if at >= len(found) or token not in (b"*", found[at]):
            return False
    return len(wanted) == len(found)


@given(
    st.lists(st.sampled_from([b"a", b".", b".", b"*", b"%", b"\xff"]), min_size=1, max_size=7),
    st.lists(st.sampled_from([b"*", b"*", b"a", b"%2E", b"%2Ea", b"a%2E", b"%2A"]), max_size=4),
    st.booleans(),
)
@example([b".", b"x"], [b"*"], False)
@example([b"x", b"."], [b"*"], False)
@example([b"a", b".", b".", b"b"], [b"a", b"*"], False)
def test_a_filter_of_subjects_matches_as_a_subscription_does(
    parts: list[bytes], tokens: list[bytes], has_rest: bool
) -> None:
    """A key with a dot at its beginning or end, or two in a row, matched no `*`."""
    key, text = b"".join(parts), b".".join([*tokens, *([b">"] if has_rest else [])])
    try:
        pattern = KeyPattern.of_subject(text)
    except InvalidPattern:
        return
    assert pattern.matches(key) is of_nats(text, escape(key))
    assert not pattern.matches(key) or key.startswith(pattern.prefix)


def test_patterns_of_keys_and_of_subjects_are_told_apart() -> None:
    """Watchers of one expression are told the same."""
    of_keys, of_subjects = KeyPattern(b"*"), KeyPattern.of_subject(b"*")
    assert of_keys.expression != of_subjects.expression
    assert of_subjects.expression == KeyPattern.of_subject(b"*").expression
    assert KeyPattern(b">").expression == KeyPattern.of_subject(b">").expression
    assert (of_keys.matches(b".x"), of_subjects.matches(b".x")) == (False, True)


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
