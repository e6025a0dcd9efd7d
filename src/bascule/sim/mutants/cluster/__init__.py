"""Mutants of whole nodes: what a cluster promises, broken in one place.

```
compacted_copies  copies of compacted logs, replicas that leave and come back
copies     logs that differ, acks that are early, ids that are forgotten
groups     members of groups, and their commits
in_sync    who is in sync, who may lead, what is committed
logs       logs that are opened again, and what is found in them
messages   what is lost or stored twice when leaders change
payloads   what is whole, what a record names, and what is left over
reads      what consumers read
tables     what clients of tables read and watch, and what their replicas hold
upkeep     log starts, compaction, directories, requests to the controller
```
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from bascule.sim.mutants.cluster import (
    compacted_copies,
    copies,
    groups,
    in_sync,
    logs,
    messages,
    payloads,
    reads,
    tables,
    upkeep,
)
from bascule.sim.mutants.cluster.base import ClusterMutant

MODULES: Final = (
    compacted_copies, copies, groups, in_sync, logs, messages, payloads, reads, tables, upkeep,
)  # fmt: skip
CLUSTER_MUTANTS: Final[Mapping[str, ClusterMutant]] = {
    mutant.name: mutant for module in MODULES for mutant in module.MUTANTS
}
"""All mutants by name."""

__all__ = ["CLUSTER_MUTANTS", "ClusterMutant"]
