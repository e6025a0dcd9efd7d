"""Elections: campaigning and voting (thesis 3.4, 3.6, 4.2.3, 9.6)."""

from __future__ import annotations

from typing import Final

from bascule.raft.effects import Role
from bascule.raft.membership import NOBODY
from bascule.raft.messages import VoteReply, VoteRequest
from bascule.raft.roles.core import Core

STAGGER_TICKS: Final = 2
"""Between the elections of two voters that know that the leader's process does not run. An election
takes less."""


class Election:
    """The elections that a node starts, and the votes that it grants."""

    __slots__ = ("_core", "_forced", "_votes", "votes_from")

    def __init__(self, core: Core) -> None:
        self._core = core
        self._votes: dict[int, bool] = {}
        """Voter -> whether it granted its vote, in the present election or pre-vote."""
        self._forced = False
        """Whether the leader requested this election, to transfer leadership."""
        self.votes_from = 0
        """The node neither votes nor campaigns while its log ends before this index. A node with an
        empty disk under the id of a removed one has the index of its admission here, which is
        behind the removal: members that have not heard of that could count its vote."""

    def campaign(self, *, forced: bool = False) -> bool:
        """Start an election if this node may: a pre-vote first, unless `forced` by the leader.
        Returns whether it was started."""
        core = self._core
        if not core.may_campaign or core.role is Role.LEADER or core.log.last < self.votes_from:
            return False
        if core.in_lease and not forced:
            return False
        core.reset_election_timer()
        self._votes = {}
        self._forced = forced
        if forced:
            self._become_candidate()
            return True
        core.role = Role.PRE_CANDIDATE
        core.leader = NOBODY
        self._request_votes(pre=True)
        self._votes[core.id] = True
        return True

    def on_process_lost(self, member: int) -> None:
        """The process of another member does not run, by what the driver knows. If that leads, do
        not wait until it was silent for the election timeout, and vote in elections of others.

        The voters begin one after the other, so that they do not split the votes. A wrong report
        costs at most an election: a pre-vote comes first, which members that hear the leader
        refuse. Nothing happens where leases are on, since they count on the timeout.
        """
        core = self._core
        if core.leader != member or core.role is not Role.FOLLOWER or core.config.lease_reads:
            return
        earlier = sum(voter < core.id for voter in core.members.voters if voter != member)
        core.leader = NOBODY
        core.election_due_at = min(core.election_due_at, core.now + 1 + STAGGER_TICKS * earlier)

    def is_won(self) -> bool:
        """Whether a majority of the voters granted its vote."""
        return self._core.members.is_majority(lambda voter: self._votes.get(voter, False))

    def is_lost(self) -> bool:
        """Whether a majority of the voters refused its vote."""
        return self._core.members.is_majority(lambda voter: self._votes.get(voter) is False)

    def proceed(self) -> bool:
        """Act on the votes counted so far. Returns whether this node is elected."""
        core = self._core
        if core.role is Role.PRE_CANDIDATE and self.is_won():
            self._votes = {}
            self._become_candidate()
        elif core.role is Role.CANDIDATE and self.is_won():
            return True
        elif core.role in (Role.PRE_CANDIDATE, Role.CANDIDATE) and self.is_lost():
            core.role = Role.FOLLOWER
        return False

    def _become_candidate(self) -> None:
        """Begin a term with a vote for itself; the vote counts when it is on disk."""
        core = self._core
        core.role = Role.CANDIDATE
        core.leader = NOBODY
        core.set_term(core.term + 1, core.id)
        self._request_votes(pre=False)

    def _request_votes(self, *, pre: bool) -> None:
        core = self._core
        log = core.log
        term = core.term + 1 if pre else core.term
        settings = core.config.sent_checksum
        for voter in core.members.voters:
            if voter == core.id:
                continue
            request = VoteRequest(
                core.id, voter, term, pre, log.last, log.last_term, self._forced, settings
            )
            if pre:
                core.send(request)
            else:
                core.send_when_durable(request)

    def on_own_vote_durable(self, term: int, voted_for: int) -> None:
        """(term, vote) is on disk."""
        core = self._core
        if core.role is Role.CANDIDATE and (term, voted_for) == (core.term, core.id):
            self._votes[core.id] = True

    def on_vote_reply(self, message: VoteReply) -> None:
        """Count a reply to the present election. Replies to earlier ones are ignored."""
        core = self._core
        wanted = Role.PRE_CANDIDATE if message.pre else Role.CANDIDATE
        if core.role is not wanted:
            return
        requested_term = core.term + 1 if message.pre else core.term
        if message.granted and message.term != requested_term:
            return
        self._votes[message.source] = message.granted

    def on_vote_request(self, message: VoteRequest) -> None:
        """Grant or refuse a vote. The caller has compared the terms: the request is of this node's
        term, or it is a pre-vote of a later one."""
        core = self._core
        log = core.log
        is_up_to_date = (message.last_term, message.last_index) >= (log.last_term, log.last)
        if message.pre:
            may_vote = message.term > core.term or self._may_vote_for(message.source)
        else:
            may_vote = self._may_vote_for(message.source)
        if (core.in_lease and not message.forced) or log.last < self.votes_from:
            may_vote = False
        if not (is_up_to_date and may_vote):
            self.refuse(message)
            return
        if message.pre:
            core.send(VoteReply(core.id, message.source, message.term, True, True))
            return
        core.vote_for(message.source)
        core.reset_election_timer()
        core.send_when_durable(VoteReply(core.id, message.source, message.term, False, True))

    def _may_vote_for(self, candidate: int) -> bool:
        core = self._core
        return core.voted_for == candidate or (core.voted_for == NOBODY and core.leader == NOBODY)

    def refuse(self, message: VoteRequest) -> None:
        """Refuse the vote, and tell a candidate that was removed that it was.

        A candidate whose log has the present members, or later ones, ignores that. Its log is
        otherwise behind a committed entry, so it would be refused anyway.
        """
        core = self._core
        members = core.members
        removed_at = 0
        if members.index <= core.log.commit and message.source not in members:
            removed_at = members.index
        core.send(VoteReply(core.id, message.source, core.term, message.pre, False, removed_at))

    def on_removed(self, index: int) -> None:
        """The committed members at `index` do not include this node."""
        core = self._core
        if index > core.members.index and core.role is not Role.LEADER:
            core.removed_at = max(core.removed_at, index)
            core.role = Role.FOLLOWER
