"""Mutants of groups: who is a member, who may commit, what is stored."""

from __future__ import annotations

import asyncio
from typing import Any, Final

from msgspec.structs import replace

from bascule.groups.administration import GroupAdministration
from bascule.groups.classic import ClassicGroup
from bascule.groups.committed_offsets import CommittedOffsetStore
from bascule.groups.consumer import ConsumerGroup, roster
from bascule.groups.consumer.roster import Roster
from bascule.groups.coordinator import GroupCoordinator
from bascule.sim.cluster.consumers.history import (
    ANSWERED,
    FENCED,
    KEPT,
    MEMBERS_STAY,
    OWNERS,
    REMEMBERED,
)
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


def _restore_consumers_late(restore: Any) -> Any:
    def mutant(group: Any, members: Any, limits: Any, topics: Any, now_ms: int) -> Any:
        """Take the members that were stored for silent."""
        return restore.__func__(ConsumerGroup, group, members, limits, topics, now_ms - 60_000)

    return staticmethod(mutant)


def _forget_epochs(decode: Any) -> Any:
    def mutant(member_id: str, value: bytes, now_ms: int) -> Any:
        """Restore members without the epochs that they have reached."""
        member, incarnation = decode(member_id, value, now_ms)
        member.epoch, member.previous_epoch = member.previous_epoch, 0
        return member, incarnation

    return mutant


def _fence_no_commits(on_commit: Any) -> Any:
    def mutant(self: Any, member_id: str, instance_id: Any, generation: int, now_ms: int) -> Any:
        """Take commits of a static member in whose place another process is."""
        error = on_commit(self, member_id, instance_id, generation, now_ms)
        return ErrorCode.NONE if error == ErrorCode.FENCED_INSTANCE_ID else error

    return mutant


def _delete_whatever(_: Any) -> Any:
    async def mutant(self: Any, names: Any) -> dict[str, ErrorCode]:
        """Delete groups with members."""
        await self._offsets.remove_keys([key for name in names for key in self._offsets.keys(name)])
        return dict.fromkeys(names, ErrorCode.NONE)

    return mutant


def _answer_early(store_checked: Any) -> Any:
    def mutant(self: Any, commits: Any) -> Any:
        """Answer commits before they are stored."""
        stored = store_checked(self, commits)
        stored.add_done_callback(lambda done: done.cancelled() or done.exception())
        early = asyncio.get_running_loop().create_future()
        early.set_result(-len(commits))
        return early

    return mutant


def _give_what_is_not_free(_: Any) -> Any:
    def mutant(*_: Any) -> Any:
        """Assign partitions that another member has not given up."""
        return lambda _: True

    return mutant


_COORDINATORS: Final = ClusterOptions(
    seconds=15,
    streams=1,
    groups=2,
    group_traits="plain",
    faults="kill,loss of a leader,planned stop",
)
_CONSUMERS: Final = ClusterOptions(
    seconds=25,
    streams=1,
    groups=2,
    group_traits="plain",
    traits="split",
    faults="loss of a member",
)
_STATIC: Final = replace(_CONSUMERS, group_traits="static")
_DELETED: Final = replace(_CONSUMERS, group_traits="deleted")
_SLOW_DISKS: Final = ClusterOptions(
    seconds=15,
    streams=1,
    groups=2,
    group_traits="plain",
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
        "members of the consumer protocol restored as silent", (REMEMBERED, OWNERS),
        ConsumerGroup, "restore", _restore_consumers_late, _COORDINATORS,
    ),
    ClusterMutant(
        "members of the consumer protocol restored with an old epoch", (REMEMBERED, ANSWERED),
        roster, "decode_member", _forget_epochs, _COORDINATORS,
    ),
    ClusterMutant(
        "commits of replaced static members taken", (FENCED, KEPT),
        ClassicGroup, "on_commit", _fence_no_commits, _STATIC, first_seed=43,
    ),
    ClusterMutant(
        "groups with members deleted", (MEMBERS_STAY,),
        GroupAdministration, "delete", _delete_whatever, _DELETED,
    ),
    ClusterMutant(
        "partitions given away early", (OWNERS, FENCED),
        Roster, "_is_free_for", _give_what_is_not_free, _CONSUMERS,
    ),
    ClusterMutant(
        "commits answered early", (KEPT,),
        CommittedOffsetStore, "store_checked", _answer_early, _SLOW_DISKS, first_seed=410,
    ),
)  # fmt: skip
