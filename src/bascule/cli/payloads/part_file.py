"""A file that is being read, and a note of what it is, so that another command goes on with it."""

from __future__ import annotations

from io import SEEK_END
from pathlib import Path
from typing import BinaryIO, Final, NamedTuple

import msgspec
from crc32c import crc32c

READ_BYTES: Final = 1 << 20
PART: Final = ".part"
NOTE: Final = ".part.json"
NOTE_BYTES: Final = 64 << 20
"""Between two notes. What a loss of power takes from the file is found by the checksum."""


class PartOf(NamedTuple):
    """What is read into the file."""

    id: str
    """Of the payload, as its size and checksum: other content can have the same id."""
    payload_bytes: int
    payload_crc32c: int
    start: int
    end: int | None


class _Note(msgspec.Struct):
    id: str
    payload_bytes: int
    payload_crc32c: int
    start: int
    end: int | None
    bytes: int
    """Of the file when this was noted;"""
    crc32c: str
    """and their CRC-32C, in hexadecimal."""


class PartFile:
    """`FILE.part` beside `FILE`, and its note. Blocks on the disk."""

    def __init__(self, target: Path, part_of: PartOf, total: int, *, is_whole: bool) -> None:
        """`total` bytes are read. The checksum of a whole payload is compared at the end, so that
        its file may be gone on with also without a note."""
        self.path = target.with_name(target.name + PART)
        self.is_whole = is_whole
        self.size = 0
        self.crc = 0
        """Of what is in the file."""
        self.why_anew = ""
        """Why a file that was there is not gone on with."""
        self._target = target
        self._note_path = target.with_name(target.name + NOTE)
        self._part_of = part_of
        self._total = total
        self._noted = -1
        self._file: BinaryIO | None = None

    def open(self) -> int:
        """Go on with what is there, if it is right; the bytes that are kept. Raises: OSError."""
        file = self.path.open("r+b" if self.path.exists() else "w+b")
        self._file = file
        size = file.seek(0, SEEK_END)
        self.why_anew = self._keep(file, size) if size else ""
        if self.why_anew:
            self.size = self.crc = 0
        file.truncate(self.size)
        file.seek(self.size)
        self._save_note()
        return self.size

    def _keep(self, file: BinaryIO, size: int) -> str:
        """Find out what of the file can be kept; why nothing can."""
        if not self._note_path.exists():
            if not self.is_whole:
                return "does not say which range it has"
            if size > self._total:
                return f"has {size:,} bytes, of {self._total:,}"
            self.size, self.crc = size, _crc_of(file, size)
            return ""
        try:
            note = msgspec.json.decode(self._note_path.read_bytes(), type=_Note)
        except msgspec.MsgspecError:
            return "has a note that cannot be read"
        noted = PartOf(note.id, note.payload_bytes, note.payload_crc32c, note.start, note.end)
        if noted != self._part_of:
            return "is of another payload or range"
        if not 0 <= note.bytes <= min(size, self._total):
            return "has other bytes than were noted"
        self.size, self.crc = note.bytes, _crc_of(file, note.bytes)
        if f"{self.crc:08x}" != note.crc32c:
            return "has other bytes than were noted"
        return ""

    def write(self, data: bytes) -> None:
        """Raises: OSError."""
        assert self._file is not None
        self._file.write(data)
        self.size += len(data)
        self.crc = crc32c(data, self.crc)
        if self.size - self._noted >= NOTE_BYTES:
            self._save_note()

    def _save_note(self) -> None:
        assert self._file is not None
        self._file.flush()
        self._noted = self.size
        note = _Note(*self._part_of, self.size, f"{self.crc:08x}")
        new = self._note_path.with_name(self._note_path.name + ".new")
        new.write_bytes(msgspec.json.encode(note))
        new.replace(self._note_path)

    def close(self) -> None:
        """Note what is there. Raises: OSError."""
        assert self._file is not None
        self._save_note()
        self._file.close()

    def rename(self) -> None:
        """All is there. Raises: OSError."""
        self.path.rename(self._target)
        self._note_path.unlink()

    def remove(self) -> None:
        """It is not right. Raises: OSError."""
        self.path.unlink()
        self._note_path.unlink()


def _crc_of(file: BinaryIO, size: int) -> int:
    """Of the first `size` bytes."""
    crc, left = 0, size
    file.seek(0)
    while left and (data := file.read(min(left, READ_BYTES))):
        crc, left = crc32c(data, crc), left - len(data)
    return crc
