"""A member of a group between its roles: which message goes where, and when a role ends."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from bascule.errors import RemoteProtocolError
from bascule.raft.effects import Answer, Applied, Completion, Outcome, Role
from bascule.raft.membership import NOBODY
from bascule.raft.messages import (
    AnyMessage,
    Append,
    AppendReply,
    ChunkReply,
    ChunkRequest,
    Heartbeat,
    HeartbeatReply,
    Snapshot,
    SnapshotOffer,
    SnapshotReply,
    TimeoutNow,
    VoteReply,
    VoteRequest,
)
from bascule.raft.roles.core import Core, Purpose, Underway
from bascule.raft.roles.election import Election
from bascule.raft.roles.follower import Following
from bascule.raft.roles.leader import Leading

FROM_LEADER: Final = (Append, Heartbeat, SnapshotOffer)


class Member:
    """The roles of one node around its `Core`. `leading` is there while it leads."""

    __slots__ = (
        "core", "election", "following", "leading", "resting", "snapshots_installed",
        "snapshots_taken", "transfer",
    )  # fmt: skip

    def __init__(self, core: Core) -> None:
        self.core = core
        self.election = Election(core)
        self.following = Following(core)
        self.leading: Leading | None = None
        self.transfer: tuple[int, int] | None = None
        """(ticket, deadline) of the transfer that is not answered."""
        self.resting = False
        self.snapshots_taken = 0
        self.snapshots_installed = 0

    # -- messages -----------------------------------------------------------------------------

    def step(self, message: AnyMessage) -> None:
        """Take a message from another member.

        Raises: RemoteProtocolError where it cannot come from a member that keeps to the protocol;
        the node is as before.
        """
        if self.resting:
            self.wake()
        core, kind = self.core, type(message)
        if message.target != core.id or message.source == core.id:
            raise RemoteProtocolError(
                f"node {core.id} got a message from {message.source} to {message.target}"
            )
        if kind is ChunkRequest or kind is ChunkReply:
            pass  # a snapshot is what it is in every term
        elif message.term > core.term:
            if not self._enter(message):
                return
        elif message.term < core.term:
            self._refuse_old(message)
            return
        if kind in FROM_LEADER:
            self._follow(message.source)
        _STEPS[kind](self, message)

    def _enter(self, message: AnyMessage) -> bool:
        """A message of a later term: go there, unless it asks for a vote that would only disturb.
        Whether it is to be handled."""
        core = self.core
        if isinstance(message, VoteRequest):
            disturbs = core.hears_leader() and message.source != core.leader
            if disturbs and not message.forced:
                self.election.refuse(message)
                return False
            if message.pre:
                return True
        elif isinstance(message, VoteReply) and message.pre and message.granted:
            return True
        self._become_follower(message.term)
        return True

    def _refuse_old(self, message: AnyMessage) -> None:
        """A message of an earlier term: tell a leader or candidate of it that it is over."""
        core = self.core
        if isinstance(message, FROM_LEADER):
            core.send(AppendReply(core.id, message.source, core.term, False, 0))
        elif isinstance(message, VoteRequest):
            self.election.refuse(message)

    def on_timeout_now(self, message: TimeoutNow) -> None:
        if self.core.leader == message.source and self.election.stand(forced=True):
            self.proceed()

    def on_vote_reply(self, message: VoteReply) -> None:
        self.election.on_reply(message)
        self.proceed()

    def on_append_reply(self, message: AppendReply) -> None:
        if self.leading is not None:
            self.leading.on_append_reply(message)
            self._maybe_leave()

    def on_heartbeat_reply(self, message: HeartbeatReply) -> None:
        if self.leading is not None:
            self.leading.on_heartbeat_reply(message)

    def on_snapshot_reply(self, message: SnapshotReply) -> None:
        if self.leading is not None:
            self.leading.on_snapshot_reply(message)
            self._maybe_leave()

    # -- roles --------------------------------------------------------------------------------

    def _become_follower(self, term: int) -> None:
        core = self.core
        if term > core.term:
            core.set_term(term, NOBODY)
        core.leader = NOBODY
        core.role = Role.FOLLOWER
        core.reset_election_timer()
        if self.leading is not None:
            self.leading = None
            core.reads.give_up_leading()

    def _follow(self, leader: int) -> None:
        """`leader` leads this term, and was heard now."""
        core = self.core
        if core.role is Role.LEADER:
            raise RemoteProtocolError(
                f"node {leader} leads in term {core.term}, in which node {core.id} was elected"
            )
        core.role = Role.FOLLOWER
        core.leader = leader
        core.heard_leader()
        self.answer_transfer(Outcome.COMMITTED)

    def campaign(self) -> None:
        """Stand for election now, as if no leader were heard."""
        if self.election.stand():
            self.proceed()

    def proceed(self) -> None:
        if self.election.proceed():
            core = self.core
            core.role = Role.LEADER
            core.leader = core.id
            if self.following.collector is not None:
                if not self.following.collector.is_complete:
                    self.following.collector.abandon()
                self.following.collector = None
            self.answer_transfer(Outcome.TIMED_OUT)
            self.leading = Leading(core)

    def _maybe_leave(self) -> None:
        """A leader whose removal is committed says so to all and leads no more."""
        core, leading = self.core, self.leading
        if leading is None or core.is_voter or core.members.index > core.log.commit:
            return
        leading.replicate()
        self._become_follower(core.term)

    def answer_transfer(self, outcome: Outcome) -> None:
        if self.transfer is not None:
            core = self.core
            core.answers.append(Answer(self.transfer[0], outcome, 0, core.leader))
            self.transfer = None

    # -- time ---------------------------------------------------------------------------------

    def tick(self, count: int = 1) -> None:
        """Let `count` ticks pass; what fell due in them happens once."""
        core = self.core
        core.now += count
        if self.resting:
            return
        if self.leading is not None:
            if not self.leading.tick():
                self._become_follower(core.term)
        elif core.now >= core.election_at:
            if self.election.stand():
                self.proceed()
            else:
                core.leader = NOBODY
                core.reset_election_timer()
        core.proposals.expire(core.now, core.leader)
        core.reads.expire(core.now)
        self.following.expire()
        if self.transfer is not None and core.now >= self.transfer[1]:
            if self.leading is not None:
                self.leading.target = NOBODY
            self.answer_transfer(Outcome.TIMED_OUT)

    def due(self) -> int | None:
        """Ticks until something happens if nothing else does; fewer ticks only move the clock.
        None while the node rests."""
        if self.resting:
            return None
        core, leading = self.core, self.leading
        at = core.election_at if leading is None else min(leading.heartbeat_at, leading.quorum_at)
        at = min(at, core.proposals.next_deadline(), core.reads.next_deadline())
        if self.following.collector is not None:
            at = min(at, self.following.collector.next_expiry())
        if self.transfer is not None:
            at = min(at, self.transfer[1])
        return max(1, at - core.now)

    def wake(self, silent_ticks: int = 0) -> None:
        """Let time pass again; a follower as if it had heard its leader `silent_ticks` ago."""
        if not self.resting:
            return
        self.resting = False
        core, leading = self.core, self.leading
        if leading is not None:
            leading.heartbeat_at = core.now
            leading.quorum_at = core.now + core.config.election_ticks
            for progress in leading.progress.values():
                progress.active = True
        else:
            core.reset_election_timer()
            core.contact = max(core.contact, core.now - silent_ticks)  # never promised for less
            core.election_at = max(core.now + 1, core.election_at - silent_ticks)

    # -- completions --------------------------------------------------------------------------

    def advance(self, completion: Completion) -> None:
        """Something handed over is done."""
        core = self.core
        if isinstance(completion, Applied):
            self._on_applied(completion)
            return
        for write in core.on_written(completion.number):
            self._on_write_done(write)
        if core.role is Role.CANDIDATE:
            self.proceed()
        if self.leading is not None and self.leading.maybe_commit():
            self._maybe_leave()

    def _on_write_done(self, write: Underway) -> None:
        if write.vote is not None:
            self.election.on_own_vote(*write.vote)
        for purpose, snapshot in write.snapshots:
            if purpose is Purpose.OWN:
                self.snapshots_taken += 1
                self._compact(snapshot)
            else:
                self._install(snapshot)

    def _install(self, snapshot: Snapshot) -> None:
        core = self.core
        self.snapshots_installed += 1
        core.install(snapshot)
        self.following.on_installed(snapshot.index)
        if core.leader not in (NOBODY, core.id):
            self.following.has_reached(core.leader, core.log.snapshot_index)

    def _compact(self, snapshot: Snapshot) -> None:
        until = snapshot.index - self.core.config.kept_entries
        if self.leading is not None:
            until = self.leading.kept_from(snapshot)
        self.core.compact(snapshot, until)

    def _on_applied(self, completion: Applied) -> None:
        core = self.core
        core.on_applied(completion.index)
        chunks, log = completion.chunks, core.log
        if chunks is None or completion.index <= log.snapshot_index:
            return
        term = log.term_at(completion.index)
        assert term is not None
        assert chunks, "a snapshot has one chunk or more"
        members = core.members_at(completion.index)
        if not members.voters:
            # It joins, and has not come to the entry that names it, which was appended before it
            # was sent anything and so fits into the ring: who restored this would know nobody.
            return
        core.persist_snapshot(Snapshot(completion.index, term, members, chunks), Purpose.OWN)


_STEPS: Final[dict[type, Callable[[Member, Any], None]]] = {
    VoteRequest: lambda member, message: member.election.on_request(message),
    VoteReply: Member.on_vote_reply,
    Append: lambda member, message: member.following.on_append(message),
    AppendReply: Member.on_append_reply,
    Heartbeat: lambda member, message: member.following.on_heartbeat(message),
    HeartbeatReply: Member.on_heartbeat_reply,
    TimeoutNow: Member.on_timeout_now,
    SnapshotOffer: lambda member, message: member.following.on_offer(message),
    SnapshotReply: Member.on_snapshot_reply,
    ChunkRequest: lambda member, message: member.following.on_chunk_request(message),
    ChunkReply: lambda member, message: member.following.on_chunk(message),
}
