"""The state of a node that its roles share, and the order in which changes reach the disk.

All changes of term, vote, log and membership go through `Core`. `take_write` collects the changes
that have not been handed over yet; `on_written` says which of them are on disk.
"""

from __future__ import annotations

from collections import deque
from enum import Enum
from typing import Final

import msgspec

from bascule.errors import RemoteProtocolError
from bascule.host.api import Random
from bascule.raft.config import RaftConfig
from bascule.raft.effects import Answer, RaftState, Role, Write
from bascule.raft.log import RaftLog
from bascule.raft.membership import NOBODY, Members, decode_members
from bascule.raft.messages import AnyMessage, Chunk, Entry, EntryKind, RaftSnapshot
from bascule.raft.roles.applying import Applying
from bascule.raft.roles.proposals import PendingProposals
from bascule.raft.roles.reads import PendingReads
from bascule.raft.roles.served_snapshots import ServedSnapshots
from bascule.raft.store import PersistentState

CHUNK_WRITE_BYTES: Final = 1 << 20
"""Bytes of chunks in the writes that are handed over and not done, unless one chunk has more."""


class SnapshotOrigin(Enum):
    """Where a snapshot that is being written comes from."""

    TAKEN = 1
    """This node's state machine; the log is compacted when the snapshot is on disk."""
    FETCHED = 2
    """Other members; the snapshot is installed when it is on disk."""


class InflightWrite(msgspec.Struct):
    """A write that was handed over and is not done."""

    number: int
    last: int
    """Entries up to here are on disk when it is done; lowered when they are truncated."""
    vote: tuple[int, int] | None
    snapshots: tuple[tuple[SnapshotOrigin, RaftSnapshot], ...]
    """The snapshots whose last chunks are in this write."""
    chunk_bytes: int


