"""The subject and value of a commit are unambiguous, and other text is refused."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bascule.errors import InvalidName
from bascule.wire.offsets import (
    METADATA_BYTES_MAX,
    OFFSETS_SUBJECT,
    Commit,
    OffsetKey,
    check_consumer,
    commit_subject,
    decode_commit,
    encode_commit,
    parse_commit_subject,
)
from bascule.wire.subjects import check_subject

NAMES = st.text(min_size=1, max_size=40).filter(lambda text: text.isprintable())
STREAMS = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,40}", fullmatch=True)


@given(NAMES, STREAMS, st.integers(0, (1 << 31) - 1))
def test_a_subject_is_read_back(consumer: str, stream: str, partition: int) -> None:
    key = OffsetKey(consumer, stream, partition)
    subject = commit_subject(key)
    check_subject(subject, wildcards=False)
    assert len(subject.split(".")) == len(OFFSETS_SUBJECT.split("."))
    assert parse_commit_subject(subject) == key


def test_subjects_are_as_documented() -> None:
    assert (
        commit_subject(OffsetKey("billing", "flights", 0)) == "_bascule.offsets.billing.flights.0"
    )
    assert (
        commit_subject(OffsetKey("com.example app", "eu.flights", 12))
        == "_bascule.offsets.com%2Eexample%20app.eu%2Eflights.12"
    )


@pytest.mark.parametrize(
    "subject",
    [
        "_bascule.offsets.c.s",
        "_bascule.offsets.c.s.0.1",
        "_bascule.offsets.c.s.x",
        "_bascule.offsets.c.s.-1",
        "_bascule.offsets.c.s.00",
        "_bascule.offsets.c.s.2147483648",
        "_bascule.offsets..s.0",
        "_bascule.offsets.c..0",
        "_bascule.offsets.%63.s.0",
        "_bascule.offsets.c%2e.s.0",
        "_bascule.offsets.c%FF.s.0",
        "_bascule.offsets.c%0A.s.0",
        "_bascule.offsets." + "c" * 201 + ".s.0",
        "_bascule.offsets.c.s.²",
        "offsets.c.s.0",
        "",
    ],
)
def test_an_invalid_subject_is_refused(subject: str) -> None:
    with pytest.raises(ValueError, match=r"expected|not valid|decode"):
        parse_commit_subject(subject)


@given(
    st.integers(0, (1 << 63) - 1),
    st.integers(-1, (1 << 31) - 1),
    st.text(max_size=50),
    st.integers(0, 1 << 45),
)
def test_a_value_is_read_back(offset: int, epoch: int, metadata: str, committed_ms: int) -> None:
    commit = Commit(offset=offset, leader_epoch=epoch, metadata=metadata, committed_ms=committed_ms)
    value = encode_commit(commit)
    assert decode_commit(value) == commit
    assert json.loads(value) == {
        "offset": offset,
        "leader_epoch": epoch,
        "metadata": metadata,
        "committed_ms": committed_ms,
    }


def test_only_the_offset_is_required_and_unknown_fields_are_ignored() -> None:
    assert decode_commit(b'{"offset": 7}') == Commit(offset=7)
    assert decode_commit(b' {"host": "a", "offset": 7} ') == Commit(offset=7)


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"7",
        b"{}",
        b"[7]",
        b'{"offset": "7"}',
        b'{"offset": 7.5}',
        b'{"offset": -1}',
        b'{"offset": 9223372036854775808}',
        b'{"offset": 7, "leader_epoch": -2}',
        b'{"offset": 7, "metadata": null}',
        b'{"offset": 7, "committed_ms": -5}',
        b'{"offset": 7} x',
        b'{"offset": 7, "metadata": "\xff"}',
        b'{"offset": 7, "metadata": "%b"}' % (b"m" * (METADATA_BYTES_MAX + 1)),
    ],
)
def test_an_invalid_value_is_refused(value: bytes) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        decode_commit(value)


@given(st.binary(max_size=80))
def test_arbitrary_bytes_are_decoded_or_refused(data: bytes) -> None:
    for read in (decode_commit, lambda raw: parse_commit_subject(raw.decode())):
        try:
            read(data)  # type: ignore[operator]
        except ValueError:
            pass


@pytest.mark.parametrize("name", ["", "a\nb", "a\x00", "x" * 201, "é" * 101])
def test_invalid_names_of_consumers_are_refused(name: str) -> None:
    with pytest.raises(InvalidName, match="consumer"):
        check_consumer(name)
