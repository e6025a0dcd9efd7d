"""What every `RaftStore` keeps to: checks for a store of your own, without a test framework.

A *ground* is a place for one store, empty at first: it opens the store, and ends it as a power cut
would. Hand `run` a function that makes grounds, or call each of `CHECKS` by itself, so that your
test framework names them:

```
@pytest.mark.parametrize("check", CHECKS, ids=name_of)
def test_my_store(check, tmp_path):
    check(lambda: MyGround(tmp_path), RealRandom(1))
```

A check raises `BrokenPromise`, or lets out what the store raised.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeAlias

from bascule.host.api import Random
from bascule.raft.membership import Members, encode_members
from bascule.raft.messages import Chunk, Entry, Kind
from bascule.raft.store import Restored
from bascule.raft.testing.random_calls import RandomCalls
from bascule.raft.testing.store_model import (
    AddEntries,
    BrokenPromise,
    Call,
    DeleteChunks,
    PutChunk,
    SetTerm,
    TruncateFrom,
    TruncateUntil,
    promise,
)
from bascule.raft.testing.store_under_test import (
    LARGEST,
    Ground,
    Trial,
    chunks_of,
    entries_of,
    snapshot_of,
)

__all__ = ["CHECKS", "BrokenPromise", "Check", "Ground", "name_of", "run"]

Grounds: TypeAlias = Callable[[], Ground]
"""Makes one that is empty, at each call another."""

Check: TypeAlias = Callable[[Grounds, Random], None]


def run(grounds: Grounds, dice: Random) -> None:
    """Every check, each on a ground of its own.

    Raises: BrokenPromise naming the check and what the store did; whatever the store raises.
    """
    for check in CHECKS:
        try:
            check(grounds, dice)
        except BrokenPromise as error:
            raise BrokenPromise(f"{name_of(check)}: {error}") from error


def name_of(check: Check) -> str:
    return check.__name__.removeprefix("check_")


# New stores, and what is durable on return.


def check_new_store_is_empty(grounds: Grounds, dice: Random) -> None:
    ground = grounds()
    for _ in range(2):
        store = ground.open()
        promise(store.load() == Restored(), "a new store holds something")
        store.flush()
        store.close()


def check_found_is_durable_on_return(grounds: Grounds, dice: Random) -> None:
    for number in range(8):  # by dice, a store that only buffers may be lucky
        ground = grounds()
        store = ground.open()
        store.load()
        members = Members((1, 7, 1 << 40), (3,), number)
        store.found(members)
        ground.crash(store)
        found = ground.open().load()
        promise(found == Restored(founding=members), f"founded {members}, loaded {found}")


def check_founding_without_voters(grounds: Grounds, dice: Random) -> None:
    """A node that joins later is founded so."""
    ground = grounds()
    store = ground.open()
    store.load()
    store.found(Members(()))
    ground.crash(store)
    found = ground.open().load().founding
    promise(found == Members(()), f"founded without voters, loaded {found}")


def check_term_is_durable_on_return(grounds: Grounds, dice: Random) -> None:
    trial = Trial(grounds())
    for term, voted_for in ((2, 3), (3, 0), (3, 2), (9, 1 << 40), (LARGEST, 1)):
        trial.make(SetTerm(term, voted_for))
        restored = trial.crash()
        found = restored.term, restored.voted_for
        promise(found == (term, voted_for), f"set {(term, voted_for)}, loaded {found}")


def check_term_makes_durable_what_was_before_it(grounds: Grounds, dice: Random) -> None:
    """Nothing takes effect out of order."""
    trial = Trial(grounds(), entries_of(1, 1, 1, 2), TruncateFrom(3), SetTerm(3, 0))
    promise(len(trial.crash().entries) == 2, "a term survived without the entries before it")


def check_flush_makes_durable(grounds: Grounds, dice: Random) -> None:
    snapshot = snapshot_of(2)
    steps: tuple[list[Call], ...] = (
        [entries_of(1, 1, 2, 2)], [TruncateFrom(3)], [entries_of(3, 2)], [*chunks_of(snapshot)],
        [DeleteChunks(2, 3)], [*chunks_of(snapshot)], [TruncateUntil(1)],
    )  # fmt: skip
    trial = Trial(grounds())
    for step in steps:
        trial.make(*step)
        trial.flush()
        trial.crash()
    trial.make(entries_of(4, 2))
    trial.flush()
    trial.make(entries_of(5, 2))
    promise(trial.crash().entries[:3][-1].index == 4, "what a flush made durable was lost")


def check_flush_of_nothing(grounds: Grounds, dice: Random) -> None:
    trial = Trial(grounds())
    for _ in range(3):
        trial.flush()
    trial.make(entries_of(1, 1))
    trial.flush()
    trial.flush()
    promise(len(trial.crash().entries) == 1, "an entry was lost by a flush of nothing")


def check_unflushed_is_kept_in_order(grounds: Grounds, dice: Random) -> None:
    """A crash may lose what was not flushed: the last calls, never earlier ones alone."""
    for length in range(1, 9):
        calls: list[Call] = [
            entries_of(1, 1), entries_of(2, 1, 1, 1, 1), TruncateFrom(4), entries_of(4, 2, 2),
            *chunks_of(snapshot_of(3, 1, count=2)), TruncateUntil(2), entries_of(6, 2),
        ]  # fmt: skip
        Trial(grounds(), *calls[:length]).crash()


# Entries.


def check_entries_come_back_as_written(grounds: Grounds, dice: Random) -> None:
    members = encode_members(Members((1, 2), (3,), 2))
    payloads = (b"", bytes(range(256)), b"\0" * 5, dice.bytes(70_000), dice.bytes(1_500_000))
    written = (
        *(Entry(1 + n, 1 + (n > 2), Kind.NORMAL, data) for n, data in enumerate(payloads)),
        Entry(6, 2, Kind.NO_OP, b""),
        Entry(7, 2, Kind.MEMBERS, members),
    )
    trial = Trial(grounds(), AddEntries(written[:2]), AddEntries(written[2:]))
    promise(trial.reopen().entries == written, "entries differ from those written")


def check_entries_in_many_flushes(grounds: Grounds, dice: Random) -> None:
    trial = Trial(grounds())
    index, calls = 1, RandomCalls(dice)
    for _ in range(60):
        count = 1 + calls.below(9)
        trial.make(entries_of(index, *[2] * count))
        index += count
        trial.flush()
    found = [entry.index for entry in trial.reopen().entries]
    promise(found == list(range(1, index)), "entries of many flushes are not all there in order")


def check_no_entries_is_nothing(grounds: Grounds, dice: Random) -> None:
    trial = Trial(grounds(), AddEntries(()), entries_of(1, 1), AddEntries(()))
    promise(len(trial.reopen().entries) == 1, "an empty call changed the log")


def check_large_indices_and_terms(grounds: Grounds, dice: Random) -> None:
    high = LARGEST - 10
    trial = Trial(grounds(), SetTerm(LARGEST, 0), *chunks_of(snapshot_of(high, LARGEST - 1)))
    trial.make(TruncateUntil(high), entries_of(high + 1, LARGEST - 1, LARGEST))
    promise(trial.reopen().entries[-1].index == high + 2, "indices near 2^63 are lost")


# Truncation.


def check_truncate_from(grounds: Grounds, dice: Random) -> None:
    for at in range(1, 8):
        trial = Trial(grounds(), entries_of(1, 1, 1, 1), entries_of(4, 1, 2, 2))
        if at % 2:
            trial.flush()
        trial.make(TruncateFrom(at))
        trial.flush()
        promise(len(trial.crash().entries) == at - 1, f"truncation from {at} left another log")
        trial.make(entries_of(at, 2, 2))
        last = trial.reopen().entries[-1]
        promise((last.index, last.term) == (at + 1, 2), "entries after a truncation are lost")


def check_truncate_from_and_write_again_at_once(grounds: Grounds, dice: Random) -> None:
    """What a follower does on a conflict: one flush for both, again and again."""
    trial = Trial(grounds(), entries_of(1, 1, 1, 1, 1, 1))
    for term, at in ((2, 4), (3, 2), (4, 3), (5, 1), (6, 5)):
        trial.make(SetTerm(term, 0), TruncateFrom(at))
        trial.make(entries_of(at, *[term] * 6, payload=b"of term %d" % term))
        trial.crash()
        last = trial.expected.held.entries[-1].index if trial.expected.held.entries else 0
        trial.make(entries_of(last + 1, *[term] * max(6 + at - last, 1)))
        trial.reopen()


def check_truncate_until(grounds: Grounds, dice: Random) -> None:
    trial = Trial(grounds(), entries_of(1, 1, 1, 1), entries_of(4, 2, 2, 2), entries_of(7, 2))
    trial.make(*chunks_of(snapshot_of(5)))
    for until, first in ((0, 1), (2, 3), (3, 4), (3, 4), (5, 6)):
        trial.make(TruncateUntil(until))
        found = trial.reopen().entries[0].index
        promise(found == first, f"after truncation until {until} the log begins at {found}")


def check_truncate_all_and_go_on(grounds: Grounds, dice: Random) -> None:
    for length, index in ((3, 3), (3, 9), (0, 4)):
        trial = Trial(grounds(), entries_of(1, *[2] * length))
        trial.make(*chunks_of(snapshot_of(index)), TruncateUntil(index))
        promise(trial.crash().term == 2, "the term went with the entries")
        trial.make(*chunks_of(snapshot_of(index)), TruncateUntil(index))
        promise(trial.reopen().entries == (), "the log should be empty")
        trial.make(entries_of(index + 1, 2))
        promise(len(trial.reopen().entries) == 1, "the entry behind a snapshot is lost")


# Snapshots.


def check_chunks_in_any_order(grounds: Grounds, dice: Random) -> None:
    snapshot = snapshot_of(8, count=4)
    for order in ((0, 1, 2, 3), (3, 2, 1, 0), (2, 0, 3, 1)):
        trial = Trial(grounds())
        puts = chunks_of(snapshot)
        for position, chunk in enumerate(order):
            trial.make(puts[chunk])
            if position % 2:
                trial.flush()
        promise(trial.reopen().snapshot == snapshot, f"chunks in order {order} are another state")


def check_repeated_chunk_replaces(grounds: Grounds, dice: Random) -> None:
    trial = Trial(grounds(), *chunks_of(snapshot_of(8)))
    trial.flush()
    chunk = Chunk(8, 2, snapshot_of(8).members, 1, 3, b"another")
    trial.make(PutChunk(Chunk(8, 2, chunk.members, 1, 3, b"in between")), PutChunk(chunk))
    snapshot = trial.reopen().snapshot
    found = snapshot.chunks[1] if snapshot else None
    promise(found == b"another", f"a chunk was written again, found {found!r}")


def check_incomplete_snapshot_is_not_there(grounds: Grounds, dice: Random) -> None:
    for missing in range(3):
        trial = Trial(grounds(), entries_of(1, 1, 2), *chunks_of(snapshot_of(1, 1)))
        puts = chunks_of(snapshot_of(40))
        trial.make(*puts[:missing], *puts[missing + 1 :])
        restored = trial.reopen()
        promise(restored.snapshot == snapshot_of(1, 1), "the complete snapshot should count")
        promise(len(restored.entries) == 2, "an incomplete snapshot changed the log")
        trial.make(puts[missing])
        snapshot = trial.reopen().snapshot
        promise(snapshot in (snapshot_of(1, 1), snapshot_of(40)), f"snapshot is {snapshot}")


def check_newest_complete_snapshot_counts(grounds: Grounds, dice: Random) -> None:
    old, new = snapshot_of(2, 1), snapshot_of(4, count=1)
    trial = Trial(grounds(), entries_of(1, 1, 1, 1, 2, 2), *chunks_of(new), *chunks_of(old))
    promise(trial.reopen().snapshot == new, "the newest complete snapshot should count")


def check_delete_chunks(grounds: Grounds, dice: Random) -> None:
    old, new = snapshot_of(2, 1, count=5), snapshot_of(4)
    trial = Trial(grounds(), entries_of(1, 1, 1, 1, 2), *chunks_of(old))
    trial.flush()
    trial.make(*chunks_of(new), TruncateUntil(3), DeleteChunks(2, 5), DeleteChunks(77, 3))
    promise(trial.reopen().snapshot == new, "deleting old chunks took the new ones")
    trial.make(*chunks_of(old)[:2], DeleteChunks(2, 5))
    promise(trial.reopen().snapshot == new, "deleting an incomplete snapshot took another")


# What a restart makes of it.


def check_loading_changes_nothing(grounds: Grounds, dice: Random) -> None:
    trial = Trial(grounds(), entries_of(1, 1, 1, 2), *chunks_of(snapshot_of(2, 1)))
    trial.make(TruncateUntil(1))
    first = trial.reopen()
    for _ in range(3):
        promise(trial.crash() == first, "loading again found something else")


def check_log_below_the_snapshot_is_left_over(grounds: Grounds, dice: Random) -> None:
    """An installation was interrupted before the log was removed."""
    trial = Trial(grounds(), entries_of(1, 1, 1, 2), *chunks_of(snapshot_of(9)))
    restored = trial.reopen()
    promise(restored.snapshot == snapshot_of(9), "the snapshot is not there")
    promise(restored.entries == (), "a log that ends below the snapshot was restored")
    trial.make(entries_of(10, 2, 2))
    promise([e.index for e in trial.reopen().entries] == [10, 11], "the log cannot go on")
    promise([e.index for e in trial.crash().entries] == [10, 11], "the old log came back")


def check_log_of_another_term_is_left_over(grounds: Grounds, dice: Random) -> None:
    for last in (4, 6):
        trial = Trial(grounds(), entries_of(1, *[1] * last))
        trial.make(*chunks_of(snapshot_of(4)))
        promise(trial.reopen().entries == (), "a log of another history was restored")
        trial.make(entries_of(5, 2))
        promise([e.index for e in trial.crash().entries] in ([], [5]), "the old log came back")


def check_log_that_continues_the_snapshot_is_kept(grounds: Grounds, dice: Random) -> None:
    for last in (4, 5, 7):
        trial = Trial(grounds(), entries_of(1, 1, 1, 1, *[2] * (last - 3)))
        trial.make(*chunks_of(snapshot_of(4)))
        promise(len(trial.reopen().entries) == last, "entries around the snapshot are lost")
        trial.make(TruncateUntil(4))
        promise(len(trial.reopen().entries) == last - 4, "entries behind the snapshot are lost")


def check_gap_above_the_snapshot_is_refused(grounds: Grounds, dice: Random) -> None:
    calls: tuple[Call, ...] = (entries_of(1, 2, 2, 2, 2, 2), *chunks_of(snapshot_of(4)))
    trial = Trial(grounds(), *calls, TruncateUntil(4), DeleteChunks(4, 3))
    trial.opens_corrupt()
    older = chunks_of(snapshot_of(1))
    trial = Trial(grounds(), *calls, *older, TruncateUntil(3), DeleteChunks(4, 3))
    trial.opens_corrupt()
    trial = Trial(grounds(), *calls, *older, TruncateUntil(3), DeleteChunks(4, 1))
    trial.opens_corrupt()


def check_entry_of_a_later_term_is_refused(grounds: Grounds, dice: Random) -> None:
    Trial(grounds(), entries_of(1, 1, 3)).opens_corrupt()
    Trial(grounds(), *chunks_of(snapshot_of(4, 3))).opens_corrupt()


def check_falling_term_is_refused(grounds: Grounds, dice: Random) -> None:
    Trial(grounds(), entries_of(1, 1, 2), entries_of(3, 1)).opens_corrupt()
    below = Trial(grounds(), *chunks_of(snapshot_of(4)), TruncateUntil(4))
    below.make(entries_of(5, 1))
    below.opens_corrupt()


def check_unreadable_members_are_refused(grounds: Grounds, dice: Random) -> None:
    entry = Entry(1, 1, Kind.MEMBERS, b"\xc1")
    Trial(grounds(), AddEntries((entry,))).opens_corrupt()


# Everything together.


def check_random_calls(grounds: Grounds, dice: Random) -> None:
    """Calls of a node by dice, with crashes and restarts in between."""
    trial, calls = Trial(grounds()), RandomCalls(dice)
    for _ in range(250):
        for call in calls.draw(trial.expected.held):
            trial.make(call)
            if calls.below(4) == 0:
                trial.flush()
            if calls.below(25) == 0:
                calls.forget()
                trial.crash()
                break
            if calls.below(40) == 0:
                calls.forget()
                trial.reopen()
                break
    trial.reopen()


CHECKS: Final[tuple[Check, ...]] = (
    check_new_store_is_empty, check_found_is_durable_on_return, check_founding_without_voters,
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
"""All of them; none depends on another."""
