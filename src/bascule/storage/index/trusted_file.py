"""Which segments are as this process wrote or checked them: whether reads came from the disk since.

No CRC covers the base offset and the leader epoch of a batch. What a process has written, or has
checked, and what has stayed in the page cache since, is as it was. Bytes that come from the disk
may be damaged. So a read, or a write to a part of a page, that needs the disk ends the trust in its
segment, until all of that is checked again.
"""

from __future__ import annotations

from typing import Final

from bascule.host.api import Buffer, File

PAGE_BYTES: Final = 4_096
"""At most the size of a page of the page cache, of which an append writes a part."""


class Trust:
    """Whether the bytes of one segment are known to be good. Any thread may use it."""

    __slots__ = ("_base_offset", "_is_whole", "_losses", "checked_offset")

    def __init__(self, base_offset: int, *, is_whole: bool) -> None:
        self._base_offset = base_offset
        self._is_whole = is_whole
        self._losses = 0
        self.checked_offset = base_offset
        """This process has checked every byte below it in order; see `PartitionLog.verify`."""

    @property
    def is_whole(self) -> bool:
        """Whether every byte was written or checked by this process, and was in memory since."""
        return self._is_whole

    @property
    def losses(self) -> int:
        """How often something came from the disk. Ask for it before a check begins."""
        return self._losses

    def lose(self) -> None:
        """Something of the segment comes from the disk again, or is damaged."""
        self._losses += 1  # first: see `confirm`
        self._is_whole = False
        self.checked_offset = self._base_offset

    def suspend(self) -> None:
        """Something comes from the disk, and is checked now."""
        self._is_whole = False

    def confirm(self, losses: int, *, below: int, is_whole: bool = False) -> None:
        """All below an offset is checked, or the whole segment. Changes nothing if something came
        from the disk since `losses` was asked for."""
        if losses != self._losses:
            return
        self.checked_offset = max(self.checked_offset, below)
        self._is_whole = self._is_whole or is_whole
        if losses != self._losses:  # by another thread meanwhile
            self.lose()


class TrustedFile:
    """The file of a segment. Its reads and writes end the trust where they need the disk."""

    __slots__ = ("_end", "_is_clean", "raw", "trust")

    def __init__(self, file: File, trust: Trust) -> None:
        self.raw = file
        self.trust = trust
        self._end = -1
        """The size of the file, once something was appended."""
        self._is_clean = True
        """Whether its last page may have left the page cache: those that are dirty do not."""

    @property
    def path(self) -> str:
        return self.raw.path

    def fileno(self) -> int:
        return self.raw.fileno()

    def append(self, *data: Buffer) -> None:
        end = self.raw.size() if self._end < 0 else self._end
        self._end = -1
        if self._is_clean:
            if end % PAGE_BYTES:  # the kernel reads the page first if it does not have it
                self.note(end - end % PAGE_BYTES, end)
            self._is_clean = False
        self.raw.append(*data)
        self._end = end + sum(map(len, data))

    def read_at(self, position: int, length: int) -> bytes:
        if not self.raw.is_cached(position, position + length):
            self.note(position, min(position + length, self.raw.size()))
        return self.raw.read_at(position, length)

    def read_at_nowait(self, position: int, length: int) -> bytes | None:
        return self.raw.read_at_nowait(position, length)

    def is_cached(self, start: int, end: int) -> bool:
        return self.raw.is_cached(start, end)

    def load(self, start: int, end: int) -> None:
        self.note(start, min(end, self.raw.size()))
        self.raw.load(start, end)

    def size(self) -> int:
        return self.raw.size()

    def truncate(self, size: int) -> None:
        self._end, self._is_clean = -1, True
        self.raw.truncate(size)

    def sync(self) -> None:
        self.raw.sync()
        self._is_clean = True

    def write_at(self, position: int, data: Buffer) -> None:
        self.trust.lose()
        self.raw.write_at(position, data)

    def write_back(self, start: int, end: int) -> None:
        self.raw.write_back(start, end)
        self._is_clean = True

    def write_again(self, position: int, length: int) -> None:
        self.note(position, min(position + length, self.raw.size()))
        self.raw.write_again(position, length)

    def close(self) -> None:
        self.raw.close()

    def note(self, start: int, end: int) -> None:
        """Bytes [start, end) are about to be read."""
        if start < end and not self.raw.is_cached(start, end):
            self.trust.lose()


def unchecked(file: File) -> File:
    """The file itself, for a reader that checks all that it reads."""
    return file.raw if isinstance(file, TrustedFile) else file
