"""Keep what can be read of a damaged log, after people have accepted the loss of the rest.

The log is checked from its beginning to the first batch that is damaged or missing. A checkpoint
that ends there takes the place of the one on the disk. Opening the log then removes what is behind,
as it removes a torn tail; what it would take for a batch behind a gap is removed here. Before the
checkpoint is replaced, the log fails to open as it did; after that, the loss is accepted.
"""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

from bascule.errors import CorruptData
from bascule.host.api import Clock, File, Files
from bascule.storage import checkpoint as checkpoint_file
from bascule.storage import synced_mark
from bascule.storage.appended_batches import GAPS_FILE_NAME
from bascule.storage.checkpoint import (
    Checkpoint,
    decode_checkpoint,
    encode_checkpoint,
    replace_file,
)
from bascule.storage.compaction import clean_offset, replacement_manifest
from bascule.storage.epochs import OFFSET_END, read_epochs
from bascule.storage.scan import scan_batches
from bascule.storage.segment import Contents, LogPosition, base_offset_of, segment_path
from bascule.storage.truncation import reset


class ReadablePart(NamedTuple):
    """The part of a log before its first damage."""

    end: LogPosition
    timestamp_max: int
    may_be_compacted: bool
    """Whether tombstones of its keys may have been behind it that other replicas removed since: it
    must not go on with what those have now."""
    hides_damage: bool = False
    """Whether the first batch behind it would pass for one behind a gap."""


def salvage(
    files: Files,
    directory: str,
    *,
    index_interval_bytes: int,
    gaps_allowed: bool,
    clock: Clock,
    is_copied: bool = False,
    others_compact: bool = False,
) -> LogPosition | None:
    """Prepare the damaged log in `directory`, so that it opens up to its first damage.

    `is_copied`: it goes on with the records of another replica, so nothing is kept of one that may
    be compacted, or may be so there: `others_compact`.

    Returns the end that it will have, or None, with nothing changed, where no record can be kept or
    a replacement of segments was under way and cannot be completed. Raises: OSError.
    """
    if not complete_changes(files, directory):
        return None
    part = readable_part(
        files, directory, index_interval_bytes=index_interval_bytes, gaps_allowed=gaps_allowed
    )
    if part is None:
        return None
    if is_copied and (others_compact or part.may_be_compacted):
        keep_nothing(files, directory, clock)
        return LogPosition(0, 0, 0)
    keep_part(files, directory, part, clock)
    return part.end


def complete_changes(files: Files, directory: str) -> bool:
    """Complete a reset or a replacement of segments that is under way; False if that is impossible.

    Raises: OSError.
    """
    names = files.list_dir(directory) if files.exists(directory) else []
    try:
        if reset.FILE_NAME in names or replacement_manifest.FILE_NAME in names:
            files.sync_dir(directory)  # before anything is removed: see recovery
        if reset.FILE_NAME in names:
            reset.finish(files, directory)
        if replacement_manifest.FILE_NAME in names:
            replacement_manifest.finish(files, directory)
    except CorruptData:
        return False
    return True


def readable_part(
    files: Files, directory: str, *, index_interval_bytes: int, gaps_allowed: bool
) -> ReadablePart | None:
    """Read a log to its first damage; None if no record can be kept. Changes nothing.

    Raises: OSError.
    """
    names = files.list_dir(directory) if files.exists(directory) else []
    bases = sorted(base for name in names if (base := base_offset_of(name)) is not None)
    if not bases:
        return None
    gaps_allowed |= GAPS_FILE_NAME in names or clean_offset.FILE_NAME in names
    present = _checkpoint(files, directory)
    part = _end_of_whole_batches(
        files,
        directory,
        bases,
        index_interval_bytes=index_interval_bytes,
        gaps_allowed=gaps_allowed,
        # Compaction leaves segments that end before the next one begins only up to there.
        compacted_end=bases[-1] if present is None else present.recovery_segment,
        # Without a checkpoint the log may have been compacted since: it is one in other bytes.
        known=None if present is None else synced_mark.known_synced(files, directory, present),
    )
    start_offset = _start_offset(bases[0], present)
    return None if part.end.offset <= start_offset else part


