"""Retention plans, computed from the state of segments."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bascule.model import Cleanup, Discard, StreamConfig
from bascule.storage.partition_log import LogConfig, SegmentInfo
from bascule.storage.retention import (
    RetentionLimits,
    RetentionPlan,
    limits_of,
    log_config,
    plan_retention,
)

NOW = 1_000_000


def segments(*parts: tuple[int, int, int | None], base: int = 0) -> tuple[SegmentInfo, ...]:
    """Segments of (messages, bytes, largest timestamp). The last one is active."""
    infos = []
    for row, (messages, size, timestamp) in enumerate(parts):
        infos.append(SegmentInfo(base, base + messages, size, timestamp, row == len(parts) - 1))
        base += messages
    return tuple(infos)


FOUR = segments((10, 100, NOW - 400), (10, 100, NOW - 300), (10, 100, NOW - 200), (5, 50, NOW))


@pytest.mark.parametrize(
    ("limits", "start", "roll"),
    [
        (RetentionLimits(), 0, False),
        (RetentionLimits(age_ms_max=500), 0, False),
        (RetentionLimits(age_ms_max=400), 0, False),
        (RetentionLimits(age_ms_max=399), 10, False),
        (RetentionLimits(age_ms_max=1), 30, False),
        (RetentionLimits(bytes_max=350), 0, False),
        (RetentionLimits(bytes_max=251), 0, False),
        (RetentionLimits(bytes_max=250), 10, False),
        (RetentionLimits(bytes_max=150), 20, False),
        (RetentionLimits(bytes_max=51), 20, False),
        (RetentionLimits(bytes_max=50), 30, False),
        (RetentionLimits(bytes_max=1), 30, True),
        (RetentionLimits(messages_max=35), 0, True),
        (RetentionLimits(messages_max=26), 0, True),
        (RetentionLimits(messages_max=25), 10, True),
        (RetentionLimits(messages_max=3), 30, True),
        (RetentionLimits(age_ms_max=300, bytes_max=250, messages_max=15), 20, True),
        (RetentionLimits(age_ms_max=200, bytes_max=1_000, messages_max=1_000), 20, False),
    ],
)
def test_each_limit_alone_and_together(limits: RetentionLimits, start: int, roll: bool) -> None:
    plan = plan_retention(FOUR, limits, start_offset=0, now_ms=NOW, end_offset=35)
    assert plan == RetentionPlan(start, roll, has_obsolete_segment=False)


def test_an_expired_active_segment_is_rolled() -> None:
    plan = plan_retention(
        FOUR, RetentionLimits(age_ms_max=5), start_offset=0, now_ms=NOW + 6, end_offset=35
    )
    assert plan == RetentionPlan(30, True, has_obsolete_segment=False)
    ended = (*FOUR[:-1], FOUR[-1]._replace(is_active=False), SegmentInfo(35, 35, 0, -1, True))
    plan = plan_retention(
        ended, RetentionLimits(age_ms_max=5), start_offset=30, now_ms=NOW + 6, end_offset=35
    )
    assert plan == RetentionPlan(35, False, has_obsolete_segment=True)


def test_records_that_are_not_synced_committed_or_archived_are_kept() -> None:
    everything = RetentionLimits(age_ms_max=1, bytes_max=1, messages_max=1)
    for end_offset, start in ((0, 0), (9, 0), (10, 10), (29, 20), (30, 30)):
        plan = plan_retention(
            FOUR, everything, start_offset=0, now_ms=NOW + 9, end_offset=end_offset
        )
        assert plan.start_offset == start


def test_a_segment_of_unknown_age_is_kept() -> None:
    infos = (FOUR[0]._replace(timestamp_max=None), *FOUR[1:])
    assert plan_retention(
        infos, RetentionLimits(age_ms_max=1), start_offset=0, now_ms=NOW, end_offset=35
    ) == RetentionPlan(0, False, has_obsolete_segment=False)


def test_messages_below_the_start_do_not_count() -> None:
    assert plan_retention(
        FOUR, RetentionLimits(messages_max=16), start_offset=15, now_ms=NOW, end_offset=35
    ) == RetentionPlan(15, True, has_obsolete_segment=True)
    assert (
        plan_retention(
            FOUR, RetentionLimits(messages_max=15), start_offset=15, now_ms=NOW, end_offset=35
        ).start_offset
        == 20
    )


parts = st.lists(
    st.tuples(st.integers(1, 50), st.integers(1, 500), st.integers(NOW - 100, NOW)),
    min_size=1,
    max_size=8,
)
limit = st.integers(0, 800)


@given(parts, limit, limit, limit, st.integers(0, 400), st.integers(0, 100))
def test_a_plan_removes_exactly_what_the_limits_allow(
    made: list[tuple[int, int, int]], age: int, size: int, messages: int, end: int, base: int
) -> None:
    infos = segments(*made, base=base)
    limits = RetentionLimits(age % 120, size, messages)
    end_offset = min(base + end, infos[-1].end_offset)
    plan = plan_retention(infos, limits, start_offset=base, now_ms=NOW, end_offset=end_offset)
    expected = base
    for row, info in enumerate(infos[:-1]):
        if info.end_offset > end_offset or not _may_be_removed(infos[row:], limits):
            break
        expected = info.end_offset
    assert plan.start_offset == expected


def _may_be_removed(held: tuple[SegmentInfo, ...], limits: RetentionLimits) -> bool:
    """Whether a limit allows removing the first segment: the rest is enough, or it is too old."""
    rest = held[1:]
    oldest = held[0].timestamp_max
    assert oldest is not None
    return bool(
        (limits.bytes_max and sum(info.bytes for info in rest) >= limits.bytes_max)
        or (limits.messages_max
            and rest[-1].end_offset - rest[0].base_offset >= limits.messages_max)
        or (limits.age_ms_max and oldest < NOW - limits.age_ms_max)
    )  # fmt: skip


def test_retention_limits_of_stream_settings() -> None:
    config = StreamConfig(
        subject="s", retention_ms_max=1, retention_bytes_max=2, retention_messages_max=3
    )
    assert limits_of(config) == RetentionLimits(1, 2, 3)
    compacted = (Cleanup.COMPACT,)
    both = (Cleanup.COMPACT, Cleanup.DELETE)
    assert limits_of(replace(config, cleanup=compacted)) == RetentionLimits()
    assert limits_of(replace(config, cleanup=both)) == RetentionLimits(1, 2, 3)
    assert limits_of(replace(config, discard=Discard.NEW)) == RetentionLimits(1, 0, 0)
    assert not limits_of(StreamConfig(subject="s"))


def test_segments_are_small_enough_for_the_limits() -> None:
    assert log_config(StreamConfig(subject="s")) == LogConfig()
    for limit, expected in ((8 << 30, 256 << 20), (8 << 20, 1 << 20), (1 << 19, 1 << 16), (9, 9)):
        config = StreamConfig(subject="s", retention_bytes_max=limit)
        assert log_config(config).segment_bytes_max == expected
    for limit, expected in ((800, 100), (3, 1), (0, 1 << 62)):
        config = StreamConfig(subject="s", retention_messages_max=limit)
        assert log_config(config).segment_messages_max == expected
    for age, expected in ((80_000, 10_000), (5_000, 1_000), (500, 500)):
        config = StreamConfig(subject="s", retention_ms_max=age)
        assert log_config(config).segment_age_ms_max == expected


def test_a_log_exceeds_its_limit_by_at_most_an_eighth() -> None:
    limits = RetentionLimits(bytes_max=800_000)
    share = log_config(StreamConfig(subject="s", retention_bytes_max=800_000)).segment_bytes_max
    held: list[tuple[int, int, int | None]] = [(10, share, NOW)]
    for written in range(2, 40):
        held.append((10, share, NOW))
        infos = segments(*held)
        plan = plan_retention(
            infos, limits, start_offset=0, now_ms=NOW, end_offset=infos[-1].end_offset
        )
        held = held[plan.start_offset // 10 :]
        assert sum(size for _, size, _ in held) >= min(written * share, 800_000)
        assert sum(size for _, size, _ in held) <= 900_000
