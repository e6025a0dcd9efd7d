"""Where a log should begin, by the age, the bytes and the messages it may hold.

Whole segments go, and only where what is left still holds as much as a limit allows: retention
never removes what it need not. A log under a limit cuts its segments to an eighth of it, so it
holds that much more at most. The last segment never goes; where all of it has expired, or it has
outgrown its eighth, it has to be ended first, and goes when its turn comes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final, NamedTuple

from bascule.model import Cleanup, Discard, StreamConfig
from bascule.storage.partition_log import LogConfig, PartitionLog, SegmentInfo

SEGMENTS_PER_LIMIT: Final = 8
"""So that a log holds an eighth more than its limit at most: a choice, not a measurement."""
SEGMENT_BYTES_MIN: Final = 64 << 10
SEGMENT_AGE_MS_MIN: Final = 1_000
"""However small a limit: a segment costs three files."""


class Limits(NamedTuple):
    """What one log keeps at least, as far as it has it, and little more; 0 is no limit."""

    age_ms_max: int = 0
    bytes_max: int = 0
    messages_max: int = 0

    def __bool__(self) -> bool:
        return any(self[:])


class Plan(NamedTuple):
    """What retention asks of a log."""

    start_offset: int
    """Where the log should begin; where it begins now if nothing is to go."""
    roll: bool
    """Whether the active segment should be ended."""
    leftover: bool
    """Whether a segment lies wholly below where the log begins already."""


def limits_of(config: StreamConfig) -> Limits:
    """What retention enforces; at `discard = new` the limits of size refuse messages instead."""
    if Cleanup.DELETE not in config.cleanup:
        return Limits()
    if config.discard is Discard.NEW:
        return Limits(age_ms_max=config.retention_ms_max)
    return Limits(
        config.retention_ms_max, config.retention_bytes_max, config.retention_messages_max
    )


def log_config(config: StreamConfig) -> LogConfig:
    """How a stream's logs cut their segments: small enough for its limits."""
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


def plan_start(
    segments: Sequence[SegmentInfo],
    limits: Limits,
    *,
    start_offset: int,
    now_ms: int,
    end_offset: int,
) -> Plan:
    """Plan for a log of `segments`, oldest first, that begins at `start_offset`.

    Nothing from `end_offset` on goes: what is not synced, committed or archived. A segment of
    unknown age stays. Messages are counted by their offsets, so those that compaction has taken
    count until their segment goes.
    """
    bytes_left = sum(segment.bytes for segment in segments)
    messages_left = segments[-1].end_offset - start_offset
    oldest_ms = now_ms - limits.age_ms_max
    start = start_offset
    for segment in segments[:-1]:
        bytes_left -= segment.bytes
        messages_left -= max(segment.end_offset - max(segment.base_offset, start_offset), 0)
        expired = (
            (limits.bytes_max and bytes_left >= limits.bytes_max)
            or (limits.messages_max and messages_left >= limits.messages_max)
            or _is_older(segment, limits, oldest_ms)
        )
        below = segment.end_offset <= start_offset
        if not below and (not expired or segment.end_offset > end_offset):
            break
        start = max(start, segment.end_offset)
    active = segments[-1]
    expired = _is_older(active, limits, oldest_ms) or active.end_offset <= start_offset
    held = active.end_offset - active.base_offset
    roll = active.bytes > 0 and (expired or _is_outgrown(active.bytes, held, limits))
    return Plan(start, roll, segments[0].end_offset <= start_offset and len(segments) > 1)


def is_over(log: PartitionLog, limits: Limits) -> bool:
    """Whether a plan may ask for something because of the log's size; a few comparisons."""
    end = log.end
    if end.offset <= log.start_offset:
        return log.size_bytes() > 0
    held = end.offset - end.segment_base
    return bool(
        (limits.bytes_max and log.size_bytes() > limits.bytes_max)
        or (limits.messages_max and end.offset - log.start_offset > limits.messages_max)
        or (end.position and _is_outgrown(end.position, held, limits))
    )


def _is_older(segment: SegmentInfo, limits: Limits, oldest_ms: int) -> bool:
    known = segment.timestamp_max
    return limits.age_ms_max > 0 and known is not None and known < oldest_ms


def _is_outgrown(size: int, messages: int, limits: Limits) -> bool:
    """Whether an active segment is too large a share of what its log may hold."""
    return bool(
        (limits.bytes_max and size > _share(limits.bytes_max, SEGMENT_BYTES_MIN))
        or (limits.messages_max and messages > _share(limits.messages_max, 1))
    )


def _share(limit: int, least: int) -> int:
    """A segment's share of a limit; a limit below `least` is one share."""
    return max(limit // SEGMENTS_PER_LIMIT, min(least, limit))
