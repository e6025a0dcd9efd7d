"""The mark of a log that is copied from its beginning, and does not have all of it yet.

It holds the leader epoch of the copy. The leader of that epoch keeps the tombstones that the copy
still needs. Another one may have removed tombstones behind its end before the copy began, so that
keys would come back which these removed. Integers are big-endian::

    | 8 magic "BscCopy1" | 4 CRC-32C of what follows | 4 leader epoch |
"""

from __future__ import annotations

from struct import Struct
from typing import Final

from crc32c import crc32c

from bascule.host.api import Files
from bascule.storage.checkpoint import replace_file

FILE_NAME: Final = "partial-copy"
MAGIC: Final = b"BscCopy1"
UNKNOWN_EPOCH: Final = -1
"""Of a mark that is damaged. No leader has that epoch."""
_HEADER: Final = Struct(">8sI")
_BODY: Final = Struct(">i")


def encode_partial_copy(epoch: int) -> bytes:
    body = _BODY.pack(epoch)
    return _HEADER.pack(MAGIC, crc32c(body)) + body


def decode_partial_copy(data: bytes) -> int:
    """The leader epoch in a whole file; UNKNOWN_EPOCH if it is damaged."""
    if len(data) != _HEADER.size + _BODY.size:
        return UNKNOWN_EPOCH
    (magic, crc), body = _HEADER.unpack_from(data), data[_HEADER.size :]
    if magic != MAGIC or crc32c(body) != crc:
        return UNKNOWN_EPOCH
    (epoch,) = _BODY.unpack(body)
    return int(epoch)


class PartialCopy:
    """The mark of one log. For the appending thread only."""

    def __init__(self, files: Files, directory: str) -> None:
        self._files = files
        self._directory = directory
        self._path = f"{directory}/{FILE_NAME}"
        self._epoch: int | None = None
        self._is_loaded = False
        self.begun = 0
        """Copies that began while the log was open. Any thread may read it."""

    @property
    def epoch(self) -> int | None:
        """The leader epoch of the copy; None where the log is none. Raises: OSError."""
        if not self._is_loaded:
            try:
                self._epoch = decode_partial_copy(self._files.read_bytes(self._path))
            except FileNotFoundError:
                self._epoch = None
            self._is_loaded = True
        return self._epoch

    def is_marked(self) -> bool:
        """Whether the mark is on the disk. Any thread may call it; blocks on the disk."""
        return self._files.exists(self._path)

    @property
    def known_epoch(self) -> int | None:
        """As `epoch`, without reading the disk: None until it was asked for."""
        return self._epoch

    def end_epoch(self) -> None:
        """The log is about to be emptied; until `begin` it is the copy of no leader epoch."""
        self._epoch, self._is_loaded = UNKNOWN_EPOCH, True

    def begin(self, epoch: int) -> None:
        """The log, which is empty, is copied in this leader epoch. On return that is synced.

        Raises: OSError.
        """
        self.begun += 1
        if self.epoch == epoch:
            return
        self._is_loaded = False
        replace_file(self._files, self._path, encode_partial_copy(epoch))
        self._epoch, self._is_loaded = epoch, True

    def end(self) -> None:
        """The log has all that its leader's has. On return that is synced.

        Raises: OSError, and the mark may still be there.
        """
        if self.epoch is None:
            return
        self._is_loaded = False
        self._files.remove(self._path)
        self._files.sync_dir(self._directory)
        self._epoch, self._is_loaded = None, True
