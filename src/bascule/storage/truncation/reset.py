"""A log that is thrown away and begins again, empty, at another offset: in one step.

The file `reset` has the format of `checkpoint` and holds the checkpoint of the empty log.
"""

from __future__ import annotations

from typing import Final

from bascule.host.api import Files
from bascule.storage import checkpoint as checkpoint_file
from bascule.storage import epochs as epochs_file
from bascule.storage import synced_mark
from bascule.storage.appended_batches import GAPS_FILE_NAME
from bascule.storage.checkpoint import (
    NEW_SUFFIX,
    Checkpoint,
    decode_checkpoint,
    encode_checkpoint,
    replace_file,
)
from bascule.storage.compaction import clean_offset, swap
from bascule.storage.index.offset_index import OffsetIndex
from bascule.storage.index.time_index import TimeIndex
from bascule.storage.segment import LOG_SUFFIX, segment_path
from bascule.storage.truncation.cut import new_path

FILE_NAME: Final = "reset"
_REMOVED: Final = (
    epochs_file.FILE_NAME, synced_mark.FILE_NAME, clean_offset.FILE_NAME, swap.FILE_NAME,
    GAPS_FILE_NAME,
)  # fmt: skip
_REMOVED_SUFFIXES: Final = (
    LOG_SUFFIX, OffsetIndex.SUFFIX, TimeIndex.SUFFIX, swap.CLEANED_SUFFIX, NEW_SUFFIX,
)  # fmt: skip


def empty_log(offset: int, *, now_ms: int) -> Checkpoint:
    """The checkpoint of a log that begins and ends at `offset`."""
    return Checkpoint(
        clean=False,
        high_watermark=offset,
        recovery_offset=offset,
        recovery_segment=offset,
        recovery_position=0,
        start_offset=offset,
        timestamp_max=-1,
        written_ms=now_ms,
    )


def commit(files: Files, directory: str, checkpoint: Checkpoint) -> None:
    """Let the log of `checkpoint` take the place of this one: from here on `finish` completes it.

    Raises: OSError; whether it has happened is then not known before `undo` has returned.
    """
    replace_file(files, f"{directory}/{FILE_NAME}", encode_checkpoint(checkpoint))


def undo(files: Files, directory: str) -> None:
    """Let a reset whose `commit` failed not have happened. Raises: OSError."""
    for name in (FILE_NAME, FILE_NAME + NEW_SUFFIX):
        if files.exists(f"{directory}/{name}"):
            files.remove(f"{directory}/{name}")
    files.sync_dir(directory)


def finish(files: Files, directory: str) -> None:
    """Complete a reset that was committed; nothing to do where none was.

    May be called any number of times, and at every opening before anything else is read.

    Raises: CorruptData where both records of the file are damaged, OSError.
    """
    path = f"{directory}/{FILE_NAME}"
    if not files.exists(path):
        return
    checkpoint = decode_checkpoint(files.read_bytes(path), path=path)
    new = new_path(directory, checkpoint.recovery_segment)
    for name in files.list_dir(directory):
        is_of_log = name in _REMOVED or name.endswith(_REMOVED_SUFFIXES)
        if is_of_log and f"{directory}/{name}" != new:
            files.remove(f"{directory}/{name}")
    if not files.exists(new):
        files.open(new, create=True)
    files.rename(new, segment_path(directory, checkpoint.recovery_segment))
    # Before the checkpoint: it must not stand beside anything of the old log.
    files.sync_dir(directory)
    files.rename(path, f"{directory}/{checkpoint_file.FILE_NAME}")
    files.sync_dir(directory)
