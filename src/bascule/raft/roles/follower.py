"""What a follower does with its leader's messages (thesis 3.5, 3.6.2, 7)."""

from __future__ import annotations

from bascule.errors import LostEntries, RemoteProtocolError
from bascule.raft.messages import (
    LOST_TERM,
    AppendReply,
    AppendRequest,
    ChunkReply,
    ChunkRequest,
    Entry,
    EntryKind,
    Heartbeat,
    HeartbeatReply,
    SnapshotOffer,
    SnapshotReply,
)
from bascule.raft.roles.core import Core
from bascule.raft.roles.snapshot_fetcher import SnapshotFetcher


class FollowerRole:
    """The follower's side of replication. The caller has compared the terms: the sender leads.

    It exists in every role, since a node in any role hands out the chunks of its snapshot.
    """

    __slots__ = ("_core", "_promised", "fetcher", "votes_from")

    def __init__(self, core: Core) -> None:
        self._core = core
        self.votes_from = 0
        """See `Election.votes_from`."""
        self.fetcher: SnapshotFetcher | None = None
        """The snapshot that is being fetched, until it is installed or given up."""
        self._promised: dict[type, AppendReply | SnapshotReply] = {}
        """By kind: the last reply that waits, or has waited, for a write. A leader asks again in
        each round of heartbeats, however long a disk hangs."""

    def on_append(self, message: AppendRequest) -> None:
        """Take the entries behind the previous one, and reply how far the logs match.

        Raises: RemoteProtocolError where the entries are not contiguous.
        """
        core = self._core
        log = core.log
        previous, entries = message.previous_index, message.entries
        end = previous + len(entries)
        if entries and (entries[0].index != previous + 1 or entries[-1].index != end):
            raise RemoteProtocolError(
                f"node {message.source} sent entries {entries[0].index} to {entries[-1].index} "
                f"after entry {previous}"
            )
        # Committed entries are the same on all members, so an append that begins below the commit
        # index always matches, even where the log no longer knows the term of the previous entry.
        if previous < log.commit:
            if end <= log.commit:
                self._reply_matched(message.source, log.commit)
                return
            entries = entries[log.commit - previous :]
        elif log.term_at(previous) != message.previous_term:
            hint, term = log.last_index_with_term_up_to(previous, message.previous_term)
            core.send(AppendReply(core.id, message.source, core.term, False, previous, hint, term))
            return
        matched = self._merge(entries, start=max(previous, log.commit))
        core.commit_to(max(log.commit, min(message.commit, matched)))
        self._reply_matched(message.source, matched)

    def _merge(self, entries: tuple[Entry, ...], *, start: int) -> int:
        """Make the log contain `entries` behind `start`; returns the last index that matches.

        Entries that are there already stay, with all later ones: a delayed append does not say what
        follows it. Where the ring is full, only the entries that fit are taken.
        """
        core = self._core
        log = core.log
        matched = start
        for position, entry in enumerate(entries):
            if entry.index <= log.last:
                if log.entry(entry.index).term == entry.term:
                    matched = entry.index
                    continue
                core.truncate_from(entry.index)
                self._promised.clear()
            return self._append(entries[position:], matched)
        return matched

    def _append(self, entries: tuple[Entry, ...], matched: int) -> int:
        """Append the entries that fit; returns the last of them, or `matched` if none fits."""
        core = self._core
        log = core.log
        if len(entries) > log.room:
            core.make_room(len(entries))
        if len(entries) <= log.room and not any(entry.kind for entry in entries):
            log.extend(entries)
            return entries[-1].index
        for entry in entries:
            if log.room <= 0 and entry.kind != EntryKind.NO_OP:
                break
            core.append(entry)
            matched = entry.index
        return matched

    def _reply_matched(self, leader: int, index: int) -> None:
        core = self._core
        self._send_when_synced(AppendReply(core.id, leader, core.term, True, index))

    def _send_when_synced(self, reply: AppendReply | SnapshotReply) -> None:
        """Say that everything up to the reply's index is on disk, once it is. Nothing is queued
        where a reply waits that says as much: it does not wait for a later write."""
        core = self._core
        if reply.index <= core.synced:
            core.send(reply)
            return
        before = self._promised.get(type(reply))
        if (
            before is not None
            and (before.target, before.term) == (reply.target, reply.term)
            and reply.index <= before.index
        ):
            return
        self._promised[type(reply)] = reply
        core.send_when_durable(reply)

    def on_heartbeat(self, message: Heartbeat) -> None:
        """Commit as far as the leader says, and reply.

        A leader says no more than it knows to be on this disk, and what is committed there is never
        truncated. So a log that ends before that was replaced by an older copy: this node may have
        forgotten votes, too. It stops; the leader is told why.

        Raises: LostEntries.
        """
        core = self._core
        log = core.log
        if message.commit > log.last >= max(self.votes_from, 1):
            leader, confirmed = message.source, message.commit
            core.send(
                AppendReply(core.id, leader, core.term, False, confirmed, log.last, LOST_TERM)
            )
            raise LostEntries(core.id, leader, confirmed, log.last)
        core.commit_to(max(log.commit, min(message.commit, log.last)))
        core.send(HeartbeatReply(core.id, message.source, core.term, message.round))

    def on_snapshot_offer(self, message: SnapshotOffer) -> None:
        """Fetch the snapshot, unless the log already contains its entries."""
        core = self._core
        log = core.log
        if message.index <= log.commit or log.term_at(message.index) == message.index_term:
            core.commit_to(max(message.index, log.commit))
            self.reply_snapshot(message.source, log.commit)
            return
        if self.fetcher is not None and self.fetcher.is_offer_of_same(message):
            self.fetcher.on_repeated_offer(message)
            return
        if self.fetcher is not None:
            if message.index < self.fetcher.index or self.fetcher.is_complete:
                return  # the offer is older, or the fetched snapshot is being written
            self.fetcher.abandon()
        self.fetcher = SnapshotFetcher(core, message)
        self.fetcher.request_chunks()

    def reply_snapshot(self, leader: int, index: int) -> None:
        """Tell the leader that this node has everything up to `index` on disk."""
        core = self._core
        self._send_when_synced(SnapshotReply(core.id, leader, core.term, index))

    def on_chunk_request(self, message: ChunkRequest) -> None:
        """Send a chunk of this node's snapshot. Nodes in every role do."""
        core = self._core
        snapshot = core.served.find(message.index, core.log.snapshot)
        data = None
        if snapshot is not None:
            core.served.on_requested(message.index, core.now)
            if not 0 <= message.number < len(snapshot.chunks):
                raise RemoteProtocolError(
                    f"node {message.source} requested chunk {message.number} of the snapshot at "
                    f"{message.index}, which has {len(snapshot.chunks)} chunks"
                )
            data = snapshot.chunks[message.number]
        core.send(
            ChunkReply(core.id, message.source, core.term, message.index, message.number, data)
        )

    def on_chunk(self, message: ChunkReply) -> None:
        if self.fetcher is not None:
            self.fetcher.on_chunk(message)

    def expire(self) -> None:
        """Request late chunks again; stop fetching if the log has reached the snapshot's index."""
        self._core.served.expire(self._core.now)
        if self.fetcher is None:
            return
        if self.fetcher.index <= self._core.log.commit and not self.fetcher.is_complete:
            self.fetcher = None
        else:
            self.fetcher.expire_requests()

    def stop_fetching(self) -> None:
        """This node leads now. A snapshot that is complete is still written and installed."""
        if self.fetcher is not None:
            if not self.fetcher.is_complete:
                self.fetcher.abandon()
            self.fetcher = None

    def on_installed(self, index: int) -> None:
        """The snapshot at `index` was installed. The log may have been reset."""
        self._promised.clear()
        if self.fetcher is not None and self.fetcher.index <= index:
            self.fetcher = None
