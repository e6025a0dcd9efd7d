"""Planted bugs of replication and commitment."""

from __future__ import annotations

from typing import Any, Final

from msgspec.structs import replace

from bascule.raft.messages import Append, Entry, Heartbeat, Kind
from bascule.raft.roles.core import Core
from bascule.raft.roles.follower import Following
from bascule.raft.roles.leader import Leading
from bascule.raft.roles.progress import Progress
from bascule.raft.roles.requests import Requests
from bascule.sim.mutants.base import Planted, instead

COMMIT: Final = "a commit is a majority's"
SAFETY: Final = "state-machine safety"
MATCH: Final = "a match is durable"
MATCHING: Final = "log matching"
LOST: Final = "no committed entry lost"
COMPLETE: Final = "leader completeness"
CRASHED: Final = "no exception"


def _old_terms_by_count(original: Any) -> Any:
    def maybe_commit(self: Leading) -> bool:
        core = self._core
        reached = {voter: found.match for voter, found in self.progress.items()}
        reached[core.id] = core.synced
        index = core.members.reached(reached)
        if index <= core.log.commit:
            return False
        core.commit_to(index)
        self.follow_members()
        return True

    return maybe_commit


def _stale_append_truncates(original: Any) -> Any:
    def take(self: Following, entries: tuple[Entry, ...], *, start: int) -> int:
        if entries and entries[0].index <= self._core.log.last:
            self._core.truncate_from(entries[0].index)
        return int(original(self, entries, start=start))

    return take


def _previous_term_ignored(original: Any) -> Any:
    def on_append(self: Following, message: Append) -> None:
        term = self._core.log.term_at(message.previous_index)
        original(self, message if term is None else replace(message, previous_term=term))

    return on_append


def _commits_beyond_match(original: Any) -> Any:
    def on_append(self: Following, message: Append) -> None:
        original(self, message)
        core = self._core
        core.commit_to(max(core.log.commit, min(message.commit, core.log.last)))

    return on_append


def _heartbeat_commits_beyond_match(original: Any) -> Any:
    def send_heartbeat(self: Leading, member: int, progress: Progress) -> None:
        core = self._core
        core.send(Heartbeat(core.id, member, core.term, core.log.commit, self.round))
        progress.commit_sent = core.log.commit

    return send_heartbeat


def _no_back_pressure(original: Any) -> Any:
    def propose(self: Requests, payload: bytes, *, deadline_ticks: int | None = None) -> int:
        leading = self._member.leading
        if leading is None:
            return int(original(self, payload, deadline_ticks=deadline_ticks))
        return self._append(leading, Kind.NORMAL, payload, deadline_ticks)

    return propose


def _applies_from_the_snapshot_again(original: Any) -> Any:
    def on_applied(self: Core, index: int) -> None:
        original(self, index)
        if index % self.config.commit_count_to_take_snapshot == 0 and index > 1:
            self.applied = max(index - 1, self.log.first)

    return on_applied


BUGS: Final = (
    Planted(
        name="old term's entries committed by count",
        found_by=(COMMIT,),
        patch=instead(Leading, "maybe_commit", _old_terms_by_count),
    ),
    Planted(
        name="stale append truncates",
        found_by=(LOST, COMMIT, MATCH),
        patch=instead(Following, "_take", _stale_append_truncates),
    ),
    Planted(
        name="previous term not compared",
        found_by=(MATCHING, MATCH, COMMIT, SAFETY),
        patch=instead(Following, "on_append", _previous_term_ignored),
    ),
    Planted(
        name="follower commits beyond what it matched",
        found_by=(SAFETY, COMMIT),
        patch=instead(Following, "on_append", _commits_beyond_match),
    ),
    Planted(
        name="heartbeat commits beyond what matched",
        found_by=(SAFETY, COMMIT),
        patch=instead(Leading, "_send_heartbeat", _heartbeat_commits_beyond_match),
    ),
    Planted(
        name="no back pressure",
        found_by=("bounded memory",),
        patch=instead(Requests, "propose", _no_back_pressure),
    ),
    Planted(
        name="last entry before a snapshot applied twice",
        found_by=("applied in order", "reads see what was committed"),
        patch=instead(Core, "on_applied", _applies_from_the_snapshot_again),
    ),
)
