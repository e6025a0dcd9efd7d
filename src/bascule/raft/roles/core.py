"""What a node is, whatever its role: term, vote, log, members, and what is to be done.

Everything that changes them goes through here, so that the order in which it reaches the disk is
decided in one place: `take_write` collects what is not on its way yet, and `on_written` says how
far the disk is.
"""

from __future__ import annotations

from collections import deque
from enum import Enum

import msgspec

from bascule.errors import RemoteProtocolError
from bascule.host.api import Random
from bascule.raft.config import RaftConfig
from bascule.raft.effects import Answer, Apply, Role, Write
from bascule.raft.log import RaftLog
from bascule.raft.membership import NOBODY, Members, decode_members
from bascule.raft.messages import AnyMessage, Chunk, Entry, Kind, Snapshot
from bascule.raft.roles.proposals import Proposals
from bascule.raft.roles.reads import Reads
from bascule.raft.store import Restored


class Purpose(Enum):
    """Why a snapshot is written."""

    OWN = 1
    """A snapshot this node took."""
    FETCHED = 2
    """One that it fetched, to be installed."""


class Underway(msgspec.Struct):
    """A write that is not done."""

    number: int
    last: int
    """Entries up to here are on disk when it is done; less where they were truncated since."""
    vote: tuple[int, int] | None
    snapshots: tuple[tuple[Purpose, Snapshot], ...]
    """Those whose chunks are complete with it."""


