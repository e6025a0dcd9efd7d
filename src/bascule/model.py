"""Types that all packages share: stream configuration, stream and node information."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, Literal

PARTITION_COUNT_MAX: Final = 1024
"""Most partitions of one stream: each costs files and memory."""
STREAM_NAME_LENGTH_MAX: Final = 249
"""As of a Kafka topic's name. A name is a directory name too, of at most 255 bytes on Linux."""
INTERNAL_STREAMS: Final = frozenset({"_offsets"})
"""The node's own streams, which no operator creates, alters or deletes."""
INTERNAL_PREFIX: Final = "_bascule"
"""Begins the names of the node's own streams of later releases."""


NO_LEADER: Final = -1
"""In place of the node id of a partition's leader."""


def is_internal_stream(name: str) -> bool:
    """Whether `name` is reserved for the node's own streams."""
    return name in INTERNAL_STREAMS or name.startswith(INTERNAL_PREFIX)


class SyncPolicy(StrEnum):
    """When a record counts as stored, so that its ack may be sent."""

    ALWAYS = "always"
    """After the batch is synced to disk. One fdatasync covers all batches written before it."""
    INTERVAL = "interval"
    """After the batch is written to the kernel; the log is synced every `sync_interval_ms`."""
    NEVER = "never"
    """After the batch is written to the kernel, which decides when it reaches the disk."""


class AckPolicy(StrEnum):
    """When a message that asks for an ack is acked. The terms are Liftbridge's."""

    ALL = "all"
    """Once it is committed: stored by all replicas in sync."""
    LEADER = "leader"
    """Once the leader has stored it. It may be lost if the leader is."""
    NONE = "none"
    """Never; only refused messages are answered."""


class PartitionBy(StrEnum):
    """How the partition of a message is chosen."""

    GROUP = "group"
    """Each partition is a member of one NATS queue group; NATS spreads messages at random."""
    SUBJECT = "subject"
    """By a hash of the message's subject, so that the order within a subject is kept."""
    KEY = "key"
    """By a hash of the record's key, as in Kafka's Java client; without a key by subject."""
    MAPPING = "mapping"
    """By NATS's subject mapping, which writes the number of the partition in place of the first `*`
    of the stream's subject. The leader of a partition gets no other messages."""


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


class RecordHeader(StrEnum):
    """A header that the node adds to the records of NATS messages."""

    SUBJECT = "subject"
    """The message's subject. Without it a record has the subject of its stream's definition."""
    REPLY = "reply"
    """The message's reply subject."""


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
    replicas: int = 1
    """Copies of each partition, on different nodes."""
    min_isr: int = 0
    """Replicas that must be in sync for a record to be committed; 0: more than half of them."""
    unclean_election: bool = False
    """Whether a replica that was not in sync may lead when none that was is alive."""
    acks: bool = True
    """Whether publishers get acks and errors. Without, as for an audit of other streams' subjects,
    what a message requests of a stream is not evaluated either, except for its id."""
    ack_policy: AckPolicy = AckPolicy.ALL
    """When messages that name no policy are acked."""
    shared: bool = False
    """Whether other clusters on the same NATS may have this stream, too; else it is reported."""
    record_headers: tuple[RecordHeader, ...] = ()
    """Headers of every record. `subject` is stored without it too where `literal_subject` is None
    or another one."""
    table: bool = False
    """Whether each replica keeps the latest value of each key in a table."""
    table_ttl_ms: int = 0
    """A key of the table is removed when its value is older, unless that has a header `Nats-TTL`;
    0: it is kept."""

    @property
    def acks_usually(self) -> bool:
        """Whether a message is acked that names no policy."""
        return self.acks and self.ack_policy is not AckPolicy.NONE

    @property
    def literal_subject(self) -> str | None:
        """The subject of records that have no header `subject`; None if `subject` has wildcards."""
        return None if "*" in self.subject or ">" in self.subject else self.subject


