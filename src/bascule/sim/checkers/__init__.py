"""Oracles: one class for each invariant of a Raft group, each told what happens while it happens.

A simulator runs nodes and tells a `Checkers` of every event; a `Checker` that sees its invariant
broken raises `InvariantBroken` at once, so that the last events before it are the explanation.
Checkers look at what a node hands over (`Ready`), at what leaves it and at what its disk holds, not
at what it means to do, and each event costs a few dictionary look-ups: no log is ever scanned.

`standard()` makes one of each. `docs/invariants.md` has the text of each under its name.
"""

from __future__ import annotations

from bascule.sim.checkers.answers import AnsweredOnce, FreshReads, TruthfulAnswers
from bascule.sim.checkers.base import Checker, Checkers, InvariantBroken
from bascule.sim.checkers.commits import CommitIsDurable, MatchIsDurable, Monotonic, NothingLost
from bascule.sim.checkers.committed_log import Ledger
from bascule.sim.checkers.disks import Disks
from bascule.sim.checkers.elections import ElectionSafety, OneVote, PreVote
from bascule.sim.checkers.limits import BoundedMemory
from bascule.sim.checkers.linearizability import Linearizability
from bascule.sim.checkers.logs import AppendOnly, LeaderCompleteness, LogMatching
from bascule.sim.checkers.machines import ApplyOrder, SnapshotsAgree
from bascule.sim.checkers.membership import MembersInForce, OneChange

__all__ = ["Checker", "Checkers", "InvariantBroken", "standard"]


def standard() -> list[Checker]:
    """One of each, in the order in which they are to be told: who looks at what the disks or the
    group had before an event stands before `Disks` or `Ledger`, who looks at it after, behind."""
    disks, ledger = Disks(), Ledger()
    return [
        Monotonic(disks),
        CommitIsDurable(disks, ledger),
        NothingLost(disks, ledger),
        disks,
        ledger,
        ElectionSafety(),
        OneVote(disks),
        PreVote(),
        AppendOnly(),
        LogMatching(),
        LeaderCompleteness(ledger),
        MatchIsDurable(disks),
        AnsweredOnce(),
        TruthfulAnswers(ledger),
        FreshReads(ledger),
        ApplyOrder(ledger),
        SnapshotsAgree(ledger),
        OneChange(),
        MembersInForce(ledger),
        BoundedMemory(),
        Linearizability(),
    ]
