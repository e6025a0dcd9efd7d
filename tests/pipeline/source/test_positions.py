"""Positions, limits, and ranges cut into tasks."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bascule.errors import ConfigError, DataLoss
from bascule.pipeline.source import positions as offsets
from bascule.pipeline.source.options import EARLIEST, LATEST
from bascule.pipeline.source.positions import Extent, Range

EXTENT = Extent(stream="s", id="ab", partitions={0: (10, 100), 1: (0, 5)})


def test_equal_positions_give_equal_json() -> None:
    one = offsets.encode_offset("ab", {1: 2, 0: 1, 10: 3, 2: 4})
    other = offsets.encode_offset("ab", {10: 3, 2: 4, 0: 1, 1: 2})
    assert json.dumps(one) == json.dumps(other)
    assert json.dumps(one) == '{"stream": "ab", "0": 1, "1": 2, "2": 4, "10": 3}'
    assert offsets.decode_offset(one) == ("ab", {0: 1, 1: 2, 2: 4, 10: 3})


def test_choices_are_resolved() -> None:
    def resolved(choice: int | dict[int, int]) -> dict[int, int]:
        return offsets.resolve(choice, EXTENT, option="startingOffsets")

    assert resolved(EARLIEST) == {0: 10, 1: 0}
    assert resolved(LATEST) == {0: 100, 1: 5}
    assert resolved({0: 50, 1: LATEST}) == {0: 50, 1: 5}
    for wrong in ({0: 50}, {0: 1, 1: 1, 2: 1}):
        with pytest.raises(ConfigError, match=r"stream 's' has \[0, 1\]"):
            resolved(wrong)


def test_lost_records_stop_a_query_or_are_passed_over() -> None:
    kept = offsets.check_held(EXTENT, "ab", {0: 50, 1: 5}, fail_on_data_loss=True)
    assert kept == {0: 50, 1: 5}
    for id, positions in (("ab", {0: 9, 1: 0}), ("ab", {0: 101, 1: 0}), ("other", {0: 50, 1: 0})):
        with pytest.raises(DataLoss):
            offsets.check_held(EXTENT, id, positions, fail_on_data_loss=True)
        held = offsets.check_held(EXTENT, id, positions, fail_on_data_loss=False)
        assert held == {0: 10, 1: 0}


def test_a_new_partition_starts_at_its_beginning() -> None:
    assert offsets.check_held(EXTENT, "ab", {0: 50}, fail_on_data_loss=True) == {0: 50, 1: 0}


counts = st.dictionaries(st.integers(0, 5), st.integers(0, 10**6), min_size=1)


@given(waiting=counts, limit=st.none() | st.integers(1, 10**6))
def test_a_limit_moves_on_and_never_too_far(waiting: dict[int, int], limit: int | None) -> None:
    start = dict.fromkeys(waiting, 7)
    targets = {p: 7 + n for p, n in waiting.items()}
    moved = offsets.advance(start, targets, limit)
    steps = {p: moved[p] - 7 for p in moved}
    assert all(0 <= steps[p] <= waiting[p] for p in waiting)
    assert all(steps[p] > 0 for p, n in waiting.items() if n)
    if limit is None:
        assert moved == targets
    else:
        assert sum(steps.values()) <= max(limit, len(waiting))


@given(
    ranges=st.lists(st.tuples(st.integers(0, 10**9), st.integers(-5, 2 * 10**7)), max_size=4),
    pieces_min=st.integers(1, 50),
)
def test_pieces_cover_the_same_offsets(ranges: list[tuple[int, int]], pieces_min: int) -> None:
    whole = [Range(n, start, start + size) for n, (start, size) in enumerate(ranges)]
    pieces = offsets.split(whole, pieces_min=pieces_min)
    for r in whole:
        mine = [p for p in pieces if p.partition == r.partition]
        assert sum(p.end - p.start for p in mine) == max(0, r.end - r.start)
        edges = [r.start, *(p.end for p in mine)]
        assert [p.start for p in mine] == edges[:-1]
    total = sum(max(0, r.end - r.start) for r in whole)
    assert all(0 < p.end - p.start <= offsets.RECORDS_PER_TASK_MAX for p in pieces)
    assert len(pieces) >= min(pieces_min, total)
