"""What a node wants done, and what it is told of it: values, carried out by a driver.

```
ready = node.ready()          None: nothing to do
  ready.send                    send at once, in any order; loss is allowed
  ready.write                   hand to the storage thread; when it is done: send its
                                then_send, and advance(Written(number))
  ready.apply                   hand to the state machine; when it is done: advance(Applied(...))
  ready.answers                 tell whoever asked
```
"""

from __future__ import annotations

from enum import Enum
from typing import TypeAlias

import msgspec

from bascule.raft.messages import AnyMessage, Chunk, Entry, Snapshot


class Write(msgspec.Struct, frozen=True, kw_only=True):
    """Changes to a `RaftStore`, to be made in the order of the fields.

    Writes are carried out in the order of their `number`, and what is told of one
    (`Written`, `then_send`) is true of all before it. With `sync` the store is flushed before that;
    without, nobody waits for the disk.
    """

    number: int
    vote: tuple[int, int] | None = None
    """(term, voted for), 0 for nobody: `persist_term`."""
    truncate_from: int = 0
    """Remove this entry and all behind it; 0: none."""
    entries: tuple[Entry, ...] = ()
    chunks: tuple[Chunk, ...] = ()
    truncate_until: int = 0
    """Remove this entry and all before it; 0: none."""
    delete_chunks: tuple[tuple[int, int], ...] = ()
    """(index, chunk count) of snapshots that are no longer needed."""
    sync: bool = False
    then_send: tuple[AnyMessage, ...] = ()
    """To be sent once this write is done."""


class Apply(msgspec.Struct, frozen=True, kw_only=True):
    """Work for the state machine. One is out at a time; the next comes after its `Applied`.

    With `restore` the state machine is to become that snapshot and `entries` is empty. Otherwise
    `entries` are to be applied in order; only those of `Kind.NORMAL` are the state machine's own.
    With `take_snapshot` the answer is to hold the chunks of its state right after the last of them.
    """

    last: int
    """The index reached when it is done."""
    entries: tuple[Entry, ...] = ()
    restore: Snapshot | None = None
    take_snapshot: bool = False


class Outcome(Enum):
    """What became of a proposal or a read."""

    COMMITTED = "committed"
    """The entry at `index` is committed; it is among those applied in the same `Ready` or later."""
    READABLE = "readable"
    """The state machine may be read now: it has applied `index` and all the read must see."""
    NOT_LEADER = "not leader"
    """It never took effect and never will: ask the leader. A proposal's entry was replaced, and an
    entry of another leader is committed in its place."""
    INDETERMINATE = "indeterminate"
    """It may or may not be committed, now or later."""
    TIMED_OUT = "timed out"
    """A read's deadline passed. It had no effect."""


class Answer(msgspec.Struct, frozen=True):
    """The one answer to what `propose`, `change_members`, `transfer`, `read` gave `ticket` for."""

    ticket: int
    outcome: Outcome
    index: int = 0
    leader: int = 0
    """The leader as far as known, 0 where not."""


class Ready(msgspec.Struct, frozen=True, kw_only=True):
    """All a node wants done at one moment."""

    send: tuple[AnyMessage, ...] = ()
    write: Write | None = None
    apply: Apply | None = None
    answers: tuple[Answer, ...] = ()

    @property
    def must_sync(self) -> bool:
        """Whether somebody waits for the disk."""
        return self.write is not None and self.write.sync


class Written(msgspec.Struct, frozen=True):
    """The write `number` is done, and every one before it; on disk where it asked for a sync."""

    number: int


class Applied(msgspec.Struct, frozen=True):
    """The state machine is at `index`; `chunks` where a snapshot was to be taken."""

    index: int
    chunks: tuple[bytes, ...] | None = None


Completion: TypeAlias = Written | Applied


class ReadPolicy(Enum):
    """What a read may see."""

    LINEARIZABLE = "linearizable"
    """Everything committed before it was asked; costs a round of heartbeats that all share."""
    LEASE = "lease"
    """The same on the word of the clocks; without a round. Off unless `lease_reads`."""
    LOCAL = "local"
    """What this node has applied, which is at least `min_index`."""


class Role(Enum):
    """What a node is in its term."""

    FOLLOWER = "follower"
    PRE_CANDIDATE = "pre-candidate"
    CANDIDATE = "candidate"
    LEADER = "leader"
