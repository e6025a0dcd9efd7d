"""Mutants of groups: who is a member, who may commit, what is stored."""

from __future__ import annotations

import asyncio
from typing import Any, Final

from bascule.groups.classic import ClassicGroup
from bascule.groups.committed_offsets import CommittedOffsetStore
from bascule.groups.consumer.roster import Roster
from bascule.groups.coordinator import GroupCoordinator
from bascule.sim.cluster.consumers.history import FENCED, KEPT, OWNERS, REMEMBERED
from bascule.sim.cluster.run import ClusterOptions
from bascule.sim.mutants.cluster.base import ClusterMutant
from bascule.wire.error_codes import ErrorCode


def _take_all_commits(_: Any) -> Any:
    def mutant(self: Any, *_: Any) -> ErrorCode:
        """Take commits of anybody."""
        found: ErrorCode = self.error()
        return found

    return mutant


def _store_no_members(_: Any) -> Any:
    async def mutant(*_: Any) -> None:
        """Hand out assignments that are not stored."""

    return mutant


def _restore_late(restore: Any) -> Any:
    def mutant(snapshot: Any, limits: Any, now_ms: int) -> Any:
        """Take the members that were stored for silent."""
        return restore.__func__(ClassicGroup, snapshot, limits, now_ms - 60_000)

    return staticmethod(mutant)


def _answer_early(commit: Any) -> Any:
    async def mutant(self: Any, *args: Any, **kwargs: Any) -> None:
        """Answer commits before they are stored."""
        task = asyncio.create_task(commit(self, *args, **kwargs))
        task.add_done_callback(lambda done: done.cancelled() or done.exception())

    return mutant


def _give_what_is_not_free(_: Any) -> Any:
    def mutant(*_: Any) -> Any:
        """Assign partitions that another member has not given up."""
        return lambda _: True

    return mutant


_COORDINATORS: Final = ClusterOptions(
    seconds=15, streams=1, groups=2, faults="kill,loss of a leader,planned stop"
)
_CONSUMERS: Final = ClusterOptions(
    seconds=25, streams=1, groups=2, traits="split", faults="loss of a member"
)
_SLOW_DISKS: Final = ClusterOptions(
    seconds=15,
    streams=1,
    groups=2,
    traits="split",
    faults="stalled disk,slow disk,loss of a leader,power loss",
)
MUTANTS: Final = (
    ClusterMutant(
        "commits not fenced", (FENCED, KEPT),
        GroupCoordinator, "commit_error", _take_all_commits, _CONSUMERS,
        first_seed=3,
    ),
    ClusterMutant(
        "members not stored", (REMEMBERED,),
        CommittedOffsetStore, "store_group", _store_no_members, _COORDINATORS,
    ),
    ClusterMutant(
        "members restored as silent", (REMEMBERED,),
        ClassicGroup, "restore", _restore_late, _COORDINATORS,
    ),
    ClusterMutant(
        "members of the consumer protocol not stored", (REMEMBERED, OWNERS),
        CommittedOffsetStore, "store_members", _store_no_members, _COORDINATORS,
    ),
    ClusterMutant(
        "partitions given away early", (OWNERS, FENCED),
        Roster, "_is_free_for", _give_what_is_not_free, _CONSUMERS,
    ),
    ClusterMutant(
        "commits answered early", (KEPT,),
        CommittedOffsetStore, "commit", _answer_early, _SLOW_DISKS, first_seed=98,
    ),
)  # fmt: skip
