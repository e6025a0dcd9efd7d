"""Who is to be told what became of an entry, each once."""

from __future__ import annotations

import msgspec

from bascule.raft.effects import Answer, Outcome


class Pending(msgspec.Struct, gc=False):
    """A proposal whose entry is in the log and not known to be committed."""

    ticket: int
    deadline: int | None


class Proposals:
    """The proposals made on one node, by index. They survive its leadership: an entry's fate is
    known when it is committed or replaced, whoever leads then."""

    __slots__ = ("_next_deadline", "answers", "pending")

    def __init__(self, answers: list[Answer]) -> None:
        self.answers = answers
        self.pending: dict[int, Pending] = {}
        self._next_deadline: int | None = None

    def __len__(self) -> int:
        return len(self.pending)

    def add(self, index: int, ticket: int, deadline: int | None) -> None:
        self.pending[index] = Pending(ticket, deadline)
        if deadline is not None and (self._next_deadline is None or deadline < self._next_deadline):
            self._next_deadline = deadline

    def committed(self, start: int, end: int, leader: int) -> None:
        """The entries [start, end) are committed."""
        pending = self.pending
        if not pending:
            return
        for index in range(start, end):
            if (found := pending.pop(index, None)) is not None:
                self.answers.append(Answer(found.ticket, Outcome.COMMITTED, index, leader))

    def truncated(self, start: int, leader: int) -> None:
        """The entries from `start` on were replaced: they are committed nowhere, ever."""
        for index in sorted(index for index in self.pending if index >= start):
            found = self.pending.pop(index)
            self.answers.append(Answer(found.ticket, Outcome.NOT_LEADER, index, leader))

    def covered(self, end: int, leader: int) -> None:
        """A snapshot stands where the entries before `end` were, and may hold them or not."""
        for index in sorted(index for index in self.pending if index < end):
            found = self.pending.pop(index)
            self.answers.append(Answer(found.ticket, Outcome.INDETERMINATE, index, leader))

    def expire(self, now: int, leader: int) -> None:
        """Answer those whose deadline has passed; their entries may be committed later all the
        same."""
        if self._next_deadline is None or self._next_deadline > now:
            return
        self._next_deadline = None
        for index, found in list(self.pending.items()):
            if found.deadline is None:
                continue
            if found.deadline <= now:
                del self.pending[index]
                self.answers.append(Answer(found.ticket, Outcome.INDETERMINATE, index, leader))
            elif self._next_deadline is None or found.deadline < self._next_deadline:
                self._next_deadline = found.deadline

    def next_deadline(self) -> int | None:
        return self._next_deadline if self.pending else None
