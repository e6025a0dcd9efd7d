"""Rows as messages: what they carry, what is left out, and their ids."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bascule.errors import ConfigError
from bascule.pipeline.jobs.replay.messages import (
    ORIGINAL_HEADERS,
    MessageBuilder,
    mapped_subject,
    with_headers,
    without_publish_headers,
)
from bascule.pipeline.jobs.replay.spec import ReplaySpec, offset_of
from bascule.pipeline.jobs.rows import archive_schema
from bascule.pipeline.jobs.tables import TableSpec
from bascule.record.columns import HEADERS_TYPE

NAMES = st.sampled_from(["reply", "H", "Nats-Msg-Id", "BASCULE-ACK", "Bascule-Original-Offset"])
ENTRIES = st.lists(st.tuples(NAMES, st.binary(max_size=3)), max_size=4)
LISTS = st.lists(ENTRIES, max_size=6)


def lists(headers: list[list[tuple[str, bytes]]]) -> pa.ListArray:
    rows = [[{"key": k, "value": v} for k, v in row] for row in headers]
    # A slice of something larger: offsets do not begin at 0.
    return pa.array([[{"key": "x", "value": b"y"}], *rows], HEADERS_TYPE).slice(1)


def pairs(array: pa.ListArray) -> list[list[tuple[str, bytes]]]:
    return [[(e["key"], e["value"]) for e in row] for row in array.to_pylist()]


@given(LISTS)
def test_orders_to_the_old_stream_are_left_out(headers: list[list[tuple[str, bytes]]]) -> None:
    expected = [
        [
            (name, value)
            for at, (name, value) in enumerate(row)
            if name == "H" or (name == "reply" and at > 0)
        ]
        for row in headers
    ]
    assert pairs(without_publish_headers(lists(headers))) == expected


@given(LISTS)
def test_headers_are_added_behind(headers: list[list[tuple[str, bytes]]]) -> None:
    texts = pa.array([str(n) for n in range(len(headers))], pa.string())
    got = pairs(with_headers(lists(headers), {"A": texts, "B": texts}))
    assert got == [[*row, ("A", b"%d" % n), ("B", b"%d" % n)] for n, row in enumerate(headers)]


def rows(**more: Any) -> pa.RecordBatch:
    row = {
        "key": b"k", "value": b"v", "subject": "a.b.c", "partition": 3, "offset": 41,
        "timestamp": datetime(2026, 1, 1, tzinfo=UTC), "headers": [{"key": "H", "value": b"x"}],
    } | more  # fmt: skip
    return pa.RecordBatch.from_pylist([row], archive_schema(pa.binary(), raw=False))


def test_a_message_is_the_record_and_where_it_was() -> None:
    [message] = MessageBuilder("abcd").make(rows()).to_pylist()
    assert message == {
        "subject": "a.b.c", "key": b"k", "value": b"v", "message_id": "abcd.3.41",
        "headers": [
            {"key": "H", "value": b"x"},
            {"key": ORIGINAL_HEADERS[0], "value": b"1767225600000"},
            {"key": ORIGINAL_HEADERS[1], "value": b"41"},
            {"key": ORIGINAL_HEADERS[2], "value": b"3"},
        ],
    }  # fmt: skip


def test_a_tombstone_stays_one() -> None:
    maker = MessageBuilder("abcd", subject="copy.{subject}", original_headers=False)
    [message] = maker.make(rows(value=None, key=None, headers=[])).to_pylist()
    assert (message["value"], message["key"], message["headers"]) == (None, None, [])
    assert message["subject"] == "copy.a.b.c"


@pytest.mark.parametrize(
    ("pattern", "subject"),
    [
        ("x.{subject}", "x.a.b"),
        ("{2}.{1}", "b.a"),
        ("fixed", "fixed"),
        ("{3}", "{3}"),
    ],
)
def test_subjects_are_mapped(pattern: str, subject: str) -> None:
    assert mapped_subject(pattern, "a.b") == subject


def test_what_is_asked_is_checked() -> None:
    table = TableSpec(location="/lake")
    with pytest.raises(ConfigError, match="in braces"):
        ReplaySpec(name="r", to="s", table=table, subject="x.{0}")
    assert ReplaySpec(name="r", to="s", table=table, subject="x.{1}").is_mapped()
    assert offset_of({"3": 7}, 3) == 7
    assert offset_of({"3": 7}, 2) is None
    assert offset_of(5, 2) == 5
    with pytest.raises(ConfigError, match="not a number"):
        ReplaySpec(name="r", to="s", table=table, start_offset={"x": 7})
