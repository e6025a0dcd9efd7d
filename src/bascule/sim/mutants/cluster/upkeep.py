"""Mutants of retention, purges, compaction, directories and requests to the controller."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any, Final

from msgspec.structs import replace

from bascule.controller.cluster.nats_lack import LackingNodes
from bascule.controller.purges import Purges
from bascule.controller.remembered_requests import RememberedRequests
from bascule.controller.replica_removal import ReplicaRemoval
from bascule.raft_driver.sqlite_store import KnownCommits
from bascule.replica.maintenance import cleaner, retention
from bascule.replica.maintenance.retention import Retention
from bascule.replication.leader import LeaderReplication
from bascule.sim.cluster.run import ClusterOptions
from bascule.sim.mutants.cluster.base import (
    COMPACTION,
    LOST,
    MOVES,
    PROGRESS,
    ClusterMutant,
)
from bascule.storage.retention import RetentionLimits

CONFIRMED: Final = "nodes have what they confirmed"
KEPT: Final = "retention keeps"
EVERYTHING: Final = 1 << 62


def _follow_no_start(_: Any) -> Any:
    def mutant(*_: Any) -> bool:
        """Let followers keep what the leader has removed."""
        return False

    return mutant


def _keep_half(limits_of: Any) -> Any:
    def mutant(config: Any) -> RetentionLimits:
        """Keep half of the messages that a stream is to keep."""
        found: RetentionLimits = limits_of(config)
        return found._replace(messages_max=found.messages_max // 2)

    return mutant


def _expire_early(limits_of: Any) -> Any:
    def mutant(config: Any) -> RetentionLimits:
        """Keep messages for a tenth of the time."""
        found: RetentionLimits = limits_of(config)
        return found._replace(age_ms_max=found.age_ms_max // 10)

    return mutant


def _await_nobody(_: Any) -> Any:
    async def mutant(*_: Any) -> None:
        """Confirm a purge before the followers have carried it out."""

    return mutant


def _join_with_an_earlier_start(may_join: Any) -> Any:
    def mutant(self: LeaderReplication, follower: Any) -> bool:
        """Take replicas for in sync that have records which are purged."""
        self._purged_to = 0
        return bool(may_join(self, follower))

    return mutant


def _remove_tombstones(compaction: Any) -> Any:
    def mutant(*args: Any, **options: Any) -> Any:
        """Remove a tombstone when its time has come, whoever has it."""
        return compaction(
            *args, **{**options, "tombstones_end": EVERYTHING, "removal": nullcontext(True)}
        )

    return mutant


def _compact_uncommitted(plan: Any) -> Any:
    def mutant(*args: Any, **kwargs: Any) -> Any:
        """Remove committed values for uncommitted ones."""
        return plan(*args, **{**kwargs, "high_watermark": EVERYTHING})

    return mutant


def _start_without_votes(_: Any) -> Any:
    def mutant(*_: Any) -> None:
        """Start with whatever metadata there are."""

    return mutant


def _keep_data(_: Any) -> Any:
    def mutant(*_: Any) -> None:
        """Leave the data of a replica that has moved away."""

    return mutant


def _lead_on(_: Any) -> Any:
    async def mutant(*_: Any) -> None:
        """Have a node lead on that lacks NATS."""

    return mutant


def _remember_none(_: Any) -> Any:
    def mutant(self: RememberedRequests, id: bytes) -> bool:
        """Have no request taken effect yet."""
        return False

    return mutant


_LIMITED: Final = ClusterOptions(groups=0, seconds=15, streams=2, traits="limited", faults="kill")
_AGED: Final = ClusterOptions(groups=0, seconds=15, streams=2, traits="aged", faults="kill")
_PURGES: Final = ClusterOptions(
    groups=0, seconds=15, streams=2, traits="plain", faults="purge,kill,loss of a leader,slow link"
)
_PURGES_AND_ELECTIONS: Final = replace(
    _PURGES, faults="purge,kill,loss of a leader,loss of the controller,planned election"
)
_COMPACTED: Final = ClusterOptions(
    groups=0,
    seconds=20,
    streams=2,
    traits="compacted",
    faults="kill,split,isolate,loss of a leader",
)
_WITHOUT_NATS: Final = ClusterOptions(
    groups=0, seconds=4, streams=1, traits="plain", faults="loss of nats", wide=True
)
_OLDER: Final = ClusterOptions(
    groups=0, seconds=20, nodes=3, streams=1, traits="plain", faults="older metadata,stream churn"
)
_REPEATED: Final = ClusterOptions(
    groups=0, seconds=30, streams=1, traits="plain",
    faults="isolate,link,slow link,cancelled move,drain",
)  # fmt: skip
"""Answers are lost, and what is asked for is taken back before it is asked for again."""
MUTANTS: Final = (
    ClusterMutant(
        "metadata of any age", (CONFIRMED,), KnownCommits, "check", _start_without_votes, _OLDER
    ),
    ClusterMutant(
        "log start not followed", (PROGRESS,),
        Retention, "_has_to_follow", _follow_no_start, _LIMITED, first_seed=2,
    ),
    ClusterMutant(
        "half of the limit kept", (KEPT,), retention, "limits_of", _keep_half, _LIMITED
    ),
    ClusterMutant(
        "expired early", (KEPT,), retention, "limits_of", _expire_early, _AGED
    ),
    ClusterMutant(
        "purge not awaited", ("what is purged stays so",),
        Purges, "_have_followed", _await_nobody, _PURGES,
    ),
    ClusterMutant(
        "in sync with an earlier start", ("what is purged stays so",),
        LeaderReplication, "_may_join", _join_with_an_earlier_start, _PURGES_AND_ELECTIONS,
    ),
    ClusterMutant(
        "tombstones not awaited", (COMPACTION,),
        cleaner, "Compaction", _remove_tombstones, _COMPACTED, first_seed=1,
    ),
    ClusterMutant(
        "compaction above the watermark", (COMPACTION, *LOST),
        cleaner, "plan_compaction", _compact_uncommitted, _COMPACTED, first_seed=19,
    ),
    ClusterMutant(
        "data of moved replicas kept", (PROGRESS,),
        ReplicaRemoval, "_remove_replica", _keep_data, MOVES,
    ),
    ClusterMutant(
        "leaders without NATS", (PROGRESS,),
        LackingNodes, "give_leaders", _lead_on, _WITHOUT_NATS,
    ),
    ClusterMutant(
        "requests taken again", ("requests take effect once",),
        RememberedRequests, "__contains__", _remember_none, _REPEATED, first_seed=100,
    ),
)  # fmt: skip
