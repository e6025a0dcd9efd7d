"""The file with the end of the tombstones that a log lacks: compaction removed them, or the leader
had removed them from which the log was copied.

It only grows, and is on the disk before the first of these tombstones goes. Integers are
big-endian::

    | 8 magic "BscTomb1" | 4 CRC-32C of what follows | 8 end |
"""

from __future__ import annotations

from struct import Struct
from typing import Final

from crc32c import crc32c

from bascule.errors import CorruptData
from bascule.host.api import Files
from bascule.storage.appended_batches import has_gaps
from bascule.storage.checkpoint import replace_file

FILE_NAME: Final = "tombstones-end"
MAGIC: Final = b"BscTomb1"
_HEADER: Final = Struct(">8sI")
_BODY: Final = Struct(">q")


def encode_tombstones_end(end: int) -> bytes:
    body = _BODY.pack(end)
    return _HEADER.pack(MAGIC, crc32c(body)) + body


def decode_tombstones_end(data: bytes, *, path: str) -> int:
    """Read a whole file.

    Raises: CorruptData.
    """
    size = _HEADER.size + _BODY.size
    if len(data) != size:
        raise CorruptData(path, min(len(data), size), f"{size} bytes", f"{len(data)} bytes")
    (magic, crc), body = _HEADER.unpack_from(data), data[_HEADER.size :]
    if magic != MAGIC:
        raise CorruptData(path, 0, MAGIC.decode(), repr(magic))
    if crc32c(body) != crc:
        raise CorruptData(path, 8, f"CRC {crc32c(body):#010x}", f"{crc:#010x}")
    (end,) = _BODY.unpack(body)
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
