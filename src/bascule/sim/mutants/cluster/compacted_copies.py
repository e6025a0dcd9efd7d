"""Mutants of copies of compacted logs: decision 86."""

from __future__ import annotations

from typing import Any, Final

from bascule.model import PartitionState
from bascule.replica.follower.followed_partition import FollowedPartition
from bascule.sim.cluster.run import ClusterOptions
from bascule.sim.mutants.cluster.base import COMPACTION, EPOCHS, IDENTICAL, LOST, ClusterMutant
from bascule.storage.epochs import NO_EPOCHS, LeaderEpochs
from bascule.storage.partition_log import PartitionLog


def _forget_since(_: Any) -> Any:
    def mutant(*_: Any) -> int:
        """Take a log for the same one, whatever happened in between."""
        return 0

    return mutant


def _tell_nothing(_: Any) -> Any:
    def mutant(*_: Any) -> LeaderEpochs:
        """Leave a follower to find the epochs of removed records in the records that are left."""
        return NO_EPOCHS

    return mutant


def _keep_undone(begin_copy: Any) -> Any:
    def mutant(self: FollowedPartition, store: PartitionLog) -> None:
        """Go on with a log whose compaction an unclean election has undone."""
        begin_copy(self, store)
        self._begins_again = False

    return mutant


_UNCLEAN: Final = ClusterOptions(
    groups=0, streams=1, traits="compacted,unsynced", faults="outage,power loss,kill"
)
_RETURNS: Final = ClusterOptions(
    groups=0, nodes=4, seconds=20, streams=1, traits="compacted", faults="return unheard"
)
_COPIES: Final = ClusterOptions(
    groups=0,
    nodes=4,
    seconds=20,
    streams=1,
    traits="compacted",
    faults="loss of a leader,move of replicas,planned election,wiped disk",
)
MUTANTS: Final = (
    ClusterMutant(
        "log kept by a replica that left", (COMPACTION, IDENTICAL),
        PartitionState, "replica_since", _forget_since, _RETURNS,
    ),
    ClusterMutant(
        "epochs of removed records not told", (EPOCHS,),
        LeaderEpochs, "after", _tell_nothing, _COPIES,
    ),
    ClusterMutant(
        "undone compaction kept", (COMPACTION, *LOST),
        FollowedPartition, "_begin_copy", _keep_undone, _UNCLEAN, first_seed=37,
    ),
)  # fmt: skip
