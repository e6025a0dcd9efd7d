"""Where a log is truncated, and the file operations of the truncation."""

from __future__ import annotations

from typing import NamedTuple

from bascule.host.api import Files
from bascule.record.header import HEADER_BYTES, read_header
from bascule.storage.checkpoint import NEW_SUFFIX
from bascule.storage.epochs import LeaderEpochs
from bascule.storage.index.header_checks import check_batch_headers
from bascule.storage.index.segment_lookup import limit_of, locate_batch
from bascule.storage.segment import (
    LOG_SUFFIX,
    Contents,
    LogPosition,
    Segment,
    Tail,
    remove_indexes,
    remove_segment,
    segment_path,
)
from bascule.storage.segments import Segments


class TruncationPlan(NamedTuple):
    """The new end of a log, and the segment that contains it now."""

    end: LogPosition
    segment: Segment
    contents: Contents
    tail: Tail
    """The tail of the truncated log."""

    @property
    def keeps_segment(self) -> bool:
        """Whether the segment keeps batches. Otherwise the new segment takes its name."""
        return self.end.offset > self.segment.base_offset


def plan_truncation(
    segments: Segments, offset: int, tail: Tail, epochs: LeaderEpochs
) -> TruncationPlan:
    """Plan the truncation of a log to `offset`, which is below its end.

    If a batch contains `offset`, the new end is that batch's base offset.

    Raises: SegmentGone, CorruptData, OSError.
    """
    segment, following = segments.at(offset)
    contents = segments.open(segment, following)
    limit = limit_of(segment, following, tail.end)
    location = locate_batch(contents, offset, limit, nowait=False)
    assert location is not None, "only nowait finds nothing"
    end_offset = offset
    if location.position < limit:
        header = read_header(contents.file.read_at(location.position, HEADER_BYTES))
        end_offset = min(offset, header.base_offset)
    if not segment.verified:
        # A damaged base offset would cut off records below `offset`.
        check_batch_headers(
            contents.file, contents.offsets, start=location.position,
            end=min(location.position + 1, limit), limit=limit, base_offset=segment.base_offset,
            end_offset=tail.end.offset if following is None else following.base_offset,
            epochs=epochs, gaps_allowed=segments.gaps_allowed,
        )  # fmt: skip
    end = LogPosition(end_offset, segment.base_offset, location.position)
    return TruncationPlan(
        end,
        segment,
        contents,
        Tail(
            end,
            segments.timestamp_max(start_offset=segments.all[0].base_offset, end=end),
            segments.timestamp_max(start_offset=segment.base_offset, end=end),
        ),
    )


def kept_segments(segments: Segments, plan: TruncationPlan) -> tuple[Segment, ...]:
    """The segments of the truncated log, without the new one. Changes nothing."""
    kept = tuple(s for s in segments.all if s.base_offset < plan.segment.base_offset)
    if not plan.keeps_segment:
        return kept
    contents = plan.contents.truncated(plan.end, plan.tail.segment_timestamp_max)
    last = Segment(plan.segment.base_offset, plan.end.position, contents)  # as trusted as before
    last.timestamp_max = plan.tail.segment_timestamp_max
    last.trust.checked_offset = min(last.trust.checked_offset, plan.end.offset)
    return (*kept, last)


def new_segment_path(directory: str, base_offset: int) -> str:
    """The temporary name of a new segment. Opening a log removes files with such names."""
    return segment_path(directory, base_offset, LOG_SUFFIX + NEW_SUFFIX)


def truncate_files(files: Files, directory: str, plan: TruncationPlan, later: list[int]) -> None:
    """Remove the segments `later` and the bytes above the new end, and rename the new segment.

    Raises: OSError; a part may be done.
    """
    for base in reversed(later):
        remove_segment(files, directory, base)
    if plan.end.position == 0:
        # They cover more than the log, and the indexes of an empty segment are never rewritten.
        remove_indexes(files, directory, plan.segment.base_offset)
        files.sync_dir(directory)
    if plan.keeps_segment:
        plan.contents.file.truncate(plan.end.position)
        plan.contents.file.sync()
    offset = plan.end.offset
    files.rename(new_segment_path(directory, offset), segment_path(directory, offset))
    files.sync_dir(directory)
