"""Mutants of what consumers read."""

from __future__ import annotations

from typing import Any, Final

from bascule.errors import PartitionFailed
from bascule.kafka.handlers import fetch
from bascule.model import NO_LEADER
from bascule.replica.partition import Partition
from bascule.sim.cluster.consumers.read_history import IN_ORDER, IN_RANGE, UNDONE
from bascule.sim.cluster.run import ClusterOptions
from bascule.sim.mutants.cluster.base import ClusterMutant


def _serve_stale(_: Any) -> Any:
    def mutant(
        stream: Any, index: int, leader_epoch: int, *, follower: int = NO_LEADER
    ) -> tuple[Any, Any]:
        """Serve as a leader, also once another node leads, and consumers know that."""
        partition = stream[index]
        if partition.log is None:
            raise PartitionFailed(partition.definition.name, index, "its log is not open")
        return _Leading(partition), partition.log

    return mutant


def _serve_uncommitted(readable: Any) -> Any:
    def mutant(stream: Any, index: int, *args: Any, **kwargs: Any) -> tuple[Any, Any]:
        """Serve the whole log."""
        partition, log = readable(stream, index, *args, **kwargs)
        return _Whole(partition), log

    return mutant


class _Changed:
    def __init__(self, partition: Partition) -> None:
        self._partition = partition

    def __getattr__(self, name: str) -> Any:
        return getattr(self._partition, name)


class _Leading(_Changed):
    """A partition that takes itself for the leader."""

    is_leader = True


class _Whole(_Changed):
    """A partition whose high watermark is the end of its log."""

    @property
    def high_watermark(self) -> Any:
        assert self._partition.log is not None
        return self._partition.log.end


_READERS: Final = ClusterOptions(
    groups=0,
    readers=4,
    seconds=15,
    streams=1,
    traits="plain",
    faults="isolate,split,loss of a leader",
)
MUTANTS: Final = (
    ClusterMutant(
        "stale leader serving", (IN_RANGE, UNDONE, IN_ORDER),
        fetch, "readable_log", _serve_stale, _READERS,
    ),
    ClusterMutant(
        "uncommitted records served", (UNDONE, IN_RANGE, IN_ORDER),
        fetch, "readable_log", _serve_uncommitted, _READERS,
    ),
)  # fmt: skip
