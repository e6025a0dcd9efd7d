"""What request handlers use: the ports to partitions and offsets, and shared look-ups."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from bascule.config import Config
from bascule.config.addresses import parse_address
from bascule.errors import (
    BasculeError,
    FencedEpoch,
    LimitExceeded,
    NotLeader,
    PartitionFailed,
    UnknownEpoch,
    UnknownPartition,
)
from bascule.group_results import CommittedOffset
from bascule.groups.administration import GroupOffsets
from bascule.groups.classic import JoinAnswer, JoinRequest, SyncAnswer
from bascule.groups.consumer import ConsumerGroup, MemberAnswer, MemberHeartbeat
from bascule.groups.described import RunningGroups
from bascule.groups.offset_appends import OnStored
from bascule.groups.prepared_commits import PreparedCommit
from bascule.listening.refusals import RefusalLog
from bascule.listening.sending import RunOnThread
from bascule.model import (
    NO_LEADER,
    NodeRegistration,
    PartitionState,
    StreamConfig,
    StreamDefinition,
    StreamInfo,
)
from bascule.replica.failure_run import FailureRun
from bascule.replica.metrics import PartitionMetrics
from bascule.replica.purgatory import Purgatory
from bascule.storage.partition_log import LogPosition, PartitionLog
from bascule.table_results import TableValues
from bascule.wire.error_codes import ErrorCode
from bascule.wire.offsets import Commit, OffsetKey
from bascule.wire.schema import NO_ID
from bascule.wire.tables.read_batches import KeyRead

T = TypeVar("T")


class ServedPartition(Protocol):
    """A partition as the handlers see it; all properties are read on the event loop."""

    @property
    def definition(self) -> StreamDefinition: ...
    @property
    def index(self) -> int: ...
    @property
    def leader_epoch(self) -> int: ...
    @property
    def is_leader(self) -> bool: ...
    @property
    def state(self) -> PartitionState | None: ...
    @property
    def log(self) -> PartitionLog | None: ...
    @property
    def high_watermark(self) -> LogPosition: ...
    @property
    def knows_end(self) -> bool: ...
    @property
    def start_offset(self) -> int: ...
    @property
    def failure(self) -> PartitionFailed | None: ...
    @property
    def deleted(self) -> bool: ...
    @property
    def watchers(self) -> set[Callable[[], None]]: ...
    @property
    def metrics(self) -> PartitionMetrics: ...
    @property
    def failed_reads(self) -> FailureRun: ...


class ServedPartitions(Protocol):
    """The streams that the client listener serves."""

    def stream(self, name: str) -> tuple[ServedPartition, ...] | None: ...
    def stream_by_id(self, id: bytes) -> tuple[ServedPartition, ...] | None: ...
    def streams(self) -> Mapping[str, tuple[ServedPartition, ...]]: ...


class ServedOffsets(GroupOffsets, Protocol):
    """The committed offsets of consumers."""

    def entries(
        self, *, consumer: str | None = None, stream: str | None = None
    ) -> list[CommittedOffset]: ...

    async def wait_caught_up(self) -> None:
        """Return once `entries` includes every acknowledged commit. Raises: BasculeError."""
        ...

    def store_checked(self, commits: Sequence[tuple[OffsetKey, Commit]]) -> asyncio.Future[int]:
        """The offset of the first record once all are stored; in memory if `has_read`.

        Raises, or has as error: BasculeError.
        """
        ...

    def prepare(self, commits: Sequence[tuple[OffsetKey, str]]) -> list[PreparedCommit]:
        """Commits with this metadata, for `store_prepared`. Raises: BasculeError."""
        ...

    def store_prepared(
        self, prepared: Sequence[PreparedCommit], values: Sequence[int], on_stored: OnStored
    ) -> None:
        """As `store_checked`, with the offset and the leader epoch of each in turn in `values`."""
        ...

    def has_read(self, offset: int, count: int) -> bool:
        """Whether `count` records from `offset` on are in memory."""
        ...

    async def wait_read(self, offset: int, count: int) -> None:
        """Return once they are. Raises: BasculeError."""
        ...


class ServedGroups(RunningGroups, Protocol):
    """The groups whose members this node coordinates; implemented by `groups.coordinator`."""

    def error(self) -> ErrorCode:
        """Why this node does not answer for groups now, or NONE."""
        ...

    async def confirmed_error(self, name: str | None = None) -> ErrorCode:
        """As `error`. After NONE no other node has acknowledged anything before the call."""
        ...

    async def join(self, name: str, request: JoinRequest) -> JoinAnswer: ...

    async def sync(
        self,
        name: str,
        member_id: str,
        instance_id: str | None,
        generation: int,
        assignments: Sequence[tuple[str, bytes]],
        *,
        protocol_type: str | None,
        protocol: str | None,
    ) -> SyncAnswer: ...

    def heartbeat(
        self, name: str, member_id: str, instance_id: str | None, generation: int
    ) -> ErrorCode: ...

    def leave(self, name: str, leaving: Sequence[tuple[str, str | None]]) -> list[ErrorCode]: ...

    def fetch_error(self, name: str, member_id: str, epoch: int) -> ErrorCode: ...

    def commit_error(
        self, name: str, member_id: str, instance_id: str | None, generation: int
    ) -> ErrorCode: ...

    def member_heartbeat(
        self, name: str, request: MemberHeartbeat
    ) -> MemberAnswer | Awaitable[MemberAnswer]: ...

    def steady_heartbeat(self, name: str, request: MemberHeartbeat) -> MemberAnswer | None: ...

    def consumer_group(self, name: str) -> ConsumerGroup | None: ...


class TopicAdministration(Protocol):
    """Changes of streams, from any node; implemented by `controller`."""

    async def create_stream(self, name: str, config: StreamConfig) -> tuple[StreamDefinition, bool]:
        """The stream, and whether this call created it. Raises: BasculeError, OSError."""
        ...

    async def check_creation(
        self, name: str, config: StreamConfig
    ) -> tuple[StreamDefinition, bool]:
        """As `create_stream`, and nothing is created."""
        ...

    async def alter_stream(self, name: str, changes: Mapping[str, Any]) -> StreamDefinition:
        """`changes` is field -> plain value. Raises: BasculeError."""
        ...

    def check_alteration(self, name: str, changes: Mapping[str, Any]) -> None:
        """As `alter_stream`, and nothing is altered."""
        ...

    async def purge_stream(
        self, name: str, *, to_offset: int | None, before_ms: int | None, partition: int | None
    ) -> StreamInfo:
        """Raises: BasculeError, OSError."""
        ...

    async def delete_stream(self, name: str) -> None:
        """Raises: BasculeError."""
        ...


class ServedTables(Protocol):
    """Reads of tables by key; implemented by `controller`. An answer of None: ask over HTTP."""

    def read_now(self, reads: Sequence[KeyRead]) -> list[TableValues | None] | None:
        """The answers, if they are there without waiting."""
        ...

    async def read(self, reads: Sequence[KeyRead]) -> list[TableValues | None]: ...


@dataclass(frozen=True, slots=True)
class NodeIdentity:
    """The node and cluster ids that clients see."""

    node_id: int
    cluster_id: str


class ClusterView(Protocol):
    """What the metadata image says of nodes and leaders; implemented by `controller`."""

    @property
    def controller_id(self) -> int:
        """0 where none is known."""
        ...

    def nodes(self) -> Sequence[NodeRegistration]:
        """The nodes that are alive and have a client listener."""
        ...

    def registrations(self) -> Sequence[NodeRegistration]:
        """All nodes, also those that are lost, by id."""
        ...

    def states(self, stream_id: bytes) -> Sequence[PartitionState]:
        """By partition; empty for an unknown stream."""
        ...


@dataclass(frozen=True, slots=True)
class Context:
    """The ports, limits and addresses that the handlers of one connection share."""

    partitions: ServedPartitions
    offsets: ServedOffsets
    groups: ServedGroups
    node: NodeIdentity
    host: str
    """The address under which this connection's client reaches the node."""
    port: int
    fetch_bytes_max: int
    """Limit of the record bytes in one Fetch response."""
    fetch_wait_ms_max: int
    purgatory: Purgatory
    run_on_thread: RunOnThread
    peer: str
    """Address and port of the client."""
    refusals: RefusalLog
    cluster: ClusterView
    config: Config
    streams: TopicAdministration
    tables: ServedTables | None = None
    """None: this listener serves none."""
    note_cold_read: Callable[[], None] = lambda: None
    """Called where records have to be read by a thread before they are sent."""

    def address_of(self, node: NodeRegistration) -> tuple[str, int]:
        """This node where the client has reached it, any other where it says."""
        if node.node_id == self.node.node_id:
            return self.host, self.port
        return parse_address(node.client)


