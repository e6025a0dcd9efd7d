"""One store under check, beside what it is expected to hold, and the values it is fed."""

from __future__ import annotations

from typing import Final, Protocol

from bascule.errors import CorruptData
from bascule.raft.membership import Members, founded
from bascule.raft.messages import Entry, Kind, Snapshot
from bascule.raft.store import RaftStore, Restored
from bascule.raft.testing.store_model import (
    AddEntries,
    BrokenPromise,
    Call,
    Expectation,
    FoundMembers,
    PutChunk,
    SetTerm,
    carry_out,
    promise,
    shown,
)

MEMBERS: Final = founded(1, 2, 3)
LARGEST: Final = (1 << 63) - 1
"""Terms and indices are below 2^63."""


class Ground(Protocol):
    """A place for one store."""

    def open(self) -> RaftStore:
        """A store with what the last one here left."""
        ...

    def crash(self, store: RaftStore) -> None:
        """End `store` without a flush: as a power cut, or a kill, or `close` as the least."""
        ...


class Trial:
    """One store under check, with what it is expected to hold."""

    def __init__(self, ground: Ground, *calls: Call) -> None:
        """Open a store, found a group of three in term 2, and make `calls`."""
        self._ground = ground
        self.store = ground.open()
        promise(self.store.load() == Restored(), "a new store holds something")
        self.expected = Expectation()
        self.make(FoundMembers(MEMBERS), SetTerm(2, 1), *calls)

    def make(self, *calls: Call) -> None:
        for call in calls:
            carry_out(self.store, call)
            self.expected.call(call)

    def flush(self) -> None:
        self.store.flush()
        self.expected.flushed()

    def crash(self) -> Restored:
        """End without a flush and open again: one of the states allowed is there."""
        self._ground.crash(self.store)
        return self._load(crashed=True)

    def reopen(self) -> Restored:
        """Flush, close, open again: all is there."""
        self.flush()
        self.store.close()
        return self._load(crashed=False)

    def _load(self, *, crashed: bool) -> Restored:
        self.store = self._ground.open()
        restored = self.store.load()
        self.expected.loaded(restored, crashed=crashed)
        return restored

    def opens_corrupt(self) -> None:
        """Flush and end; a store opened again refuses to load what is there, every time."""
        self.store.flush()
        self._ground.crash(self.store)
        for _ in range(2):
            store = None
            try:
                store = self._ground.open()
                found = store.load()
            except CorruptData:
                if store is not None:
                    self._ground.crash(store)
            else:
                raise BrokenPromise(f"loaded {shown(found)}, expected CorruptData")


def entries_of(first: int, *terms: int, payload: bytes = b"payload") -> AddEntries:
    """Entries from `first` on, of these terms."""
    return AddEntries(
        tuple(
            Entry(first + n, term, Kind.NORMAL, b"%s %d" % (payload, first + n))
            for n, term in enumerate(terms)
        )
    )


def snapshot_of(index: int, term: int = 2, *, count: int = 3) -> Snapshot:
    data = tuple(b"chunk %d of %d" % (number, index) * 50 for number in range(count))
    return Snapshot(index, term, Members((1, 2, 4), (5,), index - 1), data)


def chunks_of(snapshot: Snapshot) -> list[PutChunk]:
    return [PutChunk(chunk) for chunk in snapshot.as_chunks()]
