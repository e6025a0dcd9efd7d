"""The proposals of a node that are not answered yet.

Truncation of an entry on this node does not decide the proposal: another member may still have the
entry, be elected and commit it (Raft paper, figure 8). The proposal is decided when an entry is
committed at its index, so `NOT_LEADER` is answered only then.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from bascule.raft.config import NEVER
from bascule.raft.effects import Answer, RequestOutcome
from bascule.raft.log import RaftLog


class PendingProposal(msgspec.Struct, gc=False):
    """A proposal that is not answered."""

    index: int
    term: int
    ticket: int
    deadline: int
    """The tick at which it is answered with `INDETERMINATE`, or `NEVER`."""


class PendingProposals:
    """The pending proposals of one node. They stay pending when the node loses leadership.

    `leader` arguments are the leader as far as known.
    """

    __slots__ = ("_answers", "_in_log", "_next_deadline", "_truncated")

    def __init__(self, answers: list[Answer]) -> None:
        self._answers = answers
        """Answers are appended here; the list is the node's."""
        self._in_log: dict[int, PendingProposal] = {}
        """By index: the proposals whose entry is in this node's log."""
        self._truncated: list[PendingProposal] = []
        """The proposals whose entry was truncated from this node's log, in no order."""
        self._next_deadline = NEVER
        """No pending proposal has an earlier deadline."""

    def __len__(self) -> int:
        return len(self._in_log) + len(self._truncated)

    def places(self) -> dict[int, tuple[int, int]]:
        """(index, term) of each pending proposal, by ticket."""
        pending = (*self._in_log.values(), *self._truncated)
        return {proposal.ticket: (proposal.index, proposal.term) for proposal in pending}

    def add(self, index: int, term: int, ticket: int, deadline: int) -> None:
        self._in_log[index] = PendingProposal(index, term, ticket, deadline)
        self._next_deadline = min(self._next_deadline, deadline)

    def on_committed(self, start: int, end: int, log: RaftLog, leader: int) -> None:
        """The entries [start, end) of `log` are committed."""
        if in_log := self._in_log:
            for index in range(start, end):
                if (proposal := in_log.pop(index, None)) is not None:
                    outcome = RequestOutcome.COMMITTED
                    self._answers.append(
                        Answer(proposal.ticket, outcome, index, leader, proposal.term)
                    )
        if self._truncated:
            # Behind a committed entry of a later term no entry of an earlier one can be committed.
            term = log.term_at(end - 1) or 0
            for proposal in self._take_truncated(
                lambda pending: pending.index < end or pending.term < term
            ):
                same = log.term_at(proposal.index) == proposal.term
                outcome = RequestOutcome.COMMITTED if same else RequestOutcome.NOT_LEADER
                self._answer(proposal, outcome, leader)

    def on_truncated(self, start: int) -> None:
        """The entries from `start` on were truncated from this node's log."""
        for index in sorted(index for index in self._in_log if index >= start):
            self._truncated.append(self._in_log.pop(index))

    def on_covered_by_snapshot(self, end: int, leader: int) -> None:
        """A snapshot replaced the entries before `end`; it may contain the proposals or not."""
        for index in sorted(index for index in self._in_log if index < end):
            self._answer(self._in_log.pop(index), RequestOutcome.INDETERMINATE, leader)
        for proposal in self._take_truncated(lambda pending: pending.index < end):
            self._answer(proposal, RequestOutcome.INDETERMINATE, leader)

    def on_log_reset(self, start: int, leader: int) -> None:
        """The entries from `start` on were removed because they follow an entry that differs from
        the committed one. No node whose log contains them can be elected."""
        for index in sorted(index for index in self._in_log if index >= start):
            self._answer(self._in_log.pop(index), RequestOutcome.NOT_LEADER, leader)

    def expire(self, now: int, leader: int) -> None:
        """Answer the proposals whose deadline has passed. Their entries may be committed later."""
        if self._next_deadline > now:
            return
        late = [proposal for proposal in self._in_log.values() if proposal.deadline <= now]
        for proposal in late:
            del self._in_log[proposal.index]
        late += self._take_truncated(lambda pending: pending.deadline <= now)
        for proposal in late:
            self._answer(proposal, RequestOutcome.INDETERMINATE, leader)
        left = (*self._in_log.values(), *self._truncated)
        self._next_deadline = min((proposal.deadline for proposal in left), default=NEVER)

    def next_deadline(self) -> int:
        """The earliest tick at which `expire` may have something to do."""
        return self._next_deadline if self._in_log or self._truncated else NEVER

    def _take_truncated(self, matches: Callable[[PendingProposal], bool]) -> list[PendingProposal]:
        """Remove and return the truncated proposals for which `matches` is true."""
        taken = [pending for pending in self._truncated if matches(pending)]
        if taken:
            self._truncated = [pending for pending in self._truncated if not matches(pending)]
        return taken

    def _answer(self, proposal: PendingProposal, outcome: RequestOutcome, leader: int) -> None:
        self._answers.append(
            Answer(proposal.ticket, outcome, proposal.index, leader, proposal.term)
        )
