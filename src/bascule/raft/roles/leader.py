"""What a leader does (thesis 3.5, 3.6, 6.4): replicate, commit, confirm reads, check its quorum."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection

from msgspec import structs

from bascule.errors import (
    CannotReplicate,
    ConfigError,
    LimitExceeded,
    LostEntries,
    MembersChanged,
)
from bascule.raft.membership import (
    NOBODY,
    MemberChange,
    Members,
    encode_members,
    majority_value,
)
from bascule.raft.messages import (
    ENTRY_OVERHEAD_BYTES,
    LOST_TERM,
    AppendReply,
    AppendRequest,
    Entry,
    EntryKind,
    Heartbeat,
    HeartbeatReply,
    RaftSnapshot,
    SnapshotOffer,
    SnapshotReply,
    TimeoutNow,
)
from bascule.raft.roles.core import Core
from bascule.raft.roles.progress import FollowerProgress, ProgressState


class LeaderRole:
    """One term of leadership. It begins by appending a no-op, with which the first commit of the
    term includes entries of older terms."""

    __slots__ = (
        "_core", "_lease_start", "_unconfirmed_rounds", "first_index",
        "heartbeat_at", "may_lease", "progress", "quorum_check_at", "round", "transfer_target",
    )  # fmt: skip

    def __init__(self, core: Core) -> None:
        self._core = core
        self.round = 0
        """Number of the last round of heartbeats."""
        self._unconfirmed_rounds: deque[tuple[int, int]] = deque()
        """(round, tick it was sent) of the rounds that no quorum has replied to, oldest first.
        Kept only while leases are on."""
        self._lease_start = -1
        """The tick at which the last round that a quorum replied to was sent; -1: none was."""
        self.may_lease = core.config.lease_reads
        """Whether reads may rely on the lease: the setting, until a transfer begins."""
        self.transfer_target = NOBODY
        """The node that leadership is being transferred to."""
        self.progress: dict[int, FollowerProgress] = {}
        """By node id: every other member, and removed ones until they know of it."""
        self.first_index = core.log.last + 1
        """Index of the no-op of this term."""
        core.append(self._first_entry())
        self.update_members()
        self.heartbeat_at = core.now + core.config.heartbeat_ticks
        """The tick at which the next heartbeats are due."""
        self.quorum_check_at = core.now + core.config.election_ticks
        """The tick at which the leader steps down unless it has heard a quorum."""

    def _first_entry(self) -> Entry:
        """The first entry of the term: a no-op, and in an empty log the initial members.

        So every log that begins at entry 1 has the members from there on, also that of a node that
        joins later and knows no initial members. It could not take snapshots otherwise.
        """
        core = self._core
        index = self.first_index
        if index > 1:
            return Entry(index, core.term, EntryKind.NO_OP, b"")
        members = structs.replace(core.members, index=index)
        return Entry(index, core.term, EntryKind.MEMBERS, encode_members(members))

    @property
    def has_committed(self) -> bool:
        """Whether an entry of this term is committed. Before that, other nodes may know of a higher
        commit index (thesis 6.4)."""
        return self._core.log.commit >= self.first_index

    def update_members(self) -> None:
        """Make `progress` match the members in force. A removed member stays until it knows that
        its removal is committed, or for two election timeouts after the commit. One that is added
        again begins anew: its disk may be an empty one."""
        core = self._core
        members = core.members
        for member in dict.fromkeys((*members.all, *core.previous_members.all)):
            if member != core.id and member not in self.progress:
                self.progress[member] = FollowerProgress(self.first_index, recently_active=True)
        for member, progress in self.progress.items():
            if member in members:
                if progress.removed_until:
                    self.progress[member] = FollowerProgress(self.first_index, recently_active=True)
            elif members.index <= core.log.commit and not progress.removed_until:
                progress.removed_until = core.now + 2 * core.config.election_ticks
        self._forget_removed()

    def _forget_removed(self) -> None:
        """Forget the removed members that know of it, or did not reply in time."""
        for member, progress in list(self.progress.items()):
            if progress.removed_until and (
                self._core.now >= progress.removed_until
                or 0 < progress.removal_round <= progress.acked_round
            ):
                del self.progress[member]

    # -- requests -----------------------------------------------------------------------------

    def check_proposal(self, payload_bytes: int) -> None:
        """Raises: CannotReplicate where a proposal of this size may be appended later only;
        LimitExceeded where it never may."""
        core = self._core
        log, config = core.log, core.config
        size = payload_bytes + ENTRY_OVERHEAD_BYTES
        if log.last - log.commit >= config.pending_entries_max:
            raise CannotReplicate(
                f"{log.pending} entries are in progress, the limit is {config.pending_entries_max}"
            )
        if log.pending_bytes + size > config.pending_bytes_max:
            if size > config.pending_bytes_max:
                raise LimitExceeded("pending_bytes_max", config.pending_bytes_max, size)
            raise CannotReplicate(
                f"{log.pending_bytes} bytes are in progress, and {size} more would exceed "
                f"{config.pending_bytes_max}"
            )
        if self.transfer_target != NOBODY:
            raise CannotReplicate(f"a transfer to node {self.transfer_target} is under way")
        if log.room <= 0:
            raise CannotReplicate("the log is full until its next snapshot is on disk")

    def check_change(self, change: MemberChange, node: int, expected_index: int | None) -> Members:
        """The members after the change, if it may be appended now.

        Raises: as `RaftNode.change_members`.
        """
        core = self._core
        members, log = core.members, core.log
        if expected_index is not None and expected_index != members.index:
            raise MembersChanged(expected_index, members.index)
        changed = members.changed(change, node, log.last + 1)
        if (changed.voters, changed.learners) == (members.voters, members.learners):
            raise ConfigError(f"{change.name.lower()} of node {node} changes nothing: {members}")
        if not changed.voters:
            raise ConfigError(f"node {node} is the last voter and cannot be removed")
        if change is MemberChange.DEMOTE and node == core.id:
            raise ConfigError(f"node {node} leads and cannot be demoted: transfer its leadership")
        if members.index > log.commit:
            raise CannotReplicate(f"the change of members at {members.index} is not committed")
        if not self.has_committed:
            raise CannotReplicate("no entry of this term is committed yet")
        if self.transfer_target != NOBODY:
            raise CannotReplicate(f"a transfer to node {self.transfer_target} is under way")
        if log.room <= 0 or log.pending >= core.config.pending_entries_max:
            raise CannotReplicate("the log has no room")
        if change is MemberChange.ADD_VOTER and node in members.learners:
            behind = log.commit - self.progress[node].match
            if behind > core.config.append_entries_max:
                raise CannotReplicate(f"learner {node} is {behind} entries behind")
        return changed

    # -- sending ------------------------------------------------------------------------------

    def replicate(self) -> None:
        """Send to each member the entries that it lacks, as far as its window allows."""
        core = self._core
        log, config = core.log, core.config
        if core.reads.needs_round and self.has_committed:
            self._begin_read_round()
        for member, progress in self.progress.items():
            if progress.state is ProgressState.REPLICATE:
                while (
                    progress.next <= log.last
                    and len(progress.inflight) < config.inflight_appends_max
                    and progress.inflight_bytes < config.inflight_bytes_max
                ):
                    if not self._send_append(member, progress):
                        break
            elif progress.state is ProgressState.PROBE and not progress.paused:
                self._send_append(member, progress)
            sent = progress.commit_sent
            if log.commit > sent and progress.match > sent:
                self._send_heartbeat(member, progress)

    def _send_append(self, member: int, progress: FollowerProgress, *, probe: bool = False) -> bool:
        """Send the next entries, or with `probe` an append without entries; False where the log no
        longer has the entries and a snapshot was offered."""
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
        core.send(
            AppendRequest(core.id, member, core.term, previous, previous_term, log.commit, entries)
        )
        last = previous + len(entries)
        progress.commit_sent = max(progress.commit_sent, min(log.commit, last))
        if progress.state is ProgressState.PROBE:
            progress.paused = True
            progress.probe_last = last
        elif entries:
            progress.on_sent(last, size)
        return True

    def _send_heartbeat(self, member: int, progress: FollowerProgress) -> None:
        core = self._core
        commit = min(progress.match, core.log.commit)
        progress.commit_sent = max(progress.commit_sent, commit)
        settings = core.settings if core.config.lease_reads else 0
        core.send(Heartbeat(core.id, member, core.term, commit, self.round, settings))

    def _begin_read_round(self) -> None:
        """Send a round of heartbeats to confirm leadership for the waiting reads."""
        self._broadcast()
        self._core.reads.begin_round(self.round)
        self._count_round()

    def _broadcast(self) -> None:
        self.round += 1
        if self.may_lease:
            self._unconfirmed_rounds.append((self.round, self._core.now))
        removal = self._core.members.index
        for member, progress in self.progress.items():
            self._send_heartbeat(member, progress)
            if progress.removed_until and not progress.removal_round and progress.match >= removal:
                progress.removal_round = self.round

    def _offer_snapshot(self, member: int, progress: FollowerProgress) -> None:
        core = self._core
        snapshot = core.log.snapshot
        assert snapshot is not None, "a log that begins after index 1 has a snapshot"
        if progress.state is ProgressState.SNAPSHOT:
            # The one that it fetches already, as long as it does.
            snapshot = core.served.find(progress.snapshot_index, snapshot) or snapshot
        progress.become_snapshot(snapshot.index)
        sources = [
            other
            for other, found in self.progress.items()
            if other != member and found.recently_active and found.match >= snapshot.index
        ]
        core.send(
            SnapshotOffer(
                core.id,
                member,
                core.term,
                snapshot.index,
                snapshot.term,
                snapshot.members,
                core.served.checksums(snapshot),
                (core.id, *sources),
            )
        )

    # -- replies ------------------------------------------------------------------------------

    def on_append_reply(self, message: AppendReply) -> None:
        """Raises: LostEntries where the member says so; it counts as silent."""
        progress = self.progress.get(message.source)
        if progress is None:
            return
        if message.hint_term == LOST_TERM and not message.matched:
            raise LostEntries(message.source, self._core.id, message.index, message.hint_index)
        progress.recently_active = True
        if message.matched:
            self._on_matched(message.source, progress, message.index)
        else:
            self._on_mismatch(progress, message)

    def _on_matched(self, member: int, progress: FollowerProgress, index: int) -> None:
        advanced = progress.on_matched(index)
        if progress.state is ProgressState.PROBE:
            # A member whose ring is full took no entry: probe again at the next heartbeat.
            if advanced or index >= progress.probe_last:
                progress.become_replicate()
        elif (
            progress.state is ProgressState.SNAPSHOT and progress.match + 1 >= self._core.log.first
        ):
            progress.become_replicate()
        if advanced:
            self.maybe_commit()
        self._maybe_send_timeout_now(member, progress)

    def _on_mismatch(self, progress: FollowerProgress, message: AppendReply) -> None:
        """Send earlier entries next: from the match index on, or from before the conflict."""
        if progress.state is ProgressState.REPLICATE:
            if message.index > progress.match:
                progress.become_probe()
        elif progress.state is ProgressState.PROBE and message.index == progress.next - 1:
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
        progress.recently_active = True
        progress.paused = False
        if message.round > progress.acked_round:
            progress.acked_round = message.round
            self._count_round()
            if progress.removal_round:
                self._forget_removed()
                return
        if progress.state is ProgressState.REPLICATE:
            # Appends are out and the match index has not advanced since the last heartbeat reply:
            # an append was lost, or the member's disk is slow. A probe shows which.
            if progress.match < progress.next - 1 and progress.match == progress.match_at_heartbeat:
                self._send_append(message.source, progress, probe=True)
            progress.match_at_heartbeat = progress.match

    def on_snapshot_reply(self, message: SnapshotReply) -> None:
        progress = self.progress.get(message.source)
        if progress is None:
            return
        progress.recently_active = True
        advanced = progress.on_matched(message.index)
        if progress.state is ProgressState.SNAPSHOT and message.index >= progress.snapshot_index:
            progress.become_probe()
        if advanced:
            self.maybe_commit()
        self._maybe_send_timeout_now(message.source, progress)

    # -- quorums ------------------------------------------------------------------------------

    def maybe_commit(self) -> bool:
        """Commit the entries that a majority of the voters has on disk; this node counts with
        `Core.synced`. Only entries of this term are committed by counting (thesis 3.6.2). Returns
        whether the commit index rose."""
        core = self._core
        own, progress = core.id, self.progress
        index = majority_value(
            [
                core.synced if voter == own else progress[voter].match
                for voter in core.members.voters
            ]
        )
        if index <= core.log.commit or core.log.term_at(index) != core.term:
            return False
        core.commit_to(index)
        self.update_members()
        return True

    def _count_round(self) -> None:
        """Confirm the reads whose round a majority of the voters has replied to."""
        core = self._core
        own, progress = core.id, self.progress
        confirmed = majority_value(
            [
                self.round if voter == own else progress[voter].acked_round
                for voter in core.members.voters
            ]
        )
        while self._unconfirmed_rounds and self._unconfirmed_rounds[0][0] <= confirmed:
            self._lease_start = self._unconfirmed_rounds.popleft()[1]
        core.reads.on_round_confirmed(confirmed, core.leader)

    def check_quorum(self) -> bool:
        """Whether a majority of the voters was heard since the last check. Starts the next
        interval."""
        core = self._core
        heard = core.members.is_majority(
            lambda voter: voter == core.id or self.progress[voter].recently_active
        )
        for progress in self.progress.values():
            progress.recently_active = False
        return heard

    def has_lease(self) -> bool:
        """Whether no other node can have been elected, by this node's clock (thesis 6.4.1)."""
        core, config = self._core, self._core.config
        if not self.may_lease or not self.has_committed:
            return False
        if core.members.voters == (core.id,):
            return True
        lease_ticks = config.election_ticks - config.lease_margin_ticks
        return self._lease_start >= 0 and core.now < self._lease_start + lease_ticks

    def has_replicated_to_all_but(self, unreachable: Collection[int]) -> bool:
        """Whether every member outside `unreachable` has the whole log on disk, and was sent the
        last index as its commit index."""
        last = self._core.log.last
        return all(
            (
                progress.state is ProgressState.REPLICATE
                and progress.match == last
                and progress.commit_sent == last
            )
            or member in unreachable
            for member, progress in self.progress.items()
        )

    # -- time ---------------------------------------------------------------------------------

    def tick(self) -> bool:
        """Send what is due. False: no quorum was heard, and this node must step down."""
        core = self._core
        if core.now >= self.quorum_check_at:
            self.quorum_check_at = core.now + core.config.election_ticks
            if not self.check_quorum():
                return False
        if core.now >= self.heartbeat_at:
            self._forget_removed()
            self.heartbeat_at = core.now + core.config.heartbeat_ticks
            self._broadcast()
            self._count_round()
            for member, progress in self.progress.items():
                if progress.state is ProgressState.SNAPSHOT:
                    self._offer_snapshot(member, progress)
                elif member == self.transfer_target:
                    self._maybe_send_timeout_now(member, progress)
        return True

    # -- leadership transfer (thesis 3.10) ----------------------------------------------------

    def begin_transfer(self, target: int) -> None:
        """Have `target` start an election as soon as it has the whole log. This term has no lease
        from now on, since the target ignores it."""
        self.transfer_target = target
        self.may_lease = False
        self._maybe_send_timeout_now(target, self.progress[target])

    def _maybe_send_timeout_now(self, member: int, progress: FollowerProgress) -> None:
        core = self._core
        if member == self.transfer_target and progress.match == core.log.last:
            core.send(TimeoutNow(core.id, member, core.term))

    # -- log compaction -----------------------------------------------------------------------

    def compaction_index(self, snapshot: RaftSnapshot) -> int:
        """The last entry that may be removed now that `snapshot` is on disk.

        Members that lag by no more than `kept_entries` still get entries, so those behind their
        match index stay. A member that lags more gets the snapshot. A member that has not replied
        yet counts as one that lags by `kept_entries`.
        """
        core = self._core
        limit = snapshot.index - core.config.kept_entries
        matches = [progress.match for progress in self.progress.values()]
        if 0 in matches:
            return limit
        lagging = [match for match in matches if limit <= match < snapshot.index]
        return min(lagging, default=snapshot.index)
