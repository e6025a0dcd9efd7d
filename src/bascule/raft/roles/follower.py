"""What a follower does with its leader's messages (thesis 3.5, 3.6.2, 7)."""

from __future__ import annotations

from bascule.errors import RemoteProtocolError
from bascule.raft.messages import (
    Append,
    AppendReply,
    ChunkReply,
    ChunkRequest,
    Entry,
    Heartbeat,
    HeartbeatReply,
    Kind,
    SnapshotOffer,
    SnapshotReply,
)
from bascule.raft.roles.core import Core
from bascule.raft.roles.snapshot_fetcher import Collector


class Following:
    """The follower's side of replication. The terms have been compared: the sender leads."""

    __slots__ = ("_core", "collector")

    def __init__(self, core: Core) -> None:
        self._core = core
        self.collector: Collector | None = None

    def on_append(self, message: Append) -> None:
        """Take what follows the entry both have, and say how far the logs agree.

        Raises: RemoteProtocolError where the entries do not follow each other.
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
        # What is committed is the same everywhere, so an append that begins there always fits,
        # whatever the log still knows of that place.
        if previous < log.commit:
            if end <= log.commit:
                self._matched(message.source, log.commit)
                return
            entries = entries[log.commit - previous :]
        elif log.term_at(previous) != message.previous_term:
            hint, term = log.last_index_with_term_up_to(previous, message.previous_term)
            core.send(AppendReply(core.id, message.source, core.term, False, previous, hint, term))
            return
        matched = self._take(entries, start=max(previous, log.commit))
        core.commit_to(max(log.commit, min(message.commit, matched)))
        self._matched(message.source, matched)

    def _take(self, entries: tuple[Entry, ...], *, start: int) -> int:
        """Make the log hold `entries` behind `start`; the last index that agrees.

        An entry that is there already stays, with all behind it: a delayed append says nothing of
        what came after it. Where the ring is full, a part is taken.
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
            return self._append(entries[position:], matched)
        return matched

    def _append(self, entries: tuple[Entry, ...], matched: int) -> int:
        """Append what there is room for; the last index of it, or `matched` where there is none."""
        core = self._core
        log = core.log
        if len(entries) <= log.room and not any(entry.kind for entry in entries):
            log.extend(entries)
            return entries[-1].index
        for entry in entries:
            if log.room <= 0 and entry.kind != Kind.NO_OP:
                break
            core.append(entry)
            matched = entry.index
        return matched

    def _matched(self, leader: int, index: int) -> None:
        core = self._core
        reply = AppendReply(core.id, leader, core.term, True, index)
        if index <= core.synced:
            core.send(reply)
        else:
            core.send_when_durable(reply)

    def on_heartbeat(self, message: Heartbeat) -> None:
        core = self._core
        log = core.log
        core.commit_to(max(log.commit, min(message.commit, log.last)))
        core.send(HeartbeatReply(core.id, message.source, core.term, message.round))

    def on_offer(self, message: SnapshotOffer) -> None:
        """Fetch the snapshot, unless the log has what it stands for."""
        core = self._core
        log = core.log
        if message.index <= log.commit or log.term_at(message.index) == message.index_term:
            core.commit_to(max(message.index, log.commit))
            self.has_reached(message.source, log.commit)
            return
        if self.collector is not None and self.collector.fits(message):
            self.collector.renew(message)
            return
        if self.collector is not None:
            if message.index < self.collector.index or self.collector.is_complete:
                return  # an older one, or what was fetched is on its way to the disk
            self.collector.abandon()
        self.collector = Collector(core, message)
        self.collector.ask()

    def has_reached(self, leader: int, index: int) -> None:
        """Tell the leader that it may go on behind `index`."""
        core = self._core
        reply = SnapshotReply(core.id, leader, core.term, index)
        if index <= core.synced:
            core.send(reply)
        else:
            core.send_when_durable(reply)

    def on_chunk_request(self, message: ChunkRequest) -> None:
        """Hand out a chunk of this node's snapshot, whatever its role."""
        core = self._core
        snapshot = core.log.snapshot
        data = None
        if snapshot is not None and snapshot.index == message.index:
            if not 0 <= message.number < len(snapshot.chunks):
                raise RemoteProtocolError(
                    f"node {message.source} asked for chunk {message.number} of the snapshot at "
                    f"{message.index}, which has {len(snapshot.chunks)}"
                )
            data = snapshot.chunks[message.number]
        core.send(
            ChunkReply(core.id, message.source, core.term, message.index, message.number, data)
        )

    def on_chunk(self, message: ChunkReply) -> None:
        if self.collector is not None:
            self.collector.on_chunk(message)

    def expire(self) -> None:
        """Ask again for chunks that did not come, unless the log brought what they stand for."""
        if self.collector is None:
            return
        if self.collector.index <= self._core.log.commit and not self.collector.is_complete:
            self.collector = None
        else:
            self.collector.expire()

    def on_installed(self, index: int) -> None:
        """The snapshot at `index` is in force."""
        if self.collector is not None and self.collector.index <= index:
            self.collector = None
