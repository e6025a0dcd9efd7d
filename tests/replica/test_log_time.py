"""A wall clock that was ahead once: timestamps never decrease, and nothing waits for it."""

from __future__ import annotations

import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bascule.replica.log_time import CLOCK_BACK_MS_MAX, LogTime
from bascule.storage.partition_log import SegmentInfo
from bascule.storage.retention import RetentionLimits, plan_retention

DAY_MS = 86_400_000


@given(st.lists(st.tuples(st.integers(0, 500 * DAY_MS), st.booleans()), max_size=30))
def test_time_never_decreases_and_never_leads_without_need(
    steps: list[tuple[int, bool]],
) -> None:
    time, last = LogTime(), -1
    for wall, appends in steps:
        now = time.now_ms(wall, last)
        assert now >= last
        assert now >= wall
        if last <= wall:
            assert now == wall
        if appends:
            last = now


def test_time_goes_on_at_the_pace_of_a_clock_that_was_ahead() -> None:
    time, wall = LogTime(), 1_000_000
    last = time.now_ms(wall + 400 * DAY_MS, wall)
    assert last == wall + 400 * DAY_MS
    assert time.now_ms(wall, last) == last
    for minutes in range(1, 100):
        now = time.now_ms(wall + minutes * 60_000, last)
        assert now == wall + 400 * DAY_MS + minutes * 60_000
        last = now
    # A small step back is no reason to go back, and the pace stays.
    assert time.now_ms(wall + 99 * 60_000 - 5_000, last) == last
    assert time.now_ms(wall + 100 * 60_000, last) == wall + 400 * DAY_MS + 100 * 60_000
    assert time.now_ms(last - CLOCK_BACK_MS_MAX, last) == last
    assert time.ahead_ms == 0, "the clock has caught up"


def test_a_small_step_back_is_waited_for() -> None:
    time = LogTime()
    assert time.now_ms(1_000_000 - CLOCK_BACK_MS_MAX, 1_000_000) == 1_000_000
    assert time.ahead_ms == 0


def segment(base: int, timestamp: int) -> SegmentInfo:
    return SegmentInfo(
        base_offset=base, end_offset=base + 10, bytes=100, timestamp_max=timestamp, is_active=False
    )


def test_age_counts_from_when_a_record_was_written() -> None:
    """One day is kept. Segments: of an hour ago, of a day with the clock ahead, active."""
    now = 1_000 * DAY_MS
    ahead = 400 * DAY_MS
    limits = RetentionLimits(age_ms_max=DAY_MS)
    old, jumped, active = (
        segment(0, now - DAY_MS // 24),
        segment(10, now + ahead - DAY_MS // 48),
        segment(20, now + ahead),
    )

    def start(at: int) -> int:
        plan = plan_retention(
            (old, jumped, active), limits, start_offset=0, now_ms=at, ahead_ms=ahead, end_offset=30
        )
        return plan.start_offset

    assert start(now) == 0, "nothing goes because the clock was ahead"
    assert start(now + DAY_MS * 47 // 48) == 10
    assert start(now + DAY_MS) == 20, "and what was stamped ahead goes after a day, too"


def test_the_clock_of_a_partition(caplog: pytest.LogCaptureFixture) -> None:
    from bascule.host.real import RealRandom
    from bascule.sim.disk import SimFiles
    from support.replicas import awaited_batch, open_partition
    from support.stored_batches import read_records

    partition = open_partition(SimFiles(RealRandom(1)))
    caplog.set_level(logging.INFO, "bascule.replica")
    clock = partition._clock
    stamped = []
    for at in (1_000, 400 * DAY_MS, 2_000, 3_000, 4_000, 401 * DAY_MS):
        clock.ms = at  # type: ignore[attr-defined]
        partition.append(awaited_batch(b"in"))
        assert partition.log is not None
        stamped.append(read_records(partition.log)[-1].timestamp)
    ahead = 400 * DAY_MS
    assert stamped == [1_000, ahead, ahead, ahead + 1_000, ahead + 2_000, 401 * DAY_MS]
    assert [record.message for record in caplog.records] == [
        "clock is behind the last record; the log's time goes on from it",
        "clock has reached the time of the log",
    ]
