"""Mutants of members and snapshots."""

from __future__ import annotations

from typing import Any, Final

from bascule.raft.membership import MemberChange, Members, encode_members, majority_value
from bascule.raft.messages import EntryKind, RaftSnapshot
from bascule.raft.node import RaftNode
from bascule.raft.roles.core import Core, SnapshotOrigin
from bascule.raft.roles.leader import LeaderRole
from bascule.raft.roles.snapshot_fetcher import SnapshotFetcher
from bascule.raft.store import PersistentState
from bascule.sim.mutants.base import Mutant, patched, replacing

ONE_CHANGE: Final = "one membership change at a time"
AGREE: Final = "snapshots agree"
FORCE: Final = "members in force"
COMMIT: Final = "a commit is a majority's"
LOST: Final = "no committed entry lost"
SURVIVES: Final = "what was synced survives"
CRASHED: Final = "no exception"


def _before_a_commit(original: Any) -> Any:
    def change_members(self: RaftNode, *arguments: Any, **named: Any) -> int:
        with patched(LeaderRole, "has_committed", lambda _: property(lambda _: True)):
            return int(original(self, *arguments, **named))

    return change_members


def _two_at_once(original: Any) -> Any:
    def change_members(
        self: RaftNode,
        change: MemberChange,
        node: int,
        *,
        expected_index: int | None = None,
        deadline_ticks: int | None = None,
    ) -> int:
        core, leader = self._core, self._as_leader
        members = core.members
        changed = members.changed(change, node, core.log.last + 1)
        if (
            leader is None
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
        ticket = self._append(EntryKind.MEMBERS, encode_members(changed), deadline_ticks)
        leader.update_members()
        return ticket

    return change_members


def _demotion_at_once(original: Any) -> Any:
    def check_change(
        self: LeaderRole, change: MemberChange, node: int, expected_index: int | None
    ) -> Members:
        core = self._core
        members, log = core.members, core.log
        is_other = node in members.voters and node != core.id
        is_refused = members.index > log.commit and self.has_committed and log.room > 0
        if change is MemberChange.DEMOTE and is_other and is_refused:
            return members.changed(change, node, log.last + 1)
        found: Members = original(self, change, node, expected_index)
        return found

    return check_change


def _demoted_counts(original: Any) -> Any:
    def maybe_commit(self: LeaderRole) -> bool:
        core = self._core
        before, voters = core.previous_members, core.members.voters
        if {*before.all} == {*core.members.all} and {*before.voters} > {*voters}:
            voters = before.voters
        index = majority_value(
            [core.synced if each == core.id else self.progress[each].match for each in voters]
        )
        if index <= core.log.commit or core.log.term_at(index) != core.term:
            return False
        core.commit_to(index)
        self.update_members()
        return True

    return maybe_commit


def _snapshot_forgets(original: Any) -> Any:
    def members_at(self: Core, index: int) -> Members:
        return self._membership_history[0]

    return members_at


def _restart_forgets(original: Any) -> Any:
    def restored_memberships(self: Core, restored: PersistentState) -> list[Members]:
        found: list[Members] = original(self, restored)
        if restored.initial_members is not None and restored.initial_members.voters:
            found[0] = restored.initial_members
        return found

    return restored_memberships


def _truncation_forgets(original: Any) -> Any:
    def truncate_from(self: Core, index: int) -> None:
        history = list(self._membership_history)
        original(self, index)
        self._membership_history = history

    return truncate_from


def _learners_count(original: Any) -> Any:
    def maybe_commit(self: LeaderRole) -> bool:
        core = self._core
        found = [
            core.synced if member == core.id else self.progress[member].match
            for member in core.members.all
        ]
        index = sorted(found, reverse=True)[core.members.majority - 1] if found else 0
        if index <= core.log.commit or core.log.term_at(index) != core.term:
            return False
        core.commit_to(index)
        self.update_members()
        return True

    return maybe_commit


def _snapshot_of_the_newest_members(original: Any) -> Any:
    def on_snapshot_taken(self: Core, index: int, chunks: tuple[bytes, ...]) -> None:
        self.applying.on_snapshot_taken(index)
        if index > self.log.snapshot_index:
            snapshot = RaftSnapshot(index, self.log.term_at(index) or 0, self.members, chunks)
            self.persist_snapshot(snapshot, SnapshotOrigin.TAKEN)

    return on_snapshot_taken


def _abandons_its_own(original: Any) -> Any:
    def abandon(self: SnapshotFetcher) -> None:
        self._core.delete_chunks(self.index, self.count)

    return abandon


MUTANTS: Final = (
    Mutant(
        name="change of members before a commit in the term",
        found_by=(ONE_CHANGE,),
        patch=replacing(RaftNode, "change_members", _before_a_commit),
    ),
    Mutant(
        name="two changes of members at once",
        found_by=(ONE_CHANGE,),
        patch=replacing(RaftNode, "change_members", _two_at_once),
    ),
    Mutant(
        name="demotion while another change is not committed",
        found_by=(ONE_CHANGE,),
        patch=replacing(LeaderRole, "check_change", _demotion_at_once),
    ),
    Mutant(
        name="demoted voter counted until its demotion is committed",
        found_by=(COMMIT,),
        patch=replacing(LeaderRole, "maybe_commit", _demoted_counts),
    ),
    Mutant(
        name="snapshot forgets changes of members",
        found_by=(AGREE,),
        patch=replacing(Core, "members_at", _snapshot_forgets),
    ),
    Mutant(
        name="snapshot of members to come",
        found_by=(AGREE,),
        patch=replacing(Core, "on_snapshot_taken", _snapshot_of_the_newest_members),
    ),
    Mutant(
        name="restart forgets changes of members",
        found_by=(FORCE, ONE_CHANGE),
        patch=replacing(Core, "_restored_memberships", _restart_forgets),
    ),
    Mutant(
        name="truncated change of members stays in force",
        found_by=(FORCE,),
        patch=replacing(Core, "truncate_from", _truncation_forgets),
    ),
    Mutant(
        name="chunks of its own snapshot deleted with those it fetched",
        found_by=(LOST, SURVIVES, CRASHED),
        first_seed=1_520,
        seeds=2_000,
        patch=replacing(SnapshotFetcher, "abandon", _abandons_its_own),
    ),
    Mutant(
        name="learner counted in the majority",
        found_by=(COMMIT,),
        patch=replacing(LeaderRole, "maybe_commit", _learners_count),
    ),
)
