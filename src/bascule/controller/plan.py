"""The steps that bring a node to the state of the image. Pure: state and image in, steps out."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias

from bascule.metadata.image import Image
from bascule.model import StreamDefinition


@dataclass(frozen=True, slots=True)
class StreamState:
    """Which steps have been done for one stream of the image."""

    definition: StreamDefinition
    """The definition that its partitions are configured with."""
    opened: frozenset[int] = frozenset()
    """Open partitions, including those with damaged data: a retry would not help."""
    subscribed: int = 0
    """Partitions that the subscription is routed to."""


@dataclass(slots=True)
class NodeState:
    """Which steps have been done. Only the reconciler changes it, after each step."""

    streams: dict[bytes, StreamState] = field(default_factory=dict)
    """By stream id."""
    removed: set[bytes] = field(default_factory=set)
    """Deletions recorded in the image whose data is removed."""
    can_subscribe: bool = False
    """False until NATS is connected for the first time."""


@dataclass(frozen=True, slots=True)
class CloseStream:
    """Stop serving the stream, end its subscriptions, close its logs."""

    definition: StreamDefinition


@dataclass(frozen=True, slots=True)
class RemoveData:
    """Remove the data of a deleted stream."""

    stream_id: bytes
    name: str


@dataclass(frozen=True, slots=True)
class OpenPartitions:
    """Open these partitions and serve them."""

    definition: StreamDefinition
    indexes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ConfigureStream:
    """Apply `definition` to the open partitions and the subscription."""

    definition: StreamDefinition


@dataclass(frozen=True, slots=True)
class SubscribeStream:
    """Subscribe, and route the subscription to all partitions."""

    definition: StreamDefinition


Step: TypeAlias = CloseStream | RemoveData | OpenPartitions | ConfigureStream | SubscribeStream


def plan(state: NodeState, image: Image) -> tuple[Step, ...]:
    """The steps from `state` to `image`, in an order in which they can be carried out.

    Streams are compared by id, so one that was deleted and created again under its name is closed
    and removed before it is opened. No steps: the node matches the image.
    """
    wanted = {definition.id: definition for definition in image.streams.values()}
    steps: list[Step] = [
        CloseStream(held.definition)
        for stream_id, held in state.streams.items()
        if stream_id not in wanted
    ]
    steps += [
        RemoveData(stream_id, name)
        for stream_id, name in image.deletions.items()
        if stream_id not in state.removed
    ]
    for stream_id, definition in wanted.items():
        present = state.streams.get(stream_id)
        held = StreamState(definition) if present is None else present
        if held.definition != definition:
            steps.append(ConfigureStream(definition))
        count = definition.partition_count
        if len(held.opened) < count:
            missing = tuple(index for index in range(count) if index not in held.opened)
            steps.append(OpenPartitions(definition, missing))
        if state.can_subscribe and (held.subscribed < count or len(held.opened) < count):
            steps.append(SubscribeStream(definition))
    return tuple(steps)
