"""The words every floor shares: streams, their configuration, and small frozen facts."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, Literal

PARTITION_COUNT_MAX: Final = 1024
"""Partitions of one stream: each costs files, and a connection's worth of bookkeeping."""


class SyncPolicy(StrEnum):
    """When a record counts as stored, and so when its ack may leave."""

    ALWAYS = "always"
    """After the batch is on the disk. One fdatasync covers every batch written before it."""
    INTERVAL = "interval"
    """After the batch is with the kernel; synced every `sync_interval_ms`."""
    NEVER = "never"
    """After the batch is with the kernel; the kernel decides when it reaches the disk."""


class PartitionBy(StrEnum):
    """How the messages of a stream find their partition."""

    GROUP = "group"
    """Each partition is a member of one NATS queue group; NATS spreads messages at random."""
    SUBJECT = "subject"
    """By a hash of the message's subject: the order of a subject is kept."""
    KEY = "key"
    """By a hash of the record's key, as Kafka's Java client does it; without a key by subject."""


class KeyFrom(StrEnum):
    """Where a record's key comes from when no Liftbridge envelope names it."""

    HEADER = "header"
    """The NATS header `Bascule-Key`."""
    SUBJECT = "subject"
    """That header or else the message's subject, as in NATS's key-value buckets."""


class Compression(StrEnum):
    """How record batches are compressed; the names are Kafka's."""

    NONE = "none"
    GZIP = "gzip"
    SNAPPY = "snappy"
    LZ4 = "lz4"
    ZSTD = "zstd"


class Cleanup(StrEnum):
    """What may remove records of a stream."""

    DELETE = "delete"
    """Retention: the oldest segments go."""
    COMPACT = "compact"
    """Compaction: older records of a key go."""


class Discard(StrEnum):
    """What a stream does at its limit of bytes or messages; the words are JetStream's."""

    OLD = "old"
    """Drop the oldest segments."""
    NEW = "new"
    """Refuse new messages."""


@dataclass(frozen=True, slots=True)
class StreamConfig:
    """What an operator chose for a stream. Equality decides whether a repeated creation agrees.

    A limit of 0 is no limit. Limits hold for each partition.
    """

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
    partitions: int = 1
    """May grow later, never shrink."""
    partition_by: PartitionBy = PartitionBy.GROUP
    key_from: KeyFrom = KeyFrom.HEADER
    compression: Compression = Compression.NONE
    cleanup: tuple[Cleanup, ...] = (Cleanup.DELETE,)
    retention_ms_max: int = 0
    """Segments whose newest record is older go."""
    retention_bytes_max: int = 0
    retention_messages_max: int = 0
    retention_after: str = ""
    """Name of an archive; retention keeps what it has not stored yet."""
    discard: Discard = Discard.OLD
    tombstone_retention_ms: int = 24 * 3_600_000
    """How long a compacted tombstone stays to be seen. From Kafka's delete.retention.ms."""
    min_compaction_lag_ms: int = 0
    """Records younger than this are not compacted."""
    max_compaction_lag_ms: int = 0
    """Records older than this are compacted whatever the dirty share is."""
    dirty_percent_min: int = 50
    """Share of the log that has to be dirty. From Kafka's min.cleanable.dirty.ratio of 0.5."""
    dedupe_window_ms: int = 120_000
    """How long a `Nats-Msg-Id` is remembered; 0 turns it off. From JetStream's two minutes."""
    dedupe_messages_max: int = 1_000_000
    """How many are remembered at most."""
    rate_messages_max: int = 0
    """Messages taken a second."""
    rate_bytes_max: int = 0
    """Bytes of messages taken a second."""
    read_only: bool = False
    """Takes no messages; whoever asked for an ack is told so."""


@dataclass(frozen=True, slots=True)
class StreamDefinition:
    """One stream as the cluster knows it; altering it gives another definition of the same id."""

    name: str
    id: bytes = field(repr=False)
    """16 random bytes: tells a re-created stream from its predecessor (Kafka's topic id)."""
    created_ms: int
    """Unix time of creation."""
    config: StreamConfig
    paused: bool = False
    """Takes no messages for now; whoever asked for an ack is told so."""

    @property
    def partition_count(self) -> int:
        return self.config.partitions


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
    refusal: str | None = None
    """Why the NATS server does not deliver to it, or None while it does."""


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
    """URLs of the NATS servers it was given, comma separated; any NATS client may use them."""
    nats_embedded: bool
    client: str
    """host:port of the client listener (Kafka wire protocol)."""
    http: str
    """URL of the HTTP door."""
    uptime_ms: int = 0
    ready: bool = True
    """False while the node opens, drains, or has lost its NATS server."""
    nats_server: str = ""
    """The NATS server it is connected to now; empty: none."""


@dataclass(frozen=True, slots=True)
class PartHealth:
    """How one part of a node does."""

    part: str
    state: Literal["ok", "degraded", "down"]
    reason: str
    """What is wrong, or how it is; for people."""


@dataclass(frozen=True, slots=True)
class CommittedOffset:
    """How far a consumer has come in one partition."""

    consumer: str
    stream: str
    partition: int
    offset: int
    """The first offset it has not yet done."""
    leader_epoch: int
    """As the consumer said; -1 where it did not."""
    metadata: str
    committed_ms: int
    start_offset: int | None
    """First offset the partition still holds; None where there is no such partition."""
    high_watermark: int | None

    @property
    def lag(self) -> int | None:
        """Offsets committed in the partition that the consumer has not done."""
        return None if self.high_watermark is None else max(0, self.high_watermark - self.offset)
