"""How a `Write` of a node becomes calls of its store."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from bascule.raft.effects import Write
from bascule.raft.store import RaftStore


@runtime_checkable
class BuffersTerm(Protocol):
    """A store that can let a vote wait for the flush of its write, too.

    `persist_term` is durable on return; where a node fails that led a thousand groups, that would
    be a thousand syncs one after the other, and the elections would be over time before their votes
    are given.
    """

    def buffer_term(self, term: int, voted_for: int) -> None: ...


def write_out(store: RaftStore, write: Write) -> None:
    """Make the changes of `write` in the order of its fields. The flush, where `write.sync` owes
    one, is left to the caller, who may have one for many writes; `write.then_send` waits for it."""
    if write.vote is not None:
        if write.sync and isinstance(store, BuffersTerm):
            store.buffer_term(*write.vote)
        else:
            store.persist_term(*write.vote)
    if write.truncate_from:
        store.truncate_from(write.truncate_from)
    if write.entries:
        store.persist_entries(write.entries)
    for chunk in write.chunks:
        store.persist_chunk(chunk)
    if write.truncate_until:
        store.truncate_until(write.truncate_until)
    for index, count in write.delete_chunks:
        store.delete_chunks(index, count)
