"""Where a log is cut, and the file operations that cut it."""

from __future__ import annotations

from typing import NamedTuple

from bascule.host.api import Files
from bascule.record.header import HEADER_BYTES, read_header
from bascule.storage.checkpoint import NEW_SUFFIX
from bascule.storage.index.segment_lookup import limit_of, locate
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


class Cut(NamedTuple):
    """Where a log is to end, in the segment that is there now."""

    end: LogPosition
    segment: Segment
    contents: Contents
    tail: Tail
    """What is true of the log below `end`."""

    @property
    def keeps_segment(self) -> bool:
        """Whether the segment stays, shorter; else a new one takes its name."""
        return self.end.offset > self.segment.base_offset


def plan_cut(segments: Segments, offset: int, tail: Tail) -> Cut:
    """Plan the cut of a log that ends beyond `offset`: at the batch that holds it, if one does.

    Raises: SegmentGone, CorruptData, OSError.
    """
    segment, following = segments.at(offset)
    contents = segments.open(segment, following)
    limit = limit_of(segment, following, tail.end)
    place = locate(contents, offset, limit, nowait=False)
    assert place is not None, "only nowait finds nothing"
    end_offset = offset
    if place.position < limit:
        header = read_header(contents.file.read_at(place.position, HEADER_BYTES))
        end_offset = min(offset, header.base_offset)
    end = LogPosition(end_offset, segment.base_offset, place.position)
    return Cut(
        end,
        segment,
        contents,
        Tail(
            end,
            segments.timestamp_max(start_offset=segments.all[0].base_offset, end=end),
            segments.timestamp_max(start_offset=segment.base_offset, end=end),
        ),
    )


def kept_segments(segments: Segments, cut: Cut) -> tuple[Segment, ...]:
    """The segments of the shorter log, without the new one. Changes nothing."""
    kept = tuple(s for s in segments.all if s.base_offset < cut.segment.base_offset)
    if not cut.keeps_segment:
        return kept
    contents = cut.contents.truncated(cut.end, cut.tail.segment_timestamp_max)
    last = Segment(cut.segment.base_offset, cut.end.position, contents, vouched=cut.segment.vouched)
    last.timestamp_max = cut.tail.segment_timestamp_max
    return (*kept, last)


def new_path(directory: str, base_offset: int) -> str:
    """The temporary name of a new segment; opening a log removes what is left under it."""
    return segment_path(directory, base_offset, LOG_SUFFIX + NEW_SUFFIX)


def cut_files(files: Files, directory: str, cut: Cut, later: list[int]) -> None:
    """Remove what is behind the cut, the segments `later` among it, and name the new segment.

    Raises: OSError, with a part of it done.
    """
    for base in reversed(later):
        remove_segment(files, directory, base)
    if cut.end.position == 0:
        # They reach further than the log, and those of an empty segment are never written anew.
        remove_indexes(files, directory, cut.segment.base_offset)
        files.sync_dir(directory)
    if cut.keeps_segment:
        cut.contents.file.truncate(cut.end.position)
        cut.contents.file.sync()
    offset = cut.end.offset
    files.rename(new_path(directory, offset), segment_path(directory, offset))
    files.sync_dir(directory)
