"""Reads that append nothing to the log: by a round of heartbeats (thesis 6.4), by lease, or local.

```
requested -> waits for a round -> round sent, read index fixed -> quorum replied -> index applied
```

All waiting reads share the next round. One round is under way at a time. Where its messages are
lost, the next heartbeat confirms it, since a heartbeat has a higher round number.
"""

from __future__ import annotations

from collections import deque

import msgspec

from bascule.raft.config import NEVER
from bascule.raft.effects import Answer, RequestOutcome
from bascule.raft.log import RaftLog


class PendingRead(msgspec.Struct):
    """A read that is not answered."""

    ticket: int
    deadline: int
    """The tick at which it is answered with `TIMED_OUT`, or `NEVER`."""
    round: int = 0
    """The heartbeat round that confirms it; 0 before that is sent."""
    index: int = 0
    """The read index: it is answered when this index is applied."""


class PendingReads:
    """The pending reads of one node. `leader` arguments are the leader as far as known."""

    __slots__ = ("_answers", "_applying", "_confirming", "_log", "_next_deadline", "_waiting")

    def __init__(self, log: RaftLog, answers: list[Answer]) -> None:
        self._log = log
        self._answers = answers
        """Answers are appended here; the list is the node's."""
        self._waiting: deque[PendingRead] = deque()
        """Reads that wait for the next round to be sent, oldest first."""
        self._confirming: deque[PendingRead] = deque()
        """Reads whose round was sent and not confirmed by a quorum, oldest first."""
        self._applying: list[PendingRead] = []
        """Reads that wait until their index is applied."""
        self._next_deadline = NEVER
        """No pending read has an earlier deadline."""

    def __len__(self) -> int:
        return len(self._waiting) + len(self._confirming) + len(self._applying)

    @property
    def needs_round(self) -> bool:
        """Whether a round is to be sent now."""
        return bool(self._waiting) and not self._confirming

    def wait_for_round(self, read: PendingRead) -> None:
        self._waiting.append(read)
        self._next_deadline = min(self._next_deadline, read.deadline)

    def wait_for_index(self, read: PendingRead, leader: int) -> None:
        """Answer `read` when `read.index` is applied."""
        if self._log.applied >= read.index:
            self._answer(read, RequestOutcome.READABLE, leader)
        else:
            self._applying.append(read)
            self._next_deadline = min(self._next_deadline, read.deadline)

    def begin_round(self, round_number: int) -> None:
        """A round was sent: it confirms every read requested until now."""
        commit = self._log.commit
        for read in self._waiting:
            read.round, read.index = round_number, commit
        self._confirming.extend(self._waiting)
        self._waiting.clear()

    def on_round_confirmed(self, round_number: int, leader: int) -> None:
        """A quorum replied to `round_number`."""
        confirming = self._confirming
        while confirming and confirming[0].round <= round_number:
            self.wait_for_index(confirming.popleft(), leader)

    def on_applied(self, leader: int) -> None:
        """The applied index rose."""
        if self._applying:
            reads, self._applying = self._applying, []
            for read in reads:
                self.wait_for_index(read, leader)

    def on_leadership_lost(self, leader: int) -> None:
        """Refuse the reads that no quorum has confirmed: another node may lead."""
        for read in (*self._waiting, *self._confirming):
            self._answer(read, RequestOutcome.NOT_LEADER, leader)
        self._waiting.clear()
        self._confirming.clear()

    def expire(self, now: int, leader: int) -> None:
        """Answer the reads whose deadline has passed."""
        if self._next_deadline > now:
            return

        def keep(read: PendingRead) -> bool:
            if read.deadline > now:
                return True
            self._answer(read, RequestOutcome.TIMED_OUT, leader)
            return False

        self._waiting = deque(filter(keep, self._waiting))
        self._confirming = deque(filter(keep, self._confirming))
        self._applying = list(filter(keep, self._applying))
        left = (*self._waiting, *self._confirming, *self._applying)
        self._next_deadline = min((read.deadline for read in left), default=NEVER)

    def next_deadline(self) -> int:
        """The earliest tick at which `expire` may have something to do."""
        has_reads = self._waiting or self._confirming or self._applying
        return self._next_deadline if has_reads else NEVER

    def _answer(self, read: PendingRead, outcome: RequestOutcome, leader: int) -> None:
        self._answers.append(Answer(read.ticket, outcome, self._log.applied, leader))
