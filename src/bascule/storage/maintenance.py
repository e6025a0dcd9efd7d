"""Maintenance of a log: checkpoints, and the advance of the log start."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import NamedTuple

from bascule.host.api import NO_SPACE, Clock, Files
from bascule.storage.checkpoint import FILE_NAME, Checkpoint, encode_checkpoint, replace_file
from bascule.storage.index.sparse_index import Covered
from bascule.storage.segment import Segment, Tail, remove_indexes, remove_segment
from bascule.storage.segments import Segments


class RemovedSegments(NamedTuple):
    """What an advance of the log start removed."""

    records: int
    """Number of offsets between the old and the new start."""
    segments: int
    bytes: int
    """Bytes of batches in the removed segments."""


def never() -> bool:
    """The default of `breaks_off`: nothing is broken off."""
    return False


class LogMaintenance:
    """The checkpoint and the start of one log. One thread at a time may call it."""

    def __init__(
        self,
        files: Files,
        directory: str,
        clock: Clock,
        segments: Segments,
        *,
        saved: Checkpoint | None,
        start_offset: int,
    ) -> None:
        """`saved` is the content of the checkpoint file, None if there is no file."""
        self._files = files
        self._directory = directory
        self._clock = clock
        self._segments = segments
        self._saved = saved
        self._removable: list[int] = []
        """Base offsets of segments that are no longer in the log but still have files."""
        self.start_offset = start_offset
        """The first offset that readers may request. Any thread may read it."""
        self.high_watermark = start_offset if saved is None else saved.high_watermark
        """The high watermark of the last checkpoint."""

    @property
    def recovery_segment(self) -> int:
        """Base offset of the segment in which recovery begins, by the checkpoint on the disk; -1
        where that is not known."""
        return -1 if self._saved is None else self._saved.recovery_segment

    def save(
        self,
        synced: Tail,
        *,
        high_watermark: int,
        clean: bool,
        breaks_off: Callable[[], bool] = never,
    ) -> bool:
        """Write index files and a checkpoint up to `synced`, if anything has changed. False: the
        checkpoint is not written, since `breaks_off`, called after the indexes of each segment,
        has said so.

        Raises: OSError. The file is then the older checkpoint or the new one.
        """
        return self._save(synced, high_watermark, self.start_offset, clean, breaks_off)

    def save_truncated(self, tail: Tail, *, high_watermark: int) -> None:
        """Write the checkpoint of a log that will be truncated to `tail`, which is synced.

        Does not write the indexes of the truncated segment: they cover more than will remain.

        Raises: OSError.
        """
        self._save_indexes(tail, clean=False, below=tail.end.segment_base)
        self._write(tail, high_watermark, self.start_offset, clean=False)

    def reset(self, checkpoint: Checkpoint) -> None:
        """Take over the state of an empty log, whose checkpoint is already on the disk."""
        self._saved = checkpoint
        self._removable.clear()
        self.start_offset = checkpoint.start_offset
        self.high_watermark = checkpoint.high_watermark

    def _save(
        self,
        synced: Tail,
        high_watermark: int,
        start_offset: int,
        clean: bool,
        breaks_off: Callable[[], bool] = never,
    ) -> bool:
        below = synced.end.segment_base + 1
        if not self._save_indexes(synced, clean, below=below, breaks_off=breaks_off):
            return False
        self._write(synced, high_watermark, start_offset, clean)
        return True

    def _write(self, synced: Tail, high_watermark: int, start_offset: int, clean: bool) -> None:
        end = synced.end
        # A loss of power may take what is not synced, and other records come in its place.
        high_watermark = min(high_watermark, end.offset)
        new = Checkpoint(
            clean, high_watermark, end.offset, end.segment_base, end.position,
            start_offset, synced.timestamp_max, self._clock.now_ms(),
        )  # fmt: skip
        if self._saved is not None and self._saved._replace(written_ms=new.written_ms) == new:
            return
        try:
            replace_file(self._files, f"{self._directory}/{FILE_NAME}", encode_checkpoint(new))
        except OSError:
            # Either may be on the disk: until the next one nothing counts as below its recovery
            # point, which is lower before a truncation.
            self._saved = None
            raise
        self._saved = new
        self.high_watermark = high_watermark

    def _save_indexes(
        self, synced: Tail, clean: bool, *, below: int, breaks_off: Callable[[], bool] = never
    ) -> bool:
        """Write the indexes of the segments with base offsets below `below`. Raises: OSError."""
        end = synced.end
        segments = self._segments.all
        for segment, following in zip(segments, (*segments[1:], None), strict=True):
            contents = segment.contents
            if contents is None or segment.base_offset >= below:
                continue
            if segment.base_offset == end.segment_base:
                covered = Covered(end.position, end.offset, synced.segment_timestamp_max)
            else:
                assert following is not None, "the segment synced last is not the first"
                covered = Covered(segment.size, following.base_offset, contents.timestamp_max)
            if not contents.is_saved(covered.position):
                final = segment.base_offset < end.segment_base
                contents.save_indexes(
                    self._files, self._directory, segment.base_offset, covered, sync=final or clean
                )
                if breaks_off():
                    return False
        return True

    def advance_start(self, offset: int, synced: Tail, *, high_watermark: int) -> RemovedSegments:
        """Advance the start to `offset`, but at most to the synced and committed end.

        The new start is synced before any file is removed. The start never goes back.

        Raises: OSError. Either the start is unchanged, or the next call removes the remaining
        files.
        """
        before = self.start_offset
        start = max(before, min(offset, synced.end.offset, high_watermark))
        removable = self._segments_below(start, synced)
        if start > before or (removable and not self._recovers_above(removable[-1])):
            self._save_start(synced, high_watermark, start, removable)
        self.start_offset = start
        if removable:
            self._segments.replace(removable)
            self._removable += [segment.base_offset for segment in removable]
        while self._removable:
            remove_segment(self._files, self._directory, self._removable[0])
            del self._removable[0]
        return RemovedSegments(
            start - before, len(removable), sum(segment.size for segment in removable)
        )

    def _segments_below(self, start: int, synced: Tail) -> list[Segment]:
        """The segments wholly below `start` and below the segment where the synced bytes end."""
        segments, limit = self._segments.all, min(start, synced.end.segment_base)
        return [
            segment for segment, following in pairwise(segments) if following.base_offset <= limit
        ]

    def _recovers_above(self, segment: Segment) -> bool:
        """Whether recovery from the checkpoint on the disk does not read the segment."""
        return self._saved is not None and self._saved.recovery_segment > segment.base_offset

    def _save_start(
        self, synced: Tail, high_watermark: int, start: int, removable: list[Segment]
    ) -> None:
        """Write the new start to the disk, even if the disk is full."""
        try:
            self._save(synced, high_watermark, start, clean=False)
        except OSError as error:
            if error.errno not in NO_SPACE or not removable:
                raise
            # Missing indexes are rebuilt, so removing them first is safe and frees space.
            for segment in removable:
                remove_indexes(self._files, self._directory, segment.base_offset)
            self._save(synced, high_watermark, start, clean=False)
