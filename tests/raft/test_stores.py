"""Every store keeps the contract, and the suite that says so notices where one does not."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator, Sequence
from glob import glob
from pathlib import Path

import pytest

from bascule.errors import Closed, CorruptData, LogFailed
from bascule.host.real import RealRandom
from bascule.raft.membership import Members
from bascule.raft.messages import Chunk, Entry
from bascule.raft.store import PersistentState, RaftStore
from bascule.raft.testing.conformance import CHECKS, Check, ContractViolation, name_of, run
from bascule.raft.testing.memory_store import MemoryStore
from bascule.raft.testing.random_calls import RandomCalls
from bascule.raft.testing.store_model import (
    Bootstrap,
    PersistEntries,
    PersistTerm,
    StoreModel,
    make_call,
)
from bascule.raft_driver.sqlite_store import SqliteDatabase, SqliteStore


class MemoryGround:
    """A memory store outlives its crashes by itself."""

    def __init__(self, dice: RealRandom, kind: type[MemoryStore] = MemoryStore) -> None:
        self.dice = dice
        self.store = kind()

    def open(self) -> MemoryStore:
        self.store.crash(self.dice)
        return self.store

    def crash(self, store: RaftStore) -> None:
        store.close()


@pytest.mark.parametrize("check", CHECKS, ids=name_of)
def test_memory_store_keeps_the_contract(check: Check) -> None:
    for seed in range(2):
        dice = RealRandom(seed)
        check(lambda dice=dice: MemoryGround(dice), dice)


class SqliteGround:
    """A database with a store in it. A crash is a kill: what no commit has is gone."""

    def __init__(self, directory: Path, *, group: int = 1) -> None:
        directory.mkdir()
        self.path = str(directory / "raft.sqlite")
        self.group = group
        self.database: SqliteDatabase | None = None

    def open(self) -> SqliteStore:
        if self.database is not None:
            self.database.close()
        self.database = SqliteDatabase.open(self.path, node_id=3, checkpoint_bytes=100_000)
        return self.database.store(self.group)

    def crash(self, store: RaftStore) -> None:
        """The files as they are before SQLite closes them, which would write into them."""
        assert self.database is not None
        files = {name: Path(name).read_bytes() for name in glob(f"{self.path}*")}
        self.database.close()
        for name in glob(f"{self.path}*"):
            Path(name).unlink()
        for name, data in files.items():
            Path(name).write_bytes(data)
        self.database = None


@pytest.fixture
def sqlite_grounds(tmp_path: Path) -> Iterator[Callable[[], SqliteGround]]:
    made: list[SqliteGround] = []

    def make() -> SqliteGround:
        made.append(SqliteGround(tmp_path / f"{len(made)}"))
        return made[-1]

    yield make
    for fixture in made:
        if fixture.database is not None:
            fixture.database.close()


@pytest.mark.parametrize("check", CHECKS, ids=name_of)
def test_sqlite_store_keeps_the_contract(
    check: Check, sqlite_grounds: Callable[[], SqliteGround]
) -> None:
    check(sqlite_grounds, RealRandom(7))


# The suite itself: a store that breaks one promise is found out.


class FlushesNothing(MemoryStore):
    def flush(self) -> None:
        """Says it is done."""


class BuffersTerms(MemoryStore):
    def persist_term(self, term: int, voted_for: int) -> None:
        self._buffer(5, (term, voted_for))


class BuffersFounding(MemoryStore):
    def bootstrap(self, members: object) -> None:
        self._buffer(6, members)


class TermsOvertake(MemoryStore):
    """A term is on the disk before the entries that were written before it."""

    def persist_term(self, term: int, voted_for: int) -> None:
        self._disk.apply((5, (term, voted_for)))


class ForgetsTheVote(MemoryStore):
    def persist_term(self, term: int, voted_for: int) -> None:
        super().persist_term(term, 0)


class KeepsWhatIsTruncated(MemoryStore):
    def truncate_from(self, index: int) -> None:
        super().truncate_from(index + 1)
        self._last = index - 1


class TruncatesTheNext(MemoryStore):
    def truncate_until(self, index: int) -> None:
        super().truncate_until(index + 1)


class NeverTruncates(MemoryStore):
    def truncate_until(self, index: int) -> None:
        """An optimisation that this one does without: forbidden, since the log must go on."""


class KeepsTheFirstChunk(MemoryStore):
    def persist_chunk(self, chunk: Chunk) -> None:
        if (chunk.index, chunk.number) not in self._disk.chunks:
            super().persist_chunk(chunk)


class MixesUpChunks(MemoryStore):
    def persist_chunk(self, chunk: Chunk) -> None:
        number = len([c for c in self._disk.chunks.values() if c.index == chunk.index])
        super().persist_chunk(
            Chunk(chunk.index, chunk.term, chunk.members, number, chunk.count, chunk.data)
        )


class DeletesAllChunks(MemoryStore):
    def delete_chunks(self, index: int, count: int) -> None:
        for found in {chunk.index for chunk in self._disk.chunks.values()}:
            super().delete_chunks(found, 100)


class DropsKinds(MemoryStore):
    def persist_entries(self, entries: Sequence[Entry]) -> None:
        super().persist_entries([Entry(e.index, e.term, 0, e.payload) for e in entries])


class LoadsWithoutChecks(MemoryStore):
    def load(self) -> PersistentState:
        if self._disk.entries or self._disk.term > 2:
            return PersistentState(
                initial_members=self._disk.initial_members,
                term=self._disk.term,
                voted_for=self._disk.voted_for,
                entries=tuple(self._disk.entries),
            )
        return super().load()


class EmptyWhereCorrupt(MemoryStore):
    """What must never be: a log that cannot be read starts anew."""

    def load(self) -> PersistentState:
        try:
            return super().load()
        except Exception:
            return PersistentState(initial_members=self._disk.initial_members, term=self._disk.term)


class LosesTheSecondCall(MemoryStore):
    """A crash loses calls out of order."""

    def crash(self, dice: RealRandom) -> None:
        if len(self._buffered) > 1:
            del self._buffered[0]
        super().crash(dice)


@pytest.mark.parametrize(
    "kind",
    [
        FlushesNothing, BuffersTerms, BuffersFounding, TermsOvertake, ForgetsTheVote,
        KeepsWhatIsTruncated, TruncatesTheNext, NeverTruncates, KeepsTheFirstChunk, MixesUpChunks,
        DeletesAllChunks, DropsKinds, LoadsWithoutChecks, EmptyWhereCorrupt, LosesTheSecondCall,
    ],
    ids=lambda kind: kind.__name__,
)  # fmt: skip
def test_a_broken_store_is_found_out(kind: type[MemoryStore]) -> None:
    broken = 0
    for seed in range(5):
        dice = RealRandom(seed)
        try:
            run(lambda dice=dice: MemoryGround(dice, kind), dice)
        except (ContractViolation, CorruptData):
            broken += 1
    # Where a promise is broken only in a crash, dice may hide it once; they may not hide it often.
    assert broken >= 4


# What only the memory store has: faults on request.


def drawn_trial(store: MemoryStore, seed: int, expected: StoreModel) -> None:
    """The same calls for the same seed; `expected` is told of each, also of the one that fails."""
    calls = RandomCalls(RealRandom(seed))
    store.load()
    begin = [Bootstrap(Members.of(1, 2, 3)), PersistTerm(1, 1)]
    for round_number in range(40):
        for call in begin or calls.draw(expected.held):
            try:
                make_call(store, call)
            except LogFailed:
                expected.on_call_begun(call)
                raise
            expected.on_call(call)
        begin = []
        if round_number % 3 == 0:
            store.flush()
            expected.on_flush()


@pytest.mark.tier2
@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC])
def test_every_call_may_fail(number: int) -> None:
    """The n-th call fails, for n = 1, 2, 3, ... until a run has no failure."""
    for n in range(1, 10_000):
        store, expected = MemoryStore("disk"), StoreModel()
        store.fail_in(n, number)
        try:
            drawn_trial(store, 3, expected)
        except LogFailed as error:
            assert isinstance(error.__cause__, OSError)
            assert error.__cause__.errno == number
        else:
            assert n > 60, "the last call of a run should be well behind"
            return
        for refused in (store.flush, store.load, lambda: store.persist_term(99, 1)):  # noqa: B023
            with pytest.raises(LogFailed, match="disk has stopped"):
                refused()
        store.crash(RealRandom(n))
        expected.check_loaded(store.load(), crashed=True)
    raise AssertionError("no run without a failure")


def test_a_full_disk_refuses_what_needs_room() -> None:
    store = MemoryStore()
    store.load()
    store.bootstrap(Members.of(1))
    store.persist_term(1, 1)
    store.persist_entries([Entry(1, 1, 0, b"")])
    store.flush()
    store.is_full = True
    store.flush()  # nothing to write
    store.truncate_from(1)
    with pytest.raises(LogFailed, match="no space left"):
        store.flush()
    store.is_full = False
    with pytest.raises(LogFailed, match="no space left"):
        store.persist_entries([Entry(2, 1, 0, b"")])
    store.crash(RealRandom(1))
    store.load()
    store.flush()


def test_a_crash_may_leave_any_beginning() -> None:
    """By dice, every state that the contract allows comes about, torn calls too."""
    seen = set()
    for seed in range(400):
        store, expected = MemoryStore(), StoreModel()
        store.load()
        for call in (
            Bootstrap(Members.of(1)),
            PersistTerm(1, 1),
            PersistEntries(tuple(Entry(n, 1, 0, b"") for n in range(1, 5))),
            PersistEntries((Entry(5, 1, 0, b""), Entry(6, 1, 0, b""))),
        ):
            make_call(store, call)
            expected.on_call(call)
        store.crash(RealRandom(seed))
        restored = store.load()
        expected.check_loaded(restored, crashed=True)
        seen.add(len(restored.entries))
    assert seen == {0, 1, 2, 3, 4, 5, 6}


def test_a_closed_store_refuses() -> None:
    store = MemoryStore()
    store.load()
    store.bootstrap(Members.of(1))
    store.close()
    for refused in (store.flush, store.load, lambda: store.persist_term(1, 1)):
        with pytest.raises(Closed):
            refused()
    store.crash(RealRandom(1))
    assert store.load() == PersistentState(initial_members=Members.of(1))


def test_statistics_count_what_was_asked_for() -> None:
    store = MemoryStore()
    store.load()
    store.bootstrap(Members.of(1))
    store.persist_entries([Entry(1, 1, 0, b""), Entry(2, 1, 0, b"")])
    store.flush()
    store.flush()
    found = store.statistics()
    assert (found.calls, found.syncs, found.entries) == (3, 2, 2)
