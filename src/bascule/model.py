"""Types that all packages share: stream configuration, stream and node information."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, Literal

PARTITION_COUNT_MAX: Final = 1024
"""Most partitions of one stream: each costs files and memory."""


class SyncPolicy(StrEnum):
    """When a record counts as stored, so that its ack may be sent."""

    ALWAYS = "always"
    """After the batch is synced to disk. One fdatasync covers all batches written before it."""
    INTERVAL = "interval"
    """After the batch is written to the kernel; the log is synced every `sync_interval_ms`."""
    NEVER = "never"
    """After the batch is written to the kernel, which decides when it reaches the disk."""


class PartitionBy(StrEnum):
    """How the partition of a message is chosen."""

    GROUP = "group"
    """Each partition is a member of one NATS queue group; NATS spreads messages at random."""
    SUBJECT = "subject"
    """By a hash of the message's subject, so that the order within a subject is kept."""
    KEY = "key"
    """By a hash of the record's key, as in Kafka's Java client; without a key by subject."""


class KeyFrom(StrEnum):
    """The source of a record's key, if the message has no Liftbridge envelope with a key."""

    HEADER = "header"
    """The NATS header `Bascule-Key`."""
    SUBJECT = "subject"
    """That header, or without it the message's subject, as in NATS key-value buckets."""


class Compression(StrEnum):
    """How record batches are compressed; the names are Kafka's."""

    NONE = "none"
    GZIP = "gzip"
    SNAPPY = "snappy"
    LZ4 = "lz4"
    ZSTD = "zstd"


class Cleanup(StrEnum):
    """Which cleanup removes records of a stream."""

    DELETE = "delete"
    """Retention removes the oldest segments."""
    COMPACT = "compact"
    """Compaction removes older records of a key."""


class Discard(StrEnum):
    """What a stream does at its limit of bytes or messages; the terms are JetStream's."""

    OLD = "old"
    """Remove the oldest segments."""
    NEW = "new"
    """Refuse new messages."""


@dataclass(frozen=True, slots=True)
class StreamConfig:
    """The settings of a stream. A repeated creation must have an equal configuration.

    A limit of 0 means no limit. Limits hold for each partition.
    """

    subject: str
    """NATS subject, wildcards allowed."""
    group: str | None = None
    """NATS queue group of the subscription, or None for no queue group."""
    sync: SyncPolicy = SyncPolicy.ALWAYS
    sync_interval_ms: int = 1_000
    segment_bytes_max: int = 256 << 20
    """A segment is rolled before it grows beyond this. From Liftbridge's default."""
    segment_age_ms_max: int = 7 * 24 * 3_600_000
    """A segment is rolled when its first record is older. From Kafka's segment.ms."""
    message_bytes_max: int = 8 << 20
    """Largest message stored; larger ones get an error ack. 8 MiB is the advice of NATS."""
    partitions: int = 1
    """May be increased later, never decreased."""
    partition_by: PartitionBy = PartitionBy.GROUP
    key_from: KeyFrom = KeyFrom.HEADER
    compression: Compression = Compression.NONE
    cleanup: tuple[Cleanup, ...] = (Cleanup.DELETE,)
    retention_ms_max: int = 0
    """Segments whose newest record is older are removed."""
    retention_bytes_max: int = 0
    retention_messages_max: int = 0
    retention_after: str = ""
    """A consumer, such as an archive; retention keeps the records it has not committed."""
    discard: Discard = Discard.OLD
    tombstone_retention_ms: int = 24 * 3_600_000
    """How long compaction keeps a tombstone. From Kafka's delete.retention.ms."""
    min_compaction_lag_ms: int = 0
    """Records younger than this are not compacted."""
    max_compaction_lag_ms: int = 0
    """Records older than this are compacted regardless of `dirty_percent_min`."""
    dirty_percent_min: int = 50
    """Dirty share of the log that starts a compaction. From Kafka's min.cleanable.dirty.ratio."""
    dedupe_window_ms: int = 120_000
    """How long a `Nats-Msg-Id` is kept for deduplication; 0: off. JetStream keeps it 2 minutes."""
    dedupe_messages_max: int = 1_000_000
    """Most message ids kept."""
    rate_messages_max: int = 0
    """Most messages stored per second."""
    rate_bytes_max: int = 0
    """Most bytes of messages stored per second."""
    read_only: bool = False
    """The stream refuses messages; publishers that ask for an ack get an error."""


@dataclass(frozen=True, slots=True)
class StreamDefinition:
    """One stream in the metadata; an alteration creates a new definition with the same id."""

    name: str
    id: bytes = field(repr=False)
    """16 random bytes; a re-created stream has another id. It is Kafka's topic id."""
    created_ms: int
    """Unix time of creation, milliseconds."""
    config: StreamConfig
    paused: bool = False
    """The stream refuses messages until resumed; publishers that ask for an ack get an error."""

    @property
    def partition_count(self) -> int:
        return self.config.partitions


@dataclass(frozen=True, slots=True)
class PartitionInfo:
    """The state of one partition on its node. All offsets but `start_offset` are exclusive ends."""

    partition: int
    start_offset: int
    """First offset in the log."""
    high_watermark: int
    """End of the committed records, which consumers can read."""
    synced_offset: int
    """End of the records that are synced to disk."""
    end_offset: int
    """Offset of the next record."""
    leader_epoch: int
    bytes: int
    """Bytes of record batches in the log."""
    failure: str | None = None
    """Why the partition stopped, or None."""


@dataclass(frozen=True, slots=True)
class StreamInfo:
    """A stream's definition and the state of its partitions."""

    definition: StreamDefinition
    partitions: tuple[PartitionInfo, ...]
    refusal: str | None = None
    """Why the NATS server does not deliver messages to the stream, or None."""


@dataclass(frozen=True, slots=True)
class NodeInfo:
    """One running node: its addresses, versions and state."""

    node_id: int
    cluster_id: str
    version: str
    twin: str
    """`compiled`, `interpreted` or `mixed`: which twin of the hot modules is loaded."""
    pid: int
    data: str
    """Absolute path of the data directory."""
    nats: str
    """Configured URLs of the NATS servers, comma separated and without credentials."""
    nats_embedded: bool
    client: str
    """host:port of the client listener (Kafka wire protocol)."""
    http: str
    """URL of the HTTP listener."""
    uptime_ms: int = 0
    ready: bool = True
    """False while the node is opening or draining, or is not connected to NATS."""
    nats_server: str = ""
    """The connected NATS server; empty: none."""


@dataclass(frozen=True, slots=True)
class PartHealth:
    """The health of one part of a node."""

    part: str
    state: Literal["ok", "degraded", "down"]
    reason: str
    """The cause, or the state in words."""


@dataclass(frozen=True, slots=True)
class CommittedOffset:
    """The committed offset of a consumer in one partition."""

    consumer: str
    stream: str
    partition: int
    offset: int
    """The next offset that the consumer processes."""
    leader_epoch: int
    """As the consumer sent it; -1 for none."""
    metadata: str
    committed_ms: int
    start_offset: int | None
    """First offset in the partition's log; None if the partition does not exist."""
    high_watermark: int | None

    @property
    def lag(self) -> int | None:
        """Offsets from `offset` to the high watermark; None if the partition does not exist."""
        return None if self.high_watermark is None else max(0, self.high_watermark - self.offset)