@dataclass(frozen=True, slots=True)
class PartitionState:
    """Who holds a partition, and who leads it, as the metadata image says."""

    replicas: tuple[int, ...]
    """Node ids, the preferred leader first."""
    isr: tuple[int, ...]
    """The replicas in sync, sorted; empty: each of them has lost writes."""
    leader: int
    """A node of `isr`, or NO_LEADER."""
    leader_epoch: int
    """Raised by every election."""
    version: int
    """Raised by every change of this state."""
    unclean_epoch: int = 0
    """The latest leader epoch whose leader was not in sync when it was elected: records that were
    committed before may be lost. 0: none."""
    target: tuple[int, ...] = ()
    """The replicas that the partition is to have; empty: those that it has. While they differ,
    `replicas` has the old and the new ones. All of the target are in sync before one leaves."""
    min_isr: int = 0
    """Replicas in sync that messages need until the target is reached; 0: as many as the stream
    says. A stream that gets more replicas does not need them before they have caught up."""
    eligible: tuple[int, ...] = ()
    """Replicas out of `isr` that have every committed record, sorted; see `replicas.eligible`."""
    lossy: tuple[int, ...] = ()
    """Replicas that had every committed record until their machines lost writes, sorted. Those that
    are in sync or eligible are doubtful; see `replicas.eligible`."""
    acknowledged_epoch: int = 0
    """The `unclean_epoch` that an operator has acknowledged; 0: none."""
    origin: tuple[int, ...] = ()
    """The replicas before the move, which a cancellation returns to; empty: nothing moves, or an
    earlier release began it."""
    since: tuple[tuple[int, int], ...] = ()
    """Pairs of a node and the version of this state that made it a replica; others always were."""

    def replica_since(self, node: int) -> int:
        """The version of the state that made `node` a replica; 0: it has always been one. A node
        that was a replica before has another log since then."""
        return next((version for each, version in self.since if each == node), 0)

    @property
    def is_in_no_hurry(self) -> bool:
        """Whether it moves with as many replicas in sync as it is to have."""
        return 0 < len(self.target) <= len(self.isr)

    @property
    def shown_unclean_epoch(self) -> int:
        """`unclean_epoch` as operators see it: 0 once they have acknowledged it."""
        return 0 if self.unclean_epoch == self.acknowledged_epoch else self.unclean_epoch


@dataclass(frozen=True, slots=True)
class NodeRegistration:
    """One node as it registered when its process started."""

    node_id: int
    peer: str
    """host:port of the peer listener."""
    client: str
    """host:port of the client listener, as clients reach it."""
    http: str
    """URL of the HTTP listener."""
    nats_route: str = ""
    """host:port of the embedded NATS server for those of other nodes; empty: there is none."""
    rack: str = ""
    version: str = ""
    """Version of the program."""
    incarnation: int = 0
    """A random number that the process drew when it started."""
    epoch: int = 0
    """Log index of the registration: a later process of the node has a larger one."""
    alive: bool = True
    """False once the controller has lost the node."""
    directory: str = ""
    """Id of the data directory, which no other process may register with; empty: not known yet."""
    is_leaving: bool = False
    """Whether the node is to be removed: its replicas move to other nodes."""
    is_stopping: bool = False
    """Whether the process is about to stop: others lead where they can."""
    is_drained: bool = False
    """Whether an operator has drained the node: others lead where they can, and it gets no more
    replicas, until the operator says that it goes on."""
    is_emptied: bool = False
    """Whether its replicas move to other nodes while it is drained."""
    cluster_version_min: int = 1
    """The oldest cluster version that its release supports; see `cluster_version`."""
    cluster_version_max: int = 1
    """The newest one. A node of a release before there were cluster versions supports 1."""
    drain_reason: str = ""
    """Why it is drained, in the operator's words. Since cluster version 2."""
    lacks_nats_since_ms: int = 0
    """Since when the process has no NATS connection, so that others lead where they can; Unix
    milliseconds by the controller's clock. 0: it is not known to lack one. Since cluster version
    2."""

    @property
    def lacks_nats(self) -> bool:
        """Whether the process is known to have no NATS connection."""
        return self.lacks_nats_since_ms > 0

    @property
    def gives_leaders(self) -> bool:
        """Whether others are to lead what it leads, where they can."""
        return self.is_drained or self.is_leaving or self.is_stopping

    @property
    def gives_replicas(self) -> bool:
        """Whether its replicas move to other nodes."""
        return self.is_leaving or self.is_emptied

    @property
    def takes_replicas(self) -> bool:
        """Whether it may get replicas."""
        return self.alive and not self.is_leaving and not self.is_drained


