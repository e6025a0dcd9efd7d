"""The conformance suite of `RaftStore`: checks that every store passes, for any test framework.

A fixture opens one store, which is empty at first, and crashes it. Pass a function that makes
fixtures to `run`, or call each function of `CHECKS`, so that your test framework reports each by
name:

```
@pytest.mark.parametrize("check", CHECKS, ids=name_of)
def test_my_store(check, tmp_path):
    check(lambda: MyFixture(tmp_path), RealRandom(1))
```

A check raises `ContractViolation`, or the error that the store raised.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeAlias

from bascule.host.api import Random
from bascule.raft.membership import Members, encode_members
from bascule.raft.messages import Chunk, Entry, EntryKind
from bascule.raft.store import PersistentState
from bascule.raft.testing.random_calls import RandomCalls
from bascule.raft.testing.store_model import (
    ContractViolation,
    DeleteChunks,
    PersistChunk,
    PersistEntries,
    PersistTerm,
    StoreCall,
    TruncateFrom,
    TruncateUntil,
    require,
)
from bascule.raft.testing.store_under_test import (
    INDEX_MAX,
    StoreFixture,
    StoreUnderTest,
    chunks_of,
    entries_of,
    snapshot_of,
)

__all__ = ["CHECKS", "Check", "ContractViolation", "StoreFixture", "name_of", "run"]

FixtureFactory: TypeAlias = Callable[[], StoreFixture]
"""Makes the fixture of another empty store at each call."""

Check: TypeAlias = Callable[[FixtureFactory, Random], None]


def run(new_fixture: FixtureFactory, prng: Random) -> None:
    """Run all checks, each with fixtures of its own.

    Raises: ContractViolation naming the check and what the store did; whatever the store raises.
    """
    for check in CHECKS:
        try:
            check(new_fixture, prng)
        except ContractViolation as error:
            raise ContractViolation(f"{name_of(check)}: {error}") from error


def name_of(check: Check) -> str:
    return check.__name__.removeprefix("check_")


# New stores, and what is durable on return.


def check_new_store_is_empty(new_fixture: FixtureFactory, prng: Random) -> None:
    fixture = new_fixture()
    for _ in range(2):
        store = fixture.open()
        require(store.load() == PersistentState(), "a new store is not empty")
        store.flush()
        store.close()


def check_bootstrap_is_durable_on_return(new_fixture: FixtureFactory, prng: Random) -> None:
    for number in range(8):  # a crash may keep a buffered call
        fixture = new_fixture()
        store = fixture.open()
        store.load()
        members = Members((1, 7, 1 << 40), (3,), number)
        store.bootstrap(members)
        fixture.crash(store)
        found = fixture.open().load()
        require(
            found == PersistentState(initial_members=members),
            f"bootstrapped with {members}, loaded {found}",
        )


def check_bootstrap_without_voters(new_fixture: FixtureFactory, prng: Random) -> None:
    """A node that joins a group later is bootstrapped without members."""
    fixture = new_fixture()
    store = fixture.open()
    store.load()
    store.bootstrap(Members(()))
    fixture.crash(store)
    found = fixture.open().load().initial_members
    require(found == Members(()), f"bootstrapped without voters, loaded {found}")


def check_term_is_durable_on_return(new_fixture: FixtureFactory, prng: Random) -> None:
    tested = StoreUnderTest(new_fixture())
    for term, voted_for in ((2, 3), (3, 0), (3, 2), (9, 1 << 40), (INDEX_MAX, 1)):
        tested.make(PersistTerm(term, voted_for))
        restored = tested.crash()
        found = restored.term, restored.voted_for
        require(found == (term, voted_for), f"set {(term, voted_for)}, loaded {found}")


def check_term_makes_durable_what_was_before_it(new_fixture: FixtureFactory, prng: Random) -> None:
    """No call takes effect before an earlier one."""
    tested = StoreUnderTest(
        new_fixture(), entries_of(1, 1, 1, 2), TruncateFrom(3), PersistTerm(3, 0)
    )
    require(len(tested.crash().entries) == 2, "a term survived without the entries before it")


def check_flush_makes_durable(new_fixture: FixtureFactory, prng: Random) -> None:
    snapshot = snapshot_of(2)
    steps: tuple[list[StoreCall], ...] = (
        [entries_of(1, 1, 2, 2)], [TruncateFrom(3)], [entries_of(3, 2)], [*chunks_of(snapshot)],
        [DeleteChunks(2, 3)], [*chunks_of(snapshot)], [TruncateUntil(1)],
    )  # fmt: skip
    tested = StoreUnderTest(new_fixture())
    for step in steps:
        tested.make(*step)
        tested.flush()
        tested.crash()
    tested.make(entries_of(4, 2))
    tested.flush()
    tested.make(entries_of(5, 2))
    require(tested.crash().entries[:3][-1].index == 4, "what a flush made durable was lost")


def check_flush_of_nothing(new_fixture: FixtureFactory, prng: Random) -> None:
    tested = StoreUnderTest(new_fixture())
    for _ in range(3):
        tested.flush()
    tested.make(entries_of(1, 1))
    tested.flush()
    tested.flush()
    require(len(tested.crash().entries) == 1, "an entry was lost by a flush of nothing")


def check_unflushed_is_kept_in_order(new_fixture: FixtureFactory, prng: Random) -> None:
    """A crash may lose what was not flushed: the last calls, never earlier ones alone."""
    for length in range(1, 9):
        calls: list[StoreCall] = [
            entries_of(1, 1), entries_of(2, 1, 1, 1, 1), TruncateFrom(4), entries_of(4, 2, 2),
            *chunks_of(snapshot_of(3, 1, count=2)), TruncateUntil(2), entries_of(6, 2),
        ]  # fmt: skip
        StoreUnderTest(new_fixture(), *calls[:length]).crash()


# Entries.


def check_entries_come_back_as_written(new_fixture: FixtureFactory, prng: Random) -> None:
    members = encode_members(Members((1, 2), (3,), 2))
    payloads = (b"", bytes(range(256)), b"\0" * 5, prng.bytes(70_000), prng.bytes(1_500_000))
    written = (
        *(Entry(1 + n, 1 + (n > 2), EntryKind.NORMAL, data) for n, data in enumerate(payloads)),
        Entry(6, 2, EntryKind.NO_OP, b""),
        Entry(7, 2, EntryKind.MEMBERS, members),
    )
    tested = StoreUnderTest(new_fixture(), PersistEntries(written[:2]), PersistEntries(written[2:]))
    require(tested.reopen().entries == written, "entries differ from those written")


def check_entries_in_many_flushes(new_fixture: FixtureFactory, prng: Random) -> None:
    tested = StoreUnderTest(new_fixture())
    index, calls = 1, RandomCalls(prng)
    for _ in range(60):
        count = 1 + calls.below(9)
        tested.make(entries_of(index, *[2] * count))
        index += count
        tested.flush()
    found = [entry.index for entry in tested.reopen().entries]
    require(found == list(range(1, index)), "entries of many flushes are not all there in order")


def check_no_entries_is_nothing(new_fixture: FixtureFactory, prng: Random) -> None:
    tested = StoreUnderTest(new_fixture(), PersistEntries(()), entries_of(1, 1), PersistEntries(()))
    require(len(tested.reopen().entries) == 1, "an empty call changed the log")


def check_large_indices_and_terms(new_fixture: FixtureFactory, prng: Random) -> None:
    high = INDEX_MAX - 10
    tested = StoreUnderTest(
        new_fixture(), PersistTerm(INDEX_MAX, 0), *chunks_of(snapshot_of(high, INDEX_MAX - 1))
    )
    tested.make(TruncateUntil(high), entries_of(high + 1, INDEX_MAX - 1, INDEX_MAX))
    require(tested.reopen().entries[-1].index == high + 2, "indices near 2^63 are lost")


# Truncation.


def check_truncate_from(new_fixture: FixtureFactory, prng: Random) -> None:
    for at in range(1, 8):
        tested = StoreUnderTest(new_fixture(), entries_of(1, 1, 1, 1), entries_of(4, 1, 2, 2))
        if at % 2:
            tested.flush()
        tested.make(TruncateFrom(at))
        tested.flush()
        require(len(tested.crash().entries) == at - 1, f"truncation from {at} left another log")
        tested.make(entries_of(at, 2, 2))
        last = tested.reopen().entries[-1]
        require((last.index, last.term) == (at + 1, 2), "entries after a truncation are lost")


def check_truncate_from_and_write_again_at_once(new_fixture: FixtureFactory, prng: Random) -> None:
    """A follower resolves conflicts repeatedly: one flush for a truncation and entries."""
    tested = StoreUnderTest(new_fixture(), entries_of(1, 1, 1, 1, 1, 1))
    for term, at in ((2, 4), (3, 2), (4, 3), (5, 1), (6, 5)):
        tested.make(PersistTerm(term, 0), TruncateFrom(at))
        tested.make(entries_of(at, *[term] * 6, payload=b"of term %d" % term))
        tested.crash()
        last = tested.model.held.entries[-1].index if tested.model.held.entries else 0
        tested.make(entries_of(last + 1, *[term] * max(6 + at - last, 1)))
        tested.reopen()


def check_truncate_until(new_fixture: FixtureFactory, prng: Random) -> None:
    tested = StoreUnderTest(
        new_fixture(), entries_of(1, 1, 1, 1), entries_of(4, 2, 2, 2), entries_of(7, 2)
    )
    tested.make(*chunks_of(snapshot_of(5)))
    for until, first in ((0, 1), (2, 3), (3, 4), (3, 4), (5, 6)):
        tested.make(TruncateUntil(until))
        found = tested.reopen().entries[0].index
        require(found == first, f"after truncation until {until} the log begins at {found}")


def check_truncate_all_and_go_on(new_fixture: FixtureFactory, prng: Random) -> None:
    for length, index in ((3, 3), (3, 9), (0, 4)):
        tested = StoreUnderTest(new_fixture(), entries_of(1, *[2] * length))
        tested.make(*chunks_of(snapshot_of(index)), TruncateUntil(index))
        require(tested.crash().term == 2, "the truncation removed the term")
        tested.make(*chunks_of(snapshot_of(index)), TruncateUntil(index))
        require(tested.reopen().entries == (), "the log should be empty")
        tested.make(entries_of(index + 1, 2))
        require(len(tested.reopen().entries) == 1, "the entry behind a snapshot is lost")


# Snapshots.


def check_chunks_in_any_order(new_fixture: FixtureFactory, prng: Random) -> None:
    snapshot = snapshot_of(8, count=4)
    for order in ((0, 1, 2, 3), (3, 2, 1, 0), (2, 0, 3, 1)):
        tested = StoreUnderTest(new_fixture())
        puts = chunks_of(snapshot)
        for position, chunk in enumerate(order):
            tested.make(puts[chunk])
            if position % 2:
                tested.flush()
        require(tested.reopen().snapshot == snapshot, f"chunks in order {order} are another state")


def check_repeated_chunk_replaces(new_fixture: FixtureFactory, prng: Random) -> None:
    tested = StoreUnderTest(new_fixture(), *chunks_of(snapshot_of(8)))
    tested.flush()
    chunk = Chunk(8, 2, snapshot_of(8).members, 1, 3, b"another")
    tested.make(PersistChunk(Chunk(8, 2, chunk.members, 1, 3, b"in between")), PersistChunk(chunk))
    snapshot = tested.reopen().snapshot
    found = snapshot.chunks[1] if snapshot else None
    require(found == b"another", f"a chunk was written again, found {found!r}")


def check_incomplete_snapshot_is_not_there(new_fixture: FixtureFactory, prng: Random) -> None:
    for missing in range(3):
        tested = StoreUnderTest(new_fixture(), entries_of(1, 1, 2), *chunks_of(snapshot_of(1, 1)))
        puts = chunks_of(snapshot_of(40))
        tested.make(*puts[:missing], *puts[missing + 1 :])
        restored = tested.reopen()
        require(restored.snapshot == snapshot_of(1, 1), "the complete snapshot should count")
        require(len(restored.entries) == 2, "an incomplete snapshot changed the log")
        tested.make(puts[missing])
        snapshot = tested.reopen().snapshot
        require(snapshot in (snapshot_of(1, 1), snapshot_of(40)), f"snapshot is {snapshot}")


def check_newest_complete_snapshot_counts(new_fixture: FixtureFactory, prng: Random) -> None:
    old, new = snapshot_of(2, 1), snapshot_of(4, count=1)
    tested = StoreUnderTest(
        new_fixture(), entries_of(1, 1, 1, 1, 2, 2), *chunks_of(new), *chunks_of(old)
    )
    require(tested.reopen().snapshot == new, "the newest complete snapshot should count")


def check_delete_chunks(new_fixture: FixtureFactory, prng: Random) -> None:
    old, new = snapshot_of(2, 1, count=5), snapshot_of(4)
    tested = StoreUnderTest(new_fixture(), entries_of(1, 1, 1, 1, 2), *chunks_of(old))
    tested.flush()
    tested.make(*chunks_of(new), TruncateUntil(3), DeleteChunks(2, 5), DeleteChunks(77, 3))
    require(tested.reopen().snapshot == new, "deleting old chunks removed the new ones")
    tested.make(*chunks_of(old)[:2], DeleteChunks(2, 5))
    require(tested.reopen().snapshot == new, "deleting an incomplete snapshot removed another")


# Restart.


def check_loading_changes_nothing(new_fixture: FixtureFactory, prng: Random) -> None:
    tested = StoreUnderTest(new_fixture(), entries_of(1, 1, 1, 2), *chunks_of(snapshot_of(2, 1)))
    tested.make(TruncateUntil(1))
    first = tested.reopen()
    for _ in range(3):
        require(tested.crash() == first, "loading again found something else")


def check_log_below_the_snapshot_is_left_over(new_fixture: FixtureFactory, prng: Random) -> None:
    """The installation of a snapshot was interrupted before it removed the log."""
    tested = StoreUnderTest(new_fixture(), entries_of(1, 1, 1, 2), *chunks_of(snapshot_of(9)))
    restored = tested.reopen()
    require(restored.snapshot == snapshot_of(9), "the snapshot is not there")
    require(restored.entries == (), "a log that ends below the snapshot was restored")
    tested.make(entries_of(10, 2, 2))
    require([e.index for e in tested.reopen().entries] == [10, 11], "the log cannot continue")
    require([e.index for e in tested.crash().entries] == [10, 11], "the old log came back")


def check_log_of_another_term_is_left_over(new_fixture: FixtureFactory, prng: Random) -> None:
    for last in (4, 6):
        tested = StoreUnderTest(new_fixture(), entries_of(1, *[1] * last))
        tested.make(*chunks_of(snapshot_of(4)))
        require(tested.reopen().entries == (), "a log of another term was restored")
        tested.make(entries_of(5, 2))
        require([e.index for e in tested.crash().entries] in ([], [5]), "the old log came back")


def check_log_that_continues_the_snapshot_is_kept(
    new_fixture: FixtureFactory, prng: Random
) -> None:
    for last in (4, 5, 7):
        tested = StoreUnderTest(new_fixture(), entries_of(1, 1, 1, 1, *[2] * (last - 3)))
        tested.make(*chunks_of(snapshot_of(4)))
        require(len(tested.reopen().entries) == last, "entries around the snapshot are lost")
        tested.make(TruncateUntil(4))
        require(len(tested.reopen().entries) == last - 4, "entries behind the snapshot are lost")


def check_gap_above_the_snapshot_is_refused(new_fixture: FixtureFactory, prng: Random) -> None:
    calls: tuple[StoreCall, ...] = (entries_of(1, 2, 2, 2, 2, 2), *chunks_of(snapshot_of(4)))
    tested = StoreUnderTest(new_fixture(), *calls, TruncateUntil(4), DeleteChunks(4, 3))
    tested.check_opens_corrupt()
    older = chunks_of(snapshot_of(1))
    tested = StoreUnderTest(new_fixture(), *calls, *older, TruncateUntil(3), DeleteChunks(4, 3))
    tested.check_opens_corrupt()
    tested = StoreUnderTest(new_fixture(), *calls, *older, TruncateUntil(3), DeleteChunks(4, 1))
    tested.check_opens_corrupt()


def check_entry_of_a_later_term_is_refused(new_fixture: FixtureFactory, prng: Random) -> None:
    StoreUnderTest(new_fixture(), entries_of(1, 1, 3)).check_opens_corrupt()
    StoreUnderTest(new_fixture(), *chunks_of(snapshot_of(4, 3))).check_opens_corrupt()


def check_falling_term_is_refused(new_fixture: FixtureFactory, prng: Random) -> None:
    StoreUnderTest(new_fixture(), entries_of(1, 1, 2), entries_of(3, 1)).check_opens_corrupt()
    below = StoreUnderTest(new_fixture(), *chunks_of(snapshot_of(4)), TruncateUntil(4))
    below.make(entries_of(5, 1))
    below.check_opens_corrupt()


def check_unreadable_members_are_refused(new_fixture: FixtureFactory, prng: Random) -> None:
    entry = Entry(1, 1, EntryKind.MEMBERS, b"\xc1")
    StoreUnderTest(new_fixture(), PersistEntries((entry,))).check_opens_corrupt()


# Random calls.


def check_random_calls(new_fixture: FixtureFactory, prng: Random) -> None:
    """Random calls of a node, with crashes and restarts in between."""
    tested, calls = StoreUnderTest(new_fixture()), RandomCalls(prng)
    for _ in range(250):
        for call in calls.draw(tested.model.held):
            tested.make(call)
            if calls.below(4) == 0:
                tested.flush()
            if calls.below(25) == 0:
                calls.on_restart()
                tested.crash()
                break
            if calls.below(40) == 0:
                calls.on_restart()
                tested.reopen()
                break
    tested.reopen()


CHECKS: Final[tuple[Check, ...]] = (
    check_new_store_is_empty, check_bootstrap_is_durable_on_return, check_bootstrap_without_voters,
    check_term_is_durable_on_return, check_term_makes_durable_what_was_before_it,
    check_flush_makes_durable, check_flush_of_nothing, check_unflushed_is_kept_in_order,
    check_entries_come_back_as_written, check_entries_in_many_flushes,
    check_no_entries_is_nothing, check_large_indices_and_terms, check_truncate_from,
    check_truncate_from_and_write_again_at_once, check_truncate_until,
    check_truncate_all_and_go_on, check_chunks_in_any_order, check_repeated_chunk_replaces,
    check_incomplete_snapshot_is_not_there, check_newest_complete_snapshot_counts,
    check_delete_chunks, check_loading_changes_nothing, check_log_below_the_snapshot_is_left_over,
    check_log_of_another_term_is_left_over, check_log_that_continues_the_snapshot_is_kept,
    check_gap_above_the_snapshot_is_refused, check_entry_of_a_later_term_is_refused,
    check_falling_term_is_refused, check_unreadable_members_are_refused, check_random_calls,
)  # fmt: skip
"""All checks; none depends on another."""
