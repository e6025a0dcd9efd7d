"""Apply a command to an image."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import TypeVar

from bascule.metadata.commands import (
    AdmitNode,
    AlterStream,
    ChangePartitions,
    Command,
    CreateStream,
    DeleteStream,
    FenceNode,
    ForgetDeletions,
    PauseStream,
    RegisterNode,
    RemoveNode,
    SetClusterId,
    SetLeaving,
    StreamCommand,
)
from bascule.metadata.image import Image
from bascule.model import NodeRegistration, PartitionState

K = TypeVar("K")
V = TypeVar("V")


def apply(image: Image, command: Command, *, index: int = 0) -> Image:
    """The image after `command`. Never fails: a command that cannot take effect changes nothing.

    `index` is the position of the command in the log of the cluster. Applying a command twice is
    the same as applying it once.
    """
    match command:
        case ForgetDeletions():
            left = {id: name for id, name in image.deletions.items() if id not in command.ids}
            return replace(image, deletions=MappingProxyType(left))
        case SetClusterId():
            return image if image.cluster_id else replace(image, cluster_id=command.cluster_id)
        case RegisterNode():
            return _register(image, command.node, index)
        case FenceNode() | SetLeaving() | RemoveNode():
            return _change_node(image, command)
        case AdmitNode():
            return _admit(image, command.node, index)
        case ChangePartitions():
            return _change_partitions(image, command)
        case _:
            return _apply_to_stream(image, command)


def _apply_to_stream(image: Image, command: StreamCommand) -> Image:
    if isinstance(command, CreateStream):
        definition = command.definition
        if definition.name in image.streams:
            return image
        streams = _with(image.streams, definition.name, definition)
        if not command.partitions:
            return replace(image, streams=streams)
        states = _with(image.partitions, definition.id, command.partitions)
        return replace(image, streams=streams, partitions=states)
    present = image.streams.get(command.name)
    if present is None or present.id != command.id:
        return image
    if isinstance(command, DeleteStream):
        return replace(
            image,
            streams=_without(image.streams, command.name),
            deletions=_with(image.deletions, command.id, command.name),
            partitions=_without(image.partitions, command.id),
        )
    if isinstance(command, AlterStream):
        return _alter(image, command)
    paused = isinstance(command, PauseStream)
    return replace(
        image, streams=_with(image.streams, command.name, replace(present, paused=paused))
    )


def _alter(image: Image, command: AlterStream) -> Image:
    present = image.streams[command.name]
    states = image.partitions.get(command.id, ())
    if command.added and len(states) + len(command.added) != command.config.partitions:
        return image
    streams = _with(image.streams, command.name, replace(present, config=command.config))
    if not command.added:
        return replace(image, streams=streams)
    partitions = _with(image.partitions, command.id, states + command.added)
    return replace(image, streams=streams, partitions=partitions)


def _register(image: Image, node: NodeRegistration, index: int) -> Image:
    present = image.nodes.get(node.node_id)
    if present is not None and present.alive and present.incarnation == node.incarnation:
        index = present.epoch  # The same process, with other addresses.
    registered = replace(node, epoch=index, alive=True)
    if present is not None:
        directory = node.directory or present.directory
        registered = replace(registered, directory=directory, is_leaving=present.is_leaving)
    return replace(image, nodes=_with(image.nodes, node.node_id, registered))


def _admit(image: Image, node: NodeRegistration, index: int) -> Image:
    if node.node_id in image.nodes:
        return image
    admitted = replace(node, epoch=index, alive=False)
    return replace(
        image,
        nodes=_with(image.nodes, node.node_id, admitted),
        removed=image.removed - {node.node_id},
    )


def _change_node(image: Image, command: FenceNode | SetLeaving | RemoveNode) -> Image:
    node = image.nodes.get(command.node_id)
    if node is None or node.epoch != command.epoch:
        return image
    if isinstance(command, RemoveNode):
        return replace(
            image,
            nodes=_without(image.nodes, node.node_id),
            removed=image.removed | {node.node_id},
        )
    is_fence = isinstance(command, FenceNode)
    changed = replace(node, alive=False) if is_fence else replace(node, is_leaving=True)
    return replace(image, nodes=_with(image.nodes, node.node_id, changed))


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
    done = {stream_id: tuple(states) for stream_id, states in changed.items()}
    return replace(image, partitions=MappingProxyType({**image.partitions, **done}))


def _with(mapping: Mapping[K, V], key: K, value: V) -> Mapping[K, V]:
    return MappingProxyType({**mapping, key: value})


def _without(mapping: Mapping[K, V], key: K) -> Mapping[K, V]:
    return MappingProxyType({each: value for each, value in mapping.items() if each != key})
