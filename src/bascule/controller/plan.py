"""What a node has to do to be as the image says. Pure: node state and image in, steps out."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias

from bascule.metadata.image import Image
from bascule.model import StreamDefinition


@dataclass(frozen=True, slots=True)
class StreamState:
    """How far one stream of the image has been carried out on this node."""

    definition: StreamDefinition
    """As its partitions are configured now."""
    opened: frozenset[int] = frozenset()
    """Partitions in use; one whose data is damaged counts, another try would not help."""
    subscribed: int = 0
    """Partitions that the subscription leads to."""


@dataclass(slots=True)
class NodeState:
    """What has been carried out of the image. The reconciler alone changes it, step by step."""

    streams: dict[bytes, StreamState] = field(default_factory=dict)
    """By stream id."""
    removed: set[bytes] = field(default_factory=set)
    """Deletions of the image whose data is gone."""
    can_subscribe: bool = False
    """False until NATS is connected for the first time."""


@dataclass(frozen=True, slots=True)
class CloseStream:
    """Serve the stream no longer, end its subscriptions, close its logs."""

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
    """Give open partitions and the subscription the settings of `definition`."""

    definition: StreamDefinition


@dataclass(frozen=True, slots=True)
class SubscribeStream:
    """Subscribe, and lead the subscription to all partitions."""

    definition: StreamDefinition


Step: TypeAlias = CloseStream | RemoveData | OpenPartitions | ConfigureStream | SubscribeStream


def plan(state: NodeState, image: Image) -> tuple[Step, ...]:
    """The steps from `state` to `image`, in an order in which they can be carried out.

    Streams are compared by id, so one that was deleted and created again under its name is closed
    and removed before it is opened. No steps: the node is as the image says.
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