def min_isr_in_force(min_isr: int, replicas: int) -> int:
    """How many replicas a setting of `min_isr` demands; 0 is more than half of them."""
    return min_isr or replicas // 2 + 1


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

    @property
    def queue_group(self) -> str | None:
        """The NATS queue group of its subscriptions, or None.

        Several partitions between which NATS chooses are members of a group named for the stream.
        """
        in_group = self.config.partition_by is PartitionBy.GROUP and self.config.partitions > 1
        return self.config.group or (self.partitions_group if in_group else None)

    def partition_subject(self, partition: int) -> str:
        """The subject on which the leader of a partition subscribes."""
        if self.config.partition_by is not PartitionBy.MAPPING:
            return self.config.subject
        tokens = self.config.subject.split(".")
        tokens[tokens.index("*")] = str(partition)
        return ".".join(tokens)

    @property
    def partitions_group(self) -> str:
        """The queue group of its partitions, if it has no group of its own."""
        return f"bascule.{self.name}"

    @property
    def min_isr(self) -> int:
        """Replicas that must be in sync for a record to be committed."""
        return min_isr_in_force(self.config.min_isr, self.config.replicas)

    def needed_in_sync(self, state: PartitionState) -> int:
        """As `min_isr`, for a partition that may be on its way to more replicas."""
        return min(state.min_isr or self.min_isr, self.min_isr)


@dataclass(frozen=True, slots=True)
class PartitionInfo:
    """The state of one partition on its node. All offsets but `start_offset` are exclusive ends.

    Offsets and bytes are None where `unknown` says why nobody has told them."""

    partition: int
    start_offset: int | None
    """First offset in the log."""
    high_watermark: int | None
    """End of the committed records, which consumers can read."""
    synced_offset: int | None
    """End of the records that are synced to disk."""
    end_offset: int | None
    """Offset of the next record."""
    leader_epoch: int
    bytes: int | None
    """Bytes of record batches in the log."""
    failure: str | None = None
    """Why the partition stopped, or None."""
    damage: str = ""
    """What is damaged in the log of a partition that has not stopped; empty: nothing is known."""
    leader: int = NO_LEADER
    replicas: tuple[int, ...] = ()
    isr: tuple[int, ...] = ()
    unclean_epoch: int = 0
    """See `PartitionState.shown_unclean_epoch`."""
    waits: str = ""
    """Why nobody leads it; empty: it has a leader."""
    target: tuple[int, ...] = ()
    """The replicas that it is to have, while they move; else empty."""
    move_waits: str = ""
    """Why the move does not go on by itself; empty: it does, or nothing moves."""
    bytes_behind: int | None = 0
    """What replicas that are not in sync have to copy yet, as far as the leader knows."""
    replicated_offset: int | None = 0
    """All replicas, in sync or not, have synced the committed records below it, as far as the node
    knows. Compaction keeps later tombstones."""
    unknown: str = ""
    """Why offsets and bytes are not known; empty: they are."""

    @property
    def messages(self) -> int | None:
        """How many committed offsets the log has; None: not known."""
        if self.high_watermark is None or self.start_offset is None:
            return None
        return self.high_watermark - self.start_offset


@dataclass(frozen=True, slots=True)
class Overlap:
    """Another stream that receives some of a stream's messages too."""

    name: str
    subject: str
    acks: bool
    """Whether it acks messages that name no policy. Publishers then get more than one ack."""


@dataclass(frozen=True, slots=True)
class DuplicateStream:
    """A stream of another cluster on the same NATS: the same name, and an overlapping subject."""

    cluster_id: str
    nodes: tuple[int, ...]
    """Ids of the nodes that announce it."""
    subject: str
    acks: bool
    """Whether it answers publishers."""
    shared: bool
    """Whether the other cluster expects it."""
    conflict: bool
    """Whether this cluster does not expect it, and publishers notice it: both streams answer, or
    NATS gives each message to one of them only."""


