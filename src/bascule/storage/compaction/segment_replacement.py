"""Segment replacement: replaces closed segments in memory and their files on the disk."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum, auto
from itertools import pairwise
from typing import NamedTuple

from bascule.host.api import Files
from bascule.storage.compaction import replacement_manifest
from bascule.storage.compaction.clean_offset import read_clean_offset
from bascule.storage.compaction.replacement_manifest import ReplacementManifest
from bascule.storage.compaction.tombstones_end import raise_tombstones_end, read_tombstones_end
from bascule.storage.maintenance import LogMaintenance
from bascule.storage.segment import Contents, Segment
from bascule.storage.segments import SegmentGone, Segments


class _Stage(Enum):
    IDLE = auto()
    """The files of the log's segments have their final names."""
    UNCERTAIN = auto()
    """`commit` failed: a manifest may be on the disk, and it must be removed."""
    COMMITTED = auto()
    """The log has the new segments, but their files may not have their final names yet."""


class CleanedPart(NamedTuple):
    """What compaction has removed from a log, as a copy of it has to know."""

    clean_offset: int
    """Below it every key has one record."""
    tombstones_end: int
    """All tombstones that are missing in the log are below."""


class SegmentReplacement:
    """Replaces closed segments by compacted ones. One thread at a time may call it, and never
    concurrently with a checkpoint or an advance of the log start."""

    def __init__(
        self, files: Files, directory: str, segments: Segments, maintenance: LogMaintenance
    ) -> None:
        self._files = files
        self._directory = directory
        self._segments = segments
        self._maintenance = maintenance
        self._stage = _Stage.IDLE
        self._added: list[Segment] = []
        self.cleaning_end = 0
        """Up to where a run since the start of the process has compacted, or is about to."""

    @property
    def names_are_final(self) -> bool:
        """Whether every segment's file has its final name, so that it can be opened again."""
        return self._stage is not _Stage.COMMITTED

    @property
    def recovery_segment(self) -> int:
        """Base offset of the segment where recovery begins. Those below it may be replaced."""
        return self._maintenance.recovery_segment

    def closed_segments(self) -> list[tuple[Segment, int]]:
        """The segments that may be replaced, oldest first, each with its end offset.

        They lie wholly below the recovery point of the checkpoint on the disk.
        """
        limit = self.recovery_segment
        segments = self._segments.all
        return [
            (segment, following.base_offset)
            for segment, following in pairwise(segments)
            if segment.base_offset < limit
        ]

    def cleaned_part(self, *, log_end: int) -> CleanedPart:
        """What was removed from the log, which ends at `log_end`. Any thread may call it; blocks on
        the disk. Raises: OSError."""
        files, directory = self._files, self._directory
        # In this order: what is removed meanwhile must not count as less.
        clean = read_clean_offset(files, directory).offset
        return CleanedPart(clean, read_tombstones_end(files, directory, log_end=log_end))

    def lack_tombstones(self, end: int, *, log_end: int) -> None:
        """Note, synced, that tombstones below `end` are missing, or are about to be.

        Raises: OSError.
        """
        raise_tombstones_end(self._files, self._directory, end, log_end=log_end)

    def open(self, segment: Segment) -> Contents:
        """The contents of a closed segment. Raises: SegmentGone, CorruptData, OSError."""
        _, following = self._segments.at(segment.base_offset)
        if not self._segments.holds(segment):
            raise SegmentGone
        return self._segments.open(segment, following)

    def holds(self, segment: Segment) -> bool:
        """Whether the segment is still in the log."""
        return self._segments.holds(segment)

    def recover_if_failed(self) -> None:
        """Call `recover` if the last replacement failed."""
        if self._stage is not _Stage.IDLE:
            self.recover()

    def reset(self) -> None:
        """Forget a failed replacement, after all former segments and files were removed."""
        self._stage = _Stage.IDLE
        self._added.clear()

    def recover(self) -> None:
        """Complete or undo a failed replacement, so that the directory matches the log.

        Raises: CorruptData, OSError; then call it again.
        """
        if self._stage is _Stage.COMMITTED:
            replacement_manifest.finish(self._files, self._directory)
            self._unload_added()
        elif self._stage is _Stage.UNCERTAIN:
            replacement_manifest.undo(self._files, self._directory)
        replacement_manifest.discard(self._files, self._directory)
        # Sync the removals: removed files must not return beside files that are written next.
        self._files.sync_dir(self._directory)
        self._stage = _Stage.IDLE

    def replace(self, removed: Sequence[Segment], added: Segment) -> None:
        """Replace closed segments by a new one. After a crash the log has the old or the new ones.

        The new segment is complete and synced under its `.cleaned` name.

        Raises: SegmentGone if a removed segment is no longer in the log; CorruptData, OSError. The
        log then continues with the old segments or the new one. Call `recover` before the next
        replacement.
        """
        if not all(self._segments.holds(segment) for segment in removed):
            raise SegmentGone
        bases = tuple(segment.base_offset for segment in removed)
        self._stage = _Stage.UNCERTAIN
        replacement_manifest.commit(
            self._files,
            self._directory,
            ReplacementManifest(bases, ((added.base_offset, added.size),)),
        )
        # Publish the new segment before any name changes. A reader that then opens an old segment
        # by its name gets SegmentGone and repeats its lookup. The new segment stays open meanwhile.
        self._segments.replace(removed, [added])
        self._added.append(added)
        self._stage = _Stage.COMMITTED
        replacement_manifest.finish(self._files, self._directory)
        self._unload_added()
        self._stage = _Stage.IDLE

    def _unload_added(self) -> None:
        """Unload the new segments, because they can now be opened by name."""
        for segment in self._added:
            if segment.contents is not None:
                segment.unload(segment.contents)
        self._added.clear()
