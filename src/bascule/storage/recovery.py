"""Opening a log: find its segments, check what may not be on the disk, cut what a crash tore.

How a tail that a crash tore is told from corruption: by what is known to be on the disk, which is
the checkpoint's recovery point or the synced mark, whichever is later.

* Below it everything was synced, and maybe acknowledged: damage there is corruption, and refused.
* Above it nothing was. After a kill all of it is there, up to a last batch that may be cut short;
  after a power loss any page of it may be missing, also with later ones in place. The first batch
  that is not whole, or not the one that belongs there, ends the log, and the rest is cut.

The mark is written after each sync and not synced itself. After a kill it is exact, so nothing that
was confirmed is ever cut; after a power loss it may be older. What remains then: damage, not by the
power loss, to a batch that was synced after both the mark and the checkpoint on the disk is taken
for a torn tail.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from bascule.errors import CorruptData
from bascule.host.api import Files
from bascule.storage import checkpoint as checkpoint_file
from bascule.storage import epochs as epochs_file
from bascule.storage import synced_mark
from bascule.storage.appended_batches import GAPS_FILE_NAME
from bascule.storage.checkpoint import Checkpoint, decode_checkpoint, replace_file
from bascule.storage.compaction import clean_offset, swap
from bascule.storage.epochs import LeaderEpochs, decode_epochs, encode_epochs
from bascule.storage.index.offset_index import OffsetIndex
from bascule.storage.index.sparse_index import Covered
from bascule.storage.index.time_index import TimeIndex
from bascule.storage.scan import scan_batches
from bascule.storage.segment import (
    LOG_SUFFIX,
    Contents,
    LogPosition,
    Segment,
    base_offset_of,
    segment_path,
)
from bascule.storage.truncation import reset

SEGMENT_SUFFIXES: Final = (OffsetIndex.SUFFIX, TimeIndex.SUFFIX, LOG_SUFFIX)


class Recovered(NamedTuple):
    """A log as it was found: all of it checked or known to be on the disk, and now synced."""

    segments: tuple[Segment, ...]
    """In order, the last one open."""
    end: LogPosition
    timestamp_max: int
    epochs: LeaderEpochs
    start_offset: int
    checkpoint: Checkpoint | None
    gaps_allowed: bool
    """Whether the log may have been compacted, now or ever."""
    gaps_marked: bool
    """Whether the file `gaps` is there."""
    cut_bytes: int
    """Removed behind the last whole batch: a tail that was never synced."""
    mark_is_old: bool
    """Whether the synced mark on the disk lies below `end`."""


def recover(
    files: Files, directory: str, *, index_interval_bytes: int, gaps_allowed: bool
) -> Recovered:
    """Open the log in `directory`, creating it where there is none.

    Raises: CorruptData naming file and byte, OSError.
    """
    return _Recovery(files, directory, index_interval_bytes, gaps_allowed).run()


class _Recovery:
    def __init__(
        self, files: Files, directory: str, index_interval_bytes: int, gaps_allowed: bool
    ) -> None:
        self.files = files
        self.directory = directory
        self.index_interval_bytes = index_interval_bytes
        self.gaps_allowed = gaps_allowed
        self.cut_bytes = 0
        """What was cut off, and so has to be synced as well."""

    def run(self) -> Recovered:
        names = self._list()
        self.gaps_marked = GAPS_FILE_NAME in names
        self.gaps_allowed |= clean_offset.FILE_NAME in names
        bases = sorted(base for name in names if (base := base_offset_of(name)) is not None)
        checkpoint = self._read_checkpoint()
        self.point = _recovery_point(checkpoint, bases)
        if self.point.segment_base not in bases:
            if bases or checkpoint is not None:
                path = segment_path(self.directory, self.point.segment_base)
                raise CorruptData(path, 0, f"{self.point.position} bytes", "no such file")
            bases = [self._create()]
        start_offset = bases[0] if checkpoint is None else checkpoint.start_offset
        if bases[0] > start_offset:
            path = segment_path(self.directory, bases[0])
            raise CorruptData(path, 0, f"offset {start_offset}", f"offset {bases[0]}")
        bases = self._remove_leftovers(names, bases, start_offset)
        put_away = [
            Segment(base, self.files.size(segment_path(self.directory, base)), None, vouched=False)
            for base in bases
            if base < self.point.segment_base
        ]
        mark = self._read_mark()
        self.known = self.point if mark is None else max(mark, self.point)
        """Everything before it was synced."""
        # Compaction leaves gaps below the recovery point alone, replication anywhere.
        self.may_be_compacted = self.gaps_allowed and checkpoint is None
        self.gaps_allowed |= self.gaps_marked
        self.gaps_scanned = self.may_be_compacted or self.gaps_marked
        # A mark in a segment that was compacted since counts other bytes.
        self.flushed = self.point if self.may_be_compacted else self.known
        self.timestamp_max = checkpoint.timestamp_max if checkpoint else -1
        self.epochs = self._read_epochs()
        known = LeaderEpochs() if self.epochs is None else self.epochs
        opened, end = self._scan([base for base in bases if base >= self.point.segment_base])
        segments = (*put_away, *opened)
        self._sync(opened, end)
        epochs = self._scan_epochs(segments) if self.epochs is None else self.epochs
        epochs = epochs.up_to(end.offset)
        if epochs != known:
            path = f"{self.directory}/{epochs_file.FILE_NAME}"
            replace_file(self.files, path, encode_epochs(epochs))
        return Recovered(
            segments, end, self.timestamp_max, epochs, start_offset, checkpoint,
            self.gaps_allowed, self.gaps_marked, self.cut_bytes,
            mark_is_old=mark is None or mark.offset < end.offset,
        )  # fmt: skip

    def _list(self) -> list[str]:
        self.files.make_dirs(self.directory)
        names = self.files.list_dir(self.directory)
        if reset.FILE_NAME in names:
            reset.finish(self.files, self.directory)
            names = self.files.list_dir(self.directory)
        if any(name == swap.FILE_NAME or name.endswith(swap.CLEANED_SUFFIX) for name in names):
            swap.finish(self.files, self.directory)
            names = self.files.list_dir(self.directory)
        for name in names:
            if name.endswith(checkpoint_file.NEW_SUFFIX):
                self.files.remove(f"{self.directory}/{name}")
        return names

    def _remove_leftovers(self, names: list[str], bases: list[int], start_offset: int) -> list[int]:
        """Finish what a crash broke off: files of segments wholly below the log's start.

        Some of them may be gone already, any of them: their removal is not synced.
        """
        first = min(self.point.segment_base, max(b for b in bases if b <= start_offset))
        for name in names:
            stem, dot, suffix = name.partition(".")
            if dot + suffix in SEGMENT_SUFFIXES:
                base = base_offset_of(stem + LOG_SUFFIX)
                if base is not None and base < first:
                    self.files.remove(f"{self.directory}/{name}")
        return [base for base in bases if base >= first]

    def _create(self) -> int:
        self.files.open(segment_path(self.directory, 0), create=True)
        self.files.sync_dir(self.directory)
        return 0

    def _read_checkpoint(self) -> Checkpoint | None:
        """The checkpoint, None where it is missing: then the whole log is read.

        Raises: CorruptData where both its records are damaged: the log's start is in no other
        file, and records that were purged must not come back unasked.
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

    def _read_epochs(self) -> LeaderEpochs | None:
        """The leader epochs, None where the file is missing or damaged: batches name theirs."""
        path = f"{self.directory}/{epochs_file.FILE_NAME}"
        try:
            return decode_epochs(self.files.read_bytes(path), path=path)
        except (FileNotFoundError, CorruptData):
            return None

    def _scan(self, bases: list[int]) -> tuple[list[Segment], LogPosition]:
        """Check the segments from the recovery point on; stop and cut where the log is torn.

        Raises: CorruptData where what was synced is not there, OSError.
        """
        opened: list[Segment] = []
        end = self.point
        damage: CorruptData | None = None
        for row, base in enumerate(bases):
            if row > 0 and base != end.offset and not (self.gaps_scanned and base > end.offset):
                before = segment_path(self.directory, end.segment_base)
                damage = CorruptData(
                    before, end.position, f"batches up to offset {base}", f"offset {end.offset}"
                )
            else:
                path = segment_path(self.directory, base)
                contents = Contents(self.files.open(path), self.index_interval_bytes)
                opened.append(Segment(base, contents.file.size(), contents))
                end, damage = self._scan_segment(opened[-1], contents, end.offset)
            if damage is not None and end.offset >= self.known.offset:
                self._cut(opened[-1], end, [base for base in bases if base > end.segment_base])
            if damage is not None:
                break
        if end.offset < self.known.offset:
            raise self._refusal(damage, end)
        known = self.known
        is_at_known = not self.may_be_compacted and end[1:] == known[1:]
        if self.gaps_scanned and is_at_known and end.offset > known.offset:
            # Where gaps are allowed nothing else tells that the last base offset has grown.
            path = segment_path(self.directory, end.segment_base)
            raise CorruptData(
                path, end.position, f"the last batch to end at offset {known.offset}",
                str(end.offset),
            )  # fmt: skip
        return opened, end

    def _refusal(self, damage: CorruptData | None, end: LogPosition) -> CorruptData:
        """Of a log that is whole up to `end` only, though more of it was synced."""
        if damage is None:
            path = segment_path(self.directory, end.segment_base)
            damage = CorruptData(path, end.position, "more batches", "the end of the file")
        return CorruptData(
            damage.file, damage.at, damage.expected,
            f"{damage.found}; the log is whole up to byte {end.position} of segment "
            f"{end.segment_base}, offset {end.offset}, and was synced up to offset "
            f"{self.known.offset}",
        )  # fmt: skip

    def _scan_segment(
        self, segment: Segment, contents: Contents, offset: int
    ) -> tuple[LogPosition, CorruptData | None]:
        """Check one segment; return where its valid batches end, and what stopped them early."""
        base, position = segment.base_offset, 0
        if base == self.point.segment_base:
            checked = self.point.position
            if segment.size < checked:
                path, found = contents.file.path, segment.size
                raise CorruptData(path, found, f"{checked} bytes", f"{found} bytes")
            known = Covered(checked, self.point.offset, self.timestamp_max)
            covered = contents.load_indexes(self.files, self.directory, base, limit=known)
            position, offset = covered.position, covered.offset
            segment.vouched = position == 0
        # An epoch is in its file before its first batch is written, so each batch agrees with it.
        position, offset, damage = contents.scan(
            start=position,
            end=segment.size,
            offset=offset,
            epochs=self.epochs,
            gaps_allowed=self.gaps_scanned,
        )
        self.timestamp_max = max(self.timestamp_max, contents.timestamp_max)
        at_point = (base, position) == (self.point.segment_base, self.point.position)
        if at_point and self.gaps_allowed:
            # A truncation may have cut the log in a gap, behind the last batch.
            offset = max(offset, self.point.offset)
        return LogPosition(offset, base, position), damage

    def _cut(self, segment: Segment, end: LogPosition, later: list[int]) -> None:
        """Cut a tail that was never synced: everything behind `end`."""
        assert segment.contents is not None
        for base in reversed(later):
            self.cut_bytes += self.files.size(segment_path(self.directory, base))
            for suffix in SEGMENT_SUFFIXES:
                path = segment_path(self.directory, base, suffix)
                if self.files.exists(path):
                    self.files.remove(path)
        if later:
            self.files.sync_dir(self.directory)
        self.cut_bytes += segment.size - end.position
        segment.contents.file.truncate(end.position)
        segment.size = end.position

    def _sync(self, opened: list[Segment], end: LogPosition) -> None:
        """Put what was found above what is known to be on the disk there, whatever became of it.

        It may be in the page cache alone, even taken for written after a sync that failed.
        """
        if end.offset == self.known.offset and not self.cut_bytes:
            return
        for segment in opened:
            assert segment.contents is not None
            start = 0
            if segment.base_offset < self.flushed.segment_base:
                continue
            if segment.base_offset == self.flushed.segment_base:
                start = self.flushed.position
            if segment.size > start:
                segment.contents.file.write_again(start, segment.size - start)
            segment.contents.file.sync()
        self.files.sync_dir(self.directory)

    def _scan_epochs(self, segments: tuple[Segment, ...]) -> LeaderEpochs:
        """Learn the epochs from the batches of the whole log.

        Raises: CorruptData where they do not rise.
        """
        epochs = LeaderEpochs()
        for segment in segments:
            if segment.size == 0:
                continue
            path = segment_path(self.directory, segment.base_offset)
            file = self.files.open(path)
            for position, header in scan_batches(file, start=0, end=segment.size):
                if header.leader_epoch > epochs.latest:
                    epochs = epochs.started(header.leader_epoch, header.base_offset)
                elif header.leader_epoch != epochs.latest:
                    raise CorruptData(
                        path, position + 12, f"a leader epoch of at least {epochs.latest}",
                        str(header.leader_epoch),
                    )  # fmt: skip
        return epochs


def _recovery_point(checkpoint: Checkpoint | None, bases: list[int]) -> LogPosition:
    """Up to where the checkpoint says that all is on the disk; without one, the log's beginning."""
    if checkpoint is None:
        return LogPosition(bases[0], bases[0], 0) if bases else LogPosition(0, 0, 0)
    return LogPosition(
        checkpoint.recovery_offset, checkpoint.recovery_segment, checkpoint.recovery_position
    )
