"""Positions, limits, and ranges cut into tasks."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bascule.errors import ConfigError, DataLoss
from bascule.pipeline.source.positions import (
    RECORDS_PER_TASK_MAX,
    Extent,
    Position,
    Range,
    advance,
    check_available,
    decode_positions,
    encode_positions,
    split_ranges,
)

EXTENT = Extent(stream="s", id="ab", partitions={0: (10, 100), 1: (0, 5)})


def test_equal_positions_give_equal_json() -> None:
    one = {"b": Position("cd", {0: 5}), "a": Position("ab", {1: 2, 0: 1, 10: 3, 2: 4})}
    other = {"a": Position("ab", {10: 3, 2: 4, 0: 1, 1: 2}), "b": Position("cd", {0: 5})}
    text = '{"a": {"id": "ab", "0": 1, "1": 2, "2": 4, "10": 3}, "b": {"id": "cd", "0": 5}}'
    assert json.dumps(encode_positions(one)) == json.dumps(encode_positions(other)) == text
    assert decode_positions(json.loads(text)) == one


@pytest.mark.parametrize("foreign", [{"offset": 5}, {"s": {"0": 1}}, {"s": {"id": "a", "x": 1}}])
def test_a_checkpoint_of_another_source_is_refused(foreign: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match="new checkpoint location"):
        decode_positions(foreign)


def test_lost_records_stop_a_query_or_are_passed_over() -> None:
    kept = check_available(EXTENT, Position("ab", {0: 50, 1: 5}), fail_on_data_loss=True)
    assert kept == {0: 50, 1: 5}
    for position in (
        Position("ab", {0: 9, 1: 0}),
        Position("ab", {0: 101, 1: 0}),
        Position("other", {0: 50, 1: 0}),
    ):
        with pytest.raises(DataLoss):
            check_available(EXTENT, position, fail_on_data_loss=True)
        assert check_available(EXTENT, position, fail_on_data_loss=False) == {0: 10, 1: 0}


def test_a_new_partition_starts_at_offset_0_or_has_lost_records() -> None:
    assert check_available(EXTENT, Position("ab", {0: 50}), fail_on_data_loss=True) == {0: 50, 1: 0}
    with pytest.raises(DataLoss, match=r"offset 0 is not in \[10, 100\]"):
        check_available(EXTENT, Position("ab", {1: 1}), fail_on_data_loss=True)
    with pytest.raises(DataLoss):
        check_available(EXTENT, None, fail_on_data_loss=True)
    assert check_available(EXTENT, None, fail_on_data_loss=False) == {0: 10, 1: 0}


counts = st.dictionaries(st.integers(0, 5), st.integers(0, 10**6), min_size=1)


@given(
    first=counts,
    second=st.none() | counts,
    limit=st.none() | st.integers(1, 10**6),
)
def test_a_limit_moves_on_and_never_too_far(
    first: dict[int, int], second: dict[int, int] | None, limit: int | None
) -> None:
    sizes = {"a": first} | ({} if second is None else {"b": second})
    start = {stream: dict.fromkeys(n, 7) for stream, n in sizes.items()}
    targets = {stream: {p: 7 + size for p, size in n.items()} for stream, n in sizes.items()}
    moved = advance(start, targets, limit)
    steps = [(moved[s][p] - 7, size) for s, n in sizes.items() for p, size in n.items()]
    assert all(0 <= step <= size for step, size in steps)
    assert all(step > 0 for step, size in steps if size)
    if limit is None:
        assert moved == targets
    else:
        assert sum(step for step, _ in steps) <= limit + len(steps)


@given(
    sizes=st.lists(st.tuples(st.integers(0, 10**9), st.integers(-5, 2 * 10**7)), max_size=4),
    pieces_min=st.integers(1, 50),
    records_max=st.none() | st.integers(10**5, 10**8),
)
def test_pieces_cover_the_same_offsets(
    sizes: list[tuple[int, int]], pieces_min: int, records_max: int | None
) -> None:
    whole = [Range("s", n, start, start + size) for n, (start, size) in enumerate(sizes)]
    arrow_slices = split_ranges(whole, pieces_min=pieces_min, records_max=records_max)
    for r in whole:
        mine = [p for p in arrow_slices if p.partition == r.partition]
        assert sum(p.records for p in mine) == r.records
        edges = [r.start, *(p.end for p in mine)]
        assert [p.start for p in mine] == edges[:-1]
    assert all(0 < p.records <= (records_max or RECORDS_PER_TASK_MAX) for p in arrow_slices)
    assert len(arrow_slices) >= min(pieces_min, sum(r.records for r in whole))
