"""Retention: compute the log start from limits on age, bytes and messages.

Retention removes whole segments. It removes a segment for its size only if the rest of the log
still holds as much as the limit allows. A log with a limit rolls segments at an eighth of the
limit. So it exceeds the limit by at most an eighth. Retention never removes the active segment. If
all its records have expired, or it is larger than an eighth of a limit, the log must roll it first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final, NamedTuple

from bascule.model import Cleanup, Discard, StreamConfig
from bascule.storage.partition_log import LogConfig, PartitionLog, SegmentInfo
from bascule.storage.payloads.payload_log import PayloadLog

SEGMENTS_PER_LIMIT: Final = 8
"""A log exceeds its limit by at most one segment, an eighth. Chosen, not measured."""
SEGMENT_BYTES_MIN: Final = 64 << 10
SEGMENT_AGE_MS_MIN: Final = 1_000
"""Lower bounds for small limits, because a segment takes three files."""


class RetentionLimits(NamedTuple):
    """How much one log keeps; 0 means no limit. A log keeps little more than its limits."""

    age_ms_max: int = 0
    bytes_max: int = 0
    messages_max: int = 0

    def __bool__(self) -> bool:
        return any(self[:])


class RetentionPlan(NamedTuple):
    """What retention must change in a log."""

    start_offset: int
    """The new log start; the current one if there is nothing to remove."""
    roll: bool
    """Whether the active segment must be rolled."""
    has_obsolete_segment: bool
    """Whether a segment lies wholly below the current log start."""


def limits_of(config: StreamConfig) -> RetentionLimits:
    """The limits that retention enforces.

    With `discard = new` the size limits are enforced by refusing messages, not by retention.
    """
    if Cleanup.DELETE not in config.cleanup:
        return RetentionLimits()
    if config.discard is Discard.NEW:
        return RetentionLimits(age_ms_max=config.retention_ms_max)
    return RetentionLimits(
        config.retention_ms_max, config.retention_bytes_max, config.retention_messages_max
    )


def log_config(config: StreamConfig) -> LogConfig:
    """The segment sizes of a stream's logs, which its retention limits may reduce."""
    limits = limits_of(config)
    made = LogConfig(
        segment_bytes_max=config.segment_bytes_max,
        segment_age_ms_max=config.segment_age_ms_max,
    )
    if limits.bytes_max:
        share = _share(limits.bytes_max, SEGMENT_BYTES_MIN)
        made = replace(made, segment_bytes_max=min(share, made.segment_bytes_max))
    if limits.messages_max:
        made = replace(made, segment_messages_max=_share(limits.messages_max, 1))
    if limits.age_ms_max:
        share = _share(limits.age_ms_max, SEGMENT_AGE_MS_MIN)
        made = replace(made, segment_age_ms_max=min(share, made.segment_age_ms_max))
    return made


def plan_retention(
    segments: Sequence[SegmentInfo],
    limits: RetentionLimits,
    *,
    start_offset: int,
    now_ms: int,
    ahead_ms: int = 0,
    end_offset: int,
) -> RetentionPlan:
    """Plan for a log of `segments`, oldest first, that starts at `start_offset`.

    Retention keeps everything from `end_offset` on, which is not yet synced, committed or archived.
    It keeps a segment of unknown age. Messages are counted by offset range. So messages that
    compaction removed count until their segment is removed. `ahead_ms`: see `wall_time`.
    """
    bytes_left = sum(segment.bytes for segment in segments)
    messages_left = segments[-1].end_offset - start_offset

    def is_expired(segment: SegmentInfo) -> bool:
        known = segment.timestamp_max
        if not limits.age_ms_max or known is None:
            return False
        return wall_time(known, now_ms=now_ms, ahead_ms=ahead_ms) < now_ms - limits.age_ms_max

    start = start_offset
    for segment in segments[:-1]:
        bytes_left -= segment.bytes
        messages_left -= max(segment.end_offset - max(segment.base_offset, start_offset), 0)
        expired = (
            (limits.bytes_max and bytes_left >= limits.bytes_max)
            or (limits.messages_max and messages_left >= limits.messages_max)
            or is_expired(segment)
        )
        below = segment.end_offset <= start_offset
        if not below and (not expired or segment.end_offset > end_offset):
            break
        start = max(start, segment.end_offset)
    active = segments[-1]
    expired = is_expired(active) or active.end_offset <= start_offset
    held = active.end_offset - active.base_offset
    roll = active.bytes > 0 and (expired or _is_outgrown(active.bytes, held, limits))
    return RetentionPlan(start, roll, segments[0].end_offset <= start_offset and len(segments) > 1)


def exceeds_limits(log: PartitionLog, limits: RetentionLimits) -> bool:
    """Whether a plan may require a change because of the log's size. Takes a few comparisons."""
    end = log.end
    if end.offset <= log.start_offset:
        return log.size_bytes() > 0
    held = end.offset - end.segment_base
    return bool(
        (limits.bytes_max and log.size_bytes() > limits.bytes_max)
        or (limits.messages_max and end.offset - log.start_offset > limits.messages_max)
        or (end.position and _is_outgrown(_active_bytes(log, limits), held, limits))
    )


def segments_of(log: PartitionLog) -> tuple[SegmentInfo, ...]:
    """What `plan_retention` plans for: the segments, with the payloads of their records."""
    return log.sized_segments() if isinstance(log, PayloadLog) else log.segments_info()


def _active_bytes(log: PartitionLog, limits: RetentionLimits) -> int:
    if limits.bytes_max and isinstance(log, PayloadLog):
        return log.active_bytes
    return log.end.position


def wall_time(timestamp: int, *, now_ms: int, ahead_ms: int) -> int:
    """When a record with `timestamp` was written, by the wall clock at `now_ms`.

    `ahead_ms` is by how much the time of the log is ahead of that clock. Records from before the
    clock was ahead have its time still, so that none expires because of it.
    """
    return timestamp - ahead_ms if timestamp > now_ms else timestamp


def _is_outgrown(size: int, messages: int, limits: RetentionLimits) -> bool:
    """Whether the active segment is larger than its share of a limit."""
    return bool(
        (limits.bytes_max and size > _share(limits.bytes_max, SEGMENT_BYTES_MIN))
        or (limits.messages_max and messages > _share(limits.messages_max, 1))
    )


def _share(limit: int, least: int) -> int:
    """The segment size for a limit: an eighth, but at least `least` or the limit itself."""
    return max(limit // SEGMENTS_PER_LIMIT, min(least, limit))
