"""Apply a command to an image, and the streams that a command touches."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from bascule.metadata.commands import (
    AdmitNode,
    AdoptDeletions,
    AlterStream,
    ChangePartitions,
    Command,
    CreateStream,
    DeleteStream,
    FenceNode,
    ForgetDeletions,
    NodeChange,
    PauseStream,
    RegisterNode,
    RemoveNode,
    SetBalancing,
    SetCatchUpRate,
    SetClusterId,
    SetClusterVersion,
    SetDrained,
    SetLeaving,
    SetNatsLack,
    StreamCommand,
)
from bascule.metadata.image import Deletion, Image
from bascule.metadata.image_index import StreamStates
from bascule.model import NodeRegistration, PartitionState, StreamDefinition


def apply(image: Image, command: Command, *, index: int = 0) -> Image:
    """The image after `command`. Never fails: a command that cannot take effect changes nothing.

    `index` is the position of the command in the log of the cluster. Applying a command twice is
    the same as applying it once.
    """
    match command:
        case ForgetDeletions():
            return _forget_deletions(image, command)
        case AdoptDeletions():
            return _adopt_deletions(image, command)
        case SetClusterId():
            return image if image.cluster_id else replace(image, cluster_id=command.cluster_id)
        case SetCatchUpRate():
            return replace(image, catch_up_rate=command.bytes_per_second)
        case SetBalancing():
            return replace(image, is_balancing=command.is_balancing)
        case SetClusterVersion():
            return replace(image, cluster_version=max(image.cluster_version, command.version))
        case RegisterNode():
            return _register(image, command.node, index)
        case FenceNode() | SetLeaving() | SetDrained() | SetNatsLack() | RemoveNode():
            return _change_node(image, command)
        case AdmitNode():
            return _admit(image, command.node, index)
        case ChangePartitions():
            return _change_partitions(image, command)
        case _:
            return _apply_to_stream(image, command)


def touched(command: Command) -> Iterable[bytes]:
    """The ids of the streams whose definition, deletion or partition states `command` may change.
    All others are the same after it."""
    match command:
        case CreateStream():
            return (command.definition.id,)
        case ForgetDeletions():
            return command.ids
        case AdoptDeletions():
            return [stream_id for stream_id, _ in command.deletions]
        case ChangePartitions():
            return dict.fromkeys(change.stream_id for change in command.changes)
        case SetClusterId() | SetCatchUpRate() | SetBalancing() | SetClusterVersion():
            return ()
        case RegisterNode() | FenceNode() | AdmitNode():
            return ()
        case SetLeaving() | SetDrained() | SetNatsLack() | RemoveNode():
            return ()
        case _:
            return (command.id,)


def _apply_to_stream(image: Image, command: StreamCommand) -> Image:
    if isinstance(command, CreateStream):
        return _create(image, command)
    present = image.streams.get(command.name)
    if present is None or present.id != command.id:
        return image
    if isinstance(command, DeleteStream):
        return _delete(image, present)
    if isinstance(command, AlterStream):
        return _alter(image, command)
    paused = isinstance(command, PauseStream)
    return replace(
        image, streams=image.streams.insert(command.name, replace(present, paused=paused))
    )


def _create(image: Image, command: CreateStream) -> Image:
    definition = command.definition
    if definition.name in image.streams:
        return image
    created = replace(
        image,
        streams=image.streams.insert(definition.name, definition),
        index=image.index.with_name(definition.id, definition.name),
    )
    if not command.partitions:
        return created
    return _with_states(created, {definition.id: command.partitions})


def _delete(image: Image, present: StreamDefinition) -> Image:
    index = image.index.without_name(present.id)
    return replace(
        image,
        streams=image.streams.remove(present.name),
        deletions=image.deletions.insert(present.id, _deletion(image, present)),
        partitions=image.partitions.discard(present.id),
        index=index.with_states([(present.id, 0, image.partitions.get(present.id, ()), ())]),
    )


def _deletion(image: Image, present: StreamDefinition) -> Deletion:
    states = image.partitions.get(present.id, ())
    return Deletion(present.name, tuple(sorted({n for state in states for n in state.replicas})))


def _forget_deletions(image: Image, command: ForgetDeletions) -> Image:
    left = image.deletions
    for stream_id in command.ids:
        found = left.get(stream_id)
        if found is not None:
            nodes = tuple(node for node in found.nodes if node != command.node_id)
            after = replace(found, nodes=nodes)
            left = left.insert(stream_id, after) if nodes else left.remove(stream_id)
    return replace(image, deletions=left)


def _adopt_deletions(image: Image, command: AdoptDeletions) -> Image:
    adopted = {id: Deletion(name, (command.node_id,)) for id, name in command.deletions}
    return replace(image, deletions=image.deletions.update(adopted))


def _alter(image: Image, command: AlterStream) -> Image:
    present = image.streams[command.name]
    states = image.partitions.get(command.id, ())
    if command.added and len(states) + len(command.added) != command.config.partitions:
        return image
    streams = image.streams.insert(command.name, replace(present, config=command.config))
    altered = replace(image, streams=streams)
    if not command.added and present.config.replicas == command.config.replicas:
        return altered
    return _with_states(altered, {command.id: states + command.added})


def _register(image: Image, node: NodeRegistration, index: int) -> Image:
    present = image.nodes.get(node.node_id)
    if present is not None and present.alive and present.incarnation == node.incarnation:
        index = present.epoch  # The same process, with other addresses.
    registered = replace(node, epoch=index, alive=True)
    if present is not None:
        registered = replace(
            registered,
            directory=node.directory or present.directory,
            is_leaving=present.is_leaving,
            is_drained=present.is_drained,
            is_emptied=present.is_emptied,
            drain_reason=present.drain_reason,
        )
        if present.incarnation == node.incarnation:
            registered = replace(
                registered,
                is_stopping=present.is_stopping or node.is_stopping,
                lacks_nats_since_ms=present.lacks_nats_since_ms,
            )
    return replace(image, nodes=image.nodes.insert(node.node_id, registered))


def _admit(image: Image, node: NodeRegistration, index: int) -> Image:
    if node.node_id in image.nodes:
        return image
    admitted = replace(node, epoch=index, alive=False)
    return replace(
        image,
        nodes=image.nodes.insert(node.node_id, admitted),
        removed=image.removed - {node.node_id},
    )


def _change_node(image: Image, command: NodeChange) -> Image:
    node = image.nodes.get(command.node_id)
    if node is None or node.epoch != command.epoch:
        return image
    if isinstance(command, RemoveNode):
        return replace(
            image,
            nodes=image.nodes.remove(node.node_id),
            removed=image.removed | {node.node_id},
        )
    if isinstance(command, FenceNode):
        changed = replace(node, alive=False)
    elif isinstance(command, SetDrained):
        changed = replace(
            node,
            is_drained=command.is_drained,
            is_emptied=command.is_emptied,
            drain_reason=command.reason,
        )
    elif isinstance(command, SetNatsLack):
        changed = replace(node, lacks_nats_since_ms=command.since_ms)
    else:
        changed = replace(node, is_leaving=command.is_leaving)
    return replace(image, nodes=image.nodes.insert(node.node_id, changed))


def _change_partitions(image: Image, command: ChangePartitions) -> Image:
    changed: dict[bytes, list[PartitionState]] = {}
    for change in command.changes:
        states = changed.get(change.stream_id) or list(image.partitions.get(change.stream_id, ()))
        if not change.partition < len(states):
            continue
        if change.state.version == states[change.partition].version + 1:
            states[change.partition] = change.state
            changed[change.stream_id] = states
    if not changed:
        return image
    return _with_states(image, {stream_id: tuple(states) for stream_id, states in changed.items()})


def _with_states(image: Image, changed: dict[bytes, StreamStates]) -> Image:
    """`image` with all states of these streams replaced."""
    before = image.partitions
    return replace(
        image,
        partitions=before.update(changed),
        index=image.index.with_states(
            (stream_id, _asked(image, stream_id), before.get(stream_id, ()), after)
            for stream_id, after in changed.items()
        ),
    )


def _asked(image: Image, stream_id: bytes) -> int:
    """How many replicas the definition of a stream asks for."""
    definition = image.stream_of(stream_id)
    return 0 if definition is None else definition.config.replicas
