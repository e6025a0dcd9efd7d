"""Files in memory with a page cache of single pages: what leaves it may come back damaged."""

from __future__ import annotations

from bascule.host.real import RealRandom
from bascule.sim.disk import PAGE_BYTES, Inode, SimFile, SimFiles


class PagedFile(SimFile):
    """A file of `PagedFiles`. A read brings the pages that it needs into the page cache."""

    def _bring(self, start: int, end: int) -> None:
        away = self._files.away.get(self._inode)  # type: ignore[attr-defined]
        if away:
            end = min(end, len(self._inode.data))
            away.difference_update(range(start // PAGE_BYTES, -(-end // PAGE_BYTES)))

    def read_at(self, position: int, length: int) -> bytes:
        found = super().read_at(position, length)
        self._bring(position, position + len(found))
        return found

    def read_at_nowait(self, position: int, length: int) -> bytes | None:
        size = len(self._inode.data)
        if not self._present(position, min(position + length, size)):
            return None
        return self._read(position, length)

    def _present(self, start: int, end: int) -> bool:
        away = self._files.away.get(self._inode, ())  # type: ignore[attr-defined]
        return not away or away.isdisjoint(range(start // PAGE_BYTES, -(-end // PAGE_BYTES)))

    def is_cached(self, start: int, end: int) -> bool:
        return end <= len(self._inode.data) and self._present(start, end)

    def load(self, start: int, end: int) -> None:
        self._bring(start, end)

    def _put(self, what: str, position: int, data: bytes) -> None:
        """A write of a part of a page reads the rest of it."""
        self._bring(position, position + max(len(data), 1))
        super()._put(what, position, data)
        self._bring(position, position + len(data))


class PagedFiles(SimFiles):
    """`evict` and `flip` are what the kernel and the disk do."""

    has_operations = False

    def __init__(self) -> None:
        super().__init__(RealRandom(1))
        self.away: dict[Inode, set[int]] = {}
        """Pages that are not in the page cache."""

    def open(self, path: str, *, create: bool = False, write: bool = True) -> SimFile:
        super().open(path, create=create, write=write)
        return PagedFile(self, path, self._inode(path), write=write)

    def evict(self, path: str, *pages: int) -> None:
        """These pages, or all, leave the page cache. They are synced."""
        inode = self._inode(path)
        found = pages or range(-(-len(inode.data) // PAGE_BYTES))
        self.away.setdefault(inode, set()).update(found)

    def flip(self, path: str, byte: int, mask: int) -> None:
        """The disk changes bits of a page that is not in the page cache."""
        inode = self._inode(path)
        assert byte // PAGE_BYTES in self.away[inode], "the page cache is good"
        inode.data[byte] ^= mask
