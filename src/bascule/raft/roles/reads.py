"""Reads that touch no log: by a round of heartbeats (thesis 6.4), by lease, or local.

```
asked -> waiting for a round -> round sent, index fixed -> quorum answered -> index applied
```

All reads that wait share the next round, and one round is out at a time; a lost round is made good
by the next heartbeat, whose round number is higher.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

import msgspec

from bascule.raft.config import NEVER
from bascule.raft.effects import Answer, Outcome

if TYPE_CHECKING:
    from bascule.raft.roles.core import Core


class Read(msgspec.Struct):
    """A read that waits."""

    ticket: int
    deadline: int
    """The tick at which it is given up, or `NEVER`."""
    round: int = 0
    index: int = 0


class Reads:
    """The reads of one node."""

    __slots__ = ("_core", "_next_deadline", "_waiting", "applying", "confirming")

    def __init__(self, core: Core) -> None:
        self._core = core
        self._waiting: deque[Read] = deque()
        self.confirming: deque[Read] = deque()
        self.applying: list[Read] = []
        self._next_deadline = NEVER

    def __len__(self) -> int:
        return len(self._waiting) + len(self.confirming) + len(self.applying)

    @property
    def wants_round(self) -> bool:
        """Whether a round is to be sent now."""
        return bool(self._waiting) and not self.confirming

    def wait_for_round(self, read: Read) -> None:
        self._waiting.append(read)
        self._next_deadline = min(self._next_deadline, read.deadline)

    def wait_for_index(self, read: Read) -> None:
        """What is left to wait for is `read.index` applied."""
        if self._core.applied >= read.index:
            self._grant(read)
        else:
            self.applying.append(read)
            self._next_deadline = min(self._next_deadline, read.deadline)

    def begin_round(self, round_number: int) -> None:
        """A round is sent: it answers for all that was asked until now."""
        commit = self._core.log.commit
        for read in self._waiting:
            read.round, read.index = round_number, commit
        self.confirming.extend(self._waiting)
        self._waiting.clear()

    def on_round(self, round_number: int) -> None:
        """A quorum has answered `round_number`."""
        confirming = self.confirming
        while confirming and confirming[0].round <= round_number:
            self.wait_for_index(confirming.popleft())

    def on_applied(self) -> None:
        if self.applying:
            reads, self.applying = self.applying, []
            for read in reads:
                self.wait_for_index(read)

    def give_up_leading(self) -> None:
        """Another may lead: what no quorum has confirmed is to be asked there."""
        for read in (*self._waiting, *self.confirming):
            self._answer(read, Outcome.NOT_LEADER)
        self._waiting.clear()
        self.confirming.clear()

    def expire(self, now: int) -> None:
        """Answer those whose deadline has passed."""
        if self._next_deadline > now:
            return

        def keep(read: Read) -> bool:
            if read.deadline > now:
                return True
            self._answer(read, Outcome.TIMED_OUT)
            return False

        self._waiting = deque(filter(keep, self._waiting))
        self.confirming = deque(filter(keep, self.confirming))
        self.applying = list(filter(keep, self.applying))
        left = (*self._waiting, *self.confirming, *self.applying)
        self._next_deadline = min((read.deadline for read in left), default=NEVER)

    def next_deadline(self) -> int:
        """The earliest tick at which `expire` may have to be called."""
        waits = self._waiting or self.confirming or self.applying
        return self._next_deadline if waits else NEVER

    def _grant(self, read: Read) -> None:
        core = self._core
        core.answers.append(Answer(read.ticket, Outcome.READABLE, core.applied, core.leader))

    def _answer(self, read: Read, outcome: Outcome) -> None:
        core = self._core
        core.answers.append(Answer(read.ticket, outcome, core.applied, core.leader))
