"""The effects that a node requests, and their completions: values that a driver carries out.

```
ready = node.ready()          None: nothing to do
  ready.send                    send at once, in any order; messages may be lost
  ready.write                   pass to the storage thread; when it is done: send its
                                then_send, and advance(WriteDone(number))
  ready.apply                   pass to the state machine; when it is done: advance(ApplyDone(...))
  ready.answers                 complete the requests
```
"""

from __future__ import annotations

from enum import Enum
from typing import TypeAlias

import msgspec

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
    entries: tuple[Entry, ...] = ()
    chunks: tuple[Chunk, ...] = ()
    truncate_until: int = 0
    """Remove this entry and all earlier ones; 0: none."""
    delete_chunks: tuple[tuple[int, int], ...] = ()
    """(index, chunk count) of obsolete snapshots."""
    sync: bool = False
    then_send: tuple[AnyMessage, ...] = ()
    """Messages to send when this write is done."""


class Apply(msgspec.Struct, frozen=True, kw_only=True):
    """Work for the state machine. The next one is handed over after `ApplyDone` of this one.

    With `restore` the state machine restores that snapshot, and `entries` is empty. Otherwise it
    applies `entries` in order; only those of `EntryKind.NORMAL` are its own. With `take_snapshot`,
    `ApplyDone` contains the chunks of its state right after the last entry.
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
    """The state machine may be read now: it has applied `index` and all that the read must see."""
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
    leader: int = 0
    """The leader as far as known, else 0."""


class Ready(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that a node requests at one moment."""

    send: tuple[AnyMessage, ...] = ()
    write: Write | None = None
    apply: Apply | None = None
    answers: tuple[Answer, ...] = ()

    @property
    def must_sync(self) -> bool:
        """Whether the write has to be durable."""
        return self.write is not None and self.write.sync


class WriteDone(msgspec.Struct, frozen=True):
    """The write `number` and all earlier ones are done; they are durable if it has `sync`."""

    number: int


class ApplyDone(msgspec.Struct, frozen=True):
    """The state machine has applied up to `index`; `chunks` if a snapshot was requested."""

    index: int
    chunks: tuple[bytes, ...] | None = None


Completion: TypeAlias = WriteDone | ApplyDone


class ReadPolicy(Enum):
    """What a read sees, and what confirms it."""

    LINEARIZABLE = "linearizable"
    """Everything committed before the request; confirmed by a round of heartbeats."""
    LEASE = "lease"
    """The same; confirmed by the leader's lease, which relies on clocks. Needs `lease_reads`."""
    LOCAL = "local"
    """What this node has applied, at least `min_index`; not confirmed by other members."""


class Role(Enum):
    """The role of a node in its term."""

    FOLLOWER = "follower"
    PRE_CANDIDATE = "pre-candidate"
    CANDIDATE = "candidate"
    LEADER = "leader"
