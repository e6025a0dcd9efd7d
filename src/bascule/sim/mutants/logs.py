"""Mutants of replication and commitment."""

from __future__ import annotations

from typing import Any, Final

from msgspec.structs import replace

from bascule.raft.effects import Role
from bascule.raft.membership import majority_value
from bascule.raft.messages import AppendRequest, Entry, EntryKind, Heartbeat
from bascule.raft.node import RaftNode
from bascule.raft.roles.core import Core
from bascule.raft.roles.follower import FollowerRole
from bascule.raft.roles.leader import LeaderRole
from bascule.raft.roles.progress import FollowerProgress
from bascule.sim.mutants.base import Mutant, replacing

COMMIT: Final = "a commit is a majority's"
SAFETY: Final = "state-machine safety"
MATCH: Final = "a match is durable"
MATCHING: Final = "log matching"
LOST: Final = "no committed entry lost"
COMPLETE: Final = "leader completeness"
CRASHED: Final = "no exception"


def _old_terms_by_count(original: Any) -> Any:
    def maybe_commit(self: LeaderRole) -> bool:
        core = self._core
        index = majority_value(
            [
                core.synced if voter == core.id else self.progress[voter].match
                for voter in core.members.voters
            ]
        )
        if index <= core.log.commit:
            return False
        core.commit_to(index)
        self.update_members()
        return True

    return maybe_commit


def _stale_append_truncates(original: Any) -> Any:
    def merge(self: FollowerRole, entries: tuple[Entry, ...], *, start: int) -> int:
        if entries and entries[0].index <= self._core.log.last:
            self._core.truncate_from(entries[0].index)
        return int(original(self, entries, start=start))

    return merge


def _previous_term_ignored(original: Any) -> Any:
    def on_append(self: FollowerRole, message: AppendRequest) -> None:
        term = self._core.log.term_at(message.previous_index)
        original(self, message if term is None else replace(message, previous_term=term))

    return on_append


def _commits_beyond_match(original: Any) -> Any:
    def on_append(self: FollowerRole, message: AppendRequest) -> None:
        original(self, message)
        core = self._core
        core.commit_to(max(core.log.commit, min(message.commit, core.log.last)))

    return on_append


def _heartbeat_commits_beyond_match(original: Any) -> Any:
    def send_heartbeat(self: LeaderRole, member: int, progress: FollowerProgress) -> None:
        core = self._core
        core.send(Heartbeat(core.id, member, core.term, core.log.commit, self.round))
        progress.commit_sent = core.log.commit

    return send_heartbeat


def _no_back_pressure(original: Any) -> Any:
    def propose(self: RaftNode, payload: bytes, *, deadline_ticks: int | None = None) -> int:
        if self.role is not Role.LEADER:
            return int(original(self, payload, deadline_ticks=deadline_ticks))
        return self._append(EntryKind.NORMAL, payload, deadline_ticks)

    return propose


def _applies_from_the_snapshot_again(original: Any) -> Any:
    def on_applied(self: Core, index: int, chunks: tuple[bytes, ...] | None) -> None:
        original(self, index, chunks)
        if index % self.config.commit_count_to_take_snapshot == 0 and index > 1:
            self.log.applied = max(index - 1, self.log.first)

    return on_applied


MUTANTS: Final = (
    Mutant(
        name="old term's entries committed by count",
        found_by=(COMMIT,),
        patch=replacing(LeaderRole, "maybe_commit", _old_terms_by_count),
    ),
    Mutant(
        name="stale append truncates",
        found_by=(LOST, COMMIT, MATCH),
        patch=replacing(FollowerRole, "_merge", _stale_append_truncates),
    ),
    Mutant(
        name="previous term not compared",
        # The log itself refuses an entry of an earlier term than its last one.
        found_by=(MATCHING, MATCH, COMMIT, SAFETY, CRASHED),
        patch=replacing(FollowerRole, "on_append", _previous_term_ignored),
    ),
    Mutant(
        name="follower commits beyond what it matched",
        found_by=(SAFETY, COMMIT),
        patch=replacing(FollowerRole, "on_append", _commits_beyond_match),
    ),
    Mutant(
        name="heartbeat commits beyond what matched",
        found_by=(SAFETY, COMMIT, CRASHED),
        patch=replacing(LeaderRole, "_send_heartbeat", _heartbeat_commits_beyond_match),
    ),
    Mutant(
        name="no back pressure",
        found_by=("bounded memory",),
        patch=replacing(RaftNode, "propose", _no_back_pressure),
    ),
    Mutant(
        name="last entry before a snapshot applied twice",
        found_by=("applied in order", "reads see what was committed"),
        patch=replacing(Core, "on_applied", _applies_from_the_snapshot_again),
    ),
)
