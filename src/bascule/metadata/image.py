"""The metadata image: all streams, who holds and leads their partitions, all nodes. Immutable."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from rpds import HashTrieMap

from bascule.metadata.image_index import ImageIndex, StreamStates, index_of
from bascule.model import NodeRegistration, PartitionState, StreamDefinition

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Deletion:
    """A deleted stream whose data may still be on a disk."""

    name: str
    nodes: tuple[int, ...]
    """The nodes that had a replica and have not said that its data is removed; sorted."""


@dataclass(frozen=True, slots=True)
class Image:
    """All streams by name, deletions, partition states, nodes. `apply` returns a changed image.

    The maps are persistent: a changed image shares all but a few nodes of their trees with the one
    before, so a change costs what it touches. They have no order.
    """

    streams: HashTrieMap[str, StreamDefinition] = field(default_factory=HashTrieMap)
    """Invariant: each key is the name of its definition; no two definitions share an id."""
    deletions: HashTrieMap[bytes, Deletion] = field(default_factory=HashTrieMap)
    """Stream id -> deleted streams whose data may still be on a disk. Data is removed only for
    these ids. Invariant: no stream of `streams` has one of these ids."""
    partitions: HashTrieMap[bytes, StreamStates] = field(default_factory=HashTrieMap)
    """Stream id -> the states of its partitions. Invariant: one for each partition."""
    cluster_id: str = ""
    """Drawn by the first controller; empty before."""
    nodes: HashTrieMap[int, NodeRegistration] = field(default_factory=HashTrieMap)
    """Every node that was admitted or has registered, by id."""
    removed: frozenset[int] = frozenset()
    """Numbers of nodes that were removed, until a node with an empty directory is admitted."""
    catch_up_rate: int = 0
    """Bytes a second that each leader's node sends at most to replicas that are not in sync; 0: no
    limit."""
    is_balancing: bool = False
    """Whether replicas move until all nodes hold about as many."""
    cluster_version: int = 1
    """The cluster version in force. Invariant: every node of `nodes` supports it."""
    index: ImageIndex = field(default_factory=ImageIndex, compare=False, repr=False)
    """Invariant: it is `index_of` the streams and partitions."""

    @classmethod
    def of(
        cls,
        *,
        streams: Mapping[str, StreamDefinition],
        deletions: Mapping[bytes, Deletion] | None = None,
        partitions: Mapping[bytes, StreamStates] | None = None,
        cluster_id: str = "",
        nodes: Mapping[int, NodeRegistration] | None = None,
        removed: frozenset[int] = frozenset(),
        catch_up_rate: int = 0,
        is_balancing: bool = False,
        cluster_version: int = 1,
    ) -> Image:
        """The image with these parts."""
        return cls(
            HashTrieMap(streams),
            HashTrieMap(deletions or {}),
            HashTrieMap(partitions or {}),
            cluster_id,
            HashTrieMap(nodes or {}),
            removed,
            catch_up_rate,
            is_balancing,
            cluster_version,
            index_of(streams.values(), partitions or {}),
        )

    def stream_of(self, stream_id: bytes) -> StreamDefinition | None:
        """The stream of this id; None where there is none."""
        name = self.index.names.get(stream_id)
        return None if name is None else self.streams[name]

    def partition_states(
        self, ids: Iterable[bytes] | None = None
    ) -> Iterator[tuple[bytes, int, PartitionState]]:
        """Stream id, index and state of every partition, or of those of the streams `ids`."""
        chosen = (
            self.partitions.items()
            if ids is None
            else ((each, self.partitions.get(each, ())) for each in ids)
        )
        for stream_id, states in chosen:
            for index, state in enumerate(states):
                yield stream_id, index, state

    def id_lists(self, partitions_max: int) -> Iterator[list[bytes]]:
        """The ids of all streams, in lists of some `partitions_max` partitions each."""
        return in_parts(self.partitions, lambda id: len(self.partitions[id]), partitions_max)

    def troubled_states(self) -> Iterator[tuple[bytes, int, PartitionState]]:
        """Stream id, index and state of every partition of the streams in `index.troubled`, sorted
        by id."""
        for stream_id in sorted(self.index.troubled):
            for index, state in enumerate(self.partitions[stream_id]):
                yield stream_id, index, state

    def moving_states(self) -> Iterator[tuple[bytes, int, PartitionState]]:
        """Stream id, index and state of every partition that moves, sorted by stream id."""
        return (each for each in self.troubled_states() if each[2].target)

    def away_states(self) -> Iterator[tuple[bytes, int, PartitionState]]:
        """Stream id, index and state of every partition of the streams in `index.away`, sorted by
        id."""
        for stream_id in sorted(self.index.away):
            for index, state in enumerate(self.partitions[stream_id]):
                yield stream_id, index, state

    def is_alive(self, node: int) -> bool:
        """Whether there is a node of this number that the controller has not lost."""
        found = self.nodes.get(node)
        return found is not None and found.alive

    def is_stopping(self, node: int) -> bool:
        """Whether the process of a node that is alive is about to stop."""
        found = self.nodes.get(node)
        return found is not None and found.alive and found.is_stopping

    def lacks_nats(self, node: int) -> bool:
        """Whether the process of a node that is alive has no NATS connection."""
        found = self.nodes.get(node)
        return found is not None and found.alive and found.lacks_nats

    def serves_publishers(self, node: int) -> bool:
        """Whether a node is alive, stays for the time being and is not known to lack NATS."""
        return self.is_alive(node) and not self.is_stopping(node) and not self.lacks_nats(node)

    def reluctance(self, node: int) -> tuple[bool, bool, bool]:
        """How little a node that is alive is wanted as a leader: the least comes first. One that is
        about to stop leads only where no other can, one that lacks NATS before it, then one that is
        drained or to be removed."""
        return self.is_stopping(node), self.lacks_nats(node), self.gives_leaders(node)

    def gives_leaders(self, node: int) -> bool:
        """Whether others are to lead what this node leads, where they can."""
        found = self.nodes.get(node)
        return found is not None and found.gives_leaders

    def alive(self) -> list[int]:
        """The ids of the nodes that the controller has not lost, sorted."""
        return sorted(node_id for node_id, node in self.nodes.items() if node.alive)

    def usable(self) -> list[int]:
        """The ids of the nodes that may get replicas: alive, not to be removed and not drained.
        Sorted."""
        return [node_id for node_id in self.alive() if self.nodes[node_id].takes_replicas]


def state_of(
    partitions: Mapping[bytes, Sequence[PartitionState]], stream_id: bytes, index: int
) -> PartitionState | None:
    """The state of a partition among those of an image; None where there is none."""
    states = partitions.get(stream_id, ())
    return states[index] if index < len(states) else None


def in_parts(streams: Iterable[T], size_of: Callable[[T], int], size_max: int) -> Iterator[list[T]]:
    """Streams, such as their ids, in lists of some `size_max` partitions; each has `size_of` it."""
    part: list[T] = []
    size = 0
    for stream in streams:
        part.append(stream)
        size += size_of(stream)
        if size >= size_max:
            yield part
            part, size = [], 0
    if part:
        yield part
