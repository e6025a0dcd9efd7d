"""The effects that a node requests, and their completions: values that a driver carries out.

```
ready = node.ready()          None: nothing to do
  ready.send                    send at once, in any order; messages may be lost
  ready.write                   pass to the storage thread; when it is done: send its
                                then_send, and advance(WriteDone(number))
  ready.apply                   pass to the state machine; when it is done: advance(ApplyDone(...)),
                                for a snapshot with its chunks, or later advance(SnapshotTaken(...))
  ready.answers                 complete the requests
  ready.state                   tell those who follow the role, the term and the members
```
"""

from __future__ import annotations

from enum import Enum
from typing import TypeAlias

import msgspec

from bascule.raft.membership import Members
from bascule.raft.messages import AnyMessage, Chunk, Entry, RaftSnapshot


class Write(msgspec.Struct, frozen=True, kw_only=True):
    """Changes to a `RaftStore`, to be made in the order of the fields.

    Writes are carried out in the order of their `number`. A write is done, and its `then_send` is
    sent, after all earlier ones. With `sync` the store is flushed before that; without, the write
    need not be durable.
    """

    number: int
    vote: tuple[int, int] | None = None
    """(term, voted for), 0 for none: `persist_term`."""
    truncate_from: int = 0
    """Remove this entry and all later ones; 0: none."""
    truncate_until: int = 0
    """Remove this entry and all earlier ones, which a snapshot of an earlier write covers; 0: none.
    It is before all of `entries`."""
    entries: tuple[Entry, ...] = ()
    chunks: tuple[Chunk, ...] = ()
    delete_chunks: tuple[tuple[int, int], ...] = ()
    """(index, chunk count) of obsolete snapshots."""
    sync: bool = False
    then_send: tuple[AnyMessage, ...] = ()
    """Messages to send when this write is done."""


class Apply(msgspec.Struct, frozen=True, kw_only=True):
    """Work for the state machine. The next one is handed over after `ApplyDone` of this one.

    With `restore` the state machine restores that snapshot, and `entries` is empty. Otherwise it
    applies `entries` in order; only those of `EntryKind.NORMAL` are its own. With `take_snapshot`
    its state right after the last entry is needed in chunks: they are in `ApplyDone`, or, if they
    are made while later entries are applied, in `SnapshotTaken`.
    """

    last: int
    """The applied index when it is done."""
    entries: tuple[Entry, ...] = ()
    restore: RaftSnapshot | None = None
    take_snapshot: bool = False


class RequestOutcome(Enum):
    """The outcome of a proposal, a change of members, a transfer or a read."""

    COMMITTED = "committed"
    """The entry at `index` is committed. It is applied with the same `Ready` or a later one."""
    READABLE = "readable"
    """The state machine may be read now: it has applied `index` and everything that the read must
    see."""
    NOT_LEADER = "not leader"
    """It has no effect and never will: ask the leader. In place of a proposal's entry, an entry of
    another leader is committed."""
    INDETERMINATE = "indeterminate"
    """It may be committed or not, now or later."""
    TIMED_OUT = "timed out"
    """The deadline of a read or a transfer passed. It had no effect."""


class Answer(msgspec.Struct, frozen=True):
    """The answer to the request for which `propose`, `change_members`, `transfer` or `read`
    returned `ticket`."""

    ticket: int
    outcome: RequestOutcome
    index: int = 0
    """Of a proposal or a change of members: its entry's. Of a read: the applied index."""
    leader: int = 0
    """The leader as far as known, else 0."""
    term: int = 0
    """Of a proposal or a change of members: the term of its entry."""


class Role(Enum):
    """The role of a node in its term."""

    FOLLOWER = "follower"
    PRE_CANDIDATE = "pre-candidate"
    CANDIDATE = "candidate"
    LEADER = "leader"


class RaftState(msgspec.Struct, frozen=True):
    """The part of a node's state that its user follows (etcd's `SoftState`, and more)."""

    role: Role
    term: int
    leader: int
    """The leader of `term` as far as known, else 0."""
    members: Members
    """The members in force, committed or not."""
    is_members_committed: bool
    is_removed: bool
    """Whether this node knows that it was a member and that its removal is committed. It takes no
    part in the group any more, unless it is added again."""


class Ready(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that a node requests at one moment."""

    send: tuple[AnyMessage, ...] = ()
    write: Write | None = None
    apply: Apply | None = None
    answers: tuple[Answer, ...] = ()
    state: RaftState | None = None
    """The state of the node, if it differs from that of the previous `Ready` (or of the start)."""

    @property
    def must_sync(self) -> bool:
        """Whether the write has to be durable."""
        return self.write is not None and self.write.sync


class WriteDone(msgspec.Struct, frozen=True):
    """The write `number` and all earlier ones are done; they are durable if it has `sync`."""

    number: int


class ApplyDone(msgspec.Struct, frozen=True):
    """The state machine has applied up to `index`.

    If a snapshot was requested, `chunks` are those of the state at `index`. Without them
    `SnapshotTaken` follows. Until then no further snapshot is requested, and no entry at the next
    index of a snapshot is applied.
    """

    index: int
    chunks: tuple[bytes, ...] | None = None


class SnapshotTaken(msgspec.Struct, frozen=True):
    """The snapshot that was requested at `index` is complete. `chunks` has one or more."""

    index: int
    chunks: tuple[bytes, ...]


Completion: TypeAlias = WriteDone | ApplyDone | SnapshotTaken


class ReadPolicy(Enum):
    """What a read sees, and what confirms it."""

    LINEARIZABLE = "linearizable"
    """Everything committed before the request; confirmed by a round of heartbeats."""
    LEASE = "lease"
    """The same; confirmed by the leader's lease, which relies on clocks. Needs `lease_reads`."""
    LOCAL = "local"
    """What this node has applied, at least `min_index`; not confirmed by other members."""
