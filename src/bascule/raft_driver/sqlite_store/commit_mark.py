"""The synced mark: how many commits of a database are known to be on the disk.

SQLite takes a write-ahead log whose end is damaged for one whose end was never written, which is
right after a power cut and wrong for commits that were confirmed. The mark, in a file of its own,
tells the two apart. It is written after each commit and not synced: after a kill it is exact, after
a power cut it may be an older one, which is true as well.

Written through a memory map: a call to the kernel would give up the interpreter lock once more.
"""

from __future__ import annotations

import mmap
import struct
from typing import Final

from bascule.errors import CorruptData
from bascule.host.api import Files
from bascule.raft_driver.sqlite_store.schema import checksum

_SLOT: Final = struct.Struct(">4sIqq")
_MAGIC: Final = b"BscR"
_BYTES: Final = 2 * _SLOT.size


class CommitMark:
    """Two slots, written in turn; the later one of those that are whole counts."""

    __slots__ = ("_map", "_node_id")

    def __init__(self, files: Files, path: str, node_id: int) -> None:
        """Map the file at `path`, which `create` made."""
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
        """Make the file, on the disk on return."""
        file = files.open(path, create=True)
        file.write_at(0, _slot(commits, node_id) * 2)
        file.sync()
        file.close()

    @staticmethod
    def read(files: Files, path: str, *, node_id: int) -> int | None:
        """The number of commits; None where there is no file, or one that was never finished.

        Raises: CorruptData where no slot is whole, or the mark is another node's.
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
                path, 0, f"a synced mark of node {node_id}, {_BYTES} bytes",
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
