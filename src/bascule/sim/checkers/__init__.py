"""Oracles: one class for each invariant of a Raft group, called at every event.

A simulator runs nodes and passes every event to a `Checkers`. A `Checker` whose invariant is broken
raises `InvariantBroken` at once, so that the last events explain it. Checkers examine what a node
returns (`Ready`), what it sends and what its disk contains, not its internal state. An event costs
a few dictionary look-ups; no log is scanned.

`standard_checkers()` makes one of each. `docs/invariants.md` states each invariant under its name.
"""

from __future__ import annotations

from bascule.sim.checkers.answers import AnsweredOnce, FreshReads, TruthfulAnswers
from bascule.sim.checkers.base import Checker, Checkers, InvariantBroken
from bascule.sim.checkers.commits import (
    CommitIsDurable,
    MatchIsDurable,
    Monotonic,
    NothingLost,
    SyncedIsOnDisk,
)
from bascule.sim.checkers.committed_log import CommittedLog
from bascule.sim.checkers.disks import Disks
from bascule.sim.checkers.elections import ElectionSafety, OneVote, PreVote
from bascule.sim.checkers.histories.linearizability import Linearizability
from bascule.sim.checkers.limits import BoundedMemory
from bascule.sim.checkers.logs import AppendOnly, LeaderCompleteness, LogMatching
from bascule.sim.checkers.machines import ApplyOrder, SnapshotsAgree
from bascule.sim.checkers.membership import MembersInForce, OneChange

__all__ = ["Checker", "Checkers", "InvariantBroken", "standard_checkers"]


def standard_checkers() -> list[Checker]:
    """One of each, in the order in which they are called. A checker that compares an event with the
    state before it comes before `Disks` or `CommittedLog`; one that needs the state after it comes
    behind them."""
    disks, committed_log = Disks(), CommittedLog()
    return [
        Monotonic(disks),
        CommitIsDurable(disks, committed_log),
        NothingLost(disks, committed_log),
        disks,
        committed_log,
        ElectionSafety(),
        OneVote(disks),
        PreVote(),
        AppendOnly(),
        LogMatching(),
        LeaderCompleteness(committed_log),
        SyncedIsOnDisk(disks),
        MatchIsDurable(disks),
        AnsweredOnce(),
        TruthfulAnswers(committed_log),
        FreshReads(committed_log),
        ApplyOrder(committed_log),
        SnapshotsAgree(committed_log),
        OneChange(),
        MembersInForce(committed_log),
        BoundedMemory(),
        Linearizability(),
    ]
