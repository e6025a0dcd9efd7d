"""The file with the end of the tombstones that a log lacks: compaction removed them, or the leader
had removed them from which the log was copied.

It only grows, and is on the disk before the first of these tombstones goes. Integers are
big-endian::

    | 8 magic "BscTomb1" | 4 CRC-32C of what follows | 8 end |
"""

from __future__ import annotations

from typing import Final

from bascule.errors import CorruptData
from bascule.host.api import Files
from bascule.storage.appended_batches import has_gaps
from bascule.storage.checkpoint import CheckedStruct, replace_file

FILE_NAME: Final = "tombstones-end"
MAGIC: Final = b"BscTomb1"
_FORMAT: Final = CheckedStruct(MAGIC, "q")


def encode_tombstones_end(end: int) -> bytes:
    return _FORMAT.encode(end)


def decode_tombstones_end(data: bytes, *, path: str) -> int:
    """Read a whole file.

    Raises: CorruptData.
    """
    (end,) = _FORMAT.decode(data, path=path)
    return int(end)


def read_tombstones_end(files: Files, directory: str, *, log_end: int) -> int:
    """All tombstones that are missing in the log, which ends at `log_end`, are below.

    Where the file is damaged, or the log was compacted or copied by a release that did not write
    it, any tombstone may be missing. Raises: OSError.
    """
    path = f"{directory}/{FILE_NAME}"
    try:
        return decode_tombstones_end(files.read_bytes(path), path=path)
    except FileNotFoundError:
        return log_end if has_gaps(files, directory) else 0
    except CorruptData:
        return log_end


def raise_tombstones_end(files: Files, directory: str, end: int, *, log_end: int) -> None:
    """Write and sync the file, if it is missing or says less. Raises: OSError."""
    known = read_tombstones_end(files, directory, log_end=log_end)
    path = f"{directory}/{FILE_NAME}"
    if end > known or not files.exists(path):
        replace_file(files, path, encode_tombstones_end(max(known, end)))
