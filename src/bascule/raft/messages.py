"""The messages between the members of a group, and the entries and snapshots of the log.

All are immutable values. `source` and `target` are node ids; `term` is the sender's (in a pre-vote:
the term that the sender would begin). Indices start at 1; index 0 with term 0 is the end of an
empty log.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import Final, TypeAlias

import msgspec

from bascule.raft.membership import Members

LOST_TERM: Final = 1 << 60
"""In `AppendReply.hint_term`: no group has so many terms."""


class EntryKind(IntEnum):
    """What an entry is for."""

    NORMAL = 0
    """A command for the state machine."""
    NO_OP = 1
    """The first entry of a new leader. With it the leader commits entries of older terms."""
    MEMBERS = 2
    """The payload is an encoded `Members`, in force from the append of this entry on."""


class Entry(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One entry of the log. (index, term) identifies it in the whole group."""

    index: int
    term: int
    kind: int
    payload: bytes


class RaftMessage(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """The fields of every message."""

    source: int
    target: int
    term: int


class VoteRequest(RaftMessage, frozen=True, array_like=True, tag=1):
    """A request for a vote (Raft thesis 3.4), or with `pre` for a pre-vote (9.6).

    `forced`: the leader requested this election, to transfer leadership. Voters then grant the vote
    although they hear from a leader.
    """

    pre: bool
    last_index: int
    last_term: int
    forced: bool = False
    settings: int = 0
    """`RaftConfig.sent_checksum` of the sender; 0: not compared."""


class VoteReply(RaftMessage, frozen=True, array_like=True, tag=2):
    """`term` is the requested term if the vote is granted, else the voter's own.

    `removed_at` is not 0 if the candidate is not one of the committed members that are in force at
    that index, of which it does not know: it was removed.
    """

    pre: bool
    granted: bool
    removed_at: int = 0


class AppendRequest(RaftMessage, frozen=True, array_like=True, tag=3):
    """Entries that follow the entry (`previous_index`, `previous_term`); empty in a probe."""

    previous_index: int
    previous_term: int
    commit: int
    entries: tuple[Entry, ...]


class AppendReply(RaftMessage, frozen=True, array_like=True, tag=4):
    """With `matched`: the sender has the leader's log up to `index` on disk.

    Otherwise the sender's log does not have the append's previous entry at `index`. The last common
    entry is at `hint_index` or earlier, where the sender has an entry of `hint_term` (thesis 5.3,
    the optimization that skips whole terms).

    With the `hint_term` `LOST_TERM` the sender's log ends at `hint_index`, although the leader says
    that it has confirmed `index`. Earlier releases take that for a mismatch.
    """

    matched: bool
    index: int
    hint_index: int = 0
    hint_term: int = 0


class Heartbeat(RaftMessage, frozen=True, array_like=True, tag=5):
    """The receiver may commit up to `commit`, and replies with `round`."""

    commit: int
    round: int
    settings: int = 0
    """`RaftConfig.sent_checksum` of the sender; 0: not compared."""


class HeartbeatReply(RaftMessage, frozen=True, array_like=True, tag=6):
    """The sender follows the leader, as of `round`."""

    round: int


class TimeoutNow(RaftMessage, frozen=True, array_like=True, tag=7):
    """Requests the target to start an election at once (thesis 3.10)."""


class SnapshotOffer(RaftMessage, frozen=True, array_like=True, tag=8):
    """Requests the target to fetch the chunks of the snapshot at `index`, because the leader's log
    no longer has its next entry.

    `checksums` has the CRC-32 of each chunk; `sources` the members known to have the snapshot, the
    leader first.
    """

    index: int
    index_term: int
    members: Members
    checksums: tuple[int, ...]
    sources: tuple[int, ...]


class SnapshotReply(RaftMessage, frozen=True, array_like=True, tag=9):
    """The sender has everything up to `index` on disk, in a snapshot or in its log."""

    index: int


class ChunkRequest(RaftMessage, frozen=True, array_like=True, tag=10):
    """A request for chunk `number` (0 is the first) of the snapshot at `index`."""

    index: int
    number: int


class ChunkReply(RaftMessage, frozen=True, array_like=True, tag=11):
    """`data` is the chunk, or None if the sender does not have that snapshot."""

    index: int
    number: int
    data: bytes | None


AnyMessage: TypeAlias = (
    VoteRequest | VoteReply | AppendRequest | AppendReply | Heartbeat | HeartbeatReply | TimeoutNow
    | SnapshotOffer | SnapshotReply | ChunkRequest | ChunkReply
)  # fmt: skip


class Chunk(msgspec.Struct, frozen=True, array_like=True):
    """Chunk `number` of the `count` chunks of the snapshot at (`index`, `term`)."""

    index: int
    term: int
    members: Members
    number: int
    count: int
    data: bytes


class RaftSnapshot(msgspec.Struct, frozen=True):
    """The state of the state machine after the entry at (`index`, `term`), in one or more chunks.

    All members have the same chunks for one index.
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
"""Size of an entry without payload, as all limits count it."""


def size_of(entry: Entry) -> int:
    """Bytes of an entry, as the limits count them."""
    return len(entry.payload) + ENTRY_OVERHEAD_BYTES


def sizes_of(entries: Sequence[Entry]) -> int:
    """Bytes of several entries, as the limits count them."""
    return sum([len(entry.payload) for entry in entries]) + ENTRY_OVERHEAD_BYTES * len(entries)
