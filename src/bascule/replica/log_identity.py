"""The identity of a log: a file in its directory that names the partition it belongs to.

The file is compared each time the log is opened. It holds two equal records, so that one damaged
sector does not destroy the identity. Integers are big-endian::

    | 8 magic "BscIdnt1" | 4 CRC-32C of what follows | 16 stream id | 4 partition |
"""

from __future__ import annotations

from struct import Struct
from typing import Final, NamedTuple

from crc32c import crc32c

from bascule.errors import CorruptData
from bascule.host.api import Files
from bascule.storage.checkpoint import replace_file

FILE_NAME: Final = "identity"
MAGIC: Final = b"BscIdnt1"
_HEADER: Final = Struct(">8sI")
_BODY: Final = Struct(">16sI")
RECORD_BYTES: Final = _HEADER.size + _BODY.size


class LogIdentity(NamedTuple):
    """The stream and the partition that a log belongs to."""

    stream_id: bytes
    """16 bytes."""
    partition: int

    def __str__(self) -> str:
        return f"partition {self.partition} of stream id {self.stream_id.hex()}"


def write_identity(files: Files, directory: str, identity: LogIdentity) -> None:
    """Write the file; it is on the disk on return. Raises: OSError."""
    body = _BODY.pack(*identity)
    record = _HEADER.pack(MAGIC, crc32c(body)) + body
    replace_file(files, f"{directory}/{FILE_NAME}", 2 * record)


def read_identity(files: Files, directory: str) -> LogIdentity | None:
    """The identity of the log in `directory`; None where there is no such file.

    Raises: CorruptData where both records are damaged; OSError.
    """
    path = f"{directory}/{FILE_NAME}"
    if not files.exists(path):
        return None
    return decode_identity(files.read_bytes(path), path=path)


def decode_identity(data: bytes, *, path: str) -> LogIdentity:
    """Read a whole file: its first record, or the second where the first is damaged.

    Raises: CorruptData where both are.
    """
    for at in (0, RECORD_BYTES):
        record = data[at : at + RECORD_BYTES]
        if len(record) == RECORD_BYTES:
            magic, crc = _HEADER.unpack_from(record)
            body = record[_HEADER.size :]
            if magic == MAGIC and crc32c(body) == crc:
                return LogIdentity(*_BODY.unpack(body))
    raise CorruptData(path, 0, f"two records of {RECORD_BYTES} bytes with a CRC", repr(data[:24]))
