"""Atomic replacement of files, files of a few numbers, and the checkpoint file of a log."""

from __future__ import annotations

from struct import Struct
from typing import Any, Final, NamedTuple

from crc32c import crc32c

from bascule.errors import CorruptData
from bascule.host.api import Buffer, Files

FILE_NAME: Final = "checkpoint"
NEW_SUFFIX: Final = ".new"
MAGIC: Final = b"BscChkp1"
CLEAN: Final = 1
_HEADER: Final = Struct(">8sI")
_BODY: Final = Struct(">I7q")
RECORD_BYTES: Final = _HEADER.size + _BODY.size


class Checkpoint(NamedTuple):
    """The state of a log when the file was written. Times are Unix milliseconds."""

    clean: bool
    """The file was written by a close: nothing was appended after it."""
    high_watermark: int
    recovery_offset: int
    """All batches below this offset were synced: in segment `recovery_segment` those up to byte
    `recovery_position`."""
    recovery_segment: int
    recovery_position: int
    start_offset: int
    timestamp_max: int
    """The largest timestamp below the recovery point, -1 if there is no record."""
    written_ms: int


class CheckedStruct:
    """A file with a few numbers of a log, and a checksum. Integers are big-endian::

    | 8 magic | 4 CRC-32C of what follows | numbers |
    """

    def __init__(self, magic: bytes, numbers: str) -> None:
        """`numbers` as in a format of `struct`, without the order of bytes."""
        self._magic = magic
        self._body = Struct(f">{numbers}")
        self._size = _HEADER.size + self._body.size

    def encode(self, *numbers: int) -> bytes:
        """The whole file."""
        body = self._body.pack(*numbers)
        return _HEADER.pack(self._magic, crc32c(body)) + body

    def decode(self, data: bytes, *, path: str) -> tuple[Any, ...]:
        """The numbers of a whole file.

        Raises: CorruptData.
        """
        if len(data) != self._size:
            at = min(len(data), self._size)
            raise CorruptData(path, at, f"{self._size} bytes", f"{len(data)} bytes")
        magic, crc = _HEADER.unpack_from(data)
        if magic != self._magic:
            raise CorruptData(path, 0, self._magic.decode(), repr(magic))
        body = memoryview(data)[_HEADER.size :]
        if crc32c(body) != crc:
            raise CorruptData(path, 8, f"CRC {crc32c(body):#010x}", f"{crc:#010x}")
        return self._body.unpack(body)


def replace_file(files: Files, path: str, data: Buffer) -> None:
    """Replace the file at `path` by a file with `data`. After a crash either file is there.

    On return the new file is synced.

    Raises: OSError. The old file is then still there, or the new file is there and may not be
    synced.
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
    """The whole file: the same record twice, because no other file holds the log start."""
    clean, *numbers = checkpoint
    body = _BODY.pack(CLEAN if clean else 0, *numbers)
    return 2 * (_HEADER.pack(MAGIC, crc32c(body)) + body)


def decode_checkpoint(data: bytes, *, path: str) -> Checkpoint:
    """Read a whole file: its first record, or the second if the first is damaged.

    Raises: CorruptData for the first record, if both are damaged.
    """
    try:
        return _decode_record(data, 0, path)
    except CorruptData as first:
        try:
            return _decode_record(data, RECORD_BYTES, path)
        except CorruptData:
            raise first from None


def _decode_record(data: bytes, at: int, path: str) -> Checkpoint:
    record = memoryview(data)[at : at + RECORD_BYTES]
    if len(record) < RECORD_BYTES:
        raise CorruptData(path, len(data), f"{2 * RECORD_BYTES} bytes", f"{len(data)} bytes")
    magic, crc = _HEADER.unpack_from(record)
    if magic != MAGIC:
        raise CorruptData(path, at, MAGIC.decode(), repr(magic))
    body = record[_HEADER.size :]
    if crc32c(body) != crc:
        raise CorruptData(path, at + 8, f"CRC {crc32c(body):#010x}", f"{crc:#010x}")
    flags, *numbers = _BODY.unpack(body)
    return Checkpoint(bool(flags & CLEAN), *numbers)
