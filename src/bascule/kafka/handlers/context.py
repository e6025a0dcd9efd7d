"""What a request handler may use, and the little it must know of partitions."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from bascule.errors import (
    BasculeError,
    FencedEpoch,
    PartitionFailed,
    UnknownEpoch,
    UnknownPartition,
)
from bascule.model import CommittedOffset, StreamDefinition
from bascule.replica.metrics import PartitionMetrics
from bascule.replica.purgatory import Purgatory
from bascule.storage.partition_log import LogPosition, PartitionLog
from bascule.wire.error_codes import ErrorCode
from bascule.wire.offsets import Commit, OffsetKey
from bascule.wire.schema import NO_ID

T = TypeVar("T")


class ServedPartition(Protocol):
    """A partition as the door sees it; everything is read on the event loop."""

    @property
    def definition(self) -> StreamDefinition: ...
    @property
    def index(self) -> int: ...
    @property
    def leader_epoch(self) -> int: ...
    @property
    def log(self) -> PartitionLog | None: ...
    @property
    def high_watermark(self) -> LogPosition: ...
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


class ServedPartitions(Protocol):
    """The streams a door serves."""

    def stream(self, name: str) -> tuple[ServedPartition, ...] | None: ...
    def stream_by_id(self, id: bytes) -> tuple[ServedPartition, ...] | None: ...
    def streams(self) -> Mapping[str, tuple[ServedPartition, ...]]: ...


class ServedOffsets(Protocol):
    """How far consumers have come."""

    def entries(
        self, *, consumer: str | None = None, stream: str | None = None
    ) -> list[CommittedOffset]: ...

    async def caught_up(self) -> None:
        """Return once `entries` knows every commit that was answered. Raises: BasculeError."""
        ...

    async def commit(self, commits: Sequence[tuple[OffsetKey, Commit]]) -> None:
        """Return once all of them are stored. Raises: BasculeError."""
        ...


@dataclass(frozen=True, slots=True)
class NodeIdentity:
    """Who this node is to its clients."""

    node_id: int
    cluster_id: str


class OnThread(Protocol):
    """Runs a function that may wait for the disk on one of a bounded number of threads."""

    def __call__(self, function: Callable[[], T], /) -> Awaitable[T]: ...


@dataclass(frozen=True, slots=True)
class Context:
    """What the handlers of one connection share."""

    partitions: ServedPartitions
    offsets: ServedOffsets
    node: NodeIdentity
    host: str
    """The address under which this connection's client reaches the node."""
    port: int
    fetch_bytes_max: int
    """Bound of one Fetch response's record bytes."""
    fetch_wait_ms_max: int
    purgatory: Purgatory
    on_thread: OnThread


def find_stream(
    context: Context, *, name: str = "", id: bytes = NO_ID
) -> tuple[tuple[ServedPartition, ...], ErrorCode]:
    """The partitions of a stream, by id where there is one; empty with the code if unknown."""
    if id != NO_ID:
        found, code = context.partitions.stream_by_id(id), ErrorCode.UNKNOWN_TOPIC_ID
    else:
        found, code = context.partitions.stream(name), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    if not found or found[0].deleted:
        return (), code
    return found, ErrorCode.NONE


def readable_log(
    stream: tuple[ServedPartition, ...], index: int, leader_epoch: int
) -> tuple[ServedPartition, PartitionLog]:
    """The partition and its log, checked as a read must be.

    `leader_epoch` is what the client believes, -1 if it does not say (KIP-320).
    Raises: UnknownPartition, PartitionFailed, FencedEpoch, UnknownEpoch.
    """
    name = stream[0].definition.name
    if not 0 <= index < len(stream):
        raise UnknownPartition(name, index, len(stream))
    partition = stream[index]
    if partition.failure is not None:
        raise partition.failure
    if partition.log is None:
        raise PartitionFailed(name, index, "its log is not open")
    if leader_epoch >= 0 and leader_epoch != partition.leader_epoch:
        fenced = leader_epoch < partition.leader_epoch
        raise (FencedEpoch if fenced else UnknownEpoch)(leader_epoch, partition.leader_epoch)
    return partition, partition.log


def offsets_code(error: BasculeError) -> ErrorCode:
    """The code for committed offsets that cannot be stored or told.

    A stopped stream stays so until an operator acts, and clients repeat for ever what they are told
    to repeat: aiokafka's `stop` would never end.
    """
    if isinstance(error, PartitionFailed):
        return ErrorCode.UNKNOWN_SERVER_ERROR
    return ErrorCode.COORDINATOR_NOT_AVAILABLE


ReadErrors = (BasculeError, OSError)
"""What reading a partition may raise; every handler turns it into the partition's error code."""
