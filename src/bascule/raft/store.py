"""`RaftStore`: the durable state of a node, and what a store promises.

Durability, call by call. *Durable on return*: a power failure right after the call does not lose
it. *May buffer*: it is durable when the next `flush` returns. A crash before that keeps the
buffered calls up to some point in their order, and possibly the first entries of the call after
that point. No call takes effect before an earlier one.

| call                | durability        |
| ------------------- | ----------------- |
| `bootstrap`         | durable on return |
| `persist_term`      | durable on return |
| `persist_entries`   | may buffer        |
| `persist_chunk`     | may buffer        |
| `truncate_from`     | may buffer        |
| `truncate_until`    | may buffer        |
| `delete_chunks`     | may buffer        |
| `flush`             | all earlier calls are durable on return |

A call that raises (`LogFailed` in the stores here) has failed for good. The node stops, and
buffered calls may be lost or not, as after a crash. A failed `flush` must not be repeated, since
the kernel may have dropped the bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import msgspec

from bascule.raft.effects import Write
from bascule.raft.membership import NOBODY, Members
from bascule.raft.messages import Chunk, Entry, RaftSnapshot


class PersistentState(msgspec.Struct, frozen=True, kw_only=True):
    """What a store holds when it is opened.

    `initial_members` are the members that the group began with, or None in a store on which
    `bootstrap` was never called. `snapshot` is the newest one whose chunks are all there. `entries`
    are contiguous; they begin at or before `snapshot.index + 1`, or at 1 without a snapshot.
    """

    initial_members: Members | None = None
    term: int = 0
    voted_for: int = NOBODY
    snapshot: RaftSnapshot | None = None
    entries: tuple[Entry, ...] = ()


class RaftStore(Protocol):
    """A node's durable state. One thread calls it, one call at a time."""

    def load(self) -> PersistentState:
        """Everything that survived, checked.

        Incomplete snapshots, entries that the snapshot made obsolete, and entries that an
        interrupted installation of a snapshot left behind are not part of it. The store removes
        them later.

        Raises: CorruptData where the contents cannot be what was written: a gap, a falling term, an
        entry of a later term than the persisted one, a wrong checksum, a missing table.
        """
        ...

    def bootstrap(self, members: Members) -> None:
        """Record the members that the group begins with, once, before any other call."""
        ...

    def persist_term(self, term: int, voted_for: int) -> None:
        """Record the term and the node voted for in it (0: none)."""
        ...

    def persist_entries(self, entries: Sequence[Entry]) -> None:
        """Append entries that follow the last one."""
        ...

    def truncate_from(self, index: int) -> None:
        """Remove the entry at `index` and all later ones."""
        ...

    def persist_chunk(self, chunk: Chunk) -> None:
        """Store one chunk of a snapshot. Chunks come in any order; a repeated one replaces."""
        ...

    def truncate_until(self, index: int) -> None:
        """Remove the entry at `index` and all earlier ones. The index is never above that of the
        newest complete snapshot."""
        ...

    def delete_chunks(self, index: int, count: int) -> None:
        """Remove the chunks of the snapshot at `index`, of which there are up to `count`."""
        ...

    def flush(self) -> None:
        """Make all earlier calls durable; cheap where nothing was buffered."""
        ...

    def close(self) -> None:
        """Close files. Calls that were not flushed may be lost."""
        ...


@runtime_checkable
class BuffersTerm(Protocol):
    """A store that can buffer a vote until the flush of its write.

    `persist_term` is durable on return. When a node that led a thousand groups fails, that would be
    a thousand syncs in sequence, and the election timeouts would pass before the votes are sent.
    """

    def buffer_term(self, term: int, voted_for: int) -> None: ...


def persist_write(store: RaftStore, write: Write) -> None:
    """Make the changes of `write` in the order of its fields, without the flush.

    Where `write.sync` is set the caller flushes, once for any number of writes, before it sends
    `write.then_send`.
    """
    if write.vote is not None:
        if write.sync and isinstance(store, BuffersTerm):
            store.buffer_term(*write.vote)
        else:
            store.persist_term(*write.vote)
    if write.truncate_from:
        store.truncate_from(write.truncate_from)
    if write.truncate_until:
        # Before the entries: behind an installed snapshot they do not follow the store's last one.
        store.truncate_until(write.truncate_until)
    if write.entries:
        store.persist_entries(write.entries)
    for chunk in write.chunks:
        store.persist_chunk(chunk)
    for index, count in write.delete_chunks:
        store.delete_chunks(index, count)
