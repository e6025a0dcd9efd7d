"""`ClusterMutant`: a bug of whole nodes, and how the simulator finds it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Final

from msgspec.structs import replace

from bascule.sim.cluster.run import ClusterOptions
from bascule.sim.mutants.base import patched

SEEDS: Final = 60
"""The simulator finds each mutant within so many seeds, with its options. The number is generous,
since a change of a node or the simulator changes what happens in every seed."""
ACKED: Final = "no acked message lost"
IDENTICAL: Final = "replicas identical"
ONE_OFFSET: Final = "one offset a message"
ONE_LEADER: Final = "one leader an epoch"
UNDONE: Final = "nothing read is undone"
COMPLETE: Final = "leaders are complete"
IN_SYNC: Final = "replicas in sync are complete"
LOST: Final = (ACKED, UNDONE, IDENTICAL, COMPLETE, IN_SYNC)
"""What a lost record may break. The simulator looks at logs now and then, so chance decides what
it sees first."""
IN_LOGS: Final = "watermarks are in logs"
EPOCHS: Final = "replicas agree on epochs"
COMPACTION: Final = "compaction keeps the latest value"
PROGRESS: Final = "progress"
NO_EXCEPTION: Final = "no exception"


@dataclass(frozen=True, slots=True)
class ClusterMutant:
    """A bug, and how the simulator finds it."""

    name: str
    found_by: tuple[str, ...]
    """The invariants that it may break. A run reports the first one."""
    owner: Any
    attribute: str
    make: Callable[[Any], Any]
    """Gets what the owner has, and returns what takes its place."""
    options: ClusterOptions
    first_seed: int = 0
    """Shortly before a seed that finds it."""

    @property
    def range(self) -> range:
        return range(self.first_seed, self.first_seed + SEEDS)

    def patch(self) -> AbstractContextManager[None]:
        """Put it into this process while the context is open."""
        return patched(self.owner, self.attribute, self.make)


_PLAIN: Final = ClusterOptions(groups=0, seconds=15, streams=2, traits="plain")
MOVES: Final = replace(_PLAIN, nodes=5, faults="move of replicas")
OUTAGES: Final = replace(_PLAIN, faults="outage after an ack")
DEATHS: Final = replace(_PLAIN, streams=3, faults="kill,outage,loss of a leader,power loss")
CUTS: Final = replace(_PLAIN, streams=3, faults="isolate,split,link")
FLIPS: Final = replace(_PLAIN, nodes=5, faults="bit flips,move of replicas")
