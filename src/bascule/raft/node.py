"""`RaftNode`: one member of a Raft group, as a pure object.

A driver passes in messages, ticks and requests, and carries out what `ready` returns; `effects`
states the order of its duties. The node uses no clock, disk, socket or randomness of its own, so
the same code runs in the simulator and in production.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import ClassVar, Final

from bascule.errors import (
    CannotReplicate,
    ConfigError,
    NotLeader,
    RemoteProtocolError,
)
from bascule.host.api import Random
from bascule.raft.config import NEVER, SHARED, RaftConfig
from bascule.raft.effects import (
    Answer,
    ApplyDone,
    Completion,
    RaftState,
    ReadPolicy,
    Ready,
    RequestOutcome,
    Role,
    SnapshotTaken,
)
from bascule.raft.log import RaftLog
from bascule.raft.membership import NOBODY, MemberChange, Members, encode_members
from bascule.raft.messages import (
    AnyMessage,
    AppendReply,
    AppendRequest,
    ChunkReply,
    ChunkRequest,
    Entry,
    EntryKind,
    Heartbeat,
    HeartbeatReply,
    RaftSnapshot,
    SnapshotOffer,
    SnapshotReply,
    TimeoutNow,
    VoteReply,
    VoteRequest,
)
from bascule.raft.report import NodeReport, report_of
from bascule.raft.roles.core import Core, InflightWrite, SnapshotOrigin
from bascule.raft.roles.election import Election
from bascule.raft.roles.follower import FollowerRole
from bascule.raft.roles.leader import LeaderRole
from bascule.raft.roles.reads import PendingRead
from bascule.raft.store import PersistentState

FROM_LEADER: Final = (AppendRequest, Heartbeat, SnapshotOffer)
"""Messages that only the leader of their term sends."""


class RaftNode:
    """A member of one group. Not thread-safe; no method blocks.

    `persistent` is what its store holds. Each ticket that `propose`, `change_members`, `transfer`
    and `read` return is answered once, in `Ready.answers`; tickets do not outlive this object.
    """

    __slots__ = (
        "_as_follower", "_as_leader", "_core", "_election", "_state", "_transfer",
        "hibernating",
    )  # fmt: skip

    def __init__(
        self,
        node_id: int,
        config: RaftConfig,
        persistent: PersistentState,
        random: Random,
        *,
        votes_from: int = 0,
    ) -> None:
        """`votes_from`: see `Election.votes_from`."""
        assert node_id > 0, node_id
        self._core = Core(node_id, config, persistent, random)
        self._election = Election(self._core)
        self._as_follower = FollowerRole(self._core)
        self._election.votes_from = self._as_follower.votes_from = votes_from
        self._as_leader: LeaderRole | None = None
        """Present exactly while `role` is LEADER."""
        self._transfer: tuple[int, int] | None = None
        """(ticket, deadline) of the transfer that is not answered."""
        self.hibernating = False
        """Whether ticks only move the clock, until a message or a request arrives."""
        self._state = self._core.state()

    # -- state --------------------------------------------------------------------------------

    @property
    def id(self) -> int:
        return self._core.id

    @property
    def config(self) -> RaftConfig:
        return self._core.config

    @property
    def term(self) -> int:
        return self._core.term

    @property
    def voted_for(self) -> int:
        return self._core.voted_for

    @property
    def role(self) -> Role:
        return self._core.role

    @property
    def leader(self) -> int:
        """The leader of this term as far as known, else 0."""
        return self._core.leader

    @property
    def log(self) -> RaftLog:
        return self._core.log

    @property
    def commit(self) -> int:
        return self._core.log.commit

    @property
    def applied(self) -> int:
        return self._core.log.applied

    @property
    def synced(self) -> int:
        """Entries up to here are on this node's disk, with the terms that `log` has."""
        return self._core.synced

    @property
    def members(self) -> Members:
        """The members in force: those of the last membership entry in the log, committed or not."""
        return self._core.members

    @property
    def state(self) -> RaftState:
        """What `Ready.state` reports, as of the last `ready`."""
        return self._state

    def proposal_places(self) -> dict[int, tuple[int, int]]:
        """(index, term) of the entry of each proposal that is not answered, by ticket."""
        return self._core.proposals.places()

    def report(self) -> NodeReport:
        """The state of the node, for people and metrics."""
        return report_of(
            self._core, self._as_leader, self._as_follower, is_hibernating=self.hibernating
        )

    # -- output -------------------------------------------------------------------------------

    def ready(self) -> Ready | None:
        """Return what is to be sent, written, applied and answered, once; None: nothing."""
        core = self._core
        if self._as_leader is not None:
            self._as_leader.replicate()
        apply = core.applying.take()
        write = core.take_write()
        state = core.state_after(self._state)
        if (
            write is None
            and apply is None
            and state is None
            and not core.outbox
            and not core.answers
        ):
            return None
        ready = Ready(
            send=tuple(core.outbox),
            write=write,
            apply=apply,
            answers=tuple(core.answers),
            state=state,
        )
        self._state = state or self._state
        core.outbox.clear()
        core.answers.clear()
        return ready

    # -- messages -----------------------------------------------------------------------------

    def step(self, message: AnyMessage) -> None:
        """Handle a message from another member.

        Raises: RemoteProtocolError where a member that follows the protocol cannot have sent it;
        the node is unchanged. LostEntries says which member is not to go on.
        """
        if self.hibernating:
            self.wake()
        core, kind = self._core, type(message)
        if message.target != core.id or message.source == core.id:
            raise RemoteProtocolError(
                f"node {core.id} got a message from {message.source} to {message.target}"
            )
        if isinstance(message, Heartbeat | VoteRequest) and message.settings not in (
            0, core.settings,
        ):  # fmt: skip
            raise RemoteProtocolError(
                f"node {message.source} has other settings of the group; equal on all members are "
                f"{', '.join(SHARED)}: restart all nodes with the same ones"
            )
        if isinstance(message, VoteReply) and message.removed_at:
            # Also from a voter of an earlier term: what it has committed holds in every term.
            self._election.on_removed(message.removed_at)
        if kind is ChunkRequest or kind is ChunkReply:
            pass  # a snapshot is the same in every term
        elif message.term > core.term:
            if not self._enter_term(message):
                return
        elif message.term < core.term:
            self._refuse_old_term(message)
            return
        if kind in FROM_LEADER:
            self._follow(message.source)
        self._HANDLERS[kind](self, message)

    def _enter_term(self, message: AnyMessage) -> bool:
        """Enter the later term of `message`, unless it is a pre-vote, or a vote request that would
        depose a working leader (thesis 4.2.3). Returns whether to handle the message."""
        core = self._core
        if isinstance(message, VoteRequest):
            is_disruptive = core.hears_leader() and message.source != core.leader
            if is_disruptive and not message.forced:
                self._election.refuse(message)
                return False
            if message.pre:
                return True
        elif isinstance(message, VoteReply) and message.pre and message.granted:
            return True
        self._become_follower(message.term)
        return True

    def _refuse_old_term(self, message: AnyMessage) -> None:
        """Reply with the current term to a leader or candidate of an earlier one."""
        core = self._core
        if isinstance(message, FROM_LEADER):
            core.send(AppendReply(core.id, message.source, core.term, False, 0))
        elif isinstance(message, VoteRequest):
            self._election.refuse(message)

    def _on_timeout_now(self, message: TimeoutNow) -> None:
        if self._core.leader == message.source and self._election.campaign(forced=True):
            self._proceed_election()

    def _on_vote_reply(self, message: VoteReply) -> None:
        self._election.on_vote_reply(message)
        self._proceed_election()

    def _on_append_reply(self, message: AppendReply) -> None:
        if self._as_leader is not None:
            self._as_leader.on_append_reply(message)
            self._step_down_if_removed()

    def _on_heartbeat_reply(self, message: HeartbeatReply) -> None:
        if self._as_leader is not None:
            self._as_leader.on_heartbeat_reply(message)

    def _on_snapshot_reply(self, message: SnapshotReply) -> None:
        if self._as_leader is not None:
            self._as_leader.on_snapshot_reply(message)
            self._step_down_if_removed()

    _HANDLERS: ClassVar[dict[type, Callable[..., None]]] = {
        VoteRequest: lambda self, message: self._election.on_vote_request(message),
        VoteReply: _on_vote_reply,
        AppendRequest: lambda self, message: self._as_follower.on_append(message),
        AppendReply: _on_append_reply,
        Heartbeat: lambda self, message: self._as_follower.on_heartbeat(message),
        HeartbeatReply: _on_heartbeat_reply,
        TimeoutNow: _on_timeout_now,
        SnapshotOffer: lambda self, message: self._as_follower.on_snapshot_offer(message),
        SnapshotReply: _on_snapshot_reply,
        ChunkRequest: lambda self, message: self._as_follower.on_chunk_request(message),
        ChunkReply: lambda self, message: self._as_follower.on_chunk(message),
    }

    # -- roles --------------------------------------------------------------------------------

    def _become_follower(self, term: int) -> None:
        core = self._core
        if term > core.term:
            core.set_term(term, NOBODY)
        core.leader = NOBODY
        core.role = Role.FOLLOWER
        core.reset_election_timer()
        if self._as_leader is not None:
            self._as_leader = None
            core.reads.on_leadership_lost(core.leader)

    def _follow(self, leader: int) -> None:
        """A message of `leader`, which leads this term, arrived."""
        core = self._core
        if core.role is Role.LEADER:
            raise RemoteProtocolError(
                f"node {leader} leads in term {core.term}, in which node {core.id} was elected"
            )
        core.role = Role.FOLLOWER
        core.leader = leader
        core.on_leader_heard()
        self._answer_transfer(RequestOutcome.COMMITTED)

    def campaign(self) -> None:
        """Start an election now, as if the election timeout had passed. Where leases are on,
        nothing happens within `election_ticks` of the last message from a leader."""
        if self._election.campaign():
            self._proceed_election()

    def on_process_lost(self, member: int) -> None:
        """See `Election.on_process_lost`. To be called while the node does not hibernate."""
        self._election.on_process_lost(member)

    def _proceed_election(self) -> None:
        if self._election.proceed():
            core = self._core
            core.role = Role.LEADER
            core.leader = core.id
            self._as_follower.stop_fetching()
            self._answer_transfer(RequestOutcome.TIMED_OUT)
            self._as_leader = LeaderRole(core)

    def _step_down_if_removed(self) -> None:
        """A leader whose removal is committed sends the commit index to all members and becomes a
        follower."""
        core, leader = self._core, self._as_leader
        if leader is None or core.is_voter or core.members.index > core.log.commit:
            return
        leader.replicate()
        self._become_follower(core.term)

    def _answer_transfer(self, outcome: RequestOutcome) -> None:
        if self._transfer is not None:
            core = self._core
            core.answers.append(Answer(self._transfer[0], outcome, 0, core.leader))
            self._transfer = None

    # -- time ---------------------------------------------------------------------------------

    def tick(self, count: int = 1) -> None:
        """Let `count` ticks pass. What was due several times in them happens once."""
        core = self._core
        core.now += count
        if self.hibernating:
            return
        if self._as_leader is not None:
            if not self._as_leader.tick():
                self._become_follower(core.term)
        elif core.now >= core.election_due_at:
            if self._election.campaign():
                self._proceed_election()
            else:
                core.leader = NOBODY
                core.reset_election_timer()
        core.proposals.expire(core.now, core.leader)
        core.reads.expire(core.now, core.leader)
        self._as_follower.expire()
        if self._transfer is not None and core.now >= self._transfer[1]:
            if self._as_leader is not None:
                self._as_leader.transfer_target = NOBODY
            self._answer_transfer(RequestOutcome.TIMED_OUT)

    def due(self) -> int | None:
        """Ticks until something is due if nothing else happens; None while hibernating."""
        if self.hibernating:
            return None
        core, leader = self._core, self._as_leader
        at = core.election_due_at
        if leader is not None:
            at = min(leader.heartbeat_at, leader.quorum_check_at)
        at = min(at, core.proposals.next_deadline(), core.reads.next_deadline())
        if self._as_follower.fetcher is not None:
            at = min(at, self._as_follower.fetcher.next_expiry())
        if self._transfer is not None:
            at = min(at, self._transfer[1])
        return max(1, at - core.now)

    # -- completions --------------------------------------------------------------------------

    def advance(self, completion: Completion) -> None:
        """A write, an apply or a snapshot that `ready` returned is done."""
        core = self._core
        if isinstance(completion, ApplyDone):
            core.on_applied(completion.index, completion.chunks)
            return
        if isinstance(completion, SnapshotTaken):
            core.on_snapshot_taken(completion.index, completion.chunks)
            return
        for write in core.on_written(completion.number):
            self._on_write_done(write)
        if core.role is Role.CANDIDATE:
            self._proceed_election()
        if self._as_leader is not None and self._as_leader.maybe_commit():
            self._step_down_if_removed()

    def _on_write_done(self, write: InflightWrite) -> None:
        if write.vote is not None:
            self._election.on_own_vote_durable(*write.vote)
        for origin, snapshot in write.snapshots:
            if origin is SnapshotOrigin.TAKEN:
                self._compact(snapshot)
            else:
                self._install(snapshot)

    def _install(self, snapshot: RaftSnapshot) -> None:
        core = self._core
        core.snapshots_installed += 1
        core.install(snapshot)
        self._as_follower.on_installed(snapshot.index)
        if core.leader not in (NOBODY, core.id):
            self._as_follower.reply_snapshot(core.leader, core.log.snapshot_index)

    def _compact(self, snapshot: RaftSnapshot) -> None:
        core = self._core
        core.snapshots_taken += 1
        until = snapshot.index - core.config.kept_entries
        if self._as_leader is not None:
            until = self._as_leader.compaction_index(snapshot)
        core.compact(snapshot, until)

    # -- requests -----------------------------------------------------------------------------

    def propose(self, payload: bytes, *, deadline_ticks: int | None = None) -> int:
        """Append `payload` to the group's log. The ticket is answered with the outcome, or with
        `INDETERMINATE` where that is not known after `deadline_ticks`.

        Raises: NotLeader; CannotReplicate where it was not appended and may be later; LimitExceeded
        where it is too large.
        """
        leader = self._as_leader
        if leader is None:
            raise self._not_leader()
        leader.check_proposal(len(payload))
        return self._append(EntryKind.NORMAL, payload, deadline_ticks)

    def _append(self, kind: EntryKind, payload: bytes, deadline_ticks: int | None) -> int:
        """Append an entry as leader; the ticket of its proposal."""
        if self.hibernating:
            self.wake()
        core = self._core
        index = core.log.last + 1
        core.append(Entry(index, core.term, kind, payload))
        ticket = core.new_ticket()
        deadline = NEVER if deadline_ticks is None else core.now + deadline_ticks
        core.proposals.add(index, core.term, ticket, deadline)
        return ticket

    def _not_leader(self) -> NotLeader:
        return NotLeader(self._core.leader or None, term=self._core.term)

    def change_members(
        self,
        change: MemberChange,
        node: int,
        *,
        expected_index: int | None = None,
        deadline_ticks: int | None = None,
    ) -> int:
        """Add, promote, demote or remove one member. The change is in force from its append on, and
        is reverted if its entry is truncated (thesis 4.1). One change is under way at a time.

        `expected_index` is the `members.index` that the caller decided on.

        Raises: NotLeader; MembersChanged; ConfigError where the change changes nothing, leaves no
        voter or demotes this leader; CannotReplicate while another change or the term's first entry
        is not committed, a transfer is under way, the log is full, or a learner to promote lags.
        """
        leader = self._as_leader
        if leader is None:
            raise self._not_leader()
        changed = leader.check_change(change, node, expected_index)
        ticket = self._append(EntryKind.MEMBERS, encode_members(changed), deadline_ticks)
        leader.update_members()
        return ticket

    def transfer(self, target: int, *, deadline_ticks: int | None = None) -> int:
        """Transfer leadership to the voter `target`. Proposals are refused until another node leads
        (`COMMITTED`) or the deadline, by default `election_ticks`, passes (`TIMED_OUT`: this node
        may go on leading).

        Raises: NotLeader, ConfigError where `target` cannot lead, CannotReplicate while another
        transfer is under way.
        """
        core, leader = self._core, self._as_leader
        if leader is None:
            raise self._not_leader()
        if target == core.id or target not in core.members.voters:
            raise ConfigError(
                f"leadership cannot be transferred to node {target}: expected another voter of "
                f"{core.members.voters}"
            )
        if self._transfer is not None:
            raise CannotReplicate("another transfer is under way")
        if self.hibernating:
            self.wake()
        ticket = core.new_ticket()
        ticks = core.config.election_ticks if deadline_ticks is None else deadline_ticks
        self._transfer = (ticket, core.now + ticks)
        leader.begin_transfer(target)
        return ticket

    def read(
        self,
        policy: ReadPolicy = ReadPolicy.LINEARIZABLE,
        *,
        min_index: int = 0,
        deadline_ticks: int | None = None,
    ) -> int:
        """Request to read the state machine. `LOCAL` works in every role; with `min_index` it is a
        barrier that waits until that index is applied.

        Raises: NotLeader, unless `LOCAL`; CannotReplicate where too many reads wait; ConfigError
        for `LEASE` where leases are off.
        """
        core, leader = self._core, self._as_leader
        if len(core.reads) >= core.config.reads_max:
            raise CannotReplicate(f"{len(core.reads)} reads are waiting")
        if policy is ReadPolicy.LEASE and not core.config.lease_reads:
            raise ConfigError("reads by lease need lease_reads, which is off")
        if policy is not ReadPolicy.LOCAL and leader is None:
            raise self._not_leader()
        deadline = NEVER if deadline_ticks is None else core.now + deadline_ticks
        read = PendingRead(core.new_ticket(), deadline)
        read.index = min_index
        if policy is ReadPolicy.LOCAL or leader is None:
            if self.hibernating and min_index > core.log.applied:
                self.wake()  # otherwise its deadline would never pass
            core.reads.wait_for_index(read, core.leader)
        elif policy is ReadPolicy.LEASE and leader.has_lease():
            read.index = core.log.commit
            core.reads.wait_for_index(read, core.leader)
        else:
            if self.hibernating:
                self.wake()
            core.reads.wait_for_round(read)
        return read.ticket

    # -- hibernation (see `raft.multi`, which sees to it that silent members are noticed) ----------

    def may_hibernate(self, unreachable: Collection[int] = ()) -> bool:
        """Whether this leader has nothing to do: every entry is committed, applied and on the disk
        of all members but the `unreachable` ones, all of them know that, and no request waits.
        The caller wakes the node when one of the `unreachable` members is back."""
        if (leader := self._as_leader) is None or not self.is_quiet_leader:
            return False
        return leader.has_replicated_to_all_but(unreachable)

    @property
    def is_quiet_leader(self) -> bool:
        """Whether this leader has nothing to do on its own disk, and no request waits."""
        core, leader = self._core, self._as_leader
        if leader is None or leader.transfer_target != NOBODY or core.reads or core.proposals:
            return False
        log = core.log
        is_done = log.commit == log.applied == core.synced == log.last
        return is_done and not core.outbox and not core.answers

    def hibernate_as_leader(self) -> None:
        """Send no heartbeats and check no quorum until a message or a request arrives."""
        assert self._as_leader is not None
        self.hibernating = True

    def hibernate_as_follower(self, leader: int, term: int, index: int) -> bool:
        """Stop the election timer until a message or a request arrives; False where this node is
        not a follower of `leader` in `term`, or its log is not committed up to exactly `index`."""
        core = self._core
        agrees = (core.role, core.leader, core.term, core.log.last, core.log.commit) == (
            Role.FOLLOWER, leader, term, index, index,
        )  # fmt: skip
        if agrees and not core.reads and not core.proposals and core.synced == index:
            self.hibernating = True
        return self.hibernating and agrees

    def wake(self, silent_ticks: int = 0) -> None:
        """End hibernation. A follower's election timer starts as if it had heard its leader
        `silent_ticks` ago."""
        if not self.hibernating:
            return
        self.hibernating = False
        core, leader = self._core, self._as_leader
        if leader is not None:
            leader.heartbeat_at = core.now
            leader.quorum_check_at = core.now + core.config.election_ticks
            for progress in leader.progress.values():
                progress.recently_active = True
        else:
            core.reset_election_timer()
            # A lease that this node extended earlier must not end sooner.
            core.leader_heard_at = max(core.leader_heard_at, core.now - silent_ticks)
            core.election_due_at = max(core.now + 1, core.election_due_at - silent_ticks)
