"""The synced mark: the position up to which a log is synced, written after every sync.

With it recovery can distinguish a torn tail from damage to batches that were confirmed.

The mark itself is not synced, because that would take a second sync for each batch. After a kill
the mark is in the page cache, so it is exact. After a power loss it may be an older mark, which is
still true.
"""

from __future__ import annotations

from collections import deque
from struct import Struct
from typing import Final
from weakref import WeakKeyDictionary, ref

from crc32c import crc32c

from bascule.errors import CorruptData
from bascule.host.api import File, Files
from bascule.storage.checkpoint import Checkpoint
from bascule.storage.segment import LogPosition

FILE_NAME: Final = "synced"
MAGIC: Final = b"BscS"
_SLOT: Final = Struct(">4sI3q")
SLOT_BYTES: Final = _SLOT.size
SLOTS: Final = 2
"""The slots are written in turn, so that one is intact if writing the other fails."""
_CHECKED_FROM: Final = 8
OPEN_MAX: Final = 1_000
"""Files that stay open in one process: ten thousand partitions have as many logs open anyway, and
a process must not run out of descriptors. A write to another one opens it again, in some 30 us."""


def encode_slot(synced: LogPosition) -> bytes:
    slot = bytearray(_SLOT.pack(MAGIC, 0, *synced))
    slot[4:_CHECKED_FROM] = crc32c(memoryview(slot)[_CHECKED_FROM:]).to_bytes(4, "big")
    return bytes(slot)


def decode_slot(data: bytes, index: int, *, path: str) -> LogPosition | None:
    """Slot number `index` of a whole file; None if it was never written.

    Raises: CorruptData.
    """
    at = index * SLOT_BYTES
    slot = data[at : at + SLOT_BYTES]
    if not any(slot):
        return None
    if len(slot) < SLOT_BYTES:
        raise CorruptData(path, at, f"a slot of {SLOT_BYTES} bytes", f"{len(slot)} bytes")
    magic, crc, *numbers = _SLOT.unpack(slot)
    if magic != MAGIC:
        raise CorruptData(path, at, MAGIC.decode(), repr(magic))
    found = crc32c(memoryview(slot)[_CHECKED_FROM:])
    if found != crc:
        raise CorruptData(path, at + 4, f"CRC {found:#010x}", f"{crc:#010x}")
    return LogPosition(*numbers)


def read_mark(data: bytes) -> tuple[LogPosition | None, int]:
    """The later mark of a file, None if there is none, and the slot to write next."""
    latest, following = None, 0
    for index in range(SLOTS):
        try:
            found = decode_slot(data, index, path=FILE_NAME)
        except CorruptData:
            continue
        if found is not None and (latest is None or found > latest):
            latest, following = found, (index + 1) % SLOTS
    return latest, following


def known_synced(files: Files, directory: str, saved: Checkpoint | None) -> LogPosition:
    """Up to where the log in a directory is known to be synced: the recovery point of its
    checkpoint, or the mark, whichever is later. Raises: OSError where the mark cannot be read."""
    known = LogPosition(0, 0, 0) if saved is None else recovery_point_of(saved)
    path = f"{directory}/{FILE_NAME}"
    if files.exists(path):
        known = max(known, read_mark(files.read_bytes(path))[0] or known)
    return known


def recovery_point_of(saved: Checkpoint) -> LogPosition:
    """The position from which on a log is recovered."""
    return LogPosition(saved.recovery_offset, saved.recovery_segment, saved.recovery_position)


_opened: WeakKeyDictionary[Files, deque[ref[SyncedMark]]] = WeakKeyDictionary()
"""Each mark that has opened its file, once, the oldest first; some have released theirs since."""


class SyncedMark:
    """The file of one log. The first write opens it. The syncing thread writes it."""

    def __init__(self, files: Files, directory: str) -> None:
        self._files = files
        self._path = f"{directory}/{FILE_NAME}"
        self._file: File | None = None
        self._slot = 0
        self._is_noted = False
        """Whether it is in `_opened`."""

    def write(self, synced: LogPosition) -> None:
        """Record that everything below `synced` is synced.

        Best effort: if the write fails, the older mark stays, which is still true.
        """
        try:
            file = self._file
            if file is None:
                file = self._files.open(self._path, create=True)
                self._slot = read_mark(file.read_at(0, SLOTS * SLOT_BYTES))[1]
                self._keep(file)
            file.write_at(self._slot * SLOT_BYTES, encode_slot(synced))
        except OSError:
            return
        self._slot = (self._slot + 1) % SLOTS

    def lower(self, synced: LogPosition) -> None:
        """Lower the mark to `synced`. On return the mark is synced.

        Raises: OSError. The file then holds the older mark, this one, or none.
        """
        file = self._files.open(self._path, create=True) if self._file is None else self._file
        file.write_at(0, SLOTS * encode_slot(synced))
        file.sync()
        self._slot = 0
        self._keep(file)

    def _keep(self, file: File) -> None:
        """Keep the file open for the next write, and release the oldest one beyond `OPEN_MAX`."""
        self._file = file
        if self._is_noted:
            return
        self._is_noted = True
        marks = _opened.setdefault(self._files, deque())
        marks.append(ref(self))
        if len(marks) > OPEN_MAX:
            oldest = marks.popleft()()
            if oldest is not None:
                oldest.evict()

    def evict(self) -> None:
        """Release the file to make room for that of another mark. Any thread may call it."""
        self._is_noted = False
        self.release()

    def release(self) -> None:
        """Release the file. The next write opens it again. Any thread may call it."""
        self._file = None
