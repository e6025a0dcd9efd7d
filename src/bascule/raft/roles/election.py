"""Standing for election, and voting (thesis 3.4, 3.6, 4.2.3, 9.6)."""

from __future__ import annotations

from bascule.raft.effects import Role
from bascule.raft.membership import NOBODY
from bascule.raft.messages import VoteReply, VoteRequest
from bascule.raft.roles.core import Core


class Election:
    """A node's candidacies and votes."""

    __slots__ = ("_core", "_forced", "_votes")

    def __init__(self, core: Core) -> None:
        self._core = core
        self._votes: dict[int, bool] = {}
        self._forced = False

    def stand(self, *, forced: bool = False) -> bool:
        """Ask for votes where this node may lead: first whether it would get them, unless `forced`
        by the leader. Whether it stands."""
        core = self._core
        if not core.may_stand or core.role is Role.LEADER:
            return False
        if core.has_promised and not forced:
            return False
        core.reset_election_timer()
        self._votes = {}
        self._forced = forced
        if forced:
            self._become_candidate()
            return True
        core.role = Role.PRE_CANDIDATE
        core.leader = NOBODY
        self._ask(pre=True)
        self._votes[core.id] = True
        return True

    def is_won(self) -> bool:
        """Whether a majority of the voters has said yes."""
        return self._core.members.is_majority(lambda voter: self._votes.get(voter, False))

    def is_lost(self) -> bool:
        """Whether a majority can no longer say yes."""
        return self._core.members.is_majority(lambda voter: self._votes.get(voter) is False)

    def proceed(self) -> bool:
        """Act on the votes as they are; whether this node is elected."""
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
        """Begin a term with a vote for oneself, which counts once it is on disk."""
        core = self._core
        core.role = Role.CANDIDATE
        core.leader = NOBODY
        core.set_term(core.term + 1, core.id)
        self._ask(pre=False)

    def _ask(self, *, pre: bool) -> None:
        core = self._core
        log = core.log
        term = core.term + 1 if pre else core.term
        for voter in core.members.voters:
            if voter == core.id:
                continue
            request = VoteRequest(core.id, voter, term, pre, log.last, log.last_term, self._forced)
            if pre:
                core.send(request)
            else:
                core.send_when_durable(request)

    def on_own_vote(self, term: int, voted_for: int) -> None:
        """(term, vote) is on disk."""
        core = self._core
        if core.role is Role.CANDIDATE and (term, voted_for) == (core.term, core.id):
            self._votes[core.id] = True

    def on_reply(self, message: VoteReply) -> None:
        """A vote for the candidacy under way; any other is of an older one."""
        core = self._core
        wanted = Role.PRE_CANDIDATE if message.pre else Role.CANDIDATE
        if core.role is not wanted:
            return
        asked = core.term + 1 if message.pre else core.term
        if message.granted and message.term != asked:
            return
        self._votes[message.source] = message.granted

    def on_request(self, message: VoteRequest) -> None:
        """Vote. The terms have been compared: the asker's is this node's, or it is a pre-vote of a
        later one."""
        core = self._core
        log = core.log
        complete = (message.last_term, message.last_index) >= (log.last_term, log.last)
        if message.pre:
            free = message.term > core.term or self._is_free(message.source)
        else:
            free = self._is_free(message.source)
        if core.has_promised and not message.forced:
            free = False
        if not (complete and free):
            self.refuse(message)
            return
        if message.pre:
            core.send(VoteReply(core.id, message.source, message.term, True, True))
            return
        core.vote_for(message.source)
        core.reset_election_timer()
        core.send_when_durable(VoteReply(core.id, message.source, message.term, False, True))

    def _is_free(self, candidate: int) -> bool:
        core = self._core
        return core.voted_for == candidate or (core.voted_for == NOBODY and core.leader == NOBODY)

    def refuse(self, message: VoteRequest) -> None:
        core = self._core
        core.send(VoteReply(core.id, message.source, core.term, message.pre, False))
