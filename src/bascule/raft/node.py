"""`Node`: one member of a Raft group, as a pure object.

A driver gives it messages, ticks and requests, and carries out what `ready` hands over; see
`effects` for the order of its duties. The node knows no clock, disk, socket or dice of its own, so
the same code runs under a simulator and in production.
"""

from __future__ import annotations

from collections.abc import Collection

from bascule.host.api import Random
from bascule.raft.config import RaftConfig
from bascule.raft.effects import Completion, ReadPolicy, Ready, Role
from bascule.raft.log import RaftLog
from bascule.raft.membership import Change, Members
from bascule.raft.messages import AnyMessage
from bascule.raft.report import Report, report_of
from bascule.raft.roles.core import Core
from bascule.raft.roles.member import Member
from bascule.raft.roles.requests import Requests
from bascule.raft.roles.resting import may_rest, rest_as_follower, rest_as_leader
from bascule.raft.store import Restored


class Node:
    """A member of one group. Not thread-safe; every method returns at once.

    `restored` is what its store holds. Tickets of `propose`, `change_members`, `transfer` and
    `read` are answered once each, in `Ready.answers`, in this life of the node.
    """

    __slots__ = ("_core", "_member", "_requests")

    def __init__(
        self, node_id: int, config: RaftConfig, restored: Restored, random: Random
    ) -> None:
        assert node_id > 0, node_id
        self._core = Core(node_id, config, restored, random)
        self._member = Member(self._core)
        self._requests = Requests(self._member)

    # -- what it is ---------------------------------------------------------------------------

    @property
    def id(self) -> int:
        return self._core.id

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
        return self._core.applied

    @property
    def synced(self) -> int:
        """Entries up to here are on this node's disk."""
        return self._core.synced

    @property
    def members(self) -> Members:
        """Those in force: of the last members entry in the log, committed or not."""
        return self._core.members

    @property
    def config(self) -> RaftConfig:
        return self._core.config

    # -- what happens -------------------------------------------------------------------------

    def step(self, message: AnyMessage) -> None:
        """Take a message from another member.

        Raises: RemoteProtocolError where it cannot come from a member that keeps to the protocol;
        the node is as before.
        """
        self._member.step(message)

    def tick(self, count: int = 1) -> None:
        """Let `count` ticks pass; what fell due in them happens once."""
        self._member.tick(count)

    def due(self) -> int | None:
        """Ticks until something happens if nothing else does; fewer ticks only move the clock.
        None while the node rests."""
        return self._member.due()

    def advance(self, completion: Completion) -> None:
        """Something handed over is done."""
        self._member.advance(completion)

    def campaign(self) -> None:
        """Stand for election now, as if no leader were heard; where leases are on, nothing happens
        within `election_ticks` of hearing one."""
        self._member.campaign()

    def ready(self) -> Ready | None:
        """Hand over what is to be done; None where there is nothing. What was handed over is not
        handed over again."""
        core = self._core
        if self._member.leading is not None:
            self._member.leading.replicate()
        apply = core.take_apply()
        write = core.take_write()
        if write is None and apply is None and not core.outbox and not core.answers:
            return None
        ready = Ready(
            send=tuple(core.outbox), write=write, apply=apply, answers=tuple(core.answers)
        )
        core.outbox.clear()
        core.answers.clear()
        return ready

    # -- requests -----------------------------------------------------------------------------

    def propose(self, payload: bytes, *, deadline_ticks: int | None = None) -> int:
        """Append `payload` to the group's log; the ticket is answered with what became of it, or
        with `INDETERMINATE` when that is not known after `deadline_ticks`.

        Raises: NotLeader; CannotReplicate where it was not appended and may be later; LimitExceeded
        where it never will.
        """
        return self._requests.propose(payload, deadline_ticks=deadline_ticks)

    def change_members(
        self,
        change: Change,
        node: int,
        *,
        expected_index: int | None = None,
        deadline_ticks: int | None = None,
    ) -> int:
        """Add, promote or remove one member. The change is in force from its append on, also if it
        is truncated later and reverts (thesis 4.1); one is under way at a time.

        `expected_index` is the `members.index` that the caller decided on.

        Raises: NotLeader; MembersChanged; ConfigError where the change changes nothing or leaves no
        voter; CannotReplicate while another change or the term's first entry is not committed, a
        transfer is under way, the log is full, or a learner to be promoted lags.
        """
        return self._requests.change_members(
            change, node, expected_index=expected_index, deadline_ticks=deadline_ticks
        )

    def transfer(self, target: int, *, deadline_ticks: int | None = None) -> int:
        """Hand leadership to the voter `target`. Proposals are refused until another node leads
        (`COMMITTED`) or the deadline, by default `election_ticks`, passes (`TIMED_OUT`: this node
        may go on leading).

        Raises: NotLeader, ConfigError where `target` cannot lead, CannotReplicate while another
        transfer is under way.
        """
        return self._requests.transfer(target, deadline_ticks=deadline_ticks)

    def read(
        self,
        policy: ReadPolicy = ReadPolicy.LINEARIZABLE,
        *,
        min_index: int = 0,
        deadline_ticks: int | None = None,
    ) -> int:
        """Ask when the state machine may be read. `LOCAL` works in every role, and with `min_index`
        is a barrier: it waits until so much is applied.

        Raises: NotLeader, unless `LOCAL`; CannotReplicate where too many wait; ConfigError for
        `LEASE` where leases are off.
        """
        return self._requests.read(policy, min_index=min_index, deadline_ticks=deadline_ticks)

    # -- groups at rest -----------------------------------------------------------------------

    @property
    def resting(self) -> bool:
        """Whether the node waits for something to happen; ticks only move its clock."""
        return self._member.resting

    def may_rest(self, away: Collection[int] = ()) -> bool:
        """Whether this leader has nothing to do until something happens: all is committed, on the
        disk of every member but those `away` and known to be, and nobody waits.

        Who lets the group rest wakes it when one of those `away` is back.
        """
        return may_rest(self._member, away)

    def rest_as_leader(self) -> None:
        """Send no heartbeats and count no quorum until something happens."""
        rest_as_leader(self._member)

    def rest_as_follower(self, leader: int, term: int, index: int) -> bool:
        """Wait for no heartbeat of `leader` until something happens; False where this node is not
        its follower in `term` with all up to `index` committed and nothing else."""
        return rest_as_follower(self._member, leader, term, index)

    def wake(self, silent_ticks: int = 0) -> None:
        """Let time pass again; a follower as if it had heard its leader `silent_ticks` ago."""
        self._member.wake(silent_ticks)

    def report(self) -> Report:
        """All that is to know of it now."""
        return report_of(self._member)
