"""`RaftStore`: where a node's part of the log survives, and what it owes.

Durability, call by call. *Durable on return* means that a power cut a moment later does not lose
it. *May buffer* means that it is durable when the next `flush` returns; until then a crash keeps
the buffered calls up to some point of their order, and of the last one perhaps a beginning (some
first entries). Nothing ever takes effect out of order.

| call                | durability        |
| ------------------- | ----------------- |
| `found`             | durable on return |
| `persist_term`      | durable on return |
| `persist_entries`   | may buffer        |
| `persist_chunk`     | may buffer        |
| `truncate_from`     | may buffer        |
| `truncate_until`    | may buffer        |
| `delete_chunks`     | may buffer        |
| `flush`             | all before it durable on return |

A call that raises (`LogFailed` in the stores here) has failed for good: the node that called stops,
and what was buffered counts as lost by dice. No call is repeated after a failed `flush`, since the
kernel may have dropped the bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import msgspec

from bascule.raft.membership import NOBODY, Members
from bascule.raft.messages import Chunk, Entry, Snapshot


class Restored(msgspec.Struct, frozen=True, kw_only=True):
    """What a store holds when it is opened.

    `founding` are the members the group began with, or None in a store where `found` was never
    called. `snapshot` is the newest whose chunks are all there. `entries` are contiguous; they
    begin at or before `snapshot.index + 1`, or at 1 without a snapshot.
    """

    founding: Members | None = None
    term: int = 0
    voted_for: int = NOBODY
    snapshot: Snapshot | None = None
    entries: tuple[Entry, ...] = ()


class RaftStore(Protocol):
    """A node's durable state. One thread calls it, one call at a time."""

    def load(self) -> Restored:
        """Everything that survived, checked.

        Chunks of snapshots that are not complete, entries made obsolete by the snapshot, and
        entries that an interrupted installation of a snapshot left behind are not part of it; the
        store removes them in the course of time.

        Raises: CorruptData where what is there cannot be what was written: a gap, a term that
        falls, an entry of a later term than the persisted one, a checksum, a missing table.
        """
        ...

    def found(self, members: Members) -> None:
        """Record the members that the group begins with, once, before anything else."""
        ...

    def persist_term(self, term: int, voted_for: int) -> None:
        """Record the term and whom this node voted for in it (0: nobody)."""
        ...

    def persist_entries(self, entries: Sequence[Entry]) -> None:
        """Add entries that follow the last one."""
        ...

    def truncate_from(self, index: int) -> None:
        """Remove the entry at `index` and every one behind it."""
        ...

    def persist_chunk(self, chunk: Chunk) -> None:
        """Keep one chunk of a snapshot; they come in any order, and a repeated one replaces."""
        ...

    def truncate_until(self, index: int) -> None:
        """Remove the entry at `index` and every one before it. The index is never above the newest
        complete snapshot's."""
        ...

    def delete_chunks(self, index: int, count: int) -> None:
        """Remove the chunks of the snapshot at `index`, of which there are up to `count`."""
        ...

    def flush(self) -> None:
        """Make everything before durable; cheap where nothing was buffered."""
        ...

    def close(self) -> None:
        """Let go of files. What was not flushed may be lost."""
        ...
