"""Calls to a store by dice, as a node might make them."""

from __future__ import annotations

from bascule.host.api import Random
from bascule.raft.membership import Members
from bascule.raft.messages import Chunk, Entry, Snapshot
from bascule.raft.recovery import Found, checked
from bascule.raft.testing.store_model import (
    AddEntries,
    Call,
    DeleteChunks,
    PutChunk,
    SetTerm,
    TruncateFrom,
    TruncateUntil,
)


class RandomCalls:
    """Draws calls that a node might make, given what its store holds."""

    __slots__ = ("_dice", "_installing")

    def __init__(self, dice: Random) -> None:
        self._dice = dice
        self._installing: list[Chunk] = []

    def below(self, count: int) -> int:
        """One of 0 ... count - 1."""
        return min(int(self._dice.uniform(0, count)), count - 1)

    def forget(self) -> None:
        """The node starts anew."""
        self._installing = []

    def draw(self, held: Found) -> list[Call]:
        """Calls that belong together: no crash between them is left out by it."""
        if self._installing:
            return self._go_on_installing(held)
        snapshot = checked(held, file="drawn").snapshot
        base = snapshot.index if snapshot else 0
        last = held.entries[-1].index if held.entries else base
        kind = self.below(12)
        if kind == 0:
            return [SetTerm(held.term + 1 + self.below(3), self.below(4))]
        if kind == 1 and last > base:
            return [TruncateFrom(base + 1 + self.below(last - base))]
        if kind == 2 and snapshot is not None:
            return [TruncateUntil(base - self.below(5))]
        if kind == 3 and last > base:
            return self._take_snapshot(held, base + 1 + self.below(last - base), snapshot)
        if kind == 4:
            self._installing = self._foreign_snapshot(held, last + 1 + self.below(30))
            return self._go_on_installing(held)
        return [AddEntries(self._entries(held, snapshot, last))]

    def _entries(self, held: Found, snapshot: Snapshot | None, last: int) -> tuple[Entry, ...]:
        floor = held.entries[-1].term if held.entries else snapshot.term if snapshot else 1
        term = max(floor, held.term - self.below(2))
        sizes = (0, 1, 100, 5_000, 70_000)
        return tuple(
            Entry(last + 1 + n, term, 0, self._dice.bytes(sizes[min(self.below(40), 4)]))
            for n in range(1 + self.below(12))
        )

    def _take_snapshot(self, held: Found, index: int, old: Snapshot | None) -> list[Call]:
        term = next(entry.term for entry in held.entries if entry.index == index)
        chunks = self._chunks(index, term)
        calls: list[Call] = [PutChunk(chunk) for chunk in chunks]
        calls.append(TruncateUntil(index - self.below(10)))
        if old is not None:
            calls.append(DeleteChunks(old.index, len(old.chunks)))
        return calls

    def _foreign_snapshot(self, held: Found, index: int) -> list[Chunk]:
        chunks = self._chunks(index, held.term)
        order = list(range(len(chunks)))
        return [chunks[order.pop(self.below(len(order)))] for _ in chunks]

    def _go_on_installing(self, held: Found) -> list[Call]:
        chunk = self._installing.pop()
        calls: list[Call] = [PutChunk(chunk)]
        if not self._installing:
            calls.append(TruncateUntil(chunk.index))
            old = {c.index: c.count for c in held.chunks if c.index != chunk.index}
            calls += [DeleteChunks(index, count) for index, count in old.items()]
        return calls

    def _chunks(self, index: int, term: int) -> tuple[Chunk, ...]:
        members = Members(tuple(range(1, 2 + self.below(5))), (), self.below(index))
        sizes = (0, 10, 3_000, 20_000)
        data = tuple(self._dice.bytes(sizes[self.below(4)]) for _ in range(1 + self.below(4)))
        return Snapshot(index, term, members, data).as_chunks()
