"""Requests to the controller as values, and the decision on each: commands, or an error. Pure."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, TypeAlias

import msgspec

from bascule.errors import FencedEpoch, UnknownPartition
from bascule.metadata import controller
from bascule.metadata.apply import apply
from bascule.metadata.commands import (
    AlterStream,
    ChangePartitions,
    ClusterCommand,
    Command,
    CreateStream,
    FenceNode,
    ForgetDeletions,
    RegisterNode,
)
from bascule.metadata.controller import Existing
from bascule.metadata.elections import (
    change_isr,
    changes_after_loss,
    changes_after_return,
    changes_after_silence,
    resign,
)
from bascule.metadata.image import Image
from bascule.metadata.placement import place_partitions
from bascule.model import NodeRegistration, StreamConfig


class Create(msgspec.Struct, tag=True, frozen=True):
    """Create a stream; see `controller.create_stream`."""

    name: str
    config: StreamConfig
    id: bytes
    now_ms: int
    internal: bool = False


class Alter(msgspec.Struct, tag=True, frozen=True):
    """Change settings of a stream; see `controller.alter_stream`."""

    name: str
    changes: dict[str, Any]
    internal: bool = False


class SetPaused(msgspec.Struct, tag=True, frozen=True):
    """Pause or resume a stream."""

    name: str
    paused: bool


class Delete(msgspec.Struct, tag=True, frozen=True):
    """Delete a stream; with `id` only the stream of that id, and without error where it is gone."""

    name: str
    id: bytes = b""
    internal: bool = False


class RegisterProcess(msgspec.Struct, tag=True, frozen=True):
    """A node's process has started, or was lost and is back."""

    node: NodeRegistration


class LoseNode(msgspec.Struct, tag=True, frozen=True):
    """The controller has lost the process of a node that registered at `epoch`."""

    node_id: int
    epoch: int


class IsrChange(msgspec.Struct, frozen=True):
    """Another ISR for a partition; see `elections.change_isr`."""

    stream_id: bytes
    partition: int
    leader_epoch: int
    version: int
    members: tuple[tuple[int, int], ...]
    """Node id and node epoch of each."""


class Resign(msgspec.Struct, tag=True, frozen=True):
    """A node cannot serve its replica as it is; see `elections.resign`."""

    node_id: int
    stream_id: bytes
    partition: int
    leader_epoch: int


class Forget(msgspec.Struct, tag=True, frozen=True):
    """A node has removed the data of these deleted streams."""

    node_id: int
    ids: tuple[bytes, ...]


class ChangeIsrs(msgspec.Struct, tag=True, frozen=True):
    """A leader asks for other ISRs of partitions that it leads. A node that starts again changes
    those of all its partitions: one request, and one command, have many."""

    leader: int
    changes: tuple[IsrChange, ...]


class ReplaceLeader(msgspec.Struct, tag=True, frozen=True):
    """Followers have reported that a leader is silent; see `elections.changes_after_silence`."""

    node_id: int
    epoch: int
    reporters: dict[int, int]
    """Node id -> node epoch."""


ControllerRequest: TypeAlias = (
    Create
    | Alter
    | SetPaused
    | Delete
    | RegisterProcess
    | LoseNode
    | ChangeIsrs
    | ReplaceLeader
    | Resign
    | Forget
)


def decide(image: Image, request: ControllerRequest) -> tuple[Command, ...]:
    """The commands that fulfil `request`; empty where there is nothing to do.

    Raises: the errors of `controller`, `placement` and `elections`.
    """
    match request:
        case Create():
            return _create(image, request)
        case Alter():
            return _alter(image, request)
        case SetPaused():
            choose = controller.pause_stream if request.paused else controller.resume_stream
            decision = choose(image, request.name)
            return () if isinstance(decision, Existing) else (decision,)
        case Delete():
            return _delete(image, request)
        case Resign():
            change = resign(
                image,
                request.stream_id,
                request.partition,
                node=request.node_id,
                leader_epoch=request.leader_epoch,
            )
            return () if change is None else (change,)
        case Forget():
            ids = tuple(each for each in request.ids if each in image.deletions)
            return (ForgetDeletions(ids, request.node_id),) if ids else ()
        case RegisterProcess():
            return _register(image, request.node)
        case LoseNode():
            return _lose(image, request)
        case ChangeIsrs():
            return _change_isrs(image, request)
        case ReplaceLeader():
            replaced = changes_after_silence(
                image, request.node_id, request.epoch, request.reporters
            )
            return () if replaced is None else (replaced,)


