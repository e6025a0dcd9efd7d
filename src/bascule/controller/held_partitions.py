"""The partitions whose logs this data directory has held, in one file.

A partition is added after its log was created and before its first ack. So a log that is missing
later is damage: an unmounted volume, or a restore of a part. Without this file it would look like
one that was never created, and would start again at offset 0.

The file is appended to. It is a row of records of 25 bytes; integers are big-endian::

    | 4 CRC-32C of what follows | 1 kind | 16 stream id | 4 partition |

Kind 1 adds a partition. Kind 2 removes all partitions of a stream, after its data was removed; its
partition is 0xFFFFFFFF. Kind 3 removes one partition whose replica has moved to another node,
before its data is removed: data that is left behind by a crash is then not missed.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Collection, Iterable
from struct import Struct
from typing import Final

from crc32c import crc32c

from bascule.host.api import Files
from bascule.storage.checkpoint import replace_file

log = logging.getLogger("bascule.controller")

FILE_NAME: Final = "held-partitions"
_CRC: Final = Struct(">I")
_BODY: Final = Struct(">B16sI")
RECORD_BYTES: Final = _CRC.size + _BODY.size
_HELD: Final = 1
_RELEASED: Final = 2
_DROPPED: Final = 3
_ALL: Final = 0xFFFFFFFF
_OBSOLETE_MAX: Final = 1_000
"""The file is written anew at the start where it has more records that no longer count."""


class HeldPartitions:
    """Reads and appends to the file. Any thread may call it. Blocks on the disk."""

    def __init__(self, files: Files, data_directory: str) -> None:
        self._files = files
        self._path = f"{data_directory}/{FILE_NAME}"
        self._held: dict[bytes, set[int]] = {}
        self._bytes = 0
        """Of the whole records in the file."""
        self._lock = threading.Lock()

    def load(self) -> None:
        """Read the file; a missing one is empty.

        A damaged record ends the list; the rest is logged, and overwritten later. Partitions that
        are missing from the list are added again when their logs are opened. Raises: OSError.
        """
        if not self._files.exists(self._path):
            return
        data = self._files.read_bytes(self._path)
        whole, records = self._decode(data)
        self._bytes = whole
        if whole < len(data):
            log.warning(
                "end of the list of held partitions ignored: it is damaged",
                extra={"file": self._path, "at": whole, "bytes": len(data) - whole},
            )
        if records - len(self) > _OBSOLETE_MAX:
            content = b"".join(_encode(_HELD, id, n) for id, ns in self._held.items() for n in ns)
            replace_file(self._files, self._path, content)
            self._bytes = len(content)

    def holds(self, stream_id: bytes, partition: int) -> bool:
        """Whether the log of this partition has been created here."""
        return partition in self._held.get(stream_id, ())

    def __len__(self) -> int:
        return sum(map(len, self._held.values()))

    def hold(self, stream_id: bytes, partitions: Iterable[int]) -> None:
        """Add partitions; they are on the disk on return. Raises: OSError; none is added."""
        with self._lock:
            known: Collection[int] = self._held.get(stream_id, ())
            added = [partition for partition in partitions if partition not in known]
            if added:
                self._append(b"".join(_encode(_HELD, stream_id, each) for each in added))
                self._held.setdefault(stream_id, set()).update(added)

    def release(self, stream_id: bytes) -> None:
        """Remove a stream's partitions; that is on the disk on return. Raises: OSError."""
        with self._lock:
            if stream_id in self._held:
                self._append(_encode(_RELEASED, stream_id, _ALL))
                del self._held[stream_id]

    def drop(self, stream_id: bytes, partition: int) -> None:
        """Remove one partition; that is on the disk on return. Raises: OSError."""
        with self._lock:
            if self.holds(stream_id, partition):
                self._append(_encode(_DROPPED, stream_id, partition))
                self._held[stream_id].discard(partition)

    def _append(self, records: bytes) -> None:
        file = self._files.open(self._path, create=True)
        try:
            if file.size() != self._bytes:
                file.truncate(self._bytes)  # An append failed in the middle of a record.
            file.append(records)
            file.sync()
        finally:
            file.close()
        if self._bytes == 0:
            self._files.sync_dir(self._path.rpartition("/")[0])
        self._bytes += len(records)

    def _decode(self, data: bytes) -> tuple[int, int]:
        """Fill the list from whole records; return where they end, and how many there are."""
        for at in range(0, len(data) - RECORD_BYTES + 1, RECORD_BYTES):
            (crc,) = _CRC.unpack_from(data, at)
            body = data[at + _CRC.size : at + RECORD_BYTES]
            kind, stream_id, partition = _BODY.unpack(body)
            if crc32c(body) != crc or kind not in (_HELD, _RELEASED, _DROPPED):
                return at, at // RECORD_BYTES
            if kind == _HELD:
                self._held.setdefault(stream_id, set()).add(partition)
            elif kind == _DROPPED:
                self._held.get(stream_id, set()).discard(partition)
            else:
                self._held.pop(stream_id, None)
        whole = len(data) // RECORD_BYTES
        return whole * RECORD_BYTES, whole


def _encode(kind: int, stream_id: bytes, partition: int) -> bytes:
    body = _BODY.pack(kind, stream_id, partition)
    return _CRC.pack(crc32c(body)) + body
