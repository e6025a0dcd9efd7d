"""Decide whether to compact a log now, up to which offset, and how much of it is dirty."""

from __future__ import annotations

from enum import StrEnum
from itertools import takewhile
from typing import NamedTuple

from bascule.model import StreamConfig
from bascule.storage.compaction.clean_offset import CleanOffset
from bascule.storage.partition_log import PartitionLog
from bascule.storage.segment import Segment, SegmentInfo
from bascule.storage.segments import SegmentGone


class CompactionReason(StrEnum):
    """Why a log is compacted."""

    DIRTY = "dirty"
    """The dirty share has reached the stream's limit."""
    LAG = "lag"
    """The age of a dirty record has reached the stream's limit."""
    TOMBSTONES = "tombstones"
    """The delete horizon of a tombstone below the clean offset has passed, and all replicas have
    the records below the clean offset."""


class CompactionPlan(NamedTuple):
    """The compaction due in one log."""

    reason: CompactionReason | None
    """None if no compaction is due."""
    clean_offset: int
    """Up to where the log is clean."""
    end_offset: int
    """The end of the part that may be compacted now."""
    clean_bytes: int
    dirty_bytes: int
    tombstones_end: int
    """The end of the tombstones that may be removed."""
    truncation_version: int
    """The log's from before the plan was made: a later one makes it void."""
    roll: bool
    """Whether the active segment must be rolled, because its records are old enough to compact."""

    @property
    def dirty_share(self) -> float:
        """The dirty share of the bytes that may be compacted, from 0 to 1."""
        every = self.clean_bytes + self.dirty_bytes
        return self.dirty_bytes / every if every else 0.0


def plan_compaction(
    log: PartitionLog,
    config: StreamConfig,
    clean: CleanOffset,
    *,
    high_watermark: int,
    replicated_offset: int,
    now_ms: int,
    truncation_version: int,
) -> CompactionPlan:
    """Plan the compaction of a log that is clean up to `clean`.

    All replicas of the partition have its records below `replicated_offset`. Later tombstones stay:
    a replica that copies the log would keep what they remove. `truncation_version` is the log's
    from before `high_watermark` was looked up.

    Records younger than `min_compaction_lag_ms` are not compacted, nor are records younger than the
    dedupe window: after a restart the window is rebuilt from the message ids in the log.

    Raises: CorruptData, LogFailed, Closed, OSError.
    """
    youngest_ms = now_ms - max(config.min_compaction_lag_ms, config.dedupe_window_ms)
    # Needed without lags, too: a segment of unknown age is not compacted.
    log.load_timestamps(youngest_ms + 1)
    closed = log.replacement.closed_segments()
    infos = _cleanable(log, closed, high_watermark=high_watermark, youngest_ms=youngest_ms)
    end_offset = infos[-1].end_offset if infos else clean.offset
    clean_bytes = sum(info.bytes for info in infos if info.end_offset <= clean.offset)
    dirty_bytes = sum(info.bytes for info in infos if info.end_offset > clean.offset)
    roll = _is_roll_due(log, config, now_ms)
    plan = CompactionPlan(
        None, clean.offset, end_offset, clean_bytes, dirty_bytes, replicated_offset,
        truncation_version, roll,
    )  # fmt: skip
    if dirty_bytes and plan.dirty_share * 100 >= config.dirty_percent_min:
        return plan._replace(reason=CompactionReason.DIRTY)
    if dirty_bytes and config.max_compaction_lag_ms:
        first = next(segment for segment, end in closed if end > clean.offset)
        if _first_timestamp(log, first) <= now_ms - config.max_compaction_lag_ms:
            return plan._replace(reason=CompactionReason.LAG)
    # Before that a run would find the same horizon again.
    have_passed = replicated_offset >= clean.offset
    if clean.horizon_ms is not None and clean.horizon_ms <= now_ms and have_passed:
        return plan._replace(reason=CompactionReason.TOMBSTONES)
    return plan


def _cleanable(
    log: PartitionLog,
    closed: list[tuple[Segment, int]],
    *,
    high_watermark: int,
    youngest_ms: int,
) -> list[SegmentInfo]:
    """The segments without records that are too young, unsynced or uncommitted, oldest first."""
    bases = {segment.base_offset for segment, _ in closed}
    limit = min(high_watermark, log.synced.offset)
    return list(
        takewhile(
            lambda info: (
                info.base_offset in bases
                and info.end_offset <= limit
                and info.timestamp_max is not None
                and info.timestamp_max <= youngest_ms
            ),
            log.segments_info(),
        )
    )


def _is_roll_due(log: PartitionLog, config: StreamConfig, now_ms: int) -> bool:
    lag_ms = config.max_compaction_lag_ms
    return lag_ms > 0 and log.end.position > 0 and log.active_since_ms <= now_ms - lag_ms


def _first_timestamp(log: PartitionLog, segment: Segment) -> int:
    try:
        return log.replacement.open(segment).first_timestamp(segment.size)
    except SegmentGone:
        return 1 << 62
