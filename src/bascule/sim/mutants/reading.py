"""Planted bugs of reads and of answers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from msgspec.structs import replace

from bascule.raft.effects import Answer, Outcome
from bascule.raft.messages import HeartbeatReply
from bascule.raft.roles.leader import Leading
from bascule.raft.roles.proposals import Proposals
from bascule.raft.roles.reads import Read, Reads
from bascule.sim.mutants.base import Planted, instead, swapped

FRESH: Final = "reads see what was committed"
LINEAR: Final = "linearizable reads and writes"
ONCE: Final = "one answer to a ticket"
TRUTH: Final = "no answer that history contradicts"


def _no_round(original: Any) -> Any:
    def wait_for_round(self: Reads, read: Read) -> None:
        read.index = self._core.log.commit
        self.wait_for_index(read)

    return wait_for_round


def _before_a_commit(original: Any) -> Any:
    def replicate(self: Leading) -> None:
        if self._core.reads.wants_round:
            self._begin_round()
        original(self)

    return replicate


def _any_round_confirms(original: Any) -> Any:
    def on_heartbeat_reply(self: Leading, message: HeartbeatReply) -> None:
        original(self, replace(message, round=self.round))

    return on_heartbeat_reply


def _learners_confirm(original: Any) -> Any:
    def count_round(self: Leading) -> None:
        core = self._core
        found = sorted(
            [
                self.round if member == core.id else self.progress[member].acked_round
                for member in core.members.all
            ],
            reverse=True,
        )
        # A majority of the voters is looked for among all members.
        answered = found[core.members.majority - 1]
        while self._rounds and self._rounds[0][0] <= answered:
            self._lease_from = self._rounds.popleft()[1]
        core.reads.on_round(answered)

    return count_round


def _learners_keep_in_office(original: Any) -> Any:
    def hears_quorum(self: Leading) -> bool:
        members, own = self._core.members, self._core.id
        heard = sum(member == own or self.progress[member].active for member in members.all)
        for progress in self.progress.values():
            progress.active = False
        return heard >= members.majority

    return hears_quorum


@contextmanager
def _learners_confirm_and_keep() -> Iterator[None]:
    with (
        swapped(Leading, "_count_round", _learners_confirm),
        swapped(Leading, "hears_quorum", _learners_keep_in_office),
    ):
        yield


def _before_applied(original: Any) -> Any:
    def wait_for_index(self: Reads, read: Read) -> None:
        self._grant(read)

    return wait_for_index


def _lease_of_office(original: Any) -> Any:
    def has_lease(self: Leading) -> bool:
        return True

    return has_lease


def _expired_stays(original: Any) -> Any:
    def expire(self: Proposals, now: int, leader: int) -> None:
        kept = dict(self._live)
        original(self, now, leader)
        self._live.update(kept)

    return expire


def _truncated_is_not_leader(original: Any) -> Any:
    def truncated(self: Proposals, start: int) -> None:
        for index in sorted(index for index in self._live if index >= start):
            found = self._live.pop(index)
            self.answers.append(Answer(found.ticket, Outcome.NOT_LEADER, index))

    return truncated


def _truncated_stays(original: Any) -> Any:
    def truncated(self: Proposals, start: int) -> None:
        pass

    return truncated


BUGS: Final = (
    Planted(
        name="read without a round",
        found_by=(FRESH, LINEAR),
        patch=instead(Reads, "wait_for_round", _no_round),
    ),
    Planted(
        name="read before a commit in the term",
        found_by=(FRESH, LINEAR),
        patch=instead(Leading, "replicate", _before_a_commit),
    ),
    Planted(
        name="read confirmed by an older round",
        found_by=(FRESH, LINEAR),
        patch=instead(Leading, "on_heartbeat_reply", _any_round_confirms),
    ),
    Planted(
        name="learners confirm rounds and leases",
        found_by=(FRESH, LINEAR),
        first_seed=180,
        seeds=1_500,
        patch=_learners_confirm_and_keep,
    ),
    Planted(
        name="read before it is applied",
        found_by=(FRESH,),
        patch=instead(Reads, "wait_for_index", _before_applied),
    ),
    Planted(
        name="lease without a quorum",
        found_by=(FRESH, LINEAR),
        patch=instead(Leading, "has_lease", _lease_of_office),
    ),
    Planted(
        name="expired proposal answered again",
        found_by=(ONCE,),
        patch=instead(Proposals, "expire", _expired_stays),
    ),
    Planted(
        name="truncated proposal answered not leader",
        found_by=(TRUTH, LINEAR),
        patch=instead(Proposals, "truncated", _truncated_is_not_leader),
    ),
    Planted(
        name="truncated proposal answered by its index",
        found_by=(TRUTH,),
        patch=instead(Proposals, "truncated", _truncated_stays),
    ),
)
