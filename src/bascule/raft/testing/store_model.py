"""What a store may hold, by the contract alone: the slow and obvious twin of every store.

Each call makes a new picture of the whole. Those that a crash may leave behind are kept side by
side, and a store that has crashed must be one of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeAlias

import msgspec

from bascule.raft.membership import Members
from bascule.raft.messages import Chunk, Entry
from bascule.raft.recovery import Found, checked
from bascule.raft.store import RaftStore, Restored


class BrokenPromise(AssertionError):
    """A store does not do what the contract says; the text says what."""


def promise(kept: bool, text: str) -> None:
    """Raises: BrokenPromise unless `kept`. (An assert would be gone under -O.)"""
    if not kept:
        raise BrokenPromise(text)


class FoundMembers(msgspec.Struct, frozen=True):
    """`found`."""

    members: Members


class SetTerm(msgspec.Struct, frozen=True):
    """`persist_term`."""

    term: int
    voted_for: int


class AddEntries(msgspec.Struct, frozen=True):
    """`persist_entries`."""

    entries: tuple[Entry, ...]


class TruncateFrom(msgspec.Struct, frozen=True):
    """`truncate_from`."""

    index: int


class TruncateUntil(msgspec.Struct, frozen=True):
    """`truncate_until`."""

    index: int


class PutChunk(msgspec.Struct, frozen=True):
    """`persist_chunk`."""

    chunk: Chunk


class DeleteChunks(msgspec.Struct, frozen=True):
    """`delete_chunks`."""

    index: int
    count: int


Call: TypeAlias = (
    FoundMembers | SetTerm | AddEntries | TruncateFrom | TruncateUntil | PutChunk | DeleteChunks
)


def carry_out(store: RaftStore, call: Call) -> None:
    """Do `call` on `store`."""
    match call:
        case FoundMembers(members):
            store.found(members)
        case SetTerm(term, voted_for):
            store.persist_term(term, voted_for)
        case AddEntries(entries):
            store.persist_entries(entries)
        case TruncateFrom(index):
            store.truncate_from(index)
        case TruncateUntil(index):
            store.truncate_until(index)
        case PutChunk(chunk):
            store.persist_chunk(chunk)
        case DeleteChunks(index, count):
            store.delete_chunks(index, count)


def after(held: Found, call: Call) -> Found:
    """What a store holds after `call` where it held `held`."""
    change = msgspec.structs.replace
    match call:
        case FoundMembers(members):
            return change(held, founding=members)
        case SetTerm(term, voted_for):
            return change(held, term=term, voted_for=voted_for)
        case AddEntries(entries):
            return change(held, entries=(*held.entries, *entries))
        case TruncateFrom(index):
            return change(held, entries=tuple(e for e in held.entries if e.index < index))
        case TruncateUntil(index):
            return change(held, entries=tuple(e for e in held.entries if e.index > index))
        case PutChunk(chunk):
            place = (chunk.index, chunk.number)
            others = tuple(c for c in held.chunks if (c.index, c.number) != place)
            return change(held, chunks=(*others, chunk))
        case DeleteChunks(index, count):
            kept = tuple(c for c in held.chunks if c.index != index or c.number >= count)
            return change(held, chunks=kept)


def beginnings(call: Call) -> Iterator[Call]:
    """The parts of a call that a crash may leave of it, without nothing and all."""
    if isinstance(call, AddEntries):
        for count in range(1, len(call.entries)):
            yield AddEntries(call.entries[:count])


class Expectation:
    """What a store holds when every call so far is done, and all that a crash may leave."""

    __slots__ = ("after_crash", "held")

    def __init__(self) -> None:
        self.held = Found()
        self.after_crash = [self.held]

    def call(self, call: Call) -> None:
        """`call` was made and returned."""
        self.begun(call)
        if isinstance(call, FoundMembers | SetTerm):
            self.flushed()

    def begun(self, call: Call) -> None:
        """`call` was made, and whether it was done is not known."""
        self.after_crash += [after(self.held, part) for part in beginnings(call)]
        self.held = after(self.held, call)
        self.after_crash.append(self.held)

    def flushed(self) -> None:
        """Everything is durable."""
        self.after_crash = [self.held]

    def loaded(self, restored: Restored, *, crashed: bool) -> None:
        """A store that was opened anew holds `restored`.

        Raises: BrokenPromise where it should not.
        """
        allowed = [
            checked(found, file="expected")
            for found in (self.after_crash if crashed else [self.held])
        ]
        promise(
            restored in allowed,
            f"loaded {shown(restored)}, expected {' or '.join(shown(one) for one in allowed[-3:])}"
            + (f" or one of {len(allowed) - 3} states before" if len(allowed) > 3 else ""),
        )
        self.starts_as(restored)

    def starts_as(self, restored: Restored) -> None:
        """A store that was loaded holds `restored`, on the disk, whatever was before."""
        self.held = Found(
            founding=restored.founding,
            term=restored.term,
            voted_for=restored.voted_for,
            chunks=restored.snapshot.as_chunks() if restored.snapshot else (),
            entries=restored.entries,
        )
        self.flushed()


def shown(restored: Restored) -> str:
    """A state in short, for people."""
    entries = restored.entries
    log = "no entries"
    if entries:
        ends = f"{entries[0].index} (term {entries[0].term})", f"{entries[-1].index}"
        log = f"entries {ends[0]} to {ends[1]} (term {entries[-1].term})"
    snapshot = restored.snapshot
    state = f"a snapshot at {snapshot.index} (term {snapshot.term})" if snapshot else "no snapshot"
    return (
        f"[{restored.founding}, term {restored.term}, vote {restored.voted_for}, {state}, "
        f"{log}, {hash(restored):x}]"
    )