def keep_part(files: Files, directory: str, part: ReadablePart, clock: Clock) -> None:
    """Have the log end at the end of `part`, from `readable_part`. Raises: OSError."""
    names = files.list_dir(directory)
    bases = [base for name in names if (base := base_offset_of(name)) is not None]
    end, present = part.end, _checkpoint(files, directory)
    start_offset = _start_offset(min(bases), present)
    # Without a checkpoint nothing says what is committed: a replica may have to truncate the rest.
    known = start_offset if present is None else present.high_watermark
    high_watermark = min(known, end.offset)
    _sync_kept(files, directory, sorted(bases), end, present)
    clean_offset.lower_clean_offset(files, directory, end.offset)
    if part.hides_damage:
        # Opening the log would not find it. Before the mark goes, by which opening is refused.
        file = files.open(segment_path(directory, end.segment_base))
        file.truncate(end.position)
        file.sync()
    if synced_mark.FILE_NAME in names:
        files.remove(f"{directory}/{synced_mark.FILE_NAME}")
        files.sync_dir(directory)
    made = Checkpoint(
        clean=False,
        high_watermark=high_watermark,
        recovery_offset=end.offset,
        recovery_segment=end.segment_base,
        recovery_position=end.position,
        start_offset=start_offset,
        timestamp_max=part.timestamp_max,
        written_ms=clock.now_ms(),
    )
    path = f"{directory}/{checkpoint_file.FILE_NAME}"
    replace_file(files, path, encode_checkpoint(made))


def _sync_kept(
    files: Files, directory: str, bases: list[int], end: LogPosition, present: Checkpoint | None
) -> None:
    """Write again and sync what is kept and may be only in the page cache, as recovery would: the
    new checkpoint says that all of it is synced. Raises: OSError."""
    if (known := synced_mark.known_synced(files, directory, present)) >= end:
        return
    for base in bases:
        if known.segment_base <= base <= end.segment_base:
            file = files.open(segment_path(directory, base))
            file.write_again(0, end.position if base == end.segment_base else file.size())
            file.sync()
    files.sync_dir(directory)


def keep_nothing(files: Files, directory: str, clock: Clock) -> None:
    """Have an empty log take the place of the one in `directory`. Raises: OSError."""
    reset.commit(files, directory, reset.empty_log(0, now_ms=clock.now_ms()))
    reset.finish(files, directory)


def _start_offset(first: int, present: Checkpoint | None) -> int:
    return first if present is None else max(first, present.start_offset)


def _end_of_whole_batches(
    files: Files,
    directory: str,
    bases: list[int],
    *,
    index_interval_bytes: int,
    gaps_allowed: bool,
    compacted_end: int,
    known: LogPosition | None,
) -> ReadablePart:
    """Read up to the first damage. Raises: OSError."""
    end = LogPosition(bases[0], bases[0], 0)
    timestamp_max, hides_damage = -1, False
    epochs = read_epochs(files, directory)
    for base, following in pairwise((*bases, OFFSET_END)):
        has_gap = gaps_allowed and end.offset < base <= compacted_end
        if base != end.offset and not has_gap:
            break
        contents = Contents(files.open(segment_path(directory, base)), index_interval_bytes)
        size = stop = contents.file.size()
        if gaps_allowed:
            stop = _contradicted_at(contents.file, size, base, following, known)
        position, offset, damage = contents.scan(
            start=0, end=stop, offset=base, epochs=epochs, gaps_allowed=gaps_allowed
        )
        end = LogPosition(offset, base, position)
        timestamp_max = max(timestamp_max, contents.timestamp_max)
        hides_damage = damage is None and stop < size
        if damage is not None or hides_damage:
            break
    return ReadablePart(
        end, timestamp_max, may_be_compacted=gaps_allowed, hides_damage=hides_damage
    )


def _contradicted_at(
    file: File, size: int, base_offset: int, following: int, known: LogPosition | None
) -> int:
    """The position of the first batch of a segment whose base offset is too large, or `size`.

    Where gaps are allowed a base offset that damage has increased passes for the end of a gap.
    What contradicts it: the `following` segment, the synced position, and the next batch, unless
    that one's offset is the damaged one: it is below the batch before, or this batch begins where
    that ends. Raises: OSError.
    """
    before, at, end = base_offset, 0, base_offset
    is_continued = True
    try:
        for position, header in scan_batches(file, start=0, end=size):
            if not is_continued and before <= header.base_offset < end:
                return at
            if header.base_offset < end:
                break  # that is found by the scan
            before, at, is_continued = end, position, header.base_offset == end
            end, stop = header.end_offset, position + header.total_bytes
            is_synced = known is not None and (base_offset, stop) <= known[1:]
            if end > following or (known is not None and is_synced and end > known.offset):
                return position
    except CorruptData:
        pass  # as is this
    return size


def _checkpoint(files: Files, directory: str) -> Checkpoint | None:
    path = f"{directory}/{checkpoint_file.FILE_NAME}"
    try:
        return decode_checkpoint(files.read_bytes(path), path=path)
    except (FileNotFoundError, CorruptData):
        return None
