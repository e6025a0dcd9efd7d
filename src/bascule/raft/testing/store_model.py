"""`StoreModel`: what a store may contain by the contract, as a simple and slow model.

Each call makes new contents. The contents that a crash may leave are kept in a list, and those of a
store after a crash have to be among them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeAlias

import msgspec

from bascule.raft.membership import Members
from bascule.raft.messages import Chunk, Entry
from bascule.raft.recovery import StoreContents, recover
from bascule.raft.store import PersistentState, RaftStore


class ContractViolation(AssertionError):
    """A store violates the contract; the text says how."""


def require(condition: bool, text: str) -> None:
    """Raises: ContractViolation unless `condition`. (`python -O` would remove an assert.)"""
    if not condition:
        raise ContractViolation(text)


class Bootstrap(msgspec.Struct, frozen=True):
    """`bootstrap`."""

    members: Members


class PersistTerm(msgspec.Struct, frozen=True):
    """`persist_term`."""

    term: int
    voted_for: int


class PersistEntries(msgspec.Struct, frozen=True):
    """`persist_entries`."""

    entries: tuple[Entry, ...]


class TruncateFrom(msgspec.Struct, frozen=True):
    """`truncate_from`."""

    index: int


class TruncateUntil(msgspec.Struct, frozen=True):
    """`truncate_until`."""

    index: int


class PersistChunk(msgspec.Struct, frozen=True):
    """`persist_chunk`."""

    chunk: Chunk


class DeleteChunks(msgspec.Struct, frozen=True):
    """`delete_chunks`."""

    index: int
    count: int


StoreCall: TypeAlias = (
    Bootstrap
    | PersistTerm
    | PersistEntries
    | TruncateFrom
    | TruncateUntil
    | PersistChunk
    | DeleteChunks
)


def make_call(store: RaftStore, call: StoreCall) -> None:
    """Make `call` on `store`."""
    match call:
        case Bootstrap(members):
            store.bootstrap(members)
        case PersistTerm(term, voted_for):
            store.persist_term(term, voted_for)
        case PersistEntries(entries):
            store.persist_entries(entries)
        case TruncateFrom(index):
            store.truncate_from(index)
        case TruncateUntil(index):
            store.truncate_until(index)
        case PersistChunk(chunk):
            store.persist_chunk(chunk)
        case DeleteChunks(index, count):
            store.delete_chunks(index, count)


def contents_after(held: StoreContents, call: StoreCall) -> StoreContents:
    """The contents of a store after `call`, if they were `held` before."""
    change = msgspec.structs.replace
    match call:
        case Bootstrap(members):
            return change(held, initial_members=members)
        case PersistTerm(term, voted_for):
            return change(held, term=term, voted_for=voted_for)
        case PersistEntries(entries):
            return change(held, entries=(*held.entries, *entries))
        case TruncateFrom(index):
            return change(held, entries=tuple(e for e in held.entries if e.index < index))
        case TruncateUntil(index):
            return change(held, entries=tuple(e for e in held.entries if e.index > index))
        case PersistChunk(chunk):
            place = (chunk.index, chunk.number)
            others = tuple(c for c in held.chunks if (c.index, c.number) != place)
            return change(held, chunks=(*others, chunk))
        case DeleteChunks(index, count):
            kept = tuple(c for c in held.chunks if c.index != index or c.number >= count)
            return change(held, chunks=kept)


def partial_calls(call: StoreCall) -> Iterator[StoreCall]:
    """The parts of a call that a crash may keep, other than none and all of it."""
    if isinstance(call, PersistEntries):
        for count in range(1, len(call.entries)):
            yield PersistEntries(call.entries[:count])


class StoreModel:
    """The contents of a store after all calls so far, and those that a crash may leave."""

    __slots__ = ("after_crash", "held")

    def __init__(self) -> None:
        self.held = StoreContents()
        self.after_crash = [self.held]

    def on_call(self, call: StoreCall) -> None:
        """`call` was made and returned."""
        self.on_call_begun(call)
        if isinstance(call, Bootstrap | PersistTerm):
            self.on_flush()

    def on_call_begun(self, call: StoreCall) -> None:
        """`call` was made; it is not known whether it was done."""
        self.after_crash += [contents_after(self.held, part) for part in partial_calls(call)]
        self.held = contents_after(self.held, call)
        self.after_crash.append(self.held)

    def on_flush(self) -> None:
        """All calls so far are durable."""
        self.after_crash = [self.held]

    def check_loaded(self, restored: PersistentState, *, crashed: bool) -> None:
        """Check what a store returned that was opened again.

        Raises: ContractViolation where it must not contain `restored`.
        """
        allowed = [
            recover(found, file="expected")
            for found in (self.after_crash if crashed else [self.held])
        ]
        require(
            restored in allowed,
            f"loaded {describe(restored)}, expected "
            + " or ".join(describe(one) for one in allowed[-3:])
            + (f" or one of {len(allowed) - 3} states before" if len(allowed) > 3 else ""),
        )
        self.reset_to(restored)

    def reset_to(self, restored: PersistentState) -> None:
        """The durable contents of the store are `restored`."""
        self.held = StoreContents(
            initial_members=restored.initial_members,
            term=restored.term,
            voted_for=restored.voted_for,
            chunks=restored.snapshot.as_chunks() if restored.snapshot else (),
            entries=restored.entries,
        )
        self.on_flush()


def describe(restored: PersistentState) -> str:
    """A state as a short text."""
    entries = restored.entries
    log = "no entries"
    if entries:
        ends = f"{entries[0].index} (term {entries[0].term})", f"{entries[-1].index}"
        log = f"entries {ends[0]} to {ends[1]} (term {entries[-1].term})"
    snapshot = restored.snapshot
    state = f"a snapshot at {snapshot.index} (term {snapshot.term})" if snapshot else "no snapshot"
    return (
        f"[{restored.initial_members}, term {restored.term}, vote {restored.voted_for}, {state}, "
        f"{log}, {hash(restored):x}]"
    )