class Core:
    """The state that the roles share. `applied <= commit <= log.last`, `synced <= log.last`."""

    __slots__ = (
        "_after", "_applying", "_chunks", "_deletes", "_history", "_patience",
        "_restore", "_snapshots", "_truncate_from", "_truncate_until", "_underway", "_unwritten",
        "_vote_changed", "_write_number", "answers", "applied", "config", "contact",
        "election_at", "id", "leader", "log", "next_ticket", "now", "outbox", "proposals",
        "random", "reads", "role", "synced", "term", "voted_for",
    )  # fmt: skip

    def __init__(
        self, node_id: int, config: RaftConfig, restored: Restored, random: Random
    ) -> None:
        self.id = node_id
        self.config = config
        self.random = random
        self.now = 0
        """Ticks since the start."""
        self.role = Role.FOLLOWER
        self.leader = NOBODY
        self.term = restored.term
        self.voted_for = restored.voted_for
        self.log = RaftLog(config.log_capacity, restored.snapshot, restored.entries)
        self.synced = self.log.last
        """Entries up to here are on this node's disk."""
        self.applied = self.log.snapshot_index
        self._patience = 0
        self.contact = 0
        """The tick at which a leader was last heard."""
        self.election_at = 0
        self.outbox: list[AnyMessage] = []
        self.answers: list[Answer] = []
        self.next_ticket = 1
        self.proposals = Proposals(self.answers)
        self.reads = Reads(self)
        self._history = self._restored_history(restored)
        self._after: list[AnyMessage] = []
        self._underway: deque[Underway] = deque()
        self._write_number = 0
        self._unwritten = self.log.last + 1
        self._vote_changed = False
        self._truncate_from = 0
        self._truncate_until = 0
        self._chunks: list[Chunk] = []
        self._deletes: list[tuple[int, int]] = []
        self._snapshots: list[tuple[Purpose, Snapshot]] = []
        self._applying = 0
        self._restore = restored.snapshot
        if self._restore is not None:
            self.applied = 0
        self._forget_again()
        self.reset_election_timer()

    def _forget_again(self) -> None:
        """Drop what a crash brought back: the log was cut behind its snapshot, the store had not
        flushed it. With so much in the ring there would be no room up to the next snapshot."""
        until = self.log.snapshot_index - self.config.kept_entries
        if until >= self.log.first:
            self.log.truncate_until(until)
            self._truncate_until = until

    def _restored_history(self, restored: Restored) -> list[Members]:
        base = restored.founding if restored.founding is not None else Members(())
        if restored.snapshot is not None:
            base = restored.snapshot.members
        later = [
            decode_members(entry.payload)
            for entry in restored.entries
            if entry.kind == Kind.MEMBERS and entry.index > self.log.snapshot_index
        ]
        return [base, *later]

    # -- members ------------------------------------------------------------------------------

    @property
    def members(self) -> Members:
        """Those in force: of the last members entry in the log, committed or not."""
        return self._history[-1]

    @property
    def is_voter(self) -> bool:
        return self.id in self._history[-1].voters

    @property
    def may_stand(self) -> bool:
        """Whether an election may need this node: it votes, or did before a change that is not
        committed. It may be the only one whose log has that change, so that no other can be elected
        (thesis 4.2.2)."""
        if self.is_voter:
            return True
        history = self._history
        is_open = len(history) > 1 and history[-1].index > self.log.commit
        return is_open and self.id in history[-2].voters

    def members_at(self, index: int) -> Members:
        """Those in force at `index`, which is not before the snapshot."""
        return next(found for found in reversed(self._history) if found.index <= index)

    # -- time ---------------------------------------------------------------------------------

    def reset_election_timer(self) -> None:
        """Be patient anew, for a time by dice, so that rivals do not stand at once again."""
        ticks = self.config.election_ticks
        self._patience = ticks + int(self.random.uniform(0, ticks))
        self.election_at = self.now + self._patience

    def heard_leader(self) -> None:
        self.contact = self.now
        self.election_at = self.now + self._patience

    def hears_leader(self) -> bool:
        """Whether a leader was heard so lately that no election is due (thesis 4.2.3)."""
        if self.role is Role.LEADER or self.has_promised:
            return True
        return self.leader != NOBODY and self.now - self.contact < self.config.election_ticks

    @property
    def has_promised(self) -> bool:
        """Whether a leader may trust, for its lease, that this node takes no part in an election.

        That holds from when it was last heard, whatever this node has learnt since, even a later
        term. A node that just started may have promised what it has forgotten.
        """
        recent = self.now - self.contact < self.config.election_ticks
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
        """Put `entry` behind the last one.

        Raises: RemoteProtocolError where it changes the members and holds none.
        """
        if entry.kind == Kind.MEMBERS:
            try:
                members = decode_members(entry.payload)
            except msgspec.MsgspecError as error:
                raise RemoteProtocolError(
                    f"entry {entry.index} holds no members: {error}"
                ) from error
            self._history.append(members)
        self.log.append(entry)

    def truncate_from(self, index: int) -> None:
        """Replace the log from `index` on: its entries will not be committed.

        A write of them that is still under way no longer says that its entries are on disk, even
        where the same entry comes back later: the disk passes through the other one in between.
        """
        self.log.truncate_from(index)
        while self._history[-1].index >= index and len(self._history) > 1:
            self._history.pop()
        self._forget_written(index)
        self.proposals.truncated(index)

    def _forget_written(self, index: int) -> None:
        for write in self._underway:
            write.last = min(write.last, index - 1)
        self.synced = min(self.synced, index - 1)
        if index < self._unwritten:
            self._truncate_from = min(self._truncate_from or index, index)
            self._unwritten = index

    def commit_to(self, index: int) -> bool:
        """Commit up to `index`; whether that is news."""
        log = self.log
        if index <= log.commit:
            return False
        start = log.commit + 1
        log.commit_to(index)
        self.proposals.committed(start, index + 1, log, self.leader)
        return True

    # -- messages -----------------------------------------------------------------------------

    def send(self, message: AnyMessage) -> None:
        """At once."""
        self.outbox.append(message)

    def send_when_durable(self, message: AnyMessage) -> None:
        """Once everything decided until now is on disk."""
        if self._underway or self._has_write():
            self._after.append(message)
        else:
            self.outbox.append(message)

    # -- the disk -----------------------------------------------------------------------------

    def _has_write(self) -> bool:
        return bool(
            self._vote_changed
            or self.log.last >= self._unwritten
            or self._truncate_from
            or self._chunks
            or self._truncate_until
            or self._deletes
            or self._after
        )

    def persist_chunk(self, chunk: Chunk) -> None:
        self._chunks.append(chunk)

    def persist_snapshot(self, snapshot: Snapshot, purpose: Purpose) -> None:
        """The chunks of `snapshot` are complete with the next write."""
        if purpose is Purpose.OWN:
            self._chunks.extend(snapshot.as_chunks())
        self._snapshots.append((purpose, snapshot))

    def delete_chunks(self, index: int, count: int) -> None:
        self._chunks = [chunk for chunk in self._chunks if chunk.index != index]
        self._deletes.append((index, count))

    def take_write(self) -> Write | None:
        """What is to be written and is not on its way yet."""
        if not self._has_write():
            return None
        self._write_number += 1
        log = self.log
        entries = log.slice(self._unwritten, log.last + 1)
        vote = (self.term, self.voted_for) if self._vote_changed else None
        write = Write(
            number=self._write_number,
            vote=vote,
            truncate_from=self._truncate_from,
            entries=entries,
            chunks=tuple(self._chunks),
            truncate_until=self._truncate_until,
            delete_chunks=tuple(self._deletes),
            sync=bool(entries or vote or self._snapshots),
            then_send=tuple(self._after),
        )
        self._underway.append(Underway(write.number, log.last, vote, tuple(self._snapshots)))
        self._unwritten = log.last + 1
        self._vote_changed = False
        self._truncate_from = self._truncate_until = 0
        self._snapshots.clear()
        self._chunks.clear()
        self._deletes.clear()
        self._after.clear()
        return write

    def on_written(self, number: int) -> list[Underway]:
        """The writes that are done now, oldest first."""
        done = []
        while self._underway and self._underway[0].number <= number:
            write = self._underway.popleft()
            self.synced = max(self.synced, write.last)
            done.append(write)
        return done

    # -- snapshots ----------------------------------------------------------------------------

    def compact(self, snapshot: Snapshot, until: int) -> None:
        """`snapshot` is on disk: keep of the log what is behind `until`."""
        if self._is_old(snapshot):
            return
        old = self.log.snapshot
        self.log.snapshot = snapshot
        until = min(until, self._unwritten - 1)
        if until >= self.log.first:
            self.log.truncate_until(until)
            self._truncate_until = until
        while len(self._history) > 1 and self._history[1].index <= snapshot.index:
            self._history.pop(0)
        if old is not None:
            self._deletes.append((old.index, len(old.chunks)))

    def _is_old(self, snapshot: Snapshot) -> bool:
        """Whether a newer one, or the same, came into force meanwhile; its chunks then may go."""
        if snapshot.index < self.log.snapshot_index:
            self._deletes.append((snapshot.index, len(snapshot.chunks)))
        return snapshot.index <= self.log.snapshot_index

    def install(self, snapshot: Snapshot) -> None:
        """`snapshot`, fetched from others, is on disk: become it.

        The log behind it stays where it agrees with the snapshot. Where it does not, what was
        proposed here up to the snapshot may be part of it or not; what lies behind never will be.
        """
        log = self.log
        if self._is_old(snapshot):
            return
        if snapshot.index <= log.commit or log.term_at(snapshot.index) == snapshot.term:
            self.commit_to(snapshot.index)
            self.compact(snapshot, snapshot.index)
        else:
            old = log.snapshot
            behind = snapshot.index + 1
            self.proposals.covered(behind, self.leader)
            self.proposals.doomed(behind, self.leader)
            if self._unwritten > behind:
                self._truncate_from = behind
            log.reset(snapshot)
            for write in self._underway:
                write.last = snapshot.index
            self.synced = snapshot.index
            self._truncate_until = snapshot.index
            self._unwritten = behind
            self._history = [snapshot.members]
            if old is not None:
                self._deletes.append((old.index, len(old.chunks)))
        if self.applied < snapshot.index:
            self._restore = snapshot

    # -- the state machine --------------------------------------------------------------------

    @property
    def is_applying(self) -> bool:
        return self._applying > 0

    def take_apply(self) -> Apply | None:
        """The next work for the state machine, unless some is out."""
        if self._applying:
            return None
        if (snapshot := self._restore) is not None:
            self._restore = None
            if snapshot.index > self.applied:
                self._applying = snapshot.index
                return Apply(last=snapshot.index, restore=snapshot)
        log = self.log
        if self.applied >= log.commit:
            return None
        step = self.config.commit_count_to_take_snapshot
        boundary = (self.applied // step + 1) * step
        last = min(log.commit, boundary, self.applied + self.config.apply_entries_max)
        self._applying = last
        return Apply(
            last=last,
            entries=log.slice(self.applied + 1, last + 1),
            take_snapshot=last == boundary,
        )

    def on_applied(self, index: int) -> None:
        assert index == self._applying, (index, self._applying)
        self._applying = 0
        self.applied = index
        self.reads.on_applied()
