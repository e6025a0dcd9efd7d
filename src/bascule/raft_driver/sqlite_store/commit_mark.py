"""`CommitMark`: the number of commits of a database that are known to be durable.

SQLite treats a write-ahead log with a damaged end like one whose end was never written. That is
right after a power failure, and wrong for acknowledged commits. The mark, in a file of its own,
distinguishes the two. It is written after each commit and not synced: after a kill it is exact;
after a power failure it may be an older one, which is still a valid lower bound.

It is written through a memory map, since a system call would release the interpreter lock once
more.
"""

from __future__ import annotations

import mmap
import struct
from typing import Final

import msgspec

from bascule.errors import CorruptData
from bascule.host.api import Files
from bascule.raft_driver.sqlite_store.schema import checksum

_SLOT: Final = struct.Struct(">4sIqq")
_MAGIC: Final = b"BscR"
_BYTES: Final = 2 * _SLOT.size


class KnownCommits(msgspec.Struct, frozen=True):
    """How many commits a database has had at least, by a file that is not beside it. The mark tells
    nothing of an older copy of both, and of a directory that is gone: these would repeat votes, and
    lack entries that this node has confirmed."""

    count: int = 0
    """0: it may be a new database."""
    file: str = ""
    """The file that says so."""

    def check(self, path: str, commits: int) -> None:
        """Check the one at `path`, which has so many; 0: there is none. Raises: CorruptData."""
        if commits < self.count:
            raise CorruptData(
                path, commits, f"{self.count} commits or more, as {self.file} says",
                f"{commits}: it is an older copy" if commits else "no database", place="its end",
            )  # fmt: skip


NOTHING_KNOWN: Final = KnownCommits()


class CommitMark:
    """Two slots, written in turn. The higher one of those with a valid CRC counts."""

    __slots__ = ("_map", "_node_id")

    def __init__(self, files: Files, path: str, node_id: int) -> None:
        """Map the file at `path`, which `create` created."""
        file = files.open(path)
        self._map = mmap.mmap(file.fileno(), _BYTES)
        self._node_id = node_id
        file.close()

    def set(self, commits: int) -> None:
        start = (commits & 1) * _SLOT.size
        self._map[start : start + _SLOT.size] = _slot(commits, self._node_id)

    def close(self) -> None:
        self._map.close()

    @staticmethod
    def create(files: Files, path: str, *, node_id: int, commits: int) -> None:
        """Create the file; it is durable on return."""
        file = files.open(path, create=True)
        file.write_at(0, _slot(commits, node_id) * 2)
        file.sync()
        file.close()

    @staticmethod
    def read(files: Files, path: str, *, node_id: int) -> int | None:
        """The number of commits; None if there is no file, or only an empty one.

        Raises: CorruptData if no slot is valid, or the mark is another node's.
        """
        if not files.exists(path):
            return None
        data = files.read_bytes(path)
        if not data:
            return None
        commits = [
            found
            for found in (_commits(data[at : at + _SLOT.size], node_id) for at in (0, _SLOT.size))
            if found is not None
        ]
        if len(data) != _BYTES or not commits:
            raise CorruptData(
                path, 0, f"a commit mark of node {node_id}, {_BYTES} bytes",
                f"{len(data)} bytes without one",
            )  # fmt: skip
        return max(commits)


def _slot(commits: int, node_id: int) -> bytes:
    body = _SLOT.pack(_MAGIC, 0, commits, node_id)[8:]
    return _MAGIC + checksum(body).to_bytes(4, "big") + body


def _commits(slot: bytes, node_id: int) -> int | None:
    if len(slot) != _SLOT.size:
        return None
    magic, crc, commits, owner = _SLOT.unpack(slot)
    whole = magic == _MAGIC and crc == checksum(slot[8:]) and owner == node_id
    return int(commits) if whole else None
