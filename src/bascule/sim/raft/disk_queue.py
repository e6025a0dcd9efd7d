"""`DiskQueue`: a member's disk as a queue of writes with latency.

A write's calls reach the store when its turn begins, and are flushed when it ends. After a crash in
between, the store decides at random what is kept. Queued writes are taken together and flushed
once, as the write thread does in production.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Final, Protocol

from bascule.errors import LogFailed
from bascule.raft.effects import Write
from bascule.raft.store import RaftStore, persist_write
from bascule.sim.loop import SimLoop
from bascule.sim.prng import Prng

SLOW_FACTOR: Final = 40
"""Latency of a slow disk, as a multiple."""


class DiskQueueListener(Protocol):
    """Gets the events of a disk queue."""

    def on_written(self, writes: list[Write]) -> None:
        """These writes are done, in order."""
        ...

    def on_durable(self, writes: list[Write]) -> None:
        """These writes are durable, in order; called before `on_written` of the last one."""
        ...

    def on_disk_failed(self, error: LogFailed) -> None:
        """A call of the store failed; the queued writes are dropped."""
        ...


@dataclass(slots=True, frozen=True, kw_only=True)
class DiskLatency:
    """Latency of a disk in microseconds."""

    sync: int = 500
    sync_jitter: int = 2_000
    """Random addition to `sync`, up to this."""
    write: int = 20
    together_max: int = 16
    """Writes flushed together."""


class DiskQueue:
    """Carries out writes on a store, one batch after another."""

    __slots__ = (
        "_busy",
        "_life",
        "_loop",
        "_owner",
        "_pace",
        "_prng",
        "_queue",
        "_store",
        "_unsynced",
        "slow",
    )  # fmt: skip

    def __init__(
        self,
        loop: SimLoop,
        prng: Prng,
        pace: DiskLatency,
        store: RaftStore,
        owner: DiskQueueListener,
    ) -> None:
        self._loop = loop
        self._prng = prng
        self._pace = pace
        self._owner = owner
        self._queue: deque[Write] = deque()
        self._busy = False
        self._life = 0
        self._unsynced: list[Write] = []
        self._store = store
        self.slow = False

    def reset(self) -> None:
        """The machine crashed: drop all writes."""
        self._life += 1
        self._busy = False
        self._queue.clear()
        self._unsynced.clear()

    def submit(self, write: Write) -> None:
        """Queue `write`."""
        self._queue.append(write)
        if not self._busy:
            self._begin()

    def _begin(self) -> None:
        queue, pace = self._queue, self._pace
        batch = [queue.popleft()]
        while queue and len(batch) < pace.together_max:
            batch.append(queue.popleft())
        syncs = False
        try:
            for write in batch:
                persist_write(self._store, write)
                syncs = syncs or write.sync
        except LogFailed as error:
            self._owner.on_disk_failed(error)
            return
        self._busy = True
        takes = pace.write
        if syncs:
            takes += pace.sync + self._prng.word() % (pace.sync_jitter + 1)
        if self.slow:
            takes *= SLOW_FACTOR
        self._loop.after(takes, self._end, (self._life, syncs), batch)

    def _end(self, mark: tuple[int, bool], batch: list[Write]) -> None:
        life, syncs = mark
        if life != self._life:
            return
        self._unsynced += batch
        if syncs:
            try:
                self._store.flush()
            except LogFailed as error:
                self._owner.on_disk_failed(error)
                return
            durable, self._unsynced = self._unsynced, []
            self._owner.on_durable(durable)
        self._busy = False
        self._owner.on_written(batch)
        if self._queue and not self._busy and life == self._life:
            self._begin()
