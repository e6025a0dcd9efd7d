"""The mark of a log that is copied from its beginning, and does not have all of it yet.

It holds the leader epoch of the copy. The leader of that epoch keeps the tombstones that the copy
still needs. Another one may have removed tombstones behind its end before the copy began, so that
keys would come back which these removed. It holds up to where the logs that it was copied from were
compacted, too: the copy has nothing of what a tombstone below that removes. Integers are
big-endian::

    | 8 magic "BscCopy1" | 4 CRC-32C of what follows | 4 leader epoch | 8 clean offset |
"""

from __future__ import annotations

from typing import Final, NamedTuple

from bascule.errors import CorruptData
from bascule.host.api import Files
from bascule.storage.checkpoint import CheckedStruct, replace_file

FILE_NAME: Final = "partial-copy"
MAGIC: Final = b"BscCopy1"
UNKNOWN_EPOCH: Final = -1
"""Of a mark that is damaged. No leader has that epoch."""
NOT_TOLD: Final = -1
"""The clean offset where no leader has said it."""
_FORMAT: Final = CheckedStruct(MAGIC, "iq")


class CopyMark(NamedTuple):
    """What a mark says."""

    epoch: int
    """The leader epoch in which the copy began, or last went on."""
    clean_offset: int = NOT_TOLD
    """The least one of the leaders that it was copied from."""


_DAMAGED: Final = CopyMark(UNKNOWN_EPOCH)


def encode_partial_copy(mark: CopyMark) -> bytes:
    return _FORMAT.encode(*mark)


def decode_partial_copy(data: bytes) -> CopyMark:
    """A whole file; one of UNKNOWN_EPOCH if it is damaged."""
    try:
        return CopyMark(*_FORMAT.decode(data, path=FILE_NAME))
    except CorruptData:
        return _DAMAGED


class PartialCopy:
    """The mark of one log. For the appending thread only."""

    def __init__(self, files: Files, directory: str) -> None:
        self._files = files
        self._directory = directory
        self._path = f"{directory}/{FILE_NAME}"
        self._mark: CopyMark | None = None
        self._is_loaded = False
        self.begun = 0
        """Copies that began while the log was open. Any thread may read it."""

    @property
    def epoch(self) -> int | None:
        """The leader epoch of the copy; None where the log is none. Raises: OSError."""
        mark = self._load()
        return None if mark is None else mark.epoch

    @property
    def clean_offset(self) -> int:
        """NOT_TOLD where no leader has said it, or the log is no copy. Raises: OSError."""
        mark = self._load()
        return NOT_TOLD if mark is None else mark.clean_offset

    def _load(self) -> CopyMark | None:
        if not self._is_loaded:
            try:
                self._mark = decode_partial_copy(self._files.read_bytes(self._path))
            except FileNotFoundError:
                self._mark = None
            self._is_loaded = True
        return self._mark

    def is_marked(self) -> bool:
        """Whether the mark is on the disk. Any thread may call it; blocks on the disk."""
        return self._files.exists(self._path)

    @property
    def known_epoch(self) -> int | None:
        """As `epoch`, without reading the disk: None until it was asked for."""
        return None if self._mark is None else self._mark.epoch

    @property
    def known_clean_offset(self) -> int:
        """As `clean_offset`, without reading the disk."""
        return NOT_TOLD if self._mark is None else self._mark.clean_offset

    def end_epoch(self) -> None:
        """The log is about to be emptied; until `begin` it is the copy of no leader epoch."""
        self._mark, self._is_loaded = _DAMAGED, True

    def begin(self, epoch: int) -> None:
        """The log, which is empty, is copied in this leader epoch. On return that is synced.

        Raises: OSError.
        """
        self.begun += 1
        self._write(CopyMark(epoch))

    def go_on(self, epoch: int, clean_offset: int) -> None:
        """The copy goes on in this leader epoch, with a log that is compacted up to `clean_offset`.

        On return that is synced. Raises: OSError.
        """
        self._write(CopyMark(epoch, clean_offset))

    def _write(self, mark: CopyMark) -> None:
        if self._load() == mark:
            return
        self._is_loaded = False
        replace_file(self._files, self._path, encode_partial_copy(mark))
        self._mark, self._is_loaded = mark, True

    def end(self) -> None:
        """The log has all that its leader's has. On return that is synced.

        Raises: OSError, and the mark may still be there.
        """
        if self.epoch is None:
            return
        self._is_loaded = False
        self._files.remove(self._path)
        self._files.sync_dir(self._directory)
        self._mark, self._is_loaded = None, True
