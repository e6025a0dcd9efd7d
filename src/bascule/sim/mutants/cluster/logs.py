"""Mutants of logs that are opened again, and of what is found in them."""

from __future__ import annotations

from typing import Any, Final

from bascule.sim.cluster.checkers.opened_again import FOUND, SAME
from bascule.sim.cluster.run import ClusterOptions
from bascule.sim.mutants.cluster.base import ClusterMutant
from bascule.storage.partition_log import PartitionLog
from bascule.storage.recovery import LogRecovery, Recovered

LATE_MS: Final = 1_000


def _forget_time(run: Any) -> Any:
    def mutant(self: LogRecovery) -> Recovered:
        """Open a log as if it had no latest time."""
        found: Recovered = run(self)
        return found._replace(timestamp_max=-1)

    return mutant


def _find_late(find: Any) -> Any:
    def mutant(self: PartitionLog, timestamp: int, **options: Any) -> Any:
        """Find the first record that is a second younger than what is looked for."""
        return find(self, timestamp + LATE_MS, **options)

    return mutant


_OPENED: Final = ClusterOptions(
    groups=0, seconds=4, streams=1, traits="plain", faults="kill", wide=True
)
MUTANTS: Final = (
    ClusterMutant("latest time not recovered", (SAME,), LogRecovery, "run", _forget_time, _OPENED),
    ClusterMutant(
        "times found late", (FOUND,), PartitionLog, "find_timestamp", _find_late, _OPENED
    ),
)
