"""A process that writes to a Raft log on SQLite until it is killed, and what it may have left.

Run as a program it draws calls by dice, and says how many are flushed. Whoever knows the seed and
what the log held at the start draws the same calls, and so knows every state it may be in.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator

from bascule.errors import BasculeError
from bascule.host.real import RealRandom
from bascule.raft.membership import Members
from bascule.raft.store import PersistentState
from bascule.raft.testing.random_calls import RandomCalls
from bascule.raft.testing.store_model import (
    Bootstrap,
    PersistTerm,
    StoreCall,
    StoreModel,
    make_call,
)
from bascule.raft_driver.sqlite_store import SqliteDatabase

NODE = 1
CHECKPOINT_BYTES = 300_000
"""So small that a life of some hundred calls has several checkpoints."""


def calls_of(seed: int, expected: StoreModel) -> Iterator[StoreCall | None]:
    """The calls of a life; None is a flush. `expected` is told of each before the next is drawn."""
    dice = RealRandom(seed)
    calls = RandomCalls(dice)
    if expected.held.initial_members is None:
        yield Bootstrap(Members.of(1, 2, 3))
        yield PersistTerm(1, 1)
    while True:
        yield from calls.draw(expected.held)
        if calls.below(3) == 0:
            yield None


def states_after(seed: int, expected: StoreModel, flushed: int) -> None:
    """Let `expected` know all that a life may have left that said `flushed`: it may have come as
    far as to the end of the next flush, without a word of it."""
    for done, call in enumerate(calls_of(seed, expected), 1):
        if call is not None:
            expected.on_call_begun(call)
        if done == flushed:
            expected.on_flush()
        if call is None and done > flushed:
            return


def loaded(restored: PersistentState, seed: int, expected: StoreModel, flushed: int) -> None:
    """Raises: ContractViolation where a killed life cannot have left `restored`."""
    states_after(seed, expected, flushed)
    expected.check_loaded(restored, crashed=True)


def main(path: str, seed: int, calls_max: int) -> None:
    """Say `o` when the log is open, then the number of calls made at the end of each flush, and at
    the end how many syncs the database counts since it was open."""
    expected = StoreModel()
    try:
        database = SqliteDatabase.open(path, node_id=NODE, checkpoint_bytes=CHECKPOINT_BYTES)
        store = database.store(1)
        expected.reset_to(store.load())
        syncs = database.statistics().syncs
        os.write(1, b"o\n")
        for done, call in enumerate(calls_of(seed, expected), 1):
            if call is not None:
                make_call(store, call)
                expected.on_call(call)
                continue
            store.flush()
            expected.on_flush()
            os.write(1, b"%d\n" % done)
            if done >= calls_max:
                break
        os.write(1, b"syncs %d\n" % (database.statistics().syncs - syncs))
        database.close()
    except BasculeError as error:
        os.write(1, b"failed %s\n" % str(error).encode())


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