def find_stream(
    context: Context, *, name: str = "", id: bytes = NO_ID
) -> tuple[tuple[ServedPartition, ...], ErrorCode]:
    """The partitions of a stream, found by id if `id` is given, else by name.

    Returns an empty tuple and the error code if the stream is unknown.
    """
    if id != NO_ID:
        found, code = context.partitions.stream_by_id(id), ErrorCode.UNKNOWN_TOPIC_ID
    else:
        found, code = context.partitions.stream(name), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    if not found or found[0].deleted:
        return (), code
    return found, ErrorCode.NONE


def readable_log(
    stream: tuple[ServedPartition, ...],
    index: int,
    leader_epoch: int,
    *,
    follower: int = NO_LEADER,
) -> tuple[ServedPartition, PartitionLog]:
    """The partition and its log, if the partition can be read.

    `leader_epoch` is the epoch that the client sent, -1 for none (KIP-320). `follower` is the id of
    this node if it may be read as a follower that is in sync, too (KIP-392).
    Raises: UnknownPartition, PartitionFailed, NotLeader, FencedEpoch, UnknownEpoch.
    """
    name = stream[0].definition.name
    if not 0 <= index < len(stream):
        raise UnknownPartition(name, index, len(stream))
    partition = stream[index]
    if partition.failure is not None:
        raise partition.failure
    if not partition.is_leader and not _follows_in_sync(partition, follower):
        raise NotLeader.of_partition(partition.state, partition.leader_epoch)
    if partition.log is None:
        raise PartitionFailed(name, index, "its log is not open")
    if leader_epoch >= 0 and leader_epoch != partition.leader_epoch:
        fenced = leader_epoch < partition.leader_epoch
        raise (FencedEpoch if fenced else UnknownEpoch)(leader_epoch, partition.leader_epoch)
    return partition, partition.log


def _follows_in_sync(partition: ServedPartition, node: int) -> bool:
    state = partition.state
    return state is not None and state.leader not in (NO_LEADER, node) and node in state.isr


def offsets_error_code(error: BasculeError) -> ErrorCode:
    """The error code for committed offsets that cannot be stored or read.

    A stopped stream stays stopped until an operator acts, so its code must not be retriable; nor
    is there room for more offsets before somebody removes some.
    Clients retry a retriable code without limit: aiokafka's `stop` would never return.
    """
    if isinstance(error, (PartitionFailed, LimitExceeded)):
        return ErrorCode.UNKNOWN_SERVER_ERROR
    if isinstance(error, NotLeader):
        return ErrorCode.NOT_COORDINATOR
    return ErrorCode.COORDINATOR_NOT_AVAILABLE


READ_ERRORS = (BasculeError, OSError)
"""Exceptions of a read; every handler converts them to the partition's error code."""
