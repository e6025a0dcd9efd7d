"""The identity of a log: a file in its directory that names the partition it belongs to.

The file is compared each time the log is opened. It holds two equal records, so that one damaged
sector does not destroy the identity. Integers are big-endian::

    | 8 magic "BscIdnt1" | 4 CRC-32C of what follows | 16 stream id | 4 partition |
    | 8 magic "BscIdnt2" | 4 CRC-32C of what follows | 16 stream id | 4 partition | 8 since |

The second form is that of a replica which was added to the partition. A node whose replica moved
away, and which gets one again before it has heard of that, sees in it that its log is the old one.
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
MAGIC_SINCE: Final = b"BscIdnt2"
_HEADER: Final = Struct(">8sI")
_BODY: Final = Struct(">16sI")
_BODY_SINCE: Final = Struct(">16sIQ")
RECORD_BYTES: Final = _HEADER.size + _BODY.size
RECORD_BYTES_SINCE: Final = _HEADER.size + _BODY_SINCE.size
_FORMS: Final = ((MAGIC, RECORD_BYTES, _BODY), (MAGIC_SINCE, RECORD_BYTES_SINCE, _BODY_SINCE))


class LogIdentity(NamedTuple):
    """The stream and the partition that a log belongs to."""

    stream_id: bytes
    """16 bytes."""
    partition: int
    since: int = 0
    """See `PartitionState.since`."""

    @property
    def place(self) -> tuple[bytes, int]:
        """Stream id and partition."""
        return self.stream_id, self.partition

    def __str__(self) -> str:
        since = f", a replica since version {self.since}" if self.since else ""
        return f"partition {self.partition} of stream id {self.stream_id.hex()}{since}"


def write_identity(files: Files, directory: str, identity: LogIdentity) -> None:
    """Write the file; it is on the disk on return. Raises: OSError."""
    magic, body = MAGIC, _BODY.pack(*identity.place)
    if identity.since:
        magic, body = MAGIC_SINCE, _BODY_SINCE.pack(*identity)
    record = _HEADER.pack(magic, crc32c(body)) + body
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
    for magic, size, body_of in _FORMS:
        for at in (0, size):
            record = data[at : at + size]
            if len(record) == size:
                found, crc = _HEADER.unpack_from(record)
                body = record[_HEADER.size :]
                if found == magic and crc32c(body) == crc:
                    return LogIdentity(*body_of.unpack(body))
    raise CorruptData(path, 0, f"two records of {RECORD_BYTES} bytes with a CRC", repr(data[:24]))
