"""The commands that change the image. A command is a decision: applying it cannot fail.

Commands contain the id of their stream, so that a late command does not change a newer stream of
the same name.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from bascule.model import NodeRegistration, PartitionState, StreamConfig, StreamDefinition


@dataclass(frozen=True, slots=True)
class CreateStream:
    """Create a stream."""

    definition: StreamDefinition
    partitions: tuple[PartitionState, ...] = ()


@dataclass(frozen=True, slots=True)
class AlterStream:
    """Change the configuration of the stream with this name and id."""

    name: str
    id: bytes
    config: StreamConfig
    added: tuple[PartitionState, ...] = ()
    """The states of added partitions."""


@dataclass(frozen=True, slots=True)
class PauseStream:
    """Refuse messages of the stream with this name and id until it is resumed."""

    name: str
    id: bytes


@dataclass(frozen=True, slots=True)
class ResumeStream:
    """Accept messages of the stream with this name and id again."""

    name: str
    id: bytes


@dataclass(frozen=True, slots=True)
class DeleteStream:
    """Delete the stream with this name and id, and record the deletion."""

    name: str
    id: bytes


@dataclass(frozen=True, slots=True)
class ForgetDeletions:
    """A node has removed the data of deleted streams. The record of a deletion goes with the last
    node that had data."""

    ids: tuple[bytes, ...]
    node_id: int = 0


@dataclass(frozen=True, slots=True)
class AdoptDeletions:
    """Record deletions that an earlier release had not finished on the node `node_id`."""

    deletions: tuple[tuple[bytes, str], ...]
    """Stream id and name."""
    node_id: int


@dataclass(frozen=True, slots=True)
class SetClusterId:
    """Give the cluster its id, once and for all."""

    cluster_id: str


@dataclass(frozen=True, slots=True)
class RegisterNode:
    """A node's process has started. The index of this command becomes the node's epoch."""

    node: NodeRegistration


@dataclass(frozen=True, slots=True)
class FenceNode:
    """The controller has lost this process of the node; its replicas leave all ISRs elsewhere."""

    node_id: int
    epoch: int


@dataclass(frozen=True, slots=True)
class AdmitNode:
    """A node with an empty data directory joins; it registers later."""

    node: NodeRegistration


@dataclass(frozen=True, slots=True)
class SetLeaving:
    """The node that registered at `epoch` is to be removed, so its replicas move to other nodes; or
    it stays, and no more of them move."""

    node_id: int
    epoch: int
    is_leaving: bool = True


@dataclass(frozen=True, slots=True)
class SetDrained:
    """The node that registered at `epoch` is drained, or goes on; see `NodeRegistration`."""

    node_id: int
    epoch: int
    is_drained: bool
    is_emptied: bool = False
    reason: str = ""
    """Since cluster version 2."""


@dataclass(frozen=True, slots=True)
class SetNatsLack:
    """The process that registered at `epoch` lacks NATS, or has it again; see `NodeRegistration`.
    Since cluster version 2."""

    node_id: int
    epoch: int
    since_ms: int
    """0: it has NATS again."""


@dataclass(frozen=True, slots=True)
class SetCatchUpRate:
    """Limit what replicas that are not in sync get; see `Image.catch_up_rate`."""

    bytes_per_second: int


@dataclass(frozen=True, slots=True)
class SetBalancing:
    """Move replicas until all nodes hold about as many, or do so no longer."""

    is_balancing: bool


@dataclass(frozen=True, slots=True)
class SetClusterVersion:
    """Raise the cluster version. Never written for a version that some node does not support."""

    version: int


@dataclass(frozen=True, slots=True)
class RemoveNode:
    """The node that registered at `epoch` is not in the cluster any more."""

    node_id: int
    epoch: int


@dataclass(frozen=True, slots=True)
class PartitionChange:
    """The new state of one partition, in force if its version is one more than that of the old."""

    stream_id: bytes
    partition: int
    state: PartitionState
    reason: str = ""
    """Why another node leads, or the replicas are others; empty: an election or an ISR change."""


@dataclass(frozen=True, slots=True)
class ChangePartitions:
    """Changes of leaders, ISRs and replicas, of any number of partitions: a node's death is one
    command."""

    changes: tuple[PartitionChange, ...]


StreamCommand: TypeAlias = CreateStream | AlterStream | PauseStream | ResumeStream | DeleteStream
NodeChange: TypeAlias = FenceNode | SetLeaving | SetDrained | SetNatsLack | RemoveNode
NodeCommand: TypeAlias = RegisterNode | AdmitNode | NodeChange
SettingCommand: TypeAlias = SetClusterId | SetCatchUpRate | SetBalancing | SetClusterVersion
ClusterCommand: TypeAlias = SettingCommand | NodeCommand | ChangePartitions
Command: TypeAlias = StreamCommand | ForgetDeletions | AdoptDeletions | ClusterCommand
