"""Mutants of reads and of answers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from msgspec.structs import replace

from bascule.raft.effects import Answer, RequestOutcome
from bascule.raft.membership import NOBODY
from bascule.raft.messages import HeartbeatReply
from bascule.raft.roles.leader import LeaderRole
from bascule.raft.roles.proposals import PendingProposals
from bascule.raft.roles.reads import PendingRead, PendingReads
from bascule.sim.mutants.base import Mutant, patched, replacing

FRESH: Final = "reads see what was committed"
LINEAR: Final = "linearizable reads and writes"
ONCE: Final = "one answer to a ticket"
TRUTH: Final = "no answer that history contradicts"


def _no_round(original: Any) -> Any:
    def wait_for_round(self: PendingReads, read: PendingRead) -> None:
        read.index = self._log.commit
        self.wait_for_index(read, NOBODY)

    return wait_for_round


def _before_a_commit(original: Any) -> Any:
    def replicate(self: LeaderRole) -> None:
        if self._core.reads.needs_round:
            self._begin_read_round()
        original(self)

    return replicate


def _any_round_confirms(original: Any) -> Any:
    def on_heartbeat_reply(self: LeaderRole, message: HeartbeatReply) -> None:
        original(self, replace(message, round=self.round))

    return on_heartbeat_reply


def _learners_confirm(original: Any) -> Any:
    def count_round(self: LeaderRole) -> None:
        core = self._core
        found = sorted(
            [
                self.round if member == core.id else self.progress[member].acked_round
                for member in core.members.all
            ],
            reverse=True,
        )
        # The majority of the voters, but counted among all members.
        confirmed = found[core.members.majority - 1]
        while self._unconfirmed_rounds and self._unconfirmed_rounds[0][0] <= confirmed:
            self._lease_start = self._unconfirmed_rounds.popleft()[1]
        core.reads.on_round_confirmed(confirmed, core.leader)

    return count_round


def _learners_keep_leadership(original: Any) -> Any:
    def check_quorum(self: LeaderRole) -> bool:
        members, own = self._core.members, self._core.id
        heard = sum(
            member == own or self.progress[member].recently_active for member in members.all
        )
        for progress in self.progress.values():
            progress.recently_active = False
        return heard >= members.majority

    return check_quorum


@contextmanager
def _learners_confirm_and_keep() -> Iterator[None]:
    with (
        patched(LeaderRole, "_count_round", _learners_confirm),
        patched(LeaderRole, "check_quorum", _learners_keep_leadership),
    ):
        yield


def _before_applied(original: Any) -> Any:
    def wait_for_index(self: PendingReads, read: PendingRead, leader: int) -> None:
        self._answer(read, RequestOutcome.READABLE, leader)

    return wait_for_index


def _lease_without_quorum(original: Any) -> Any:
    def has_lease(self: LeaderRole) -> bool:
        return True

    return has_lease


def _expired_stays(original: Any) -> Any:
    def expire(self: PendingProposals, now: int, leader: int) -> None:
        kept = dict(self._in_log)
        original(self, now, leader)
        self._in_log.update(kept)

    return expire


def _truncated_is_not_leader(original: Any) -> Any:
    def on_truncated(self: PendingProposals, start: int) -> None:
        for index in sorted(index for index in self._in_log if index >= start):
            found = self._in_log.pop(index)
            self._answers.append(Answer(found.ticket, RequestOutcome.NOT_LEADER, index))

    return on_truncated


def _truncated_stays(original: Any) -> Any:
    def on_truncated(self: PendingProposals, start: int) -> None:
        pass

    return on_truncated


def _lease_from_the_answer(original: Any) -> Any:
    def count_round(self: LeaderRole) -> None:
        rounds = len(self._unconfirmed_rounds)
        original(self)
        if len(self._unconfirmed_rounds) < rounds:
            self._lease_start = self._core.now

    return count_round


MUTANTS: Final = (
    Mutant(
        name="lease counted from the answer",
        found_by=(FRESH, LINEAR),
        patch=replacing(LeaderRole, "_count_round", _lease_from_the_answer),
    ),
    Mutant(
        name="read without a round",
        found_by=(FRESH, LINEAR),
        patch=replacing(PendingReads, "wait_for_round", _no_round),
    ),
    Mutant(
        name="read before a commit in the term",
        found_by=(FRESH, LINEAR),
        patch=replacing(LeaderRole, "replicate", _before_a_commit),
    ),
    Mutant(
        name="read confirmed by an older round",
        found_by=(FRESH, LINEAR),
        patch=replacing(LeaderRole, "on_heartbeat_reply", _any_round_confirms),
    ),
    Mutant(
        name="learners confirm rounds and leases",
        found_by=(FRESH, LINEAR),
        first_seed=430,
        seeds=1_500,
        patch=_learners_confirm_and_keep,
    ),
    Mutant(
        name="read before it is applied",
        found_by=(FRESH,),
        patch=replacing(PendingReads, "wait_for_index", _before_applied),
    ),
    Mutant(
        name="lease without a quorum",
        found_by=(FRESH, LINEAR),
        patch=replacing(LeaderRole, "has_lease", _lease_without_quorum),
    ),
    Mutant(
        name="expired proposal answered again",
        found_by=(ONCE,),
        patch=replacing(PendingProposals, "expire", _expired_stays),
    ),
    Mutant(
        name="truncated proposal answered not leader",
        found_by=(TRUTH, LINEAR),
        patch=replacing(PendingProposals, "on_truncated", _truncated_is_not_leader),
    ),
    Mutant(
        name="truncated proposal answered by its index",
        found_by=(TRUTH,),
        patch=replacing(PendingProposals, "on_truncated", _truncated_stays),
    ),
)
