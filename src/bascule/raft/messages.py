"""What members of a group say to each other, and the entries of the log.

All are immutable values. `source` and `target` are node ids, `term` is the sender's when it spoke
(in a pre-vote: the term the sender would begin). Indices start at 1; index 0 with term 0 stands for
the empty log's end.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import TypeAlias

import msgspec

from bascule.raft.membership import Members


class Kind(IntEnum):
    """What an entry is for."""

    NORMAL = 0
    """The state machine's."""
    NO_OP = 1
    """A new leader's first, which lets it commit what older terms left."""
    MEMBERS = 2
    """The payload is an encoded `Members`, in force from the append of this entry on."""


class Entry(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One entry of the log. (index, term) names it in the whole group for good."""

    index: int
    term: int
    kind: int
    payload: bytes


class Message(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """What every message has."""

    source: int
    target: int
    term: int


class VoteRequest(Message, frozen=True, array_like=True, tag=1):
    """A candidate asks for a vote (Raft thesis 3.4), or with `pre` whether it would get one (9.6).

    `forced` asks members to answer although they hear from a leader: leadership is handed over.
    """

    pre: bool
    last_index: int
    last_term: int
    forced: bool = False


class VoteReply(Message, frozen=True, array_like=True, tag=2):
    """`term` is the term asked for where granted, else the voter's own."""

    pre: bool
    granted: bool


class Append(Message, frozen=True, array_like=True, tag=3):
    """Entries that follow the entry (`previous_index`, `previous_term`); none: a probe."""

    previous_index: int
    previous_term: int
    commit: int
    entries: tuple[Entry, ...]


class AppendReply(Message, frozen=True, array_like=True, tag=4):
    """With `matched`: the sender has the leader's log up to `index`, on disk.

    Otherwise the entry before an append at `index` was not there, and the sender's log has at
    `hint_index` an entry of `hint_term` that may be the last common one (thesis 5.3's optimisation,
    by terms).
    """

    matched: bool
    index: int
    hint_index: int = 0
    hint_term: int = 0


class Heartbeat(Message, frozen=True, array_like=True, tag=5):
    """The leader is alive; the sender may commit up to `commit`; `round` is to be sent back."""

    commit: int
    round: int


class HeartbeatReply(Message, frozen=True, array_like=True, tag=6):
    """The sender took the leader for its leader when it heard `round`."""

    round: int


class TimeoutNow(Message, frozen=True, array_like=True, tag=7):
    """The leader asks the target to stand for election at once (thesis 3.10)."""


class SnapshotOffer(Message, frozen=True, array_like=True, tag=8):
    """The target lags behind the log: it is to fetch the chunks of the snapshot at `index`.

    `checksums` holds the CRC-32 of each chunk; `sources` the members known to have the snapshot,
    the leader first.
    """

    index: int
    index_term: int
    members: Members
    checksums: tuple[int, ...]
    sources: tuple[int, ...]


class SnapshotReply(Message, frozen=True, array_like=True, tag=9):
    """The sender has everything up to `index`, on disk, by a snapshot or by its log."""

    index: int


class ChunkRequest(Message, frozen=True, array_like=True, tag=10):
    """Asks for chunk `number` (0 is the first) of the snapshot at `index`."""

    index: int
    number: int


class ChunkReply(Message, frozen=True, array_like=True, tag=11):
    """`data` is the chunk, or None where the sender does not have that snapshot."""

    index: int
    number: int
    data: bytes | None


AnyMessage: TypeAlias = (
    VoteRequest | VoteReply | Append | AppendReply | Heartbeat | HeartbeatReply | TimeoutNow
    | SnapshotOffer | SnapshotReply | ChunkRequest | ChunkReply
)  # fmt: skip


class Chunk(msgspec.Struct, frozen=True, array_like=True):
    """Chunk `number` of the `count` of the snapshot at (`index`, `term`)."""

    index: int
    term: int
    members: Members
    number: int
    count: int
    data: bytes


class Snapshot(msgspec.Struct, frozen=True):
    """The state machine's state after the entry at (`index`, `term`), in chunks (one or more).

    Members that applied the same entries make the same chunks.
    """

    index: int
    term: int
    members: Members
    chunks: tuple[bytes, ...]

    def as_chunks(self) -> tuple[Chunk, ...]:
        count = len(self.chunks)
        return tuple(
            Chunk(self.index, self.term, self.members, number, count, data)
            for number, data in enumerate(self.chunks)
        )


ENTRY_OVERHEAD_BYTES = 16
"""What an entry without payload is counted as in every limit of bytes."""


def size_of(entry: Entry) -> int:
    """Bytes of an entry, as the limits count them."""
    return len(entry.payload) + ENTRY_OVERHEAD_BYTES


def sizes_of(entries: Sequence[Entry]) -> int:
    """Bytes of several entries, as the limits count them."""
    return sum([len(entry.payload) for entry in entries]) + ENTRY_OVERHEAD_BYTES * len(entries)
