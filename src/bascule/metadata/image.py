"""The metadata image: all streams, who holds and leads their partitions, all nodes. Immutable."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from bascule.model import NodeRegistration, PartitionState, StreamDefinition


@dataclass(frozen=True, slots=True)
class Image:
    """All streams by name, deletions, partition states, nodes. `apply` returns a changed image."""

    streams: Mapping[str, StreamDefinition] = field(default_factory=lambda: MappingProxyType({}))
    """Invariant: each key is the name of its definition; no two definitions share an id."""
    deletions: Mapping[bytes, str] = field(default_factory=lambda: MappingProxyType({}))
    """Stream id -> name of deleted streams whose data may still be on a disk. Data is removed only
    for these ids. Invariant: no stream of `streams` has one of these ids."""
    partitions: Mapping[bytes, tuple[PartitionState, ...]] = field(
        default_factory=lambda: MappingProxyType({})
    )
    """Stream id -> the states of its partitions. A node without a cluster keeps none: it leads
    everything. Invariant: a stream with states has one for each partition."""
    cluster_id: str = ""
    """Drawn by the first controller; empty before, and on a node without a cluster."""
    nodes: Mapping[int, NodeRegistration] = field(default_factory=lambda: MappingProxyType({}))
    """Every node that was admitted or has registered, by id."""
    removed: frozenset[int] = frozenset()
    """Numbers of nodes that were removed, until a node with an empty directory is admitted."""

    def partition_states(self) -> Iterator[tuple[bytes, int, PartitionState]]:
        """Stream id, index and state of every partition."""
        for stream_id, states in self.partitions.items():
            for index, state in enumerate(states):
                yield stream_id, index, state

    def alive(self) -> list[int]:
        """The ids of the nodes that the controller has not lost, sorted."""
        return sorted(node_id for node_id, node in self.nodes.items() if node.alive)

    def usable(self) -> list[int]:
        """The ids of the nodes that may get replicas: alive, and not to be removed. Sorted."""
        return [node_id for node_id in self.alive() if not self.nodes[node_id].is_leaving]