def settle(image: Image) -> tuple[Command, ...]:
    """What a new controller finds undone: its predecessor may have stopped between decisions."""
    commands: list[ClusterCommand] = []
    for node_id, node in image.nodes.items():
        if not node.alive and (change := changes_after_loss(image, node_id)) is not None:
            commands.append(change)
            image = apply(image, change)
    if (change := changes_after_return(image)) is not None:
        commands.append(change)
    return tuple(commands)


def _create(image: Image, request: Create) -> tuple[Command, ...]:
    present = image.streams.get(request.name)
    if present is not None and present.id == request.id:
        return ()  # The same request again.
    decision = controller.create_stream(
        image,
        request.name,
        request.config,
        id=request.id,
        now_ms=request.now_ms,
        internal=request.internal,
    )
    if isinstance(decision, Existing):
        return ()
    config = request.config
    placed = place_partitions(image, config.partitions, replicas=config.replicas)
    return (CreateStream(decision.definition, placed),)


def _alter(image: Image, request: Alter) -> tuple[Command, ...]:
    decision = controller.alter_stream(
        image, request.name, request.changes, internal=request.internal
    )
    if isinstance(decision, Existing):
        return ()
    config = decision.config
    more = config.partitions - image.streams[request.name].config.partitions
    added = place_partitions(image, more, replicas=config.replicas)
    altered = AlterStream(decision.name, decision.id, config, added)
    if not config.unclean_election:
        return (altered,)
    change = changes_after_return(apply(image, altered))
    return (altered,) if change is None else (altered, change)


def _delete(image: Image, request: Delete) -> tuple[Command, ...]:
    present = image.streams.get(request.name)
    if request.id and (present is None or present.id != request.id):
        return ()
    return (controller.delete_stream(image, request.name, internal=request.internal),)


def _register(image: Image, node: NodeRegistration) -> tuple[Command, ...]:
    present = image.nodes.get(node.node_id)
    if present is not None and present.alive and present.incarnation == node.incarnation:
        same = replace(node, epoch=present.epoch, alive=True) == present
        return () if same else (RegisterNode(node),)
    commands: list[ClusterCommand] = []
    if present is not None and present.alive:
        # Nobody noticed the end of its last process, which led until now.
        lost = LoseNode(present.node_id, present.epoch)
        commands += _lose(image, lost, is_back=True)
    commands.append(RegisterNode(node))
    for command in commands:
        image = apply(image, command)
    if (change := changes_after_return(image)) is not None:
        commands.append(change)
    return tuple(commands)


def _change_isrs(image: Image, request: ChangeIsrs) -> tuple[ClusterCommand, ...]:
    """Those that can take effect; the leader sees in the image which did."""
    changes = []
    for each in request.changes:
        try:
            change = change_isr(
                image,
                each.stream_id,
                each.partition,
                leader=request.leader,
                leader_epoch=each.leader_epoch,
                version=each.version,
                members=each.members,
            )
        except (FencedEpoch, UnknownPartition):
            continue  # It was deposed, or the stream is deleted.
        if change is not None:
            changes.append(change)
    return (ChangePartitions(tuple(changes)),) if changes else ()


def _lose(image: Image, request: LoseNode, *, is_back: bool = False) -> tuple[ClusterCommand, ...]:
    node = image.nodes.get(request.node_id)
    if node is None or not node.alive or node.epoch != request.epoch:
        return ()
    fence = FenceNode(request.node_id, request.epoch)
    change = changes_after_loss(apply(image, fence), request.node_id, is_back=is_back)
    return (fence,) if change is None else (fence, change)
