"""How empty nodes that share a NATS agree on one set of founders. Pure: messages in, wishes out.

The founders of a cluster of N are the nodes with the ids 1 to N. Each knows the others from their
announcements (`wire.founding`), and promises itself, on its disk, to a set: the data directory and
the address of each founder. The set is decided once one node has heard the same promise from all
its founders.

    promise    once a node hears all other founders, each from one directory: to these, in the round
               in which another one of them has made this promise already, else in a new round
    release    a promise (round, set) is given up only if it is dead: one of its founders has, in
               that round or a later one, another promise. A node has one promise in a round, and
               its rounds rise, so that founder will never make the promise that is given up
    decide     all founders of the set have announced exactly this promise, at any time

Two sets with a common founder are never both decided. Let all founders of a set have made its
promise. The first of them to give it up would have to see a founder of the set with another promise
of that round, which has never made this one, or of a later round, which has given it up before.
Both contradict that. Two sets without a common founder have different directories for each id: two
nodes with one id. These find each other, and one of them is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from bascule.wire.founding import Founder, FounderAnnouncement, FoundingSet, KeptPromise

HEARD_MS: Final = 3_000
"""A founder that was not heard of for so long is not counted as there: six announcements."""
AGE_MS: Final = 2_000
"""Nodes that started within this time of each other count as started together."""
DELAY_MS: Final = 1_000
"""An announcement is late by less than this. A node that is older by AGE_MS alone may look younger
to the other than that, so it may be the one that has to yield."""
DIRECTORIES_MAX: Final = 256
"""Founders of which is kept what they promised; more are ignored."""


@dataclass(frozen=True, slots=True)
class Refused:
    """Why this node cannot be a founder."""

    text: str


@dataclass(slots=True)
class _Heard:
    announcement: FounderAnnouncement
    at_ms: int


class FounderAgreement:
    """One node's part. All times are of its monotonic clock, in milliseconds."""

    def __init__(self, me: Founder, kept: KeptPromise, *, expect: int, now_ms: int) -> None:
        """`kept` is what is on the disk; `me` has the directory of it."""
        self._me = me
        self._kept = kept
        self._expect = expect
        self._started_ms = now_ms
        self._heard: dict[str, _Heard] = {}
        """Directory -> the last announcement."""
        self._promises: dict[str, FoundingSet] = {}
        """Directory -> the promise of the latest round, also of nodes that are no longer heard."""
        self._agreed: set[str] = set()
        """Directories that have announced this node's promise."""
        self._is_decided_elsewhere = False
        self._refused: Refused | None = None
        self._on_promise(kept.promise)

    @property
    def kept(self) -> KeptPromise:
        return self._kept

    def announcement(self, now_ms: int) -> FounderAnnouncement:
        """What this node says: only what is on its disk."""
        return FounderAnnouncement(
            expect=self._expect,
            age_ms=now_ms - self._started_ms,
            founder=self._me,
            promise=self._kept.promise,
            decided=self._kept.decided,
        )

    def on_announcement(self, said: FounderAnnouncement, now_ms: int) -> None:
        """Another node has said this."""
        directory = said.founder.directory
        if directory == self._me.directory and said.founder == self._me:
            return
        if directory not in self._heard and len(self._heard) >= DIRECTORIES_MAX:
            return
        self._heard[directory] = _Heard(said, now_ms)
        if said.promise is not None:
            self._on_other_promise(directory, said.promise, decided=said.decided)
        self._check(said, now_ms)

    def _on_other_promise(self, directory: str, promise: FoundingSet, *, decided: bool) -> None:
        known = self._promises.get(directory)
        if known is None or promise.round > known.round:
            self._promises[directory] = promise
        if promise == self._kept.promise:
            self._agreed.add(directory)
            self._is_decided_elsewhere |= decided

    def on_kept(self, kept: KeptPromise) -> None:
        """This is on the disk from now on."""
        is_new = kept.promise != self._kept.promise
        self._kept = kept
        if is_new:
            self._on_promise(kept.promise)

    def _on_promise(self, promise: FoundingSet | None) -> None:
        self._agreed = {d for d, other in self._promises.items() if other == promise}
        self._agreed.add(self._me.directory)
        self._is_decided_elsewhere = any(
            heard.announcement.decided and heard.announcement.promise == promise
            for heard in self._heard.values()
        )
        if promise is not None:
            self._promises[self._me.directory] = promise

    def wanted(self, now_ms: int) -> KeptPromise | Refused | None:
        """What has to be on the disk next, or why this node is refused; None: nothing."""
        if self._kept.decided:
            return None
        if self._refused is not None:
            return self._refused
        mine = self._kept.promise
        if mine is not None and not self._is_dead(mine):
            if self._is_decided_elsewhere or self._agreed >= _directories(mine):
                return KeptPromise(self._kept.directory, mine, decided=True)
            return None
        founders = self._all_founders(now_ms)
        if founders is None:
            return None
        return KeptPromise(self._kept.directory, self._next_promise(founders))

    def _is_dead(self, promise: FoundingSet) -> bool:
        others = (self._promises.get(founder.directory) for founder in promise.founders)
        return any(
            other is not None and other.round >= promise.round and other != promise
            for other in others
        )

    def _all_founders(self, now_ms: int) -> tuple[Founder, ...] | None:
        """All founders, by id; None unless each is there, once."""
        there = [heard.announcement.founder for heard in self._there(now_ms).values()]
        founders = tuple(sorted([self._me, *there]))
        ids = [founder.node_id for founder in founders]
        return founders if ids == list(range(1, self._expect + 1)) else None

    def _next_promise(self, founders: tuple[Founder, ...]) -> FoundingSet:
        """The latest promise to `founders` that another one has made and that is not dead, else one
        in a new round."""
        floor = 0 if self._kept.promise is None else self._kept.promise.round
        rounds = [
            promise.round
            for promise in self._promises.values()
            if promise.round > floor and promise.founders == founders and not self._is_dead(promise)
        ]
        last = max((promise.round for promise in self._promises.values()), default=0)
        return FoundingSet(max(rounds, default=last + 1), founders)

    def _there(self, now_ms: int) -> Mapping[str, _Heard]:
        """The founders of the same set size that are heard now, by directory."""
        return {
            directory: heard
            for directory, heard in self._heard.items()
            if now_ms - heard.at_ms <= HEARD_MS
            and heard.announcement.expect == self._expect
            and heard.announcement.founder.node_id <= self._expect
            and directory != self._me.directory
        }

    # Who may not take part

    def _check(self, said: FounderAnnouncement, now_ms: int) -> None:
        """Note why this node is refused, if it is."""
        if self._kept.decided or self._refused is not None:
            return
        other = said.founder
        if said.promise is not None and said.decided and self._me not in said.promise.founders:
            self._refused = Refused(
                f"node {other.node_id} says that the cluster has formed, and this data directory "
                "has no part in it: a node that has lost its disk cannot come back under its "
                "number; restore the directory"
            )
        elif other.directory == self._me.directory:
            self._refused = Refused(
                f"a node at {other.peer} has a copy of this node's data directory: end one of them"
            )
        elif other.node_id == self._me.node_id and self._yields_to(said, now_ms):
            self._refused = Refused(
                f"two nodes have the number {other.node_id}: this one, at {self._me.peer}, and one "
                f"at {other.peer}; give each node a number of its own with --node-id"
            )
        elif said.expect != self._expect and self._yields_to(said, now_ms):
            self._refused = Refused(
                f"node {other.node_id}, at {other.peer}, was started with --bootstrap-expect "
                f"{said.expect}, and this one with {self._expect}: give all nodes the same"
            )

    def _yields_to(self, said: FounderAnnouncement, now_ms: int) -> bool:
        """Whether this node, and not the other, is refused: who has promised stays, else who was
        there first."""
        has_promised, other_has = self._kept.promise is not None, said.promise is not None
        if has_promised != other_has:
            return other_has
        younger_ms = said.age_ms - (now_ms - self._started_ms)
        if younger_ms >= AGE_MS:
            return True
        if younger_ms <= -(AGE_MS + DELAY_MS):
            return False
        return self._me.directory > said.founder.directory

    def waits_for(self, now_ms: int) -> list[str]:
        """What is missing, for people."""
        there: dict[int, list[Founder]] = {self._me.node_id: [self._me]}
        for heard in self._there(now_ms).values():
            founder = heard.announcement.founder
            there.setdefault(founder.node_id, []).append(founder)
        missing = [f"node {number}" for number in range(1, self._expect + 1) if number not in there]
        twice = [
            f"an end of one of the nodes {number} at "
            + " and ".join(sorted(each.peer for each in founders))
            for number, founders in sorted(there.items())
            if len(founders) > 1
        ]
        mine = self._kept.promise
        if missing or twice or mine is None or self._is_dead(mine):
            return missing + twice
        return [
            f"node {each.node_id} with data directory {each.directory} at {each.peer}"
            for each in mine.founders
            if each.directory not in self._agreed
        ]


def _directories(promise: FoundingSet) -> set[str]:
    return {founder.directory for founder in promise.founders}
