"""A log's swaps: its segments in memory and their files on the disk, replaced together."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum, auto
from itertools import pairwise

from bascule.host.api import Files
from bascule.storage.compaction import swap
from bascule.storage.compaction.swap import Swap
from bascule.storage.segment import Contents, Segment
from bascule.storage.segments import SegmentGone, Segments
from bascule.storage.upkeep import Upkeep


class _Stage(Enum):
    SETTLED = auto()
    """The directory holds the log's segments under their names."""
    DOUBTFUL = auto()
    """A manifest may be on the disk, or may come back: it must not be there."""
    COMMITTED = auto()
    """The log has the new segments, and the directory has yet to be brought in line."""


class Swaps:
    """Replaces closed segments by cleaned ones. One thread at a time, never beside a checkpoint or
    a new start of the log."""

    def __init__(self, files: Files, directory: str, segments: Segments, upkeep: Upkeep) -> None:
        self._files = files
        self._directory = directory
        self._segments = segments
        self._upkeep = upkeep
        self._stage = _Stage.SETTLED
        self._added: list[Segment] = []

    @property
    def is_settled(self) -> bool:
        """Whether every segment's file has its name, so that it may be opened again."""
        return self._stage is not _Stage.COMMITTED

    @property
    def recovery_segment(self) -> int:
        """Base offset of the segment where recovery begins: those below may be replaced."""
        return self._upkeep.recovery_segment

    def closed_segments(self) -> list[tuple[Segment, int]]:
        """The segments that may be replaced, oldest first, each with the offset it ends at.

        They lie wholly below the recovery point of the checkpoint on the disk.
        """
        limit = self.recovery_segment
        everything = self._segments.all
        return [
            (segment, following.base_offset)
            for segment, following in pairwise(everything)
            if segment.base_offset < limit
        ]

    def open(self, segment: Segment) -> Contents:
        """The contents of a closed segment. Raises: SegmentGone, CorruptData, OSError."""
        _, following = self._segments.at(segment.base_offset)
        if not self._segments.holds(segment):
            raise SegmentGone
        return self._segments.open(segment, following)

    def holds(self, segment: Segment) -> bool:
        """Whether the segment is still one of the log."""
        return self._segments.holds(segment)

    def settle_doubt(self) -> None:
        """As `settle`, where a swap has failed; else there is nothing to do."""
        if self._stage is not _Stage.SETTLED:
            self.settle()

    def reset(self) -> None:
        """Go on with a log of which all former segments and files are gone."""
        self._stage = _Stage.SETTLED
        self._added.clear()

    def settle(self) -> None:
        """Bring the directory in line with the log, whatever a failed swap has left there.

        Raises: CorruptData, OSError; then try again.
        """
        if self._stage is _Stage.COMMITTED:
            swap.finish(self._files, self._directory)
            self._put_away()
        elif self._stage is _Stage.DOUBTFUL:
            swap.undo(self._files, self._directory)
        swap.discard(self._files, self._directory)
        # What was removed must not come back beside what is written next.
        self._files.sync_dir(self._directory)
        self._stage = _Stage.SETTLED

    def replace(self, removed: Sequence[Segment], added: Segment) -> None:
        """Put a new segment, complete and synced under its cleaned name, in the place of closed
        ones: after a crash the log has these or those.

        Raises: SegmentGone where the log has one of them no more; CorruptData, OSError. The log
        goes on with the old segments, or with the new one, and `settle` comes before the next.
        """
        if not all(self._segments.holds(segment) for segment in removed):
            raise SegmentGone
        bases = tuple(segment.base_offset for segment in removed)
        self._stage = _Stage.DOUBTFUL
        swap.commit(self._files, self._directory, Swap(bases, ((added.base_offset, added.size),)))
        # Before any name changes: a reader that opens an old segment by name from here on finds
        # out that it is gone, and looks again. The new one is open, and stays so.
        self._segments.replace(removed, [added])
        self._added.append(added)
        self._stage = _Stage.COMMITTED
        swap.finish(self._files, self._directory)
        self._put_away()
        self._stage = _Stage.SETTLED

    def _put_away(self) -> None:
        """Let go of the new segments' files, now that they can be opened by name."""
        for segment in self._added:
            if segment.contents is not None:
                segment.put_away(segment.contents)
        self._added.clear()
