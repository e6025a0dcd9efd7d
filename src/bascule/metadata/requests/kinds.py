"""Requests to the controller as values."""

from __future__ import annotations

from typing import Any, TypeAlias

import msgspec

from bascule.metadata.elections import ComparedLogs
from bascule.metadata.nodes import NatsNote
from bascule.metadata.replicas.reassignment import PartitionMove
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
    has_lost_writes: bool = False
    """Whether its machine went down since the node ran, without a clean stop: what was not synced
    is lost. See `elections.changes_after_lost_writes`."""


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
    is_whole: bool = False
    """Its log has all that it had: only its disk is full. A controller that does not know the field
    takes the log for one that may not be whole."""


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


class StepDown(msgspec.Struct, tag=True, frozen=True):
    """A process is about to stop; see `elections.changes_before_stop`."""

    node_id: int
    epoch: int


class Reassign(msgspec.Struct, tag=True, frozen=True):
    """Move a stream, or one partition of it, to these replicas, the preferred leader first."""

    name: str
    partition: int | None
    replicas: tuple[int, ...]


class CancelMoves(msgspec.Struct, tag=True, frozen=True):
    """Take moves of a stream, or of one partition, back; see `reassignment.cancel_moves`."""

    name: str
    partition: int | None


class ElectLeaders(msgspec.Struct, tag=True, frozen=True):
    """Give a stream or one partition another leader; see `leadership.elect_leaders`."""

    name: str
    partition: int | None
    node_id: int | None
    """None: the preferred leaders."""


class AcknowledgeLoss(msgspec.Struct, tag=True, frozen=True):
    """An operator knows of unclean elections; see `elections.acknowledge_loss`."""

    name: str
    partition: int | None


class ElectUncleanly(msgspec.Struct, tag=True, frozen=True):
    """The logs of replicas that are not in sync were compared; see `elections.elect_uncleanly`."""

    compared: tuple[ComparedLogs, ...]
    by_operator: bool = False
    """Whether an operator accepts the loss, and not the stream."""


class ElectLongest(msgspec.Struct, tag=True, frozen=True):
    """The logs of doubtful replicas were compared; see `elections.elect_longest`."""

    compared: tuple[ComparedLogs, ...]


class Admit(msgspec.Struct, tag=True, frozen=True):
    """A node with an empty data directory wants to join; see `nodes.admit`."""

    node: NodeRegistration


class LookUp(msgspec.Struct, tag=True, frozen=True):
    """Whether a node that nobody reaches still belongs to the cluster; changes nothing."""

    node: NodeRegistration


class Leave(msgspec.Struct, tag=True, frozen=True):
    """Remove a node; see `nodes.leave`."""

    node_id: int
    force: bool


class Stay(msgspec.Struct, tag=True, frozen=True):
    """Take the removal of a node back; see `nodes.stay`."""

    node_id: int


class Drain(msgspec.Struct, tag=True, frozen=True):
    """Take leaders, and with `empties` replicas, from a node; see `nodes.drain`."""

    node_id: int
    empties: bool
    reason: str = ""


class Resume(msgspec.Struct, tag=True, frozen=True):
    """A drained node goes on; see `nodes.resume`."""

    node_id: int


class FinishLeaving(msgspec.Struct, tag=True, frozen=True):
    """Remove a node that leaves and holds nothing any more."""

    node_id: int


class MoveReplicas(msgspec.Struct, tag=True, frozen=True):
    """Begin some of `reassignment.due_moves`."""

    moves: tuple[PartitionMove, ...]


class BalanceLeaders(msgspec.Struct, tag=True, frozen=True):
    """Have preferred leaders lead again; see `leadership.moves_to_preferred`."""

    count_max: int


class FinishMoves(msgspec.Struct, tag=True, frozen=True):
    """End moves whose leaders have handed over; see `reassignment.finish_moves`."""

    finishing: tuple[tuple[bytes, int, int], ...]


class GiveLeaders(msgspec.Struct, tag=True, frozen=True):
    """Have others lead for nodes that are drained; see `leadership.moves_from_drained`."""

    count_max: int


class NoteNats(msgspec.Struct, tag=True, frozen=True):
    """Processes have told of their NATS connections; see `nodes.note_nats`."""

    notes: tuple[NatsNote, ...]


class LeaveLacking(msgspec.Struct, tag=True, frozen=True):
    """Have others lead for nodes that lack NATS; see `leadership.moves_from_lacking`."""

    lacking: tuple[int, ...]
    able: tuple[int, ...]
    count_max: int


class BalanceReplicas(msgspec.Struct, tag=True, frozen=True):
    """Begin some of `balance.due_balancing`; see `balance.balance_replicas`."""

    moves: tuple[PartitionMove, ...]
    by_itself: bool


class SetBalance(msgspec.Struct, tag=True, frozen=True):
    """An operator has replicas balanced, or ends that."""

    is_balancing: bool


class LimitCatchUp(msgspec.Struct, tag=True, frozen=True):
    """Limit what replicas get that are not in sync; 0: no limit."""

    bytes_per_second: int


class RaiseVersion(msgspec.Struct, tag=True, frozen=True):
    """Have the highest cluster version in force that all nodes support; see `metadata.versions`."""

    members: tuple[int, ...]
    """Of the metadata group."""


OperatorRequest: TypeAlias = Leave | Stay | FinishLeaving | Drain | Resume
NodeRequest: TypeAlias = RegisterProcess | LoseNode | Admit | LookUp | NoteNats | OperatorRequest
SettingRequest: TypeAlias = SetBalance | LimitCatchUp | BalanceReplicas | RaiseVersion
PartitionRequest: TypeAlias = (
    ChangeIsrs
    | ReplaceLeader
    | StepDown
    | Resign
    | Reassign
    | ElectUncleanly
    | ElectLongest
    | AcknowledgeLoss
    | MoveReplicas
    | BalanceLeaders
    | CancelMoves
    | ElectLeaders
    | GiveLeaders
    | LeaveLacking
    | FinishMoves
)
ControllerRequest: TypeAlias = (
    Create | Alter | SetPaused | Delete | Forget | NodeRequest | PartitionRequest | SettingRequest
)
