"""The steps that bring a node to the state of the image. Pure: state and image in, steps out."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TypeAlias

from bascule.metadata.image import Image
from bascule.model import NO_LEADER, PartitionState, StreamDefinition


@dataclass(frozen=True, slots=True)
class StreamState:
    """Which steps have been done for one stream of the image."""

    definition: StreamDefinition
    """The definition that its partitions are configured with."""
    opened: Mapping[int, int] = field(default_factory=lambda: MappingProxyType({}))
    """Open partitions, including those with damaged data: a retry would not help. Each with the
    version of its state that made this node a replica of it; see `PartitionState.since`."""
    elsewhere: frozenset[int] = frozenset()
    """Partitions without a replica on this node, which are registered and have no log here."""
    states: Mapping[int, PartitionState] = field(default_factory=lambda: MappingProxyType({}))
    """The state in force of each partition; none before the first is applied."""
    subscribed: frozenset[int] = frozenset()
    """Partitions that the subscription is routed to."""
    routed_count: int = 0
    """How many partitions the stream had when it was routed: who leads one hashes over all."""


@dataclass(slots=True)
class NodeState:
    """Which steps have been done. Only the reconciler changes it, after each step."""

    node_id: int
    streams: dict[bytes, StreamState] = field(default_factory=dict)
    """By stream id."""
    removed: set[bytes] = field(default_factory=set)
    """Deletions recorded in the image whose data is removed."""
    closed: dict[bytes, str] = field(default_factory=dict)
    """Names of streams that were closed since the image has them no more, by id; their data is not
    removed yet. The image records a deletion until the last replicas are removed, and this node
    may have had an earlier one."""
    can_subscribe: bool = False
    """False until NATS is connected for the first time."""
    is_suspended: bool = False
    """Whether the node leads nothing, whatever the image says: its controller is out of reach."""


@dataclass(frozen=True, slots=True)
class CloseStream:
    """Stop serving the stream, end its subscriptions, close its logs."""

    definition: StreamDefinition


@dataclass(frozen=True, slots=True)
class RemoveData:
    """Remove the data of a deleted stream."""

    stream_id: bytes
    name: str
    is_taken: bool = False
    """Whether a later stream has the name. Data that does not say whose it is may be its."""


@dataclass(frozen=True, slots=True)
class OpenPartitions:
    """Open these partitions and serve them."""

    definition: StreamDefinition
    indexes: tuple[int, ...]
    since: Mapping[int, int] = field(default_factory=lambda: MappingProxyType({}))
    """By index: the version of the state that made this node a replica, where that is not 0. A log
    of before that version is removed first."""


@dataclass(frozen=True, slots=True)
class ConfigureStream:
    """Apply `definition` to the open partitions and the subscription."""

    definition: StreamDefinition


@dataclass(frozen=True, slots=True)
class RegisterElsewhere:
    """Make partitions known whose replicas are on other nodes."""

    definition: StreamDefinition
    indexes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ApplyStates:
    """Lead, follow or do neither, as these states of partitions say."""

    definition: StreamDefinition
    states: Mapping[int, PartitionState]


@dataclass(frozen=True, slots=True)
class DropReplicas:
    """Close these partitions and remove their data: the image gives their replicas to others, or
    has done so in the meantime."""

    definition: StreamDefinition
    indexes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class SubscribeStream:
    """Route the stream's subscription to the partitions `led`, and to no other."""

    definition: StreamDefinition
    led: frozenset[int]


Step: TypeAlias = (
    CloseStream
    | RemoveData
    | OpenPartitions
    | RegisterElsewhere
    | ConfigureStream
    | ApplyStates
    | DropReplicas
    | SubscribeStream
)


