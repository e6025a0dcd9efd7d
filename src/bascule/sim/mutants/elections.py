"""Mutants of elections and votes."""

from __future__ import annotations

from typing import Any, Final

from msgspec.structs import replace

from bascule.raft.effects import Role, Write
from bascule.raft.membership import NOBODY
from bascule.raft.messages import VoteReply, VoteRequest
from bascule.raft.roles.core import Core
from bascule.raft.roles.election import Election
from bascule.sim.mutants.base import Mutant, replacing

ONE_VOTE: Final = "one durable vote a term"
ELECTION: Final = "election safety"
COMPLETE: Final = "leader completeness"


def _vote_not_persisted(original: Any) -> Any:
    def take_write(self: Core) -> Write | None:
        write: Write | None = original(self)
        if write is None or write.vote is None or write.vote[1] == self.id:
            return write
        return replace(write, vote=(write.vote[0], NOBODY))

    return take_write


def _vote_before_flush(original: Any) -> Any:
    def send_when_durable(self: Core, message: Any) -> None:
        if isinstance(message, VoteReply):
            self.send(message)
        else:
            original(self, message)

    return send_when_durable


def _vote_forgotten(original: Any) -> Any:
    def init(self: Core, *arguments: Any) -> None:
        original(self, *arguments)
        self.voted_for = NOBODY

    return init


def _votes_for_anyone(original: Any) -> Any:
    def on_vote_request(self: Election, message: VoteRequest) -> None:
        original(self, replace(message, last_term=1 << 40))

    return on_vote_request


def _no_pre_vote(original: Any) -> Any:
    def campaign(self: Election, *, forced: bool = False) -> bool:
        core = self._core
        if forced or not core.is_voter or core.role is Role.LEADER:
            return bool(original(self, forced=forced))
        core.reset_election_timer()
        self._votes = {}
        self._forced = False
        self._become_candidate()
        return True

    return campaign


def _pre_votes_count_as_votes(original: Any) -> Any:
    def proceed(self: Election) -> bool:
        votes = self._votes
        was = self._core.role
        elected = bool(original(self))
        if was is Role.PRE_CANDIDATE and self._core.role is Role.CANDIDATE:
            self._votes = votes
            return bool(original(self))
        return elected

    return proceed


def _candidacy_before_flush(original: Any) -> Any:
    def send_when_durable(self: Core, message: Any) -> None:
        if isinstance(message, VoteRequest):
            self.send(message)
        else:
            original(self, message)

    return send_when_durable


def _old_votes_count(original: Any) -> Any:
    def on_vote_reply(self: Election, message: VoteReply) -> None:
        core = self._core
        if not message.pre and core.role is Role.PRE_CANDIDATE:
            self._votes[message.source] = message.granted
        original(self, replace(message, term=core.term + message.pre))

    return on_vote_reply


MUTANTS: Final = (
    Mutant(
        name="vote not persisted",
        found_by=(ONE_VOTE,),
        patch=replacing(Core, "take_write", _vote_not_persisted),
    ),
    Mutant(
        name="vote before flush",
        found_by=(ONE_VOTE,),
        patch=replacing(Core, "send_when_durable", _vote_before_flush),
    ),
    Mutant(
        name="vote forgotten at restart",
        found_by=(ONE_VOTE, ELECTION),
        patch=replacing(Core, "__init__", _vote_forgotten),
    ),
    Mutant(
        name="vote for a shorter log",
        found_by=(COMPLETE,),
        patch=replacing(Election, "on_vote_request", _votes_for_anyone),
    ),
    Mutant(
        name="no pre-vote",
        found_by=("no term without a pre-vote",),
        patch=replacing(Election, "campaign", _no_pre_vote),
    ),
    Mutant(
        name="pre-votes count as votes",
        found_by=(ELECTION, ONE_VOTE, COMPLETE),
        patch=replacing(Election, "proceed", _pre_votes_count_as_votes),
    ),
    Mutant(
        name="candidacy before flush",
        found_by=(ONE_VOTE,),
        patch=replacing(Core, "send_when_durable", _candidacy_before_flush),
    ),
    Mutant(
        name="votes of older candidacies count",
        found_by=(ELECTION, COMPLETE, "no term without a pre-vote"),
        patch=replacing(Election, "on_vote_reply", _old_votes_count),
    ),
)
