"""Random calls to a store, as a node might make them."""

from __future__ import annotations

from bascule.host.api import Random
from bascule.raft.membership import Members
from bascule.raft.messages import Chunk, Entry, RaftSnapshot
from bascule.raft.recovery import StoreContents, recover
from bascule.raft.testing.store_model import (
    DeleteChunks,
    PersistChunk,
    PersistEntries,
    PersistTerm,
    StoreCall,
    TruncateFrom,
    TruncateUntil,
)


class RandomCalls:
    """Draws calls that a node might make, given the contents of its store."""

    __slots__ = ("_installing", "_prng")

    def __init__(self, prng: Random) -> None:
        self._prng = prng
        self._installing: list[Chunk] = []

    def below(self, count: int) -> int:
        """A number in [0, count)."""
        return min(int(self._prng.uniform(0, count)), count - 1)

    def on_restart(self) -> None:
        """The node was started again."""
        self._installing = []

    def draw(self, held: StoreContents) -> list[StoreCall]:
        """The next calls. The caller may have the store crash between any two of them."""
        if self._installing:
            return self._continue_installation(held)
        snapshot = recover(held, file="drawn").snapshot
        base = snapshot.index if snapshot else 0
        last = held.entries[-1].index if held.entries else base
        kind = self.below(12)
        if kind == 0:
            return [PersistTerm(held.term + 1 + self.below(3), self.below(4))]
        if kind == 1 and last > base:
            return [TruncateFrom(base + 1 + self.below(last - base))]
        if kind == 2 and snapshot is not None:
            return [TruncateUntil(base - self.below(5))]
        if kind == 3 and last > base:
            return self._take_snapshot(held, base + 1 + self.below(last - base), snapshot)
        if kind == 4:
            self._installing = self._fetched_snapshot(held, last + 1 + self.below(30))
            return self._continue_installation(held)
        return [PersistEntries(self._entries(held, snapshot, last))]

    def _entries(
        self, held: StoreContents, snapshot: RaftSnapshot | None, last: int
    ) -> tuple[Entry, ...]:
        floor = held.entries[-1].term if held.entries else snapshot.term if snapshot else 1
        term = max(floor, held.term - self.below(2))
        sizes = (0, 1, 100, 5_000, 70_000)
        return tuple(
            Entry(last + 1 + n, term, 0, self._prng.bytes(sizes[min(self.below(40), 4)]))
            for n in range(1 + self.below(12))
        )

    def _take_snapshot(
        self, held: StoreContents, index: int, old: RaftSnapshot | None
    ) -> list[StoreCall]:
        term = next(entry.term for entry in held.entries if entry.index == index)
        chunks = self._chunks(index, term)
        calls: list[StoreCall] = [PersistChunk(chunk) for chunk in chunks]
        calls.append(TruncateUntil(index - self.below(10)))
        if old is not None:
            calls.append(DeleteChunks(old.index, len(old.chunks)))
        return calls

    def _fetched_snapshot(self, held: StoreContents, index: int) -> list[Chunk]:
        chunks = self._chunks(index, held.term)
        order = list(range(len(chunks)))
        return [chunks[order.pop(self.below(len(order)))] for _ in chunks]

    def _continue_installation(self, held: StoreContents) -> list[StoreCall]:
        chunk = self._installing.pop()
        calls: list[StoreCall] = [PersistChunk(chunk)]
        if not self._installing:
            calls.append(TruncateUntil(chunk.index))
            old = {c.index: c.count for c in held.chunks if c.index != chunk.index}
            calls += [DeleteChunks(index, count) for index, count in old.items()]
        return calls

    def _chunks(self, index: int, term: int) -> tuple[Chunk, ...]:
        members = Members(tuple(range(1, 2 + self.below(5))), (), self.below(index))
        sizes = (0, 10, 3_000, 20_000)
        data = tuple(self._prng.bytes(sizes[self.below(4)]) for _ in range(1 + self.below(4)))
        return RaftSnapshot(index, term, members, data).as_chunks()
