"""What a leader does (thesis 3.5, 3.6, 6.4): replicate, commit, confirm reads, watch its quorum."""

from __future__ import annotations

import zlib
from collections import deque

from bascule.raft.membership import NOBODY
from bascule.raft.messages import (
    Append,
    AppendReply,
    Entry,
    Heartbeat,
    HeartbeatReply,
    Kind,
    Snapshot,
    SnapshotOffer,
    SnapshotReply,
    TimeoutNow,
)
from bascule.raft.roles.core import Core
from bascule.raft.roles.progress import Pace, Progress


class Leading:
    """One term of leadership. It begins with a no-op, before which nothing is committed in it."""

    __slots__ = (
        "_checksums", "_core", "_lease_from", "_rounds", "first_index", "heartbeat_at",
        "may_lease", "progress", "quorum_at", "round", "target",
    )  # fmt: skip

    def __init__(self, core: Core) -> None:
        self._core = core
        self.round = 0
        """Number of the last round of heartbeats."""
        self._rounds: deque[tuple[int, int]] = deque()
        """(round, tick it was sent) of those no quorum has answered, oldest first."""
        self._lease_from = -1
        """The tick at which the last round that a quorum answered was sent."""
        self.may_lease = core.config.lease_reads
        self.target = NOBODY
        """To whom leadership is being handed."""
        self._checksums: tuple[int, tuple[int, ...]] = (0, ())
        self.progress: dict[int, Progress] = {}
        self.first_index = core.log.last + 1
        core.append(Entry(self.first_index, core.term, Kind.NO_OP, b""))
        self.follow_members()
        self.heartbeat_at = core.now + core.config.heartbeat_ticks
        self.quorum_at = core.now + core.config.election_ticks

    @property
    def has_committed(self) -> bool:
        """Whether an entry of this term is committed, so that the commit index is known to be that
        of the whole group."""
        return self._core.log.commit >= self.first_index

    def follow_members(self) -> None:
        """Keep progress of each member. One that is removed keeps its own until the removal is
        committed, so that it can hear of it."""
        core = self._core
        members = core.members
        for member in members.all:
            if member != core.id and member not in self.progress:
                self.progress[member] = Progress(self.first_index, active=True)
        if members.index <= core.log.commit:
            for member in [member for member in self.progress if member not in members]:
                del self.progress[member]

    # -- sending ------------------------------------------------------------------------------

    def replicate(self) -> None:
        """Send to each member what it lacks and its window takes."""
        core = self._core
        log, config = core.log, core.config
        if core.reads.wants_round and self.has_committed:
            self._begin_round()
        for member, progress in self.progress.items():
            if progress.pace is Pace.REPLICATE:
                while (
                    progress.next <= log.last
                    and len(progress.inflight) < config.inflight_appends_max
                    and progress.inflight_bytes < config.inflight_bytes_max
                ):
                    if not self._send_append(member, progress):
                        break
            elif progress.pace is Pace.PROBE and not progress.paused:
                self._send_append(member, progress)
            sent = progress.commit_sent
            if log.commit > sent and progress.match > sent:
                self._send_heartbeat(member, progress)

    def _send_append(self, member: int, progress: Progress, *, probe: bool = False) -> bool:
        """Send what is next, or nothing but the question with `probe`; False where the log no
        longer has it."""
        core = self._core
        log, config = core.log, core.config
        previous = progress.next - 1
        previous_term = log.term_at(previous)
        if previous_term is None or progress.next < log.first:
            self._offer_snapshot(member, progress)
            return False
        entries: tuple[Entry, ...] = ()
        size = 0
        if not probe:
            entries, size = log.slice_within(
                progress.next,
                entries_max=config.append_entries_max,
                bytes_max=config.append_bytes_max,
            )
        core.send(Append(core.id, member, core.term, previous, previous_term, log.commit, entries))
        last = previous + len(entries)
        progress.commit_sent = max(progress.commit_sent, min(log.commit, last))
        if progress.pace is Pace.PROBE:
            progress.paused = True
            progress.probe_last = last
        elif entries:
            progress.sent(last, size)
        return True

    def _send_heartbeat(self, member: int, progress: Progress) -> None:
        core = self._core
        commit = min(progress.match, core.log.commit)
        progress.commit_sent = max(progress.commit_sent, commit)
        core.send(Heartbeat(core.id, member, core.term, commit, self.round))

    def _begin_round(self) -> None:
        """Ask a quorum whether this node still leads, for the reads that wait."""
        self._broadcast()
        self._core.reads.begin_round(self.round)
        self._count_round()

    def _broadcast(self) -> None:
        self.round += 1
        if self.may_lease:
            self._rounds.append((self.round, self._core.now))
        for member, progress in self.progress.items():
            self._send_heartbeat(member, progress)

    def _offer_snapshot(self, member: int, progress: Progress) -> None:
        core = self._core
        snapshot = core.log.snapshot
        assert snapshot is not None, "a log begins behind its snapshot"
        if self._checksums[0] != snapshot.index:
            self._checksums = (snapshot.index, tuple(map(zlib.crc32, snapshot.chunks)))
        progress.fetch_snapshot(snapshot.index)
        sources = [
            other
            for other, found in self.progress.items()
            if other != member and found.active and found.match >= snapshot.index
        ]
        core.send(
            SnapshotOffer(
                core.id,
                member,
                core.term,
                snapshot.index,
                snapshot.term,
                snapshot.members,
                self._checksums[1],
                (core.id, *sources),
            )
        )

    # -- answers ------------------------------------------------------------------------------

    def on_append_reply(self, message: AppendReply) -> None:
        progress = self.progress.get(message.source)
        if progress is None:
            return
        progress.active = True
        if message.matched:
            self._on_matched(message.source, progress, message.index)
        else:
            self._on_mismatch(progress, message)

    def _on_matched(self, member: int, progress: Progress, index: int) -> None:
        news = progress.matched(index)
        if progress.pace is Pace.PROBE:
            # A member without room took none of what was sent; ask again at the next heartbeat.
            stuck = not news and index < progress.probe_last
            progress.replicate() if not stuck else None
        elif progress.pace is Pace.SNAPSHOT and progress.match + 1 >= self._core.log.first:
            progress.replicate()
        if news:
            self.maybe_commit()
        self._hand_over(member, progress)

    def _on_mismatch(self, progress: Progress, message: AppendReply) -> None:
        """Step back: to what is known to match, or past the terms that cannot."""
        if progress.pace is Pace.REPLICATE:
            if message.index > progress.match:
                progress.probe()
        elif progress.pace is Pace.PROBE and message.index == progress.next - 1:
            guess, _ = self._core.log.last_index_with_term_up_to(
                message.hint_index, message.hint_term
            )
            guess = min(guess, message.hint_index, message.index - 1)
            progress.next = max(guess, progress.match) + 1
            progress.paused = False

    def on_heartbeat_reply(self, message: HeartbeatReply) -> None:
        progress = self.progress.get(message.source)
        if progress is None:
            return
        progress.active = True
        progress.paused = False
        if message.round > progress.acked_round:
            progress.acked_round = message.round
            self._count_round()
        if progress.pace is Pace.REPLICATE:
            # Sent, not answered, and nothing new since the last beat: an append may be lost, or the
            # disk slow. The question alone tells which.
            if progress.match < progress.next - 1 and progress.match == progress.match_at_beat:
                self._send_append(message.source, progress, probe=True)
            progress.match_at_beat = progress.match

    def on_snapshot_reply(self, message: SnapshotReply) -> None:
        progress = self.progress.get(message.source)
        if progress is None:
            return
        progress.active = True
        news = progress.matched(message.index)
        if progress.pace is Pace.SNAPSHOT and message.index >= progress.snapshot_index:
            progress.probe()
        if news:
            self.maybe_commit()
        self._hand_over(message.source, progress)

    # -- quorums ------------------------------------------------------------------------------

    def maybe_commit(self) -> bool:
        """Commit what a majority has on disk, this node included only as far as its own disk is;
        by count only entries of this term (thesis 3.6.2). Whether anything is."""
        core = self._core
        own, progress = core.id, self.progress
        voters = core.members.voters
        found = [core.synced if voter == own else progress[voter].match for voter in voters]
        if not found:
            return False
        found.sort(reverse=True)
        index = found[len(found) // 2]
        if index <= core.log.commit or core.log.term_at(index) != core.term:
            return False
        core.commit_to(index)
        self.follow_members()
        return True

    def _count_round(self) -> None:
        """Let go the reads whose round a majority of voters has answered."""
        core = self._core
        own, progress = core.id, self.progress
        found = sorted(
            [
                self.round if voter == own else progress[voter].acked_round
                for voter in core.members.voters
            ],
            reverse=True,
        )
        if not found:
            return
        answered = found[len(found) // 2]
        while self._rounds and self._rounds[0][0] <= answered:
            self._lease_from = self._rounds.popleft()[1]
        core.reads.on_round(answered)

    def hears_quorum(self) -> bool:
        """Whether a majority of voters was heard since this was last asked."""
        core = self._core
        heard = core.members.is_majority(
            lambda voter: voter == core.id or self.progress[voter].active
        )
        for progress in self.progress.values():
            progress.active = False
        return heard

    def has_lease(self) -> bool:
        """Whether no other node can lead yet, by this node's clock (thesis 6.4.1)."""
        core, config = self._core, self._core.config
        if not self.may_lease or not self.has_committed:
            return False
        if core.members.voters == (core.id,):
            return True
        lasts = config.election_ticks - config.lease_margin_ticks
        return self._lease_from >= 0 and core.now < self._lease_from + lasts

    # -- time ---------------------------------------------------------------------------------

    def tick(self) -> bool:
        """Do what is due; False where no quorum is heard any more."""
        core = self._core
        if core.now >= self.quorum_at:
            self.quorum_at = core.now + core.config.election_ticks
            if not self.hears_quorum():
                return False
        if core.now >= self.heartbeat_at:
            self.heartbeat_at = core.now + core.config.heartbeat_ticks
            self._broadcast()
            self._count_round()
            for member, progress in self.progress.items():
                if progress.pace is Pace.SNAPSHOT:
                    self._offer_snapshot(member, progress)
                elif member == self.target:
                    self._hand_over(member, progress)
        return True

    # -- leadership transfer (thesis 3.10) ----------------------------------------------------

    def hand_to(self, target: int) -> None:
        """Let `target` lead as soon as it has the whole log. Leases end here for this term: the
        target may stand for election at any time from now on."""
        self.target = target
        self.may_lease = False
        self._hand_over(target, self.progress[target])

    def _hand_over(self, member: int, progress: Progress) -> None:
        core = self._core
        if member == self.target and progress.match == core.log.last:
            core.send(TimeoutNow(core.id, member, core.term))

    # -- what is kept behind a snapshot -------------------------------------------------------

    def kept_from(self, snapshot: Snapshot) -> int:
        """The last entry that may go now that `snapshot` is there.

        Members that lag by no more than the kept ratio still need what is behind their match; one
        that was not heard yet may; one that lags more gets the snapshot.
        """
        core = self._core
        limit = snapshot.index - core.config.kept_entries
        matches = [progress.match for progress in self.progress.values()]
        if 0 in matches:
            return limit
        lagging = [match for match in matches if limit <= match < snapshot.index]
        return min(lagging, default=snapshot.index)