@dataclass(frozen=True, slots=True)
class StreamInfo:
    """A stream's definition and the state of its partitions."""

    definition: StreamDefinition
    partitions: tuple[PartitionInfo, ...]
    refusal: str | None = None
    """Why the NATS server does not deliver messages to the stream, or None."""
    overlaps: tuple[Overlap, ...] = ()
    """Other streams on its subject; empty where several streams are asked for at once."""
    duplicates: tuple[DuplicateStream, ...] = ()
    """The same stream in other clusters on the same NATS, as far as they announce it."""


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
    """False while the node is opening or draining, is not connected to NATS, or another cluster has
    one of its streams."""
    nats_server: str = ""
    """The connected NATS server; empty: none."""
    peer: str = ""
    """host:port of the peer listener, which other nodes connect to."""
    bootstrap: str = ""
    """The client listeners of all nodes that are alive, host:port, comma separated, this node's
    first."""


@dataclass(frozen=True, slots=True)
class PartitionRef:
    """One partition, with the state that it is in."""

    stream: str
    partition: int
    leader: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    unclean_epoch: int = 0
    """See `PartitionState.shown_unclean_epoch`."""
    waits: str = ""
    """Why nobody leads it; empty: it has a leader."""
    wanted: int = 0
    """How many replicas it is to have; 0: an earlier release does not say."""
    short: str = ""
    """Why it has fewer than `wanted`, and what helps; empty: it has as many."""
    target: tuple[int, ...] = ()
    """The replicas that it is to have, while they move; else empty."""
    move_waits: str = ""
    """See `PartitionInfo.move_waits`."""


@dataclass(frozen=True, slots=True)
class FailedReplica:
    """A replica that its node cannot use, such as one with a damaged log."""

    stream: str
    partition: int
    node: int
    failure: str
    advice: str
    """What that means for the partition, and what to do."""


@dataclass(frozen=True, slots=True)
class LackingNode:
    """A node that is alive and has no NATS connection."""

    node_id: int
    since_ms: int
    """Unix milliseconds."""
    led: int
    """Partitions that it leads: those where no other replica could."""


@dataclass(frozen=True, slots=True)
class ClusterInfo:
    """The cluster as one node sees it: its controller, its nodes, and what is wrong."""

    name: str
    controller: int
    """0: none is known."""
    term: int
    """Of the controller; 0 on a node alone."""
    index: int
    """Log index that this node's image has; 0 on a node alone."""
    nodes: tuple[NodeRegistration, ...]
    """By id."""
    partitions: int
    leaderless: tuple[PartitionRef, ...]
    """Partitions that nobody leads, so that they take and serve nothing."""
    under_min_isr: tuple[PartitionRef, ...]
    """Partitions with fewer replicas in sync than messages need."""
    under_replicated: tuple[PartitionRef, ...]
    """Partitions with a replica that is not in sync, or with fewer replicas than their streams ask
    for."""
    unclean: tuple[PartitionRef, ...] = ()
    """Partitions that may have lost committed records in an unclean election, until an operator
    has acknowledged it."""
    voters: tuple[int, ...] = ()
    """Nodes that elect the controller, and of which a majority has to agree."""
    learners: tuple[int, ...] = ()
    """Nodes that know all decisions and do not vote."""
    failed: tuple[FailedReplica, ...] = ()
    """Replicas that have failed, on the nodes that have answered."""
    differing: tuple[FailedReplica, ...] = ()
    """Replicas that differ from others although all CRCs are good, on these nodes."""
    leaderless_count: int = 0
    """Also of the partitions that are not listed; so are the next ones."""
    under_min_isr_count: int = 0
    under_replicated_count: int = 0
    unclean_count: int = 0
    failed_count: int = 0
    short_count: int = 0
    """Of the partitions in `under_replicated`: those that lack nothing but a node. The replicas
    that they have are in sync, and there is no node for more."""
    catch_up_rate: int = 0
    """Bytes a second that each node sends at most to replicas that are not in sync; 0: no limit."""
    is_balancing: bool = False
    """Whether an operator has replicas balanced."""
    cluster_version: int = 1
    """The cluster version in force; see `cluster_version`."""
    moving: tuple[PartitionRef, ...] = ()
    """Partitions that move to other replicas."""
    moving_count: int = 0
    lacking_nats: tuple[LackingNode, ...] = ()
    """Nodes that have lost their NATS connection. Others lead instead, where they can."""


@dataclass(frozen=True, slots=True)
class PartHealth:
    """The health of one part of a node."""

    part: str
    state: Literal["ok", "degraded", "down"]
    reason: str
    """The cause, or the state in words."""
