"""A process that writes to a Raft log in SQLite until it is killed, and the states that it may
leave.

The program draws random calls and prints how many are flushed. A test that knows the seed and the
initial contents draws the same calls, so it knows all states that the log may have.
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
"""So small that a run of some hundred calls has several checkpoints."""


def calls_of(seed: int, expected: StoreModel) -> Iterator[StoreCall | None]:
    """The calls of one run; None is a flush. `expected` is informed of each before the next is
    drawn."""
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
    """Inform `expected` of all states that a run may have left whose last output was `flushed`. It
    may have reached the end of the next flush without printing it."""
    for done, call in enumerate(calls_of(seed, expected), 1):
        if call is not None:
            expected.on_call_begun(call)
        if done == flushed:
            expected.on_flush()
        if call is None and done > flushed:
            return


def loaded(restored: PersistentState, seed: int, expected: StoreModel, flushed: int) -> None:
    """Raises: ContractViolation if a killed run cannot have left `restored`."""
    states_after(seed, expected, flushed)
    expected.check_loaded(restored, crashed=True)


def main(path: str, seed: int, calls_max: int) -> None:
    """Print `o` when the log is open, the number of calls after each flush, and at the end the
    number of syncs that the database counted."""
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
