"""Open a log: find its segments, check the bytes that may not be synced, remove a torn tail.

Recovery distinguishes a torn tail from corruption by the *known synced position*: the checkpoint's
recovery point or the synced mark, whichever is later, by offset and by byte position.

* All bytes below it were synced, and some may have been acknowledged. Damage there is corruption,
  and recovery refuses it.
* No byte above it was confirmed. After a kill all written bytes are there, and the last batch may
  be incomplete. After a power loss any page may be missing, even if later pages are there. The log
  ends at the first batch that is incomplete or has an unexpected offset or epoch. Recovery removes
  the rest.

The mark is written after each sync and is not synced itself. After a kill it is exact, so recovery
never removes a confirmed batch. After a power loss the mark may be older. One case then remains: a
batch was synced after both the mark and the checkpoint on the disk, and something other than the
power loss damaged it. Recovery takes such a batch for a torn tail.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from bascule.errors import CorruptData
from bascule.host.api import Files
from bascule.storage import checkpoint as checkpoint_file
from bascule.storage import epochs as epochs_file
from bascule.storage import synced_mark
from bascule.storage.appended_batches import GAPS_FILE_NAME
from bascule.storage.checkpoint import Checkpoint, decode_checkpoint, replace_file
from bascule.storage.compaction import clean_offset, replacement_manifest
from bascule.storage.epochs import LeaderEpochs, encode_epochs, read_epochs
from bascule.storage.index.sparse_index import Covered
from bascule.storage.scan import scan_batches
from bascule.storage.segment import (
    INDEX_SUFFIXES,
    LOG_SUFFIX,
    Contents,
    LogPosition,
    Segment,
    base_offset_of,
    segment_path,
)
from bascule.storage.truncation import reset

SEGMENT_SUFFIXES: Final = (*INDEX_SUFFIXES, LOG_SUFFIX)


class Recovered(NamedTuple):
    """A recovered log. All of it is synced now."""

    segments: tuple[Segment, ...]
    """In order; the last one is open."""
    end: LogPosition
    timestamp_max: int
    epochs: LeaderEpochs
    start_offset: int
    checkpoint: Checkpoint | None
    gaps_allowed: bool
    """Whether offsets may be missing between batches."""
    gaps_marked: bool
    """Whether the file `gaps` exists."""
    truncated_bytes: int
    """Bytes of a torn tail that were removed; they were never synced."""
    mark_is_stale: bool
    """Whether the synced mark on the disk is below `end`."""
    names_are_synced: bool
    """Whether the names of all files are on the disk. A process that was killed may have left some
    in the page cache alone."""


def recover(
    files: Files, directory: str, *, index_interval_bytes: int, gaps_allowed: bool
) -> Recovered:
    """Open the log in `directory`; create it if there is none.

    Raises: CorruptData naming file and byte, OSError.
    """
    return LogRecovery(files, directory, index_interval_bytes, gaps_allowed).run()


class LogRecovery:
    def __init__(
        self, files: Files, directory: str, index_interval_bytes: int, gaps_allowed: bool
    ) -> None:
        self.files = files
        self.directory = directory
        self.index_interval_bytes = index_interval_bytes
        self.gaps_allowed = gaps_allowed
        self.truncated_bytes = 0
        """Bytes removed by `_truncate`. If not 0, the segments must be synced."""
        self.names_are_synced = False

    def run(self) -> Recovered:
        names = self._list()
        self.gaps_marked = GAPS_FILE_NAME in names
        is_compacted = clean_offset.FILE_NAME in names
        self.gaps_allowed |= is_compacted
        bases = sorted(base for name in names if (base := base_offset_of(name)) is not None)
        checkpoint = self._read_checkpoint()
        self.recovery_point = _recovery_point(checkpoint, bases)
        if self.recovery_point.segment_base not in bases:
            if bases or checkpoint is not None:
                path = segment_path(self.directory, self.recovery_point.segment_base)
                raise CorruptData(path, 0, f"{self.recovery_point.position} bytes", "no such file")
            bases = [self._create()]
        # A log begins at offset 0. What moves its start writes a checkpoint before any file goes.
        start_offset = 0 if checkpoint is None else checkpoint.start_offset
        if bases[0] > start_offset:
            path = segment_path(self.directory, bases[0])
            raise CorruptData(path, 0, f"offset {start_offset}", f"offset {bases[0]}")
        bases = self._remove_leftovers(names, bases, start_offset)
        unloaded = [
            Segment(base, self.files.size(segment_path(self.directory, base)), None, verified=False)
            for base in bases
            if base < self.recovery_point.segment_base
        ]
        mark = self._read_mark()
        self.known_synced = self.recovery_point if mark is None else max(mark, self.recovery_point)
        """Everything below it was synced."""
        # Compaction leaves gaps only below the recovery point, replication leaves gaps anywhere.
        self.may_be_compacted = self.gaps_allowed and checkpoint is None
        self.gaps_allowed |= self.gaps_marked
        self.scan_allows_gaps = self.may_be_compacted or self.gaps_marked
        # A segment begins where the one before it ends, also where replication leaves a gap there.
        # Else a power loss has dropped the end of an unsynced segment, and kept a later one.
        self.segments_have_gaps = is_compacted and checkpoint is None
        # If the segment was compacted after the mark, the mark's position refers to other bytes.
        self.rewrite_from = self.recovery_point if self.may_be_compacted else self.known_synced
        self.timestamp_max = checkpoint.timestamp_max if checkpoint else -1
        self.epochs = read_epochs(self.files, self.directory)
        known = LeaderEpochs() if self.epochs is None else self.epochs
        opened, end = self._scan(
            [base for base in bases if base >= self.recovery_point.segment_base]
        )
        segments = (*unloaded, *opened)
        self._remove_stale_indexes(names, segments)
        self._sync(opened, end)
        epochs = self.epochs
        if epochs is None:
            sizes = ((segment.base_offset, segment.size) for segment in segments)
            epochs = scan_epochs(self.files, self.directory, sizes)
        epochs = epochs.up_to(end.offset)
        if epochs != known:
            path = f"{self.directory}/{epochs_file.FILE_NAME}"
            replace_file(self.files, path, encode_epochs(epochs))
        return Recovered(
            segments, end, self.timestamp_max, epochs, start_offset, checkpoint,
            self.gaps_allowed, self.gaps_marked, self.truncated_bytes,
            mark_is_stale=mark is None or mark.offset < end.offset,
            names_are_synced=self.names_are_synced,
        )  # fmt: skip

    def _list(self) -> list[str]:
        self.files.make_dirs(self.directory)
        names = self.files.list_dir(self.directory)
        if reset.FILE_NAME in names:
            self._sync_names()
            reset.finish(self.files, self.directory)
            names = self.files.list_dir(self.directory)
        if any(
            name == replacement_manifest.FILE_NAME
            or name.endswith(replacement_manifest.CLEANED_SUFFIX)
            for name in names
        ):
            self._sync_names()
            replacement_manifest.finish(self.files, self.directory)
            names = self.files.list_dir(self.directory)
        for name in names:
            if name.endswith(checkpoint_file.NEW_SUFFIX):
                self.files.remove(f"{self.directory}/{name}")
        return names

    def _sync_names(self) -> None:
        """Before files are removed: a process that was killed may have left the name of the file
        which says so in the page cache alone."""
        if not self.names_are_synced:
            self.files.sync_dir(self.directory)
        self.names_are_synced = True

    def _remove_leftovers(self, names: list[str], bases: list[int], start_offset: int) -> list[int]:
        """Remove files of segments wholly below the log's start, which a crash left.

        Any of these files may be missing already, because their removal is not synced.
        """
        first = min(self.recovery_point.segment_base, max(b for b in bases if b <= start_offset))
        for name in names:
            base = base_offset_of(name, SEGMENT_SUFFIXES)
            if base is not None and base < first:
                self._sync_names()
                self.files.remove(f"{self.directory}/{name}")
        return [base for base in bases if base >= first]

    def _remove_stale_indexes(self, names: list[str], segments: Sequence[Segment]) -> None:
        """Remove index files that describe more than the log has: of removed batches, segments too.

        Other batches may be appended in their place. The files are written anew by the next
        checkpoint, which does not sync those of the last segment. A power loss could bring the old
        ones back, beside a checkpoint that is above what they have in common with the log.
        """
        kept = {s.base_offset for s in segments if s.contents is None or s.contents.matches_files}
        stale = []
        for name in names:
            base, path = base_offset_of(name, INDEX_SUFFIXES), f"{self.directory}/{name}"
            if base is not None and base not in kept and self.files.exists(path):
                stale.append(path)
        for path in stale:
            self.files.remove(path)
        if stale:
            self.files.sync_dir(self.directory)

    def _create(self) -> int:
        self.files.open(segment_path(self.directory, 0), create=True)
        self.files.sync_dir(self.directory)
        self.names_are_synced = True
        return 0

    def _read_checkpoint(self) -> Checkpoint | None:
        """The checkpoint, None if the file is missing. Recovery then reads the whole log.

        Raises: CorruptData if both records of the file are damaged. No other file holds the log
        start, and without it purged records would become readable again.
        """
        path = f"{self.directory}/{checkpoint_file.FILE_NAME}"
        try:
            return decode_checkpoint(self.files.read_bytes(path), path=path)
        except FileNotFoundError:
            return None

    def _read_mark(self) -> LogPosition | None:
        try:
            data = self.files.read_bytes(f"{self.directory}/{synced_mark.FILE_NAME}")
        except FileNotFoundError:
            return None
        return synced_mark.read_mark(data)[0]

    def _scan(self, bases: list[int]) -> tuple[list[Segment], LogPosition]:
        """Check the segments from the recovery point on, and remove a torn tail.

        Raises: CorruptData if synced bytes are missing or damaged, OSError.
        """
        opened: list[Segment] = []
        end = self.recovery_point
        damage: CorruptData | None = None
        for row, base in enumerate(bases):
            has_gap = row > 0 and base > end.offset and self.segments_have_gaps
            if row > 0 and base != end.offset and not has_gap:
                before = segment_path(self.directory, end.segment_base)
                damage = CorruptData(
                    before, end.position, f"batches up to offset {base}", f"offset {end.offset}"
                )
            else:
                path = segment_path(self.directory, base)
                contents = Contents(self.files.open(path), self.index_interval_bytes)
                opened.append(Segment(base, contents.file.size(), contents))
                end, damage = self._scan_segment(opened[-1], contents, max(base, end.offset))
            if damage is not None and not self._lacks_synced(end, damage):
                self._truncate(opened[-1], end, [base for base in bases if base > end.segment_base])
            if damage is not None:
                break
        if self._lacks_synced(end, damage):
            raise self._synced_damage_error(damage, end)
        known = self.known_synced
        if self.scan_allows_gaps and end[1:] == known[1:] and end.offset > known.offset:
            # If gaps are allowed, no other check finds a last base offset that is too large. The
            # last segment is never compacted: a mark in it refers to these bytes.
            path = segment_path(self.directory, end.segment_base)
            raise CorruptData(
                path, end.position, f"the last batch to end at offset {known.offset}",
                str(end.offset),
            )  # fmt: skip
        return opened, end

    def _lacks_synced(self, end: LogPosition, damage: CorruptData | None) -> bool:
        """Whether more is known to be synced than the valid batches, which end at `end`.

        Not by the offset alone: a base offset that damage has increased passes for the end of a
        gap, and is then beyond all that was synced.
        """
        known = self.known_synced
        if end.offset < known.offset:
            return True
        if self.segments_have_gaps:
            return False  # the log may have been compacted since: the position is of other bytes
        return end[1:] < known[1:] and (damage is not None or known.position > 0)

    def _synced_damage_error(self, damage: CorruptData | None, end: LogPosition) -> CorruptData:
        """The error for a log that is valid up to `end` only, although more of it was synced."""
        if damage is None:
            path = segment_path(self.directory, end.segment_base)
            damage = CorruptData(path, end.position, "more batches", "the end of the file")
        return CorruptData(
            damage.file, damage.at, damage.expected,
            f"{damage.found}; the log is valid up to byte {end.position} of segment "
            f"{end.segment_base}, offset {end.offset}, and was synced up to offset "
            f"{self.known_synced.offset}",
        )  # fmt: skip

    def _scan_segment(
        self, segment: Segment, contents: Contents, offset: int
    ) -> tuple[LogPosition, CorruptData | None]:
        """Check one segment; return the end of its valid batches, and any damage there."""
        base, position = segment.base_offset, 0
        if base == self.recovery_point.segment_base:
            checked = self.recovery_point.position
            if segment.size < checked:
                path, found = contents.file.path, segment.size
                raise CorruptData(path, found, f"{checked} bytes", f"{found} bytes")
            known = Covered(checked, self.recovery_point.offset, self.timestamp_max)
            covered = contents.load_indexes(self.files, self.directory, base, limit=known)
            position, offset = covered.position, covered.offset
            if position:
                segment.trust.suspend()  # what is below was checked by another process
        # The file has an epoch before its first batch is written, so it has every batch's epoch.
        position, offset, damage = contents.scan(
            start=position,
            end=segment.size,
            offset=offset,
            epochs=self.epochs,
            gaps_allowed=self.scan_allows_gaps,
        )
        self.timestamp_max = max(self.timestamp_max, contents.timestamp_max)
        at_point = (base, position) == (
            self.recovery_point.segment_base,
            self.recovery_point.position,
        )
        if at_point and self.gaps_allowed:
            # After a truncation within a gap the log ends above its last batch.
            offset = max(offset, self.recovery_point.offset)
        return LogPosition(offset, base, position), damage

    def _truncate(self, segment: Segment, end: LogPosition, later: list[int]) -> None:
        """Remove the torn tail: all bytes above `end`."""
        assert segment.contents is not None
        for base in reversed(later):
            self.truncated_bytes += self.files.size(segment_path(self.directory, base))
            for suffix in SEGMENT_SUFFIXES:
                path = segment_path(self.directory, base, suffix)
                if self.files.exists(path):
                    self.files.remove(path)
        if later:
            self.files.sync_dir(self.directory)
        self.truncated_bytes += segment.size - end.position
        segment.contents.file.truncate(end.position)
        segment.size = end.position

    def _sync(self, opened: list[Segment], end: LogPosition) -> None:
        """Write again and sync the bytes above the known synced position.

        They may be only in the page cache. After a failed sync the kernel may treat them as
        written, so a sync alone would not write them.
        """
        if end.offset == self.known_synced.offset and not self.truncated_bytes:
            return
        for segment in opened:
            assert segment.contents is not None
            start = 0
            if segment.base_offset < self.rewrite_from.segment_base:
                continue
            if segment.base_offset == self.rewrite_from.segment_base:
                start = self.rewrite_from.position
            if segment.size > start:
                segment.contents.file.write_again(start, segment.size - start)
            segment.contents.file.sync()
        self.files.sync_dir(self.directory)
        self.names_are_synced = True


def scan_epochs(files: Files, directory: str, segments: Iterable[tuple[int, int]]) -> LeaderEpochs:
    """Read the leader epochs of a log from its batch headers. `segments` are (base offset, bytes of
    whole batches), in order. What compaction has removed between two epochs counts as of the later
    one; see `LeaderEpochs.with_told`.

    Raises: CorruptData if a batch is damaged, or an epoch is lower than the one before it; OSError.
    """
    epochs, end = LeaderEpochs(), -1
    for base, size in segments:
        end = base if end < 0 else end
        if size == 0:
            continue
        path = segment_path(directory, base)
        file = files.open(path, write=False)
        for position, header in scan_batches(file, start=0, end=size):
            if header.leader_epoch > epochs.latest:
                epochs = epochs.with_epoch(header.leader_epoch, end)
            elif header.leader_epoch != epochs.latest:
                raise CorruptData(
                    path, position + 12, f"a leader epoch of at least {epochs.latest}",
                    str(header.leader_epoch),
                )  # fmt: skip
            end = header.end_offset
    return epochs


def _recovery_point(checkpoint: Checkpoint | None, bases: list[int]) -> LogPosition:
    """The checkpoint's recovery point; without a checkpoint the beginning of the log."""
    if checkpoint is None:
        return LogPosition(bases[0], bases[0], 0) if bases else LogPosition(0, 0, 0)
    return synced_mark.recovery_point_of(checkpoint)
