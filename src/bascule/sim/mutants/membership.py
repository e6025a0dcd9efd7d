"""Planted bugs of members and snapshots."""

from __future__ import annotations

from typing import Any, Final

from bascule.raft.effects import Applied
from bascule.raft.membership import Change, Members, encode_members
from bascule.raft.messages import Kind, Snapshot
from bascule.raft.roles.core import Core, Purpose
from bascule.raft.roles.leader import Leading
from bascule.raft.roles.member import Member
from bascule.raft.roles.requests import Requests
from bascule.raft.roles.snapshot_fetcher import Collector
from bascule.raft.store import Restored
from bascule.sim.mutants.base import Planted, instead, swapped

ONE_CHANGE: Final = "one membership change at a time"
AGREE: Final = "snapshots agree"
FORCE: Final = "members in force"
COMMIT: Final = "a commit is a majority's"
LOST: Final = "no committed entry lost"
SURVIVES: Final = "what was synced survives"
CRASHED: Final = "no exception"


def _before_a_commit(original: Any) -> Any:
    def change_members(self: Requests, *arguments: Any, **named: Any) -> int:
        with swapped(Leading, "has_committed", lambda _: property(lambda _: True)):
            return int(original(self, *arguments, **named))

    return change_members


def _two_at_once(original: Any) -> Any:
    def change_members(
        self: Requests,
        change: Change,
        node: int,
        *,
        expected_index: int | None = None,
        deadline_ticks: int | None = None,
    ) -> int:
        core, leading = self._core, self._member.leading
        members = core.members
        changed = members.changed(change, node, core.log.last + 1)
        if (
            leading is None
            or members.index <= core.log.commit
            or not changed.voters
            or (changed.voters, changed.learners) == (members.voters, members.learners)
        ):
            return int(
                original(
                    self,
                    change,
                    node,
                    expected_index=expected_index,
                    deadline_ticks=deadline_ticks,
                )
            )
        ticket = self._append(leading, Kind.MEMBERS, encode_members(changed), deadline_ticks)
        leading.follow_members()
        return ticket

    return change_members


def _snapshot_forgets(original: Any) -> Any:
    def members_at(self: Core, index: int) -> Members:
        return self._history[0]

    return members_at


def _restart_forgets(original: Any) -> Any:
    def restored_history(self: Core, restored: Restored) -> list[Members]:
        found: list[Members] = original(self, restored)
        if restored.founding is not None and restored.founding.voters:
            found[0] = restored.founding
        return found

    return restored_history


def _truncation_forgets(original: Any) -> Any:
    def truncate_from(self: Core, index: int) -> None:
        history = list(self._history)
        original(self, index)
        self._history = history

    return truncate_from


def _learners_count(original: Any) -> Any:
    def maybe_commit(self: Leading) -> bool:
        core = self._core
        found = [
            core.synced if member == core.id else self.progress[member].match
            for member in core.members.all
        ]
        index = sorted(found, reverse=True)[core.members.majority - 1] if found else 0
        if index <= core.log.commit or core.log.term_at(index) != core.term:
            return False
        core.commit_to(index)
        self.follow_members()
        return True

    return maybe_commit


def _snapshot_of_the_newest_members(original: Any) -> Any:
    def on_applied(self: Member, completion: Applied) -> None:
        core = self.core
        core.on_applied(completion.index)
        chunks, log = completion.chunks, core.log
        if chunks is not None and completion.index > log.snapshot_index:
            term = log.term_at(completion.index) or 0
            snapshot = Snapshot(completion.index, term, core.members, chunks)
            core.persist_snapshot(snapshot, Purpose.OWN)

    return on_applied


def _abandons_its_own(original: Any) -> Any:
    def abandon(self: Collector) -> None:
        self._core.delete_chunks(self.index, self.count)

    return abandon


BUGS: Final = (
    Planted(
        name="change of members before a commit in the term",
        found_by=(ONE_CHANGE,),
        patch=instead(Requests, "change_members", _before_a_commit),
    ),
    Planted(
        name="two changes of members at once",
        found_by=(ONE_CHANGE,),
        patch=instead(Requests, "change_members", _two_at_once),
    ),
    Planted(
        name="snapshot forgets changes of members",
        found_by=(AGREE,),
        patch=instead(Core, "members_at", _snapshot_forgets),
    ),
    Planted(
        name="snapshot of members to come",
        found_by=(AGREE,),
        patch=instead(Member, "_on_applied", _snapshot_of_the_newest_members),
    ),
    Planted(
        name="restart forgets changes of members",
        found_by=(FORCE, ONE_CHANGE),
        patch=instead(Core, "_restored_history", _restart_forgets),
    ),
    Planted(
        name="truncated change of members stays in force",
        found_by=(FORCE,),
        patch=instead(Core, "truncate_from", _truncation_forgets),
    ),
    Planted(
        name="chunks of its own snapshot deleted with those it fetched",
        found_by=(LOST, SURVIVES, CRASHED),
        first_seed=1_250,
        seeds=2_000,
        patch=instead(Collector, "abandon", _abandons_its_own),
    ),
    Planted(
        name="learner counted in the majority",
        found_by=(COMMIT,),
        patch=instead(Leading, "maybe_commit", _learners_count),
    ),
)
