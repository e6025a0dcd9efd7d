"""A store under test beside the model of its contents, and values to write to it."""

from __future__ import annotations

from typing import Final, Protocol

from bascule.errors import CorruptData
from bascule.raft.membership import Members
from bascule.raft.messages import Entry, EntryKind, RaftSnapshot
from bascule.raft.store import PersistentState, RaftStore
from bascule.raft.testing.store_model import (
    Bootstrap,
    ContractViolation,
    PersistChunk,
    PersistEntries,
    PersistTerm,
    StoreCall,
    StoreModel,
    describe,
    make_call,
    require,
)

MEMBERS: Final = Members.of(1, 2, 3)
INDEX_MAX: Final = (1 << 63) - 1
"""The largest term and index."""


class StoreFixture(Protocol):
    """Opens and crashes one store. Its storage is empty at first."""

    def open(self) -> RaftStore:
        """Open the store with what the previous one left."""
        ...

    def crash(self, store: RaftStore) -> None:
        """End `store` without a flush: like a power failure or a kill, or at least with `close`."""
        ...


class StoreUnderTest:
    """A store, and the model that it is checked against."""

    def __init__(self, fixture: StoreFixture, *calls: StoreCall) -> None:
        """Open a store, bootstrap a group of three in term 2, and make `calls`."""
        self._fixture = fixture
        self.store = fixture.open()
        require(self.store.load() == PersistentState(), "a new store is not empty")
        self.model = StoreModel()
        self.make(Bootstrap(MEMBERS), PersistTerm(2, 1), *calls)

    def make(self, *calls: StoreCall) -> None:
        for call in calls:
            make_call(self.store, call)
            self.model.on_call(call)

    def flush(self) -> None:
        self.store.flush()
        self.model.on_flush()

    def crash(self) -> PersistentState:
        """Crash without a flush and open again; check that the contents are allowed."""
        self._fixture.crash(self.store)
        return self._load(crashed=True)

    def reopen(self) -> PersistentState:
        """Flush, close and open again; check that everything is there."""
        self.flush()
        self.store.close()
        return self._load(crashed=False)

    def _load(self, *, crashed: bool) -> PersistentState:
        self.store = self._fixture.open()
        restored = self.store.load()
        self.model.check_loaded(restored, crashed=crashed)
        return restored

    def check_opens_corrupt(self) -> None:
        """Flush, crash and open again; check that loading raises CorruptData every time."""
        self.store.flush()
        self._fixture.crash(self.store)
        for _ in range(2):
            store = None
            try:
                store = self._fixture.open()
                found = store.load()
            except CorruptData:
                if store is not None:
                    self._fixture.crash(store)
            else:
                raise ContractViolation(f"loaded {describe(found)}, expected CorruptData")


def entries_of(first: int, *terms: int, payload: bytes = b"payload") -> PersistEntries:
    """Entries from `first` on, of these terms."""
    return PersistEntries(
        tuple(
            Entry(first + n, term, EntryKind.NORMAL, b"%s %d" % (payload, first + n))
            for n, term in enumerate(terms)
        )
    )


def snapshot_of(index: int, term: int = 2, *, count: int = 3) -> RaftSnapshot:
    data = tuple(b"chunk %d of %d" % (number, index) * 50 for number in range(count))
    return RaftSnapshot(index, term, Members((1, 2, 4), (5,), index - 1), data)


def chunks_of(snapshot: RaftSnapshot) -> list[PersistChunk]:
    return [PersistChunk(chunk) for chunk in snapshot.as_chunks()]