class Core:
    """The state that the roles share.

    Always: `log.applied <= log.commit <= log.last` and `synced <= log.last`.
    """

    __slots__ = (
        "_chunk_deletions", "_chunks", "_completed_snapshots",
        "_election_timeout", "_inflight_writes", "_last_write_number", "_membership_history",
        "_next_unwritten", "_send_after_write", "_truncate_from",
        "_truncate_until", "_vote_changed", "answers", "applying", "config", "election_due_at",
        "id", "leader", "leader_heard_at", "log", "next_ticket", "now", "outbox", "proposals",
        "random", "reads", "removed_at", "role", "served", "settings", "snapshots_installed",
        "snapshots_taken", "synced", "term", "voted_for", "was_member",
    )  # fmt: skip

    # Identity and settings; they never change.
    id: int
    config: RaftConfig
    random: Random
    """Source of election timeouts. Nothing else draws from it."""
    settings: int
    """`RaftConfig.shared_checksum`, which a vote or heartbeat may have."""

    # Time.
    now: int
    """Ticks since this object was made. Only `RaftNode.tick` raises it."""
    _election_timeout: int
    """The randomized election timeout in ticks of a node that hears a leader, in [election_ticks,
    2 * election_ticks). Drawn by `reset_election_timer`."""
    leader_heard_at: int
    """The tick of the last message from a leader; 0 at the start, as if one had been heard then. It
    never falls. A follower that wakes from hibernation raises it to the last message of the
    leader's process."""
    election_due_at: int
    """The tick at which a node that does not lead starts an election. Moved by each message from a
    leader, each granted vote, each election and each new term."""

    # Term, vote and role (Raft paper, figure 2).
    term: int
    """The current term. It never falls. Persisted together with `voted_for`."""
    voted_for: int
    """The candidate that this node voted for in `term`, or `NOBODY`. Within one term it changes at
    most once, from `NOBODY` to a node."""
    role: Role
    """LEADER exactly while the node has a `LeaderRole`."""
    leader: int
    """The leader of `term` as far as known; `id` while this node leads. Reset to `NOBODY` by a new
    term and by an election."""

    # The log and its durability.
    log: RaftLog
    """The entries in memory, the commit index and the applied index. Entries are appended and
    truncated through `Core` (or appended directly if they do not change the members), so that
    `_membership_history` and `_next_unwritten` stay right."""
    synced: int
    """Entries up to here are on this node's disk, with the terms that `log` has. Raised by finished
    writes, lowered by truncation. This node counts in a majority up to here."""
    _next_unwritten: int
    """The first entry that no write has taken yet; at most `log.last + 1`."""
    _membership_history: list[Members]
    """The membership at the snapshot (or the initial one), then one for each membership entry
    behind it, committed or not. Never empty; the last one is in force."""

    was_member: bool
    """Whether this node was a member by any membership that it has known. It stays true."""
    removed_at: int
    """A voter has committed members without this node as of this index; 0: not heard of. It has a
    meaning while the members in force here are older."""

    # Writes: what the next one has to contain, and those under way.
    _vote_changed: bool
    """Whether `term` or `voted_for` changed since the last write was taken."""
    _truncate_from: int
    """The first entry that earlier writes put into the store and `log` has removed or replaced; 0:
    none. The next write truncates from here before it appends."""
    _truncate_until: int
    """The last entry that the snapshot covers and the store may remove; 0: none."""
    _chunks: list[Chunk]
    """Snapshot chunks to be written."""
    _chunk_deletions: list[tuple[int, int]]
    """(index, chunk count) of the snapshots to be deleted."""
    _completed_snapshots: list[tuple[SnapshotOrigin, RaftSnapshot]]
    """Snapshots that are complete on disk when the next write is done."""
    _send_after_write: list[AnyMessage]
    """Messages that must not leave before the next write is on disk."""
    _inflight_writes: deque[InflightWrite]
    """Writes handed over and not done, oldest first; their numbers rise."""
    _last_write_number: int
    """Number of the last write handed over. Numbers begin at 1 and have no gaps."""

    # The state machine.
    served: ServedSnapshots
    """The snapshots whose chunks other members may fetch from this node."""
    applying: Applying
    """What the state machine does next."""
    snapshots_taken: int
    """Snapshots of this node's state machine that reached the disk since the start."""
    snapshots_installed: int
    """Fetched snapshots that reached the disk since the start."""

    # Output, taken by `RaftNode.ready`.
    outbox: list[AnyMessage]
    """Messages to send at once."""
    answers: list[Answer]
    """Answers to requests. `proposals` and `reads` append to this list, too."""
    next_ticket: int
    """The ticket of the next request. Tickets are never used twice."""
    proposals: PendingProposals
    """Proposals without an answer, also those made in earlier terms."""
    reads: PendingReads
    """Reads without an answer."""

    def __init__(
        self, node_id: int, config: RaftConfig, persistent: PersistentState, random: Random
    ) -> None:
        self.id = node_id
        self.config = config
        self.random = random
        self.settings = config.shared_checksum

        self.now = 0
        self._election_timeout = 0
        self.leader_heard_at = 0
        self.election_due_at = 0

        self.term = persistent.term
        self.voted_for = persistent.voted_for
        self.role = Role.FOLLOWER
        self.leader = NOBODY

        self.log = RaftLog(config.log_capacity, persistent.snapshot, persistent.entries)
        self.synced = self.log.last
        self._next_unwritten = self.log.last + 1
        self._membership_history = self._restored_memberships(persistent)
        self.removed_at = 0
        initial = persistent.initial_members or Members(())
        self.was_member = any(node_id in known for known in (initial, *self._membership_history))

        self._vote_changed = False
        self._truncate_from = 0
        self._truncate_until = 0
        self._chunks = []
        self._chunk_deletions = []
        self._completed_snapshots = []
        self._send_after_write = []
        self._inflight_writes = deque()
        self._last_write_number = 0

        self.applying = Applying(config, self.log)
        self.served = ServedSnapshots(2 * config.election_ticks)
        if persistent.snapshot is not None:
            self.log.applied = 0
        self.snapshots_taken = 0
        self.snapshots_installed = 0

        self.outbox = []
        self.answers = []
        self.next_ticket = 1
        self.proposals = PendingProposals(self.answers)
        self.reads = PendingReads(self.log, self.answers)

        self._compact_restored_log()
        self.reset_election_timer()

    def _compact_restored_log(self) -> None:
        """Remove entries that a crash brought back: the log had been compacted, but the store had
        not been flushed. With them in the ring there would be no room up to the next snapshot."""
        until = self.log.snapshot_index - self.config.kept_entries
        if until >= self.log.first:
            self.log.truncate_until(until)
            self._truncate_until = until

    def _restored_memberships(self, persistent: PersistentState) -> list[Members]:
        base = persistent.initial_members or Members(())
        if persistent.snapshot is not None:
            base = persistent.snapshot.members
        later = [
            decode_members(entry.payload)
            for entry in persistent.entries
            if entry.kind == EntryKind.MEMBERS and entry.index > self.log.snapshot_index
        ]
        return [base, *later]

    # -- membership ---------------------------------------------------------------------------

    @property
    def members(self) -> Members:
        """The members in force: those of the last membership entry in the log, committed or not."""
        return self._membership_history[-1]

    @property
    def previous_members(self) -> Members:
        """The members before those in force, while these are not committed; else those in force."""
        history = self._membership_history
        is_uncommitted = len(history) > 1 and history[-1].index > self.log.commit
        return history[-2] if is_uncommitted else history[-1]

    @property
    def is_voter(self) -> bool:
        return self.id in self._membership_history[-1].voters

    @property
    def may_campaign(self) -> bool:
        """Whether this node may start an election: it is a voter, or was one before a change that
        is not committed. It may be the only node whose log has that change, so that no other node
        can be elected (thesis 4.2.2)."""
        if self.removed_at > self.members.index:
            return False
        if self.is_voter:
            return True
        return self.id in self.previous_members.voters

    @property
    def is_removed(self) -> bool:
        """Whether this node was a member and knows that its removal is committed."""
        members = self._membership_history[-1]
        if self.removed_at > members.index:
            return True
        return (
            self.was_member
            and members.index <= self.log.commit
            and self.id not in members
            and bool(members.voters)
        )

    def state(self) -> RaftState:
        members, removed = self.members, self.is_removed
        committed = members.index <= self.log.commit
        return RaftState(self.role, self.term, self.leader, members, committed, removed)

    def state_after(self, seen: RaftState) -> RaftState | None:
        """The state if it differs from `seen`."""
        members = self._membership_history[-1]
        if (
            self.role is seen.role
            and self.term == seen.term
            and self.leader == seen.leader
            and members is seen.members
            and (members.index <= self.log.commit) is seen.is_members_committed
            and self.is_removed is seen.is_removed
        ):
            return None
        return self.state()

    def members_at(self, index: int) -> Members:
        """The members in force at `index`, which is not before the snapshot."""
        return next(
            members for members in reversed(self._membership_history) if members.index <= index
        )

    # -- time ---------------------------------------------------------------------------------

    def reset_election_timer(self) -> None:
        """Draw a new election timeout and start it now. It is random so that candidates that split
        the votes do not start their next elections at the same time (thesis 3.4)."""
        drawn = self.random.uniform(0, ticks := self.config.election_ticks)
        self._election_timeout = timeout = ticks + int(drawn)
        if (leaderless := self.config.leaderless_election_ticks) and not self.hears_leader():
            timeout = leaderless + int(drawn * leaderless / ticks)
        self.election_due_at = self.now + timeout

    def on_leader_heard(self) -> None:
        """Restart the election timeout: a message from the leader arrived."""
        self.leader_heard_at = self.now
        self.election_due_at = self.now + self._election_timeout

    def hears_leader(self) -> bool:
        """Whether a leader was heard within the minimum election timeout. Votes are then refused
        (thesis 4.2.3)."""
        if self.role is Role.LEADER or self.in_lease:
            return True
        return (
            self.leader != NOBODY and self.now - self.leader_heard_at < self.config.election_ticks
        )

    @property
    def in_lease(self) -> bool:
        """Whether a leader's lease may rely on this node: it then takes no part in an election.

        The lease lasts from the leader's last message, even if this node has learnt of a later term
        since. A node that just started may have extended a lease that it no longer knows of.
        """
        recent = self.now - self.leader_heard_at < self.config.election_ticks
        return recent and self.config.lease_reads

    # -- term and vote ------------------------------------------------------------------------

    def set_term(self, term: int, voted_for: int) -> None:
        assert term > self.term, (term, self.term)
        self.term = term
        self.voted_for = voted_for
        self._vote_changed = True

    def vote_for(self, candidate: int) -> None:
        assert self.voted_for in (NOBODY, candidate)
        if self.voted_for == NOBODY:
            self.voted_for = candidate
            self._vote_changed = True

    # -- the log ------------------------------------------------------------------------------

    def append(self, entry: Entry) -> None:
        """Append `entry`, which follows the last one. A membership entry is in force at once.

        Raises: RemoteProtocolError where its payload is not an encoded membership.
        """
        if entry.kind == EntryKind.MEMBERS:
            try:
                members = decode_members(entry.payload)
            except msgspec.MsgspecError as error:
                raise RemoteProtocolError(
                    f"membership entry {entry.index} cannot be decoded: {error}"
                ) from error
            self._membership_history.append(members)
            self.was_member = self.was_member or self.id in members
        self.log.append(entry)

    def truncate_from(self, index: int) -> None:
        """Remove the entries from `index` on, which another leader replaces.

        A write of them that is under way no longer makes them durable, not even if the same entry
        is appended again later: in between, the disk holds the entry that replaced it.
        """
        self.log.truncate_from(index)
        history = self._membership_history
        while history[-1].index >= index and len(history) > 1:
            history.pop()
        self._forget_written(index)
        self.proposals.on_truncated(index)

    def _forget_written(self, index: int) -> None:
        for write in self._inflight_writes:
            write.last = min(write.last, index - 1)
        self.synced = min(self.synced, index - 1)
        if index < self._next_unwritten:
            self._truncate_from = min(self._truncate_from or index, index)
            self._next_unwritten = index

    def commit_to(self, index: int) -> bool:
        """Raise the commit index to `index`. Returns whether it was lower before."""
        log = self.log
        if index <= log.commit:
            return False
        start = log.commit + 1
        log.commit_to(index)
        self.proposals.on_committed(start, index + 1, log, self.leader)
        return True

    # -- output -------------------------------------------------------------------------------

    def new_ticket(self) -> int:
        ticket = self.next_ticket
        self.next_ticket += 1
        return ticket

    def send(self, message: AnyMessage) -> None:
        """Send at once."""
        self.outbox.append(message)

    def send_when_durable(self, message: AnyMessage) -> None:
        """Send when all changes made until now are on disk."""
        if self._inflight_writes or self._has_write():
            self._send_after_write.append(message)
        else:
            self.outbox.append(message)

    # -- writes -------------------------------------------------------------------------------

    def _has_write(self) -> bool:
        return bool(
            self._vote_changed
            or self.log.last >= self._next_unwritten
            or self._truncate_from
            or (self._chunks and self._chunk_room() > 0)
            or self._truncate_until
            or self._chunk_deletions
            or self._send_after_write
        )

    def _chunk_room(self) -> int:
        """Bytes of chunks that may be handed over now."""
        return CHUNK_WRITE_BYTES - sum(write.chunk_bytes for write in self._inflight_writes)

    def _take_chunks(self) -> tuple[Chunk, ...]:
        """The next chunks to be written. All that are handed over and not written are few enough
        that a vote behind them does not wait long; the others wait."""
        room, count = self._chunk_room(), 0
        while room > 0 and count < len(self._chunks):
            room -= len(self._chunks[count].data)
            count += 1
        taken = tuple(self._chunks[:count])
        del self._chunks[:count]
        return taken

    def persist_chunk(self, chunk: Chunk) -> None:
        self._chunks.append(chunk)

    def persist_snapshot(self, snapshot: RaftSnapshot, origin: SnapshotOrigin) -> None:
        """Report `snapshot` as complete when the next write is done. The chunks of a fetched
        snapshot were passed to `persist_chunk` before."""
        if origin is SnapshotOrigin.TAKEN:
            self._chunks.extend(snapshot.as_chunks())
        self._completed_snapshots.append((origin, snapshot))

    def delete_chunks(self, index: int, count: int) -> None:
        self._chunks = [chunk for chunk in self._chunks if chunk.index != index]
        self._chunk_deletions.append((index, count))

    def take_write(self) -> Write | None:
        """All changes that have not been handed over yet, as one write; None: no changes."""
        if not self._has_write():
            return None
        self._last_write_number += 1
        log = self.log
        entries = log.slice(self._next_unwritten, log.last + 1)
        vote = (self.term, self.voted_for) if self._vote_changed else None
        chunks = self._take_chunks() if self._chunks else ()
        completed: tuple[tuple[SnapshotOrigin, RaftSnapshot], ...] = ()
        if not self._chunks:
            completed = tuple(self._completed_snapshots)
            self._completed_snapshots.clear()
        write = Write(
            number=self._last_write_number,
            vote=vote,
            truncate_from=self._truncate_from,
            entries=entries,
            chunks=chunks,
            truncate_until=self._truncate_until,
            delete_chunks=tuple(self._chunk_deletions),
            sync=bool(entries or vote or completed),
            then_send=tuple(self._send_after_write),
        )
        self._inflight_writes.append(
            InflightWrite(
                write.number, log.last, vote, completed, sum(len(chunk.data) for chunk in chunks)
            )
        )
        self._next_unwritten = log.last + 1
        self._vote_changed = False
        self._truncate_from = self._truncate_until = 0
        self._chunk_deletions.clear()
        self._send_after_write.clear()
        return write

    def on_written(self, number: int) -> list[InflightWrite]:
        """The writes up to `number` are done; returns them, oldest first."""
        done = []
        while self._inflight_writes and self._inflight_writes[0].number <= number:
            write = self._inflight_writes.popleft()
            self.synced = max(self.synced, write.last)
            done.append(write)
        return done

    # -- snapshots ----------------------------------------------------------------------------

    def compact(self, snapshot: RaftSnapshot, until: int) -> None:
        """`snapshot` is on disk: make it the log's snapshot and remove entries up to `until`."""
        if self._is_superseded(snapshot):
            return
        old = self.log.snapshot
        self.served.on_replaced(old, self.now)
        self.log.snapshot = snapshot
        until = min(until, self._next_unwritten - 1)
        if until >= self.log.first:
            self.log.truncate_until(until)
            self._truncate_until = until
        history = self._membership_history
        while len(history) > 1 and history[1].index <= snapshot.index:
            history.pop(0)
        if old is not None:
            self._chunk_deletions.append((old.index, len(old.chunks)))

    def make_room(self, count: int) -> None:
        """Remove entries that the snapshot covers where `count` more would not fit otherwise.

        The leader's ring may begin at its snapshot, and hold that many more entries. If no commit
        index survived, it can commit none of them before the last one, its no-op, is on this node.
        """
        log = self.log
        until = min(log.first - 1 + count - log.room, log.snapshot_index, self._next_unwritten - 1)
        if until >= log.first:
            log.truncate_until(until)
            self._truncate_until = max(self._truncate_until, until)

    def _is_superseded(self, snapshot: RaftSnapshot) -> bool:
        """Whether the log has the same snapshot or a newer one; the chunks of an older one are
        deleted."""
        if snapshot.index < self.log.snapshot_index:
            self._chunk_deletions.append((snapshot.index, len(snapshot.chunks)))
        return snapshot.index <= self.log.snapshot_index

    def install(self, snapshot: RaftSnapshot) -> None:
        """`snapshot`, fetched from other members, is on disk: make it the log's snapshot.

        Entries behind it stay if the log agrees with the snapshot. Otherwise the log is reset:
        proposals up to the snapshot may be part of it or not, those behind it never commit.
        """
        log = self.log
        if self._is_superseded(snapshot):
            return
        if snapshot.index <= log.commit or log.term_at(snapshot.index) == snapshot.term:
            self.commit_to(snapshot.index)
            self.compact(snapshot, snapshot.index)
        else:
            old = log.snapshot
            self.served.on_replaced(old, self.now)
            next_index = snapshot.index + 1
            self.proposals.on_covered_by_snapshot(next_index, self.leader)
            self.proposals.on_log_reset(next_index, self.leader)
            if self._next_unwritten > next_index:
                self._truncate_from = next_index
            log.reset(snapshot)
            for write in self._inflight_writes:
                write.last = snapshot.index
            self.synced = snapshot.index
            self._truncate_until = snapshot.index
            self._next_unwritten = next_index
            self._membership_history = [snapshot.members]
            self.was_member = self.was_member or self.id in snapshot.members
            if old is not None:
                self._chunk_deletions.append((old.index, len(old.chunks)))
        if log.applied < snapshot.index:
            self.applying.restore_next = snapshot

    # -- the state machine --------------------------------------------------------------------

    def on_applied(self, index: int, chunks: tuple[bytes, ...] | None) -> None:
        self.applying.on_applied(index)
        self.reads.on_applied(self.leader)
        if chunks is not None:
            self.on_snapshot_taken(index, chunks)

    def on_snapshot_taken(self, index: int, chunks: tuple[bytes, ...]) -> None:
        """The chunks of the state machine's state at `index`, which was requested."""
        self.applying.on_snapshot_taken(index)
        assert chunks, "a snapshot has one chunk or more"
        log = self.log
        if index <= log.snapshot_index:
            return  # another one was installed meanwhile
        term = log.term_at(index)
        assert term is not None
        members = self.members_at(index)
        if not members.voters:
            # The group's log begins without its initial members, as logs of earlier versions do,
            # and this node is joining. A node restored from this snapshot would know no member.
            return
        self.persist_snapshot(RaftSnapshot(index, term, members, chunks), SnapshotOrigin.TAKEN)