def plan(state: NodeState, image: Image, ids: Collection[bytes] | None = None) -> tuple[Step, ...]:
    """The steps from `state` to `image`, in an order in which they can be carried out.

    With `ids` only those for the streams and deletions with these ids: the cost is theirs, however
    large the image is. Streams are compared by id, so one that was deleted and created again under
    its name is closed and removed before it is opened. No steps: the node matches the image.
    """
    chosen = stream_ids(state, image) if ids is None else dict.fromkeys(ids)
    closings: list[Step] = []
    removals: list[Step] = []
    others: list[Step] = []
    for stream_id in chosen:
        definition = image.stream_of(stream_id)
        if definition is not None:
            others += _plan_stream(state, image, definition)
            continue
        held = state.streams.get(stream_id)
        if held is not None:
            closings.append(CloseStream(held.definition))
        deletion = image.deletions.get(stream_id)
        name: str | None = None
        if deletion is not None and stream_id not in state.removed:
            name = deletion.name
        elif deletion is None and held is not None:
            name = held.definition.name
        elif deletion is None:
            name = state.closed.get(stream_id)
        if name is not None:
            removals.append(RemoveData(stream_id, name, is_taken=name in image.streams))
    return (*closings, *removals, *others)


def stream_ids(state: NodeState, image: Image) -> list[bytes]:
    """The ids of all streams and deletions, here and in the image."""
    here = (*state.streams, *state.closed)
    return list(dict.fromkeys((*here, *image.deletions, *image.index.names)))


def stream_id_of(step: Step) -> bytes:
    """The id of the stream that a step is for."""
    return step.stream_id if isinstance(step, RemoveData) else step.definition.id


def _wanted_states(
    state: NodeState, image: Image, definition: StreamDefinition
) -> tuple[PartitionState, ...]:
    """The states of a stream's partitions that this node has to follow."""
    states = image.partitions[definition.id]
    if not state.is_suspended:
        return states
    return tuple(
        replace(each, leader=NO_LEADER) if each.leader == state.node_id else each for each in states
    )


def _plan_stream(state: NodeState, image: Image, definition: StreamDefinition) -> list[Step]:
    present = state.streams.get(definition.id)
    held = StreamState(definition) if present is None else present
    states = _wanted_states(state, image, definition)
    every = range(definition.partition_count)
    since = {
        i: states[i].replica_since(state.node_id)
        for i in every
        if state.node_id in states[i].replicas
    }
    # The replica moved away and came back meanwhile. Others may have removed tombstones that the
    # old log lacks. So the node drops it as it would have done, and the next plan opens a new one.
    moved = {i for i in since if held.opened.get(i, since[i]) != since[i]}
    states = tuple(
        _without(each, state.node_id) if i in moved else each for i, each in enumerate(states)
    )
    here = since.keys() - moved
    steps: list[Step] = []
    if held.definition is not definition and held.definition != definition:
        steps.append(ConfigureStream(definition))
    missing = tuple(index for index in every if index in here and index not in held.opened)
    if missing:
        added = {index: since[index] for index in missing if since[index]}
        steps.append(OpenPartitions(definition, missing, MappingProxyType(added)))
    known = held.opened.keys() | held.elsewhere
    elsewhere = tuple(i for i in every if i not in here and i not in known)
    if elsewhere:
        steps.append(RegisterElsewhere(definition, elsewhere))
    # They know of no state, also where this one was in force before: a removal has failed then.
    unknown = {*missing, *elsewhere}
    # A leader takes `min_isr` with its state.
    has_other_min = held.definition is not definition and (
        held.definition.min_isr != definition.min_isr
    )
    changed = {
        i: each
        for i, each in enumerate(states)
        if held.states.get(i) != each
        or i in unknown
        or (has_other_min and each.leader == state.node_id)
    }
    if changed:
        steps.append(ApplyStates(definition, changed))
    if dropped := tuple(sorted(held.opened.keys() - here)):
        steps.append(DropReplicas(definition, dropped))
    led = frozenset(i for i in every if states[i].leader == state.node_id)
    is_outdated = bool(led) and held.routed_count != definition.partition_count
    if state.can_subscribe and (
        held.subscribed != led or is_outdated or any(i in led for i in missing)
    ):
        steps.append(SubscribeStream(definition, led))
    return steps


def _without(state: PartitionState, node: int) -> PartitionState:
    """`state` as it was while `node` was no replica."""
    return replace(
        state,
        replicas=tuple(each for each in state.replicas if each != node),
        isr=tuple(each for each in state.isr if each != node),
        leader=NO_LEADER if state.leader == node else state.leader,
    )
