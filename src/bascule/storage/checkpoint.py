"""Files replaced as a whole, and the one that says what of a log is known to be on the disk."""

from __future__ import annotations

from struct import Struct
from typing import Final, NamedTuple

from crc32c import crc32c

from bascule.errors import CorruptData
from bascule.host.api import Buffer, Files

FILE_NAME: Final = "checkpoint"
NEW_SUFFIX: Final = ".new"
MAGIC: Final = b"BscChkp1"
CLEAN: Final = 1
_HEADER: Final = Struct(">8sI")
_BODY: Final = Struct(">I7q")


class Checkpoint(NamedTuple):
    """What was known of a log when the file was written; times are Unix milliseconds."""

    clean: bool
    """Written by a close: nothing was appended after it."""
    high_watermark: int
    recovery_offset: int
    """Everything before it was on the disk, in segment `recovery_segment` up to byte
    `recovery_position`."""
    recovery_segment: int
    recovery_position: int
    start_offset: int
    timestamp_max: int
    """Largest timestamp before the recovery point, -1 where there is none."""
    written_ms: int


def replace_file(files: Files, path: str, data: Buffer) -> None:
    """Put `data` in place of the file at `path`: after a crash it is the old one or the new one.

    On return the new one is on the disk.

    Raises: OSError; the old file is then still there, or the new one is and may not be on the disk.
    """
    new = path + NEW_SUFFIX
    file = files.open(new, create=True)
    file.truncate(0)
    file.append(data)
    file.sync()
    file.close()
    files.rename(new, path)
    files.sync_dir(path.rpartition("/")[0])


def encode_checkpoint(checkpoint: Checkpoint) -> bytes:
    clean, *numbers = checkpoint
    body = _BODY.pack(CLEAN if clean else 0, *numbers)
    return _HEADER.pack(MAGIC, crc32c(body)) + body


def decode_checkpoint(data: bytes, *, path: str) -> Checkpoint:
    """Read a whole file.

    Raises: CorruptData.
    """
    size = _HEADER.size + _BODY.size
    if len(data) != size:
        raise CorruptData(path, min(len(data), size), f"{size} bytes", str(len(data)))
    magic, crc = _HEADER.unpack_from(data)
    if magic != MAGIC:
        raise CorruptData(path, 0, MAGIC.decode(), repr(magic))
    body = memoryview(data)[_HEADER.size :]
    if crc32c(body) != crc:
        raise CorruptData(path, 8, f"CRC {crc32c(body):#010x}", f"{crc:#010x}")
    flags, *numbers = _BODY.unpack(body)
    return Checkpoint(bool(flags & CLEAN), *numbers)
