"""What follows from the streams and partition states of an image.

An image carries it along, so that no decision has to look at every stream: `apply` changes it with
the streams that a command touches.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from typing import NamedTuple, TypeAlias

from rpds import HashTrieMap, HashTrieSet

from bascule.model import NO_LEADER, PartitionState, StreamDefinition

StreamStates: TypeAlias = tuple[PartitionState, ...]
"""The states of a stream's partitions, by index."""


class NodeLoad(NamedTuple):
    """What one node holds."""

    replicas: int = 0
    led: int = 0
    """Partitions that it leads."""


@dataclass(frozen=True, slots=True)
class ImageIndex:
    """Answers about all streams without a look at each."""

    names: HashTrieMap[bytes, str] = field(default_factory=HashTrieMap)
    """Stream id -> name."""
    loads: HashTrieMap[int, NodeLoad] = field(default_factory=HashTrieMap)
    """Node id -> its load; not those of nodes that hold nothing."""
    troubled: HashTrieSet[bytes] = field(default_factory=HashTrieSet)
    """The ids of streams with a partition for which `is_troubled` is true."""
    away: HashTrieSet[bytes] = field(default_factory=HashTrieSet)
    """The ids of streams with a partition that another node leads than its preferred leader."""
    short: HashTrieSet[bytes] = field(default_factory=HashTrieSet)
    """The ids of streams with a partition that has fewer replicas than the stream's definition asks
    for, or is to have fewer once it has moved."""
    partitions: int = 0
    """How many partitions have a state."""

    def replicas_on(self, node: int) -> int:
        """How many replicas a node has."""
        return self.loads.get(node, NodeLoad()).replicas

    def leaders_on(self, node: int) -> int:
        """How many partitions a node leads."""
        return self.loads.get(node, NodeLoad()).led

    def with_name(self, stream_id: bytes, name: str) -> ImageIndex:
        """There is a stream of this id."""
        return replace(self, names=self.names.insert(stream_id, name))

    def without_name(self, stream_id: bytes) -> ImageIndex:
        """There is no stream of this id."""
        return replace(self, names=self.names.discard(stream_id))

    def with_states(
        self, changes: Iterable[tuple[bytes, int, StreamStates, StreamStates]]
    ) -> ImageIndex:
        """After changes of partition states: stream id, the replicas that its definition asks for,
        all its states before, and after."""
        held: dict[int, int] = {}
        led: dict[int, int] = {}
        troubled, away, short = self.troubled, self.away, self.short
        partitions = self.partitions
        for stream_id, wanted, before, after in changes:
            partitions += len(after) - len(before)
            for earlier, state in zip_longest(before, after):
                # A change of few partitions of a stream leaves the other states as they are.
                if earlier is not state and not _weigh_the_same(earlier, state):
                    _count(held, led, earlier, -1)
                    _count(held, led, state, 1)
            troubled = _marked(troubled, stream_id, any(map(is_troubled, after)))
            away = _marked(away, stream_id, any(map(_is_away, after)))
            short = _marked(short, stream_id, any(is_short(state, wanted) for state in after))
        if not held:
            return ImageIndex(self.names, self.loads, troubled, away, short, partitions)
        loads = self.loads
        for node in held.keys() | led.keys():
            replicas, leaders = held.get(node, 0), led.get(node, 0)
            if replicas or leaders:  # a change of who is in sync leaves the loads as they are
                present = loads.get(node, NodeLoad())
                load = NodeLoad(present.replicas + replicas, present.led + leaders)
                loads = loads.insert(node, load) if any(load) else loads.discard(node)
        return ImageIndex(self.names, loads, troubled, away, short, partitions)


def index_of(
    streams: Collection[StreamDefinition], partitions: Mapping[bytes, StreamStates]
) -> ImageIndex:
    """The index of a whole image: its streams, and their partition states by stream id."""
    wanted = {each.id: each.config.replicas for each in streams}
    empty = ImageIndex(names=HashTrieMap({each.id: each.name for each in streams}))
    return empty.with_states(
        (stream_id, wanted.get(stream_id, 0), (), states)
        for stream_id, states in partitions.items()
    )


def is_troubled(state: PartitionState) -> bool:
    """Whether a partition has no leader, has a replica out of sync, moves, or had an unclean
    election that nobody has acknowledged."""
    is_behind = len(state.isr) < len(state.replicas) or state.target != ()
    return is_behind or state.leader == NO_LEADER or state.shown_unclean_epoch > 0


def is_short(state: PartitionState, wanted: int) -> bool:
    """Whether a partition has fewer replicas than it is to have, or will once it has moved."""
    return len(state.target or state.replicas) < wanted


def _is_away(state: PartitionState) -> bool:
    return state.leader not in (state.replicas[0], NO_LEADER)


def _marked(ids: HashTrieSet[bytes], stream_id: bytes, has_it: bool) -> HashTrieSet[bytes]:
    if (stream_id in ids) is has_it:
        return ids
    return ids.insert(stream_id) if has_it else ids.discard(stream_id)


def _weigh_the_same(earlier: PartitionState | None, state: PartitionState | None) -> bool:
    """Whether a partition is on the same nodes, under the same leader: others are in sync only."""
    if earlier is None or state is None:
        return False
    return earlier.leader == state.leader and earlier.replicas == state.replicas


def _count(
    held: dict[int, int], led: dict[int, int], state: PartitionState | None, by: int
) -> None:
    """Add a state to the loads of its nodes, or remove it. None: the partition is not there."""
    if state is None:
        return
    for node in state.replicas:
        held[node] = held.get(node, 0) + by
    if state.leader != NO_LEADER:
        led[state.leader] = led.get(state.leader, 0) + by
