"""Keys of tables, their subjects and the keys of their records."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bascule.errors import InvalidKey, InvalidName
from bascule.model import Cleanup, KeyFrom, StreamConfig
from bascule.wire.subjects import check_subject
from bascule.wire.tables.keys import (
    KEY_BYTES_MAX,
    TableKeys,
    bucket_subject,
    escape,
    prefix_end,
    unescape,
    why_no_table,
)

KEYS = st.binary(min_size=1, max_size=40) | st.text("ab.%/ é", min_size=1).map(str.encode)


def config(**settings: object) -> StreamConfig:
    defaults = {
        "subject": bucket_subject("sessions"),
        "cleanup": (Cleanup.COMPACT,),
        "key_from": KeyFrom.SUBJECT,
    }
    return StreamConfig(**{**defaults, **settings})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("key", "part"),
    [
        (b"user.7", b"user.7"),
        (b"a/b=c-d_E9", b"a/b=c-d_E9"),
        (b"a b", b"a%20b"),
        (b"a%20b", b"a%2520b"),
        (b"*", b"%2A"),
        (b">", b"%3E"),
        (b".", b"%2E"),
        (b".a", b"%2Ea"),
        (b"a.", b"a%2E"),
        (b"a..b", b"a.%2Eb"),
        ("ü".encode(), b"%C3%BC"),
        (b"\x00\xff", b"%00%FF"),
    ],
)
def test_escaped_keys(key: bytes, part: bytes) -> None:
    assert escape(key) == part
    assert unescape(part) == key


@given(KEYS)
def test_each_key_is_a_subject_of_its_own(key: bytes) -> None:
    keys = TableKeys(config())
    subject = keys.subject(key)
    check_subject(subject, wildcards=False)
    assert keys.table_key(subject.encode()) == key
    assert keys.record_key(key) == subject.encode()


@given(st.binary(min_size=1, max_size=20) | st.text("a.%24EF", min_size=1).map(str.encode))
def test_what_is_not_an_escaped_key_is_none(part: bytes) -> None:
    key = unescape(part)
    assert key is None or escape(key) == part


def test_keys_of_records_that_are_no_subjects_stay_as_they_are() -> None:
    keys = TableKeys(config(subject="sessions", key_from=KeyFrom.HEADER))
    assert keys.record_key(b"a b") == b"a b"
    assert keys.table_key(b"a b") == b"a b"
    assert keys.subject(b"a b") == "sessions"


def test_keys_have_1_to_1024_bytes() -> None:
    for keys in (TableKeys(config()), TableKeys(config(subject="s", key_from=KeyFrom.HEADER))):
        assert keys.record_key(b"k" * KEY_BYTES_MAX)
        with pytest.raises(InvalidKey, match="it has 1025 bytes, expected 1 to 1024"):
            keys.record_key(b"k" * 1025)
        with pytest.raises(InvalidKey, match="it has 0 bytes"):
            keys.subject(b"")
        assert keys.table_key((keys.prefix or b"") + b"k" * 1025) is None
        assert keys.table_key(keys.prefix or b"") is None


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({}, None),
        ({"cleanup": (Cleanup.COMPACT, Cleanup.DELETE)}, None),
        ({"key_from": KeyFrom.HEADER, "subject": "a.*.b"}, None),
        ({"cleanup": (Cleanup.DELETE,)}, "its cleanup is delete, expected compact"),
        ({"subject": "a.*.>"}, "as only wildcard"),
        ({"subject": "a"}, "as only wildcard"),
        ({"subject": ">"}, "as only wildcard"),
        ({"partitions": 2}, "a table has one"),
    ],
)
def test_streams_that_can_be_tables(settings: dict[str, object], why: str | None) -> None:
    found = why_no_table(config(**settings))
    assert found is None if why is None else why in str(found)


@given(st.binary(max_size=4), st.binary(max_size=6))
def test_the_end_of_a_prefix(prefix: bytes, key: bytes) -> None:
    end = prefix_end(prefix)
    assert key.startswith(prefix) == (prefix <= key and (end is None or key < end))


def test_a_subject_is_refused_where_a_key_would_not_be() -> None:
    with pytest.raises(InvalidName):
        check_subject("$KV.sessions.a b", wildcards=False)
