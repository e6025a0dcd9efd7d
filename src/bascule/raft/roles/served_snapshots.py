"""The snapshots whose chunks a node serves: the newest, and an older one while it is fetched.

A large snapshot takes longer to fetch than the next one to be taken. Without the older one the
fetch would begin anew each time, and never end.
"""

from __future__ import annotations

import zlib

from bascule.raft.messages import RaftSnapshot


class ServedSnapshots:
    """At most one older snapshot is kept, in memory only, and only while it is requested."""

    __slots__ = ("_checksums", "_keep_ticks", "_old", "_requested")

    def __init__(self, keep_ticks: int) -> None:
        self._keep_ticks = keep_ticks
        """How long after its last request an older snapshot is kept."""
        self._old: RaftSnapshot | None = None
        self._requested: dict[int, int] = {}
        """Index of a served snapshot -> tick of the last request of a chunk."""
        self._checksums: dict[int, tuple[int, ...]] = {}
        """Index of a served snapshot -> checksums of its chunks, computed at its first offer."""

    def find(self, index: int, newest: RaftSnapshot | None) -> RaftSnapshot | None:
        """The snapshot at `index` if it is served."""
        for snapshot in (newest, self._old):
            if snapshot is not None and snapshot.index == index:
                return snapshot
        return None

    def on_requested(self, index: int, now: int) -> None:
        """A chunk of a served snapshot was requested."""
        self._requested[index] = now

    def on_replaced(self, old: RaftSnapshot | None, now: int) -> None:
        """`old` is no longer the newest: keep it if it is being fetched."""
        self.expire(now)
        if old is not None and self._old is None and self._is_requested(old.index, now):
            self._old = old
        kept = () if self._old is None else (self._old.index,)
        for known in (self._requested, self._checksums):
            for index in [index for index in known if index not in kept]:
                del known[index]

    def expire(self, now: int) -> None:
        """Drop the older snapshot if nobody fetches it any more."""
        if self._old is not None and not self._is_requested(self._old.index, now):
            self._old = None

    def _is_requested(self, index: int, now: int) -> bool:
        at = self._requested.get(index)
        return at is not None and now - at <= self._keep_ticks

    def checksums(self, snapshot: RaftSnapshot) -> tuple[int, ...]:
        """The CRC-32 of each chunk."""
        found = self._checksums.get(snapshot.index)
        if found is None:
            found = self._checksums[snapshot.index] = tuple(map(zlib.crc32, snapshot.chunks))
        return found
