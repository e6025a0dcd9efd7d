"""What keeps a log short and its recovery quick: checkpoints, and a start that moves on."""

from __future__ import annotations

import errno
from itertools import pairwise
from typing import Final, NamedTuple

from bascule.host.api import Clock, Files
from bascule.storage.checkpoint import FILE_NAME, Checkpoint, encode_checkpoint, replace_file
from bascule.storage.index.sparse_index import Covered
from bascule.storage.segment import Segment, Tail, remove_indexes, remove_segment
from bascule.storage.segments import Segments

NO_SPACE: Final = frozenset({errno.ENOSPC, errno.EDQUOT})


class Removed(NamedTuple):
    """What a new start of the log did away with."""

    records: int
    """Offsets that were readable before and are not now."""
    segments: int
    bytes: int
    """Of the segments' batches."""


class Upkeep:
    """The checkpoint and the start of one log. One thread at a time calls it."""

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
        """`saved` is what the checkpoint file holds, None where there is none."""
        self._files = files
        self._directory = directory
        self._clock = clock
        self._segments = segments
        self._saved = saved
        self._removable: list[int] = []
        """Base offsets of segments that are no longer part of the log, their files still there."""
        self.start_offset = start_offset
        """The first offset readers may ask for. Any thread may read it."""
        self.high_watermark = start_offset if saved is None else saved.high_watermark
        """That of the last checkpoint."""

    @property
    def recovery_segment(self) -> int:
        """Base offset of the segment that recovery begins in, by the checkpoint on the disk."""
        return -1 if self._saved is None else self._saved.recovery_segment

    def save(self, synced: Tail, *, high_watermark: int, clean: bool) -> None:
        """Bring the index files and the checkpoint up to `synced`, where anything has changed.

        Raises: OSError; the older checkpoint is then still there, or the new one.
        """
        self._save(synced, high_watermark, self.start_offset, clean)

    def save_truncated(self, tail: Tail, *, high_watermark: int) -> None:
        """Write the checkpoint of a log that is about to end at `tail`, which is synced.

        The indexes of the segment that is cut are left: they reach further. Raises: OSError.
        """
        self._save_indexes(tail, clean=False, below=tail.end.segment_base)
        self._write(tail, high_watermark, self.start_offset, clean=False)

    def reset(self, checkpoint: Checkpoint) -> None:
        """Go on with an empty log whose checkpoint is on the disk already."""
        self._saved = checkpoint
        self._removable.clear()
        self.start_offset = checkpoint.start_offset
        self.high_watermark = checkpoint.high_watermark

    def _save(self, synced: Tail, high_watermark: int, start_offset: int, clean: bool) -> None:
        self._save_indexes(synced, clean, below=synced.end.segment_base + 1)
        self._write(synced, high_watermark, start_offset, clean)

    def _write(self, synced: Tail, high_watermark: int, start_offset: int, clean: bool) -> None:
        end = synced.end
        new = Checkpoint(
            clean, high_watermark, end.offset, end.segment_base, end.position,
            start_offset, synced.timestamp_max, self._clock.now_ms(),
        )  # fmt: skip
        if self._saved is not None and self._saved._replace(written_ms=new.written_ms) == new:
            return
        replace_file(self._files, f"{self._directory}/{FILE_NAME}", encode_checkpoint(new))
        self._saved = new
        self.high_watermark = high_watermark

    def _save_indexes(self, synced: Tail, clean: bool, *, below: int) -> None:
        """Of the segments with a base offset below `below`. Raises: OSError."""
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

    def advance_start(self, offset: int, synced: Tail, *, high_watermark: int) -> Removed:
        """Move the start to `offset`, or to what is synced and committed where that is less.

        The new start is on the disk before any file goes. Never goes back.

        Raises: OSError, where the start is as before or the rest of the files goes with the next
        call.
        """
        before = self.start_offset
        start = max(before, min(offset, synced.end.offset, high_watermark))
        doomed = self._below(start, synced)
        if start > before or (doomed and not self._recovers_above(doomed[-1])):
            self._save_start(synced, high_watermark, start, doomed)
        self.start_offset = start
        if doomed:
            self._segments.replace(doomed)
            self._removable += [segment.base_offset for segment in doomed]
        while self._removable:
            remove_segment(self._files, self._directory, self._removable[0])
            del self._removable[0]
        return Removed(start - before, len(doomed), sum(segment.size for segment in doomed))

    def _below(self, start: int, synced: Tail) -> list[Segment]:
        """The segments that hold nothing from `start` on; what is synced ends behind them."""
        segments, limit = self._segments.all, min(start, synced.end.segment_base)
        return [
            segment for segment, following in pairwise(segments) if following.base_offset <= limit
        ]

    def _recovers_above(self, segment: Segment) -> bool:
        """Whether recovery, by the checkpoint on the disk, does without the segment."""
        return self._saved is not None and self._saved.recovery_segment > segment.base_offset

    def _save_start(
        self, synced: Tail, high_watermark: int, start: int, doomed: list[Segment]
    ) -> None:
        """Put the new start on the disk, also on one that is full."""
        try:
            self._save(synced, high_watermark, start, clean=False)
        except OSError as error:
            if error.errno not in NO_SPACE or not doomed:
                raise
            # Indexes are rebuilt where they are missing, so they can go first to make room.
            for segment in doomed:
                remove_indexes(self._files, self._directory, segment.base_offset)
            self._save(synced, high_watermark, start, clean=False)
