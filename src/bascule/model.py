"""The words every floor shares: streams, their configuration, and small frozen facts."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

PARTITION_COUNT_MAX: Final = 1
"""One partition a stream for now; the layout on disk and every protocol carry the number."""


class SyncPolicy(StrEnum):
    """When a record counts as stored, and so when its ack may leave."""

    ALWAYS = "always"
    """After the batch is on the disk. One fdatasync covers every batch written before it."""
    INTERVAL = "interval"
    """After the batch is with the kernel; synced every `sync_interval_ms`."""
    NEVER = "never"
    """After the batch is with the kernel; the kernel decides when it reaches the disk."""


@dataclass(frozen=True, slots=True)
class StreamConfig:
    """What an operator chose for a stream. Equality decides whether a repeated creation agrees."""

    subject: str
    """NATS subject, wildcards allowed."""
    group: str | None = None
    """NATS queue group to subscribe in, or None for a subscription of its own."""
    sync: SyncPolicy = SyncPolicy.ALWAYS
    sync_interval_ms: int = 1_000
    segment_bytes_max: int = 256 << 20
    """A segment is rolled before it grows beyond this. From Liftbridge's default."""
    segment_age_ms_max: int = 7 * 24 * 3_600_000
    """A segment is rolled when its first record is older. From Kafka's segment.ms."""
    message_bytes_max: int = 8 << 20
    """Largest message stored; larger ones get an error ack. From NATS's advice of 8 MiB."""


@dataclass(frozen=True, slots=True)
class StreamDefinition:
    """One stream as the cluster knows it; never changes after creation."""

    name: str
    id: bytes = field(repr=False)
    """16 random bytes: tells a re-created stream from its predecessor (Kafka's topic id)."""
    created_ms: int
    """Unix time of creation."""
    config: StreamConfig
    partition_count: int = 1


@dataclass(frozen=True, slots=True)
class PartitionInfo:
    """One partition as its node sees it now; every offset is exclusive but `start_offset`."""

    partition: int
    start_offset: int
    """First offset still held."""
    high_watermark: int
    """First offset not yet committed: what consumers may read ends here."""
    synced_offset: int
    """First offset that is not known to be on the disk."""
    end_offset: int
    """The offset the next record gets."""
    leader_epoch: int
    bytes: int
    """Bytes of record batches held in segments."""
    failure: str | None = None
    """Why the partition stopped, or None while it works."""


@dataclass(frozen=True, slots=True)
class StreamInfo:
    """A stream's definition and the state of its partitions."""

    definition: StreamDefinition
    partitions: tuple[PartitionInfo, ...]


@dataclass(frozen=True, slots=True)
class NodeInfo:
    """One running node: its doors, and what it runs on."""

    node_id: int
    cluster_id: str
    version: str
    twin: str
    """`compiled`, `interpreted` or `mixed`: which twin of the hot modules is loaded."""
    pid: int
    data: str
    """Absolute path of the data directory."""
    nats: str
    """URL of the NATS server the node is connected to; any NATS client may use it."""
    nats_embedded: bool
    client: str
    """host:port of the client listener (Kafka wire protocol)."""
    http: str
    """URL of the HTTP door."""
    uptime_ms: int = 0
    ready: bool = True
    """False while the node opens, drains, or has lost its NATS server."""
