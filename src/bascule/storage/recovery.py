"""Opening a log: find its segments, check what may not be on the disk, cut what a crash tore.

How a write cut short is told from corruption:

* Below the checkpoint's recovery point everything was synced: damage there is corruption.
* Above it, the first batch that is not whole ends the log, and the rest is cut, since a crash in
  the middle of an append leaves exactly that: a part of a batch, or zeros where the size reached
  the disk and the bytes did not.
* Unless a valid batch lies anywhere behind it that continues the offsets. A power loss can lose an
  unsynced page and keep a later one, but a damaged batch whose ack has left looks the same, and
  an acknowledged record is never dropped in silence: opening refuses.
* A whole batch with a valid CRC whose offset or leader epoch, which the CRC does not cover, are not
  what the log says, was not torn: corruption.

What remains: damage to the very last batch above the recovery point, with nothing valid behind, is
taken for a torn tail. Checkpoints every few seconds keep that window small.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from bascule.errors import CorruptData
from bascule.host.api import Files
from bascule.storage import checkpoint as checkpoint_file
from bascule.storage import epochs as epochs_file
from bascule.storage.checkpoint import Checkpoint, decode_checkpoint, replace_file
from bascule.storage.compaction import clean_offset, swap
from bascule.storage.epochs import LeaderEpochs, decode_epochs, encode_epochs
from bascule.storage.index.offset_index import OffsetIndex
from bascule.storage.index.sparse_index import Covered
from bascule.storage.index.time_index import TimeIndex
from bascule.storage.scan import find_batch, scan_batches
from bascule.storage.segment import (
    LOG_SUFFIX,
    Contents,
    LogPosition,
    Segment,
    base_offset_of,
    segment_path,
)

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
        self.changed = False
        """Whether anything was cut, and so has to be synced."""

    def run(self) -> Recovered:
        names = self._list()
        self.gaps_allowed |= clean_offset.FILE_NAME in names
        bases = sorted(base for name in names if (base := base_offset_of(name)) is not None)
        checkpoint = self._read_checkpoint()
        if checkpoint is None:
            self.point = LogPosition(bases[0], bases[0], 0) if bases else LogPosition(0, 0, 0)
        else:
            self.point = LogPosition(
                checkpoint.recovery_offset,
                checkpoint.recovery_segment,
                checkpoint.recovery_position,
            )
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
        self.timestamp_max = checkpoint.timestamp_max if checkpoint else -1
        self.epochs = self._read_epochs()
        known = LeaderEpochs() if self.epochs is None else self.epochs
        opened, end = self._scan([base for base in bases if base >= self.point.segment_base])
        segments = (*put_away, *opened)
        self._sync(opened, end)
        epochs = self._scan_epochs(segments) if self.epochs is None else self.epochs
        epochs = epochs.cut(end.offset)
        if epochs != known:
            path = f"{self.directory}/{epochs_file.FILE_NAME}"
            replace_file(self.files, path, encode_epochs(epochs))
        return Recovered(
            segments, end, self.timestamp_max, epochs, start_offset, checkpoint, self.gaps_allowed
        )

    def _list(self) -> list[str]:
        self.files.make_dirs(self.directory)
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
        """The checkpoint, None where it is missing or damaged: then the whole log is read."""
        path = f"{self.directory}/{checkpoint_file.FILE_NAME}"
        try:
            return decode_checkpoint(self.files.read_bytes(path), path=path)
        except (FileNotFoundError, CorruptData):
            return None

    def _read_epochs(self) -> LeaderEpochs | None:
        """The leader epochs, None where the file is missing or damaged: batches name theirs."""
        path = f"{self.directory}/{epochs_file.FILE_NAME}"
        try:
            return decode_epochs(self.files.read_bytes(path), path=path)
        except (FileNotFoundError, CorruptData):
            return None

    def _scan(self, bases: list[int]) -> tuple[list[Segment], LogPosition]:
        """Check the segments from the recovery point on; stop and cut where the log is torn."""
        opened: list[Segment] = []
        end = self.point
        for row, base in enumerate(bases):
            path = segment_path(self.directory, base)
            if row > 0 and base != end.offset and not (self.gaps_allowed and base > end.offset):
                before = segment_path(self.directory, end.segment_base)
                damage = CorruptData(
                    before, end.position, f"batches up to offset {base}", f"offset {end.offset}"
                )
                self._cut(damage, opened[-1], end, bases[row:])
                break
            contents = Contents(self.files.open(path), self.index_interval_bytes)
            size = contents.file.size()
            segment = Segment(base, size, contents)
            opened.append(segment)
            found, torn = self._scan_segment(segment, contents, end.offset, size)
            end = found
            if torn is not None:
                self._cut(torn, segment, end, bases[row + 1 :])
                break
        return opened, end

    def _scan_segment(
        self, segment: Segment, contents: Contents, offset: int, size: int
    ) -> tuple[LogPosition, CorruptData | None]:
        """Check one segment; return where its valid batches end, and what stopped them early."""
        base, position, checked = segment.base_offset, 0, 0
        if base == self.point.segment_base:
            checked = self.point.position
            if size < checked:
                raise CorruptData(contents.file.path, size, f"{checked} bytes", f"{size} bytes")
            known = Covered(checked, self.point.offset, self.timestamp_max)
            covered = contents.load_indexes(self.files, self.directory, base, limit=known)
            position, offset = covered.position, covered.offset
            segment.vouched = position == 0
        # An epoch is in its file before its first batch is written, so each batch agrees with it.
        position, offset, damage = contents.scan(
            start=position,
            end=size,
            offset=offset,
            epochs=self.epochs,
            gaps_allowed=self.gaps_allowed,
        )
        if damage is not None and position < checked:
            raise damage
        self.timestamp_max = max(self.timestamp_max, contents.timestamp_max)
        return LogPosition(offset, base, position), damage

    def _cut(
        self, damage: CorruptData, segment: Segment, end: LogPosition, later: list[int]
    ) -> None:
        """Cut a torn tail: everything behind `end`, unless a batch there continues the log.

        Raises: CorruptData.
        """
        assert segment.contents is not None
        file = segment.contents.file
        self._refuse_batch_behind(damage, segment, end, later)
        for base in reversed(later):
            for suffix in SEGMENT_SUFFIXES:
                path = segment_path(self.directory, base, suffix)
                if self.files.exists(path):
                    self.files.remove(path)
        if later:
            self.files.sync_dir(self.directory)
        file.truncate(end.position)
        segment.size = end.position
        self.changed = True

    def _refuse_batch_behind(
        self, damage: CorruptData, segment: Segment, end: LogPosition, later: list[int]
    ) -> None:
        assert segment.contents is not None
        places = [(segment.contents.file, end.position)]
        places += [(self.files.open(segment_path(self.directory, base)), 0) for base in later]
        room = 0
        for file, start in places:
            size = file.size()
            room += size - start
            found = find_batch(
                file, start=start, end=size, offset=end.offset, offset_max=end.offset + room
            )
            if found is not None:
                position, header = found
                raise CorruptData(
                    damage.file, damage.at, damage.expected,
                    f"{damage.found}, and behind it at byte {position} of {file.path} a valid "
                    f"batch with offset {header.base_offset}; the log is whole up to byte "
                    f"{end.position}",
                )  # fmt: skip

    def _sync(self, opened: list[Segment], end: LogPosition) -> None:
        """Put what was found above the recovery point on the disk, whatever became of it before.

        It may be in the page cache alone, even taken for written after a sync that failed.
        """
        if end == self.point and not self.changed:
            return
        for segment in opened:
            assert segment.contents is not None
            first = segment.base_offset == self.point.segment_base
            start = self.point.position if first else 0
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
