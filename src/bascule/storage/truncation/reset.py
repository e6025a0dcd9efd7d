"""Reset of a log: atomically replace it by an empty log that starts at another offset.

The file `reset` has the format of `checkpoint`. It holds the checkpoint of the empty log.
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
from bascule.storage.compaction import clean_offset, replacement_manifest, tombstones_end
from bascule.storage.index.offset_index import OffsetIndex
from bascule.storage.index.time_index import TimeIndex
from bascule.storage.segment import LOG_SUFFIX, segment_path
from bascule.storage.truncation.truncation_plan import new_segment_path

FILE_NAME: Final = "reset"
_REMOVED: Final = (
    epochs_file.FILE_NAME, synced_mark.FILE_NAME, clean_offset.FILE_NAME,
    replacement_manifest.FILE_NAME, GAPS_FILE_NAME, tombstones_end.FILE_NAME,
)  # fmt: skip
_REMOVED_SUFFIXES: Final = (
    LOG_SUFFIX, OffsetIndex.SUFFIX, TimeIndex.SUFFIX, replacement_manifest.CLEANED_SUFFIX,
    NEW_SUFFIX,
)  # fmt: skip


def empty_log(offset: int, *, now_ms: int) -> Checkpoint:
    """The checkpoint of an empty log that starts at `offset`."""
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
    """Commit the reset to the log of `checkpoint`. After a crash `finish` completes it.

    Raises: OSError. It is then unknown whether the reset is committed, until `undo` has returned.
    """
    replace_file(files, f"{directory}/{FILE_NAME}", encode_checkpoint(checkpoint))


def undo(files: Files, directory: str) -> None:
    """Undo a reset whose `commit` failed. Raises: OSError."""
    for name in (FILE_NAME, FILE_NAME + NEW_SUFFIX):
        if files.exists(f"{directory}/{name}"):
            files.remove(f"{directory}/{name}")
    files.sync_dir(directory)


def finish(files: Files, directory: str) -> None:
    """Complete a committed reset. Does nothing if there is none.

    Idempotent. Opening a log calls it before it reads anything else.

    Raises: CorruptData if both records of the file are damaged, OSError.
    """
    path = f"{directory}/{FILE_NAME}"
    if not files.exists(path):
        return
    checkpoint = decode_checkpoint(files.read_bytes(path), path=path)
    new = new_segment_path(directory, checkpoint.recovery_segment)
    for name in files.list_dir(directory):
        is_of_log = name in _REMOVED or name.endswith(_REMOVED_SUFFIXES)
        if is_of_log and f"{directory}/{name}" != new:
            files.remove(f"{directory}/{name}")
    if not files.exists(new):
        files.open(new, create=True)
    files.rename(new, segment_path(directory, checkpoint.recovery_segment))
    # Sync the removals first: the checkpoint must not appear beside files of the old log.
    files.sync_dir(directory)
    files.rename(path, f"{directory}/{checkpoint_file.FILE_NAME}")
    files.sync_dir(directory)
