"""Who is to be told what became of an entry, each once.

That an entry was truncated here does not say what becomes of it: another member may still have it,
be elected and commit it (the Raft paper's figure 8). Its fate is known once an entry is committed
at its index, and `NOT_LEADER` waits for that.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from bascule.raft.config import NEVER
from bascule.raft.effects import Answer, Outcome
from bascule.raft.log import RaftLog


class Pending(msgspec.Struct, gc=False):
    """A proposal whose fate is not known."""

    index: int
    term: int
    ticket: int
    deadline: int
    """The tick at which it is given up, or `NEVER`."""


class Proposals:
    """The proposals made on one node. They survive its leadership."""

    __slots__ = ("_live", "_next_deadline", "_replaced", "answers")

    def __init__(self, answers: list[Answer]) -> None:
        self.answers = answers
        self._live: dict[int, Pending] = {}
        """By index: those whose entry is in this node's log."""
        self._replaced: list[Pending] = []
        """Those whose entry is not, in no order."""
        self._next_deadline = NEVER

    def __len__(self) -> int:
        return len(self._live) + len(self._replaced)

    def add(self, index: int, term: int, ticket: int, deadline: int) -> None:
        self._live[index] = Pending(index, term, ticket, deadline)
        self._next_deadline = min(self._next_deadline, deadline)

    def committed(self, start: int, end: int, log: RaftLog, leader: int) -> None:
        """The entries [start, end) of `log` are committed."""
        if live := self._live:
            for index in range(start, end):
                if (found := live.pop(index, None)) is not None:
                    self.answers.append(Answer(found.ticket, Outcome.COMMITTED, index, leader))
        if self._replaced:
            # Behind an entry of a later term none of an earlier one can ever be committed.
            term = log.term_at(end - 1) or 0
            for found in self._taken(lambda held: held.index < end or held.term < term):
                same = log.term_at(found.index) == found.term
                outcome = Outcome.COMMITTED if same else Outcome.NOT_LEADER
                self._answer(found, outcome, leader)

    def truncated(self, start: int) -> None:
        """The entries from `start` on were replaced in this node's log."""
        for index in sorted(index for index in self._live if index >= start):
            self._replaced.append(self._live.pop(index))

    def covered(self, end: int, leader: int) -> None:
        """A snapshot stands where the entries before `end` were, and may hold them or not."""
        for index in sorted(index for index in self._live if index < end):
            self._answer(self._live.pop(index), Outcome.INDETERMINATE, leader)
        for found in self._taken(lambda pending: pending.index < end):
            self._answer(found, Outcome.INDETERMINATE, leader)

    def doomed(self, start: int, leader: int) -> None:
        """What was in the log from `start` on lay behind an entry that differs from the committed
        one: no log that has it can be a leader's any more."""
        for index in sorted(index for index in self._live if index >= start):
            self._answer(self._live.pop(index), Outcome.NOT_LEADER, leader)

    def expire(self, now: int, leader: int) -> None:
        """Answer those whose deadline has passed; their entries may be committed later all the
        same."""
        if self._next_deadline > now:
            return
        late = [found for found in self._live.values() if found.deadline <= now]
        for found in late:
            del self._live[found.index]
        late += self._taken(lambda pending: pending.deadline <= now)
        for found in late:
            self._answer(found, Outcome.INDETERMINATE, leader)
        left = (*self._live.values(), *self._replaced)
        self._next_deadline = min((found.deadline for found in left), default=NEVER)

    def next_deadline(self) -> int:
        """The earliest tick at which `expire` may have to be called."""
        return self._next_deadline if self._live or self._replaced else NEVER

    def _taken(self, which: Callable[[Pending], bool]) -> list[Pending]:
        """The replaced ones that `which` is true of; they are no longer held."""
        taken = [pending for pending in self._replaced if which(pending)]
        if taken:
            self._replaced = [pending for pending in self._replaced if not which(pending)]
        return taken

    def _answer(self, found: Pending, outcome: Outcome, leader: int) -> None:
        self.answers.append(Answer(found.ticket, outcome, found.index, leader))
