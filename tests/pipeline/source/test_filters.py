"""What a WHERE leaves to be read: every row that passes is among it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringContains,
    StringEndsWith,
    StringStartsWith,
)

from bascule.pipeline.source.filters import ALL, Interval, predicate_of

COMPARED = {
    EqualTo: lambda a, b: a == b,
    EqualNullSafe: lambda a, b: a == b,
    GreaterThan: lambda a, b: a > b,
    GreaterThanOrEqual: lambda a, b: a >= b,
    LessThan: lambda a, b: a < b,
    LessThanOrEqual: lambda a, b: a <= b,
}
comparisons = st.lists(st.tuples(st.sampled_from(list(COMPARED)), st.integers(0, 50)), max_size=4)


@given(comparisons)
def test_offsets_that_pass_are_exactly_those_of_the_interval(said: list[tuple[Any, int]]) -> None:
    predicate = predicate_of([kind(("offset",), value) for kind, value in said])
    for offset in range(60):
        passes = all(COMPARED[kind](offset, value) for kind, value in said)
        assert passes == (offset in predicate.offsets)


@given(comparisons, st.integers(0, 2_000))
def test_times_that_pass_are_in_the_interval(said: list[tuple[Any, int]], step: int) -> None:
    """Records have whole milliseconds, filters have microseconds."""
    epoch = datetime(2026, 1, 1, tzinfo=UTC)
    base = int(epoch.timestamp()) * 1000
    filters = [kind(("timestamp",), epoch + timedelta(microseconds=n * 333)) for kind, n in said]
    predicate = predicate_of(filters)
    for ms in range(20):
        passes = all(COMPARED[kind](ms * 1000, n * 333) for kind, n in said)
        assert not passes or base + ms in predicate.times_ms


def test_zones_do_not_matter() -> None:
    east = datetime(2026, 1, 1, 2, tzinfo=timezone(timedelta(hours=2)))
    [one] = [predicate_of([GreaterThan(("timestamp",), east)])]
    [other] = [predicate_of([GreaterThan(("timestamp",), datetime(2026, 1, 1, tzinfo=UTC))])]
    assert one == other
    naive = datetime(2026, 1, 1)  # noqa: DTZ001
    assert predicate_of([GreaterThan(("timestamp",), naive)]) == ALL


def test_rows_are_tested_by_key_and_subject() -> None:
    batch = pa.RecordBatch.from_pydict(
        {
            "key": pa.array([b"a", b"b", None, b"a"], pa.binary()),
            "subject": pa.array(["f.JFK.B6", "f.JFK.DL", "f.LGA.B6", None]),
        }
    )

    def left(*filters: Any) -> list[int]:
        mask = predicate_of(filters).mask(batch)
        if mask is None:
            return [0, 1, 2, 3]
        return [row for row, kept in enumerate(mask.to_pylist()) if kept]

    assert left(EqualTo(("key",), b"a")) == [0, 3]
    assert left(In(("key",), [b"b", b"c", None])) == [1]
    assert left(EqualTo(("key",), b"a"), In(("key",), [b"b"])) == []
    assert left(StringStartsWith(("subject",), "f.JFK.")) == [0, 1]
    assert left(StringEndsWith(("subject",), "B6"), StringContains(("subject",), "JFK")) == [0]
    assert left(EqualTo(("subject",), "f.LGA.B6")) == [2]
    assert left(IsNotNull(("key",)), Not(EqualTo(("key",), b"a"))) == [0, 1, 2, 3]
    assert left(EqualTo(("value", "nested"), b"a")) == [0, 1, 2, 3]


def test_streams_and_partitions() -> None:
    predicate = predicate_of(
        [
            In(("stream",), ["a", "b"]),
            EqualTo(("stream",), "b"),
            GreaterThanOrEqual(("partition",), 2),
            LessThan(("partition",), 5),
        ]
    )
    assert predicate.streams == {"b"}
    assert predicate.partitions == Interval(2, 5)


@pytest.mark.parametrize("value", ["5", 5.5, None, True])
def test_what_is_not_understood_leaves_everything(value: Any) -> None:
    assert predicate_of([GreaterThan(("offset",), value)]) == ALL
