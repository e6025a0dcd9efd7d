"""What a micro-batch archives, and how its tasks share it."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bascule.errors import DataLoss
from bascule.pipeline.jobs.archive.plan import (
    ArchiveRange,
    LogExtent,
    advance,
    decode_position,
    encode_position,
    latest_begin,
    rows_max_of,
    split_ranges,
    starts_of,
)

STARTS = st.dictionaries(st.integers(0, 5), st.integers(0, 10_000), min_size=1)


def held(**partitions: tuple[int, int]) -> LogExtent:
    return LogExtent(
        "flights", "ab", {int(name[1:]): extent for name, extent in partitions.items()}
    )


def test_positions_have_one_text() -> None:
    text = json.dumps(encode_position("ab", {10: 5, 2: 7}))
    assert text == '{"id": "ab", "2": 7, "10": 5}'
    assert decode_position(json.loads(text)) == {2: 7, 10: 5}


def test_the_lake_says_where_to_go_on() -> None:
    log = held(p0=(0, 100), p1=(5, 50), p2=(7, 9))
    starts = starts_of(log, {0: (0, 40)}, {1: 20}, fail_on_data_loss=True)
    assert starts == {0: 40, 1: 20, 2: 7}


def test_latest_begins_at_the_end_that_the_first_run_found() -> None:
    assert latest_begin(held(p0=(0, 100), p1=(5, 50)), {}, {}) == {0: 100, 1: 50}
    assert latest_begin(held(p0=(0, 120), p1=(5, 60)), {}, {0: 100, 1: 50}) == {0: 100, 1: 50}


@pytest.mark.parametrize(
    ("committed", "known"),
    [({}, {0: 100}), ({0: (100, 120)}, {0: 120}), ({0: (100, 120)}, {})],
    ids=["nothing archived yet", "archived", "offsets are not committed"],
)
def test_a_partition_that_was_added_since_begins_at_its_start(
    committed: dict[int, tuple[int, int]], known: dict[int, int]
) -> None:
    log = held(p0=(0, 120), p1=(0, 30))
    begin = latest_begin(log, committed, known)
    assert starts_of(log, committed, begin, fail_on_data_loss=True)[1] == 0


@pytest.mark.parametrize("committed", [{0: (0, 9)}, {0: (0, 101)}])
def test_what_the_log_lost_is_an_error(committed: dict[int, tuple[int, int]]) -> None:
    with pytest.raises(DataLoss, match=r"the log holds \[10, 100\)"):
        starts_of(held(p0=(10, 100)), committed, {}, fail_on_data_loss=True)
    [start] = starts_of(held(p0=(10, 100)), committed, {}, fail_on_data_loss=False).values()
    assert 10 <= start <= 100


def test_a_batch_is_limited_in_bytes_too() -> None:
    log = LogExtent("flights", "ab", {0: (0, 1_000)}, bytes=1_000_000)
    assert rows_max_of(log, rows_max=5_000, bytes_max=100_000) == 100
    assert rows_max_of(log, rows_max=50, bytes_max=100_000) == 50
    assert rows_max_of(held(p0=(0, 10)), rows_max=50, bytes_max=1) == 50
    assert rows_max_of(log, rows_max=50, bytes_max=1) == 1


@given(STARTS, st.dictionaries(st.integers(0, 5), st.integers(0, 9_000)), st.integers(1, 20_000))
def test_every_partition_moves(
    starts: dict[int, int], waiting: dict[int, int], rows_max: int
) -> None:
    targets = {p: start + waiting.get(p, 0) for p, start in starts.items()}
    ends = advance(starts, targets, rows_max)
    assert set(ends) == set(starts)
    for p, start in starts.items():
        assert start <= ends[p] <= targets[p]
        assert (ends[p] > start) == (targets[p] > start)
    assert sum(ends[p] - starts[p] for p in starts) <= rows_max + len(starts)


@given(
    STARTS,
    st.dictionaries(st.integers(0, 5), st.integers(0, 9_000)),
    st.integers(1, 8),
    st.integers(1, 3_000),
    st.dictionaries(st.integers(0, 5), st.integers(0, 20_000)),
)
def test_pieces_tile_the_batch(
    starts: dict[int, int],
    waiting: dict[int, int],
    tasks: int,
    rows_min: int,
    side: dict[int, int],
) -> None:
    ends = {p: start + waiting.get(p, 0) for p, start in starts.items()}
    ranges = split_ranges(starts, ends, tasks=tasks, rows_min=rows_min, side=side)
    at = dict(starts)
    for piece in ranges:
        assert at[piece.partition] == piece.start < piece.end
        at[piece.partition] = piece.end
        assert piece.side == (piece.start >= side.get(piece.partition, piece.start))
        assert piece.side or piece.end <= side[piece.partition]
    assert at == ends
    assert len(ranges) <= tasks + 2 * len(starts)


def test_two_tasks_share_one_partition() -> None:
    assert split_ranges({0: 0}, {0: 1_001}, tasks=2, rows_min=100) == [
        ArchiveRange(0, 0, 500),
        ArchiveRange(0, 500, 1_001),
    ]
    assert split_ranges({0: 0}, {0: 150}, tasks=2, rows_min=100) == [ArchiveRange(0, 0, 150)]
    assert split_ranges({0: 5}, {0: 5}, tasks=2) == []
    assert split_ranges({0: 0, 1: 0}, {0: 9, 1: 9}, tasks=2, rows_min=1) == [
        ArchiveRange(0, 0, 9),
        ArchiveRange(1, 0, 9),
    ]
