"""The response bodies of the HTTP API, and their conversion from the model.

The OpenAPI document is generated from these types.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from bascule.model import (
    ClusterInfo,
    NodeInfo,
    PartHealth,
    PartitionInfo,
    StreamInfo,
)
from bascule.operation_results import RepairedPartition, ScrubbedReplica

Sync = Literal["always", "interval", "never"]
PartitionBy = Literal["group", "subject", "key", "mapping"]
KeyFrom = Literal["header", "subject"]
Compression = Literal["none", "gzip", "snappy", "lz4", "zstd"]
Cleanup = Literal["delete", "compact"]
Discard = Literal["old", "new"]
AckPolicy = Literal["all", "leader", "none"]
RecordHeader = Literal["subject", "reply"]


class StreamConfiguration(Struct, kw_only=True):
    """The settings of a stream. A limit of 0 means no limit."""

    subject: str
    group: str | None
    sync: Sync
    sync_interval_ms: int
    segment_bytes_max: int
    segment_age_ms_max: int
    message_bytes_max: int
    partitions: int
    partition_by: PartitionBy
    key_from: KeyFrom
    compression: Compression
    cleanup: list[Cleanup]
    retention_ms_max: int
    retention_bytes_max: int
    retention_messages_max: int
    retention_after: str
    discard: Discard
    tombstone_retention_ms: int
    min_compaction_lag_ms: int
    max_compaction_lag_ms: int
    dirty_percent_min: int
    dedupe_window_ms: int
    dedupe_messages_max: int
    rate_messages_max: int
    rate_bytes_max: int
    read_only: bool
    replicas: int
    min_isr: int
    unclean_election: bool
    acks: bool
    ack_policy: AckPolicy
    shared: bool
    record_headers: list[RecordHeader]
    table: bool
    table_ttl_ms: int


class PartitionBody(Struct, kw_only=True):
    """The state of one partition. Offsets are 64-bit integers; every end is exclusive. Offsets and
    bytes are null where `unknown` says why the node does not know them."""

    partition: int
    unknown: Annotated[
        str, Meta(description="Why offsets and bytes are null; empty: they are known.")
    ]
    start_offset: Annotated[int | None, Meta(description="First offset in the log.")]
    high_watermark: Annotated[
        int | None, Meta(description="End of the committed records, which consumers can read.")
    ]
    synced_offset: Annotated[
        int | None, Meta(description="All records below it are synced to disk.")
    ]
    end_offset: Annotated[int | None, Meta(description="The offset the next record gets.")]
    replicated_offset: Annotated[
        int | None,
        Meta(
            description="All replicas, in sync or not, have synced the committed records below it, "
            "as far as the node knows. Compaction keeps later tombstones."
        ),
    ]
    leader: Annotated[int, Meta(description="Node that leads the partition; -1: none.")]
    leader_epoch: int
    replicas: Annotated[
        list[int], Meta(description="Nodes that hold it, the preferred leader first.")
    ]
    isr: Annotated[list[int], Meta(description="The replicas in sync.")]
    unclean_epoch: Annotated[
        int,
        Meta(
            description="Latest leader epoch whose leader was not in sync when it was elected, so "
            "that committed records may be lost; 0: none, or an operator has acknowledged it."
        ),
    ]
    waits: Annotated[str, Meta(description="Why nobody leads it; empty: it has a leader.")]
    target: Annotated[
        list[int], Meta(description="The nodes that are to hold it, while it moves; else empty.")
    ]
    move_waits: Annotated[
        str, Meta(description="Why the move does not go on by itself; empty: it does.")
    ]
    bytes_behind: Annotated[
        int | None, Meta(description="About what replicas that are not in sync have to copy yet.")
    ]
    bytes: Annotated[int | None, Meta(description="Bytes of record batches in the log.")]
    failure: Annotated[str | None, Meta(description="Why the partition stopped, or null.")]
    damage: Annotated[
        str,
        Meta(
            description="What is damaged in the leader's log, which serves what can be read, since "
            "nobody else has all records; empty: nothing is known."
        ),
    ]


class OverlapBody(Struct, kw_only=True):
    """Another stream that receives some of the messages too."""

    name: str
    subject: str
    acks: Annotated[bool, Meta(description="Whether it acks messages that name no policy.")]


class DuplicateBody(Struct, kw_only=True):
    """The same stream in another cluster on the same NATS."""

    cluster_id: str
    nodes: Annotated[list[int], Meta(description="Ids of its nodes there.")]
    subject: str
    acks: Annotated[bool, Meta(description="Whether it answers publishers.")]
    shared: Annotated[bool, Meta(description="Whether the other cluster expects it.")]
    conflict: Annotated[
        bool, Meta(description="Whether this stream is not shared, and publishers notice it.")
    ]


class StreamBody(Struct, kw_only=True):
    """A stream: its definition and the state of its partitions."""

    name: str
    id: Annotated[str, Meta(description="32 hex digits; a re-created stream has another id.")]
    created_ms: Annotated[int, Meta(description="Unix time of creation, milliseconds.")]
    paused: bool
    config: StreamConfiguration
    partitions: list[PartitionBody]
    refusal: Annotated[
        str | None,
        Meta(description="Why the NATS server does not deliver messages to it, or null."),
    ]
    overlaps: Annotated[
        list[OverlapBody],
        Meta(description="Other streams on its subject; empty in the list of all streams."),
    ]
    duplicates: Annotated[
        list[DuplicateBody],
        Meta(description="Streams of other clusters with its name and an overlapping subject."),
    ]


class StreamList(Struct, kw_only=True):
    """All streams, ordered by name."""

    streams: list[StreamBody]
    confirmed: bool | UnsetType = UNSET
    """Where `confirmed=true` was asked: whether these are all streams that there were then. False
    while the cluster version in force has no answer to that."""


class NodeBody(Struct, kw_only=True):
    """The node: its addresses, versions and state."""

    node_id: int
    cluster_id: str
    version: str
    twin: Annotated[
        str, Meta(description="compiled, interpreted or mixed: the loaded form of the hot modules.")
    ]
    pid: int
    data: Annotated[str, Meta(description="Data directory.")]
    nats: Annotated[str, Meta(description="URLs of the NATS servers, comma separated.")]
    nats_server: Annotated[str, Meta(description="The connected server; empty: none.")]
    nats_embedded: bool
    client: Annotated[str, Meta(description="host:port of the Kafka wire protocol.")]
    bootstrap: Annotated[
        str,
        Meta(description="client of all nodes alive, comma separated, this one first."),
    ]
    http: str
    peer: Annotated[str, Meta(description="host:port for other nodes.")]
    uptime_ms: int
    ready: bool


class ClusterNodeBody(Struct, kw_only=True):
    """One node of the cluster, as it registered."""

    node_id: int
    alive: Annotated[bool, Meta(description="False once the controller has lost it.")]
    is_leaving: Annotated[
        bool, Meta(description="Whether it is to be removed: its replicas move to other nodes.")
    ]
    is_stopping: Annotated[
        bool, Meta(description="Whether its process is about to stop: others lead where they can.")
    ]
    is_drained: Annotated[
        bool,
        Meta(description="Whether it is drained: others lead where they can, and it gets nothing."),
    ]
    is_emptied: Annotated[
        bool, Meta(description="Whether its replicas move to other nodes while it is drained.")
    ]
    drain_reason: Annotated[str, Meta(description="Why, in the operator's words.")]
    lacks_nats_since_ms: Annotated[
        int,
        Meta(description="Since when it has no NATS connection, Unix milliseconds; 0: it has one."),
    ]
    epoch: Annotated[int, Meta(description="Log index of its registration.")]
    rack: str
    version: Annotated[str, Meta(description="Of its program.")]
    cluster_version_min: Annotated[
        int, Meta(description="The oldest cluster version that it supports.")
    ]
    cluster_version_max: Annotated[int, Meta(description="The newest one.")]
    peer: Annotated[str, Meta(description="host:port for other nodes.")]
    client: Annotated[str, Meta(description="host:port of the Kafka wire protocol.")]
    http: str


class PartitionRefBody(Struct, kw_only=True):
    """One partition."""

    stream: str
    partition: int
    leader: Annotated[int, Meta(description="Node that leads it; -1: none.")]
    replicas: list[int]
    isr: list[int]
    unclean_epoch: int
    waits: Annotated[str, Meta(description="Why nobody leads it; empty: it has a leader.")]
    wanted: Annotated[int, Meta(description="How many replicas it is to have.")]
    short: Annotated[
        str, Meta(description="Why it has fewer, and what helps; empty: it has as many.")
    ]
    target: Annotated[
        list[int], Meta(description="The nodes that are to hold it, while it moves; else empty.")
    ]
    move_waits: Annotated[
        str, Meta(description="Why the move does not go on by itself; empty: it does.")
    ]


class FailedReplicaBody(Struct, kw_only=True):
    """A replica that its node cannot use."""

    stream: str
    partition: int
    node: int
    failure: str
    advice: Annotated[str, Meta(description="What it means for the partition, and what to do.")]


class LackingNodeBody(Struct, kw_only=True):
    """A node that is alive and has no NATS connection."""

    node_id: int
    since_ms: Annotated[int, Meta(description="Unix milliseconds.")]
    led: Annotated[
        int, Meta(description="Partitions that it leads: those where no other replica could.")
    ]


class ClusterBody(Struct, kw_only=True):
    """The cluster as one node sees it."""

    name: str
    controller: Annotated[int, Meta(description="Node that decides; 0: none is known.")]
    term: int
    index: Annotated[int, Meta(description="Log index up to which this node knows decisions.")]
    nodes: list[ClusterNodeBody]
    partitions: Annotated[int, Meta(description="Partitions of all streams.")]
    leaderless: list[PartitionRefBody]
    under_min_isr: list[PartitionRefBody]
    under_replicated: Annotated[
        list[PartitionRefBody],
        Meta(
            description="Have a replica that is not in sync, or fewer replicas than their streams "
            "ask for."
        ),
    ]
    unclean: Annotated[
        list[PartitionRefBody],
        Meta(description="May have lost committed records in an unclean election."),
    ]
    voters: Annotated[list[int], Meta(description="Nodes that elect the controller.")]
    learners: Annotated[list[int], Meta(description="Nodes that do not vote.")]
    failed: Annotated[
        list[FailedReplicaBody],
        Meta(description="Replicas that have failed, on the nodes that have answered."),
    ]
    differing: Annotated[
        list[FailedReplicaBody],
        Meta(description="Replicas that differ from others although all CRCs are good."),
    ]
    leaderless_count: Annotated[
        int, Meta(description="Also of the partitions that are not listed; so are the next ones.")
    ]
    under_min_isr_count: int
    under_replicated_count: int
    unclean_count: int
    failed_count: int
    short_count: Annotated[
        int,
        Meta(
            description="Of under_replicated: lack nothing but a node. All replicas that they have "
            "are in sync, and there is no node for more."
        ),
    ]
    catch_up_rate: Annotated[
        int,
        Meta(
            description="Bytes a second that each node sends at most to replicas that are not in "
            "sync; 0: no limit."
        ),
    ]
    is_balancing: Annotated[bool, Meta(description="Whether an operator has replicas balanced.")]
    cluster_version: Annotated[
        int,
        Meta(description="In force; it rises by itself to the newest one that all nodes support."),
    ]
    moving: Annotated[
        list[PartitionRefBody], Meta(description="Partitions that move to other nodes.")
    ]
    moving_count: Annotated[int, Meta(description="Also of those that are not listed.")]
    lacking_nats: Annotated[
        list[LackingNodeBody],
        Meta(description="Have lost NATS: others lead instead, where they can."),
    ]


class PurgedPartitionBody(Struct, kw_only=True):
    """One partition before and after a purge; null: its leader has not told."""

    partition: int
    start_offset_before: Annotated[int | None, Meta(description="First offset before the purge.")]
    start_offset: Annotated[int | None, Meta(description="First offset now.")]
    high_watermark: int | None
    bytes_before: int | None
    bytes: Annotated[
        int | None, Meta(description="Bytes now; only whole segments are removed from disk.")
    ]


class Purged(Struct, kw_only=True):
    """The result of a purge, by partition."""

    name: str
    partitions: list[PurgedPartitionBody]


class RepairedPartitionBody(Struct, kw_only=True):
    """What a repair did to one partition that had failed."""

    partition: int
    failure_before: Annotated[str, Meta(description="Why it had failed.")]
    failure: Annotated[str | None, Meta(description="Why it is still failed; null: it serves.")]
    start_offset: int
    end_offset: Annotated[int, Meta(description="Offset of the next record.")]
    moved_to: Annotated[
        str | None,
        Meta(description="Where its old directory is, if its records were given up."),
    ]
    node: Annotated[int, Meta(description="The node that holds this replica.")]


class Repaired(Struct, kw_only=True):
    """The partitions that had failed; empty: none had."""

    name: str
    partitions: list[RepairedPartitionBody]


class ScrubbedReplicaBody(Struct, kw_only=True):
    """What the scrubber has found in one replica, or how far it is."""

    partition: int
    node: int
    result: Annotated[
        str,
        Meta(
            description="`waiting`, `running`, `ok`, `corrupt`, `differs`, `uncompared` with the "
            "other replicas, `failed` or `unreachable`."
        ),
    ]
    records: int
    bytes: Annotated[int, Meta(description="Read so far.")]
    bytes_total: Annotated[int, Meta(description="Of the log when the scrub began.")]
    seconds: Annotated[float, Meta(description="Spent on reading.")]
    finished_ms: Annotated[int, Meta(description="When the last scrub ended; 0: never.")]
    found: Annotated[str, Meta(description="The damage, or the difference.")]


class Scrubbed(Struct, kw_only=True):
    """The replicas of a stream, by partition and node."""

    name: str
    is_done: Annotated[bool, Meta(description="Whether no replica waits or is read.")]
    replicas: list[ScrubbedReplicaBody]


class PartHealthBody(Struct, kw_only=True):
    """The health of one part of the node."""

    part: Annotated[
        str,
        Meta(description="node, nats, threads, controller, cluster, partitions, streams or disk."),
    ]
    state: Annotated[
        Literal["ok", "degraded", "down"],
        Meta(description="degraded: it works only partly."),
    ]
    reason: Annotated[str, Meta(description="The cause, or the state in words.")]


class Health(Struct, kw_only=True):
    """Liveness (`/healthz`) or readiness (`/readyz`) of the node, with its parts."""

    status: Annotated[
        Literal["ok", "degraded", "not_ready"],
        Meta(description="The worst state of the parts; down is not_ready."),
    ]
    parts: list[PartHealthBody]


class ErrorDetail(Struct, kw_only=True, omit_defaults=True):
    """An error. Further fields depend on the code."""

    code: Annotated[str, Meta(description="Stable error code, such as `stream_conflict`.")]
    message: Annotated[str, Meta(description="Description of the error.")]
    retriable: Annotated[bool, Meta(description="Whether the same request may succeed later.")] = (
        False
    )
    field: Annotated[str | None, Meta(description="The invalid part of the request.")] = None
    present: Annotated[Any, Meta(description="cannot_alter: the current value of the field.")] = (
        None
    )
    held: Annotated[
        list[int] | None,
        Meta(
            description="offset_out_of_range: [requested, start, end]; "
            "unknown_partition: [requested, partition count]."
        ),
    ] = None
    expected: Annotated[
        int | None,
        Meta(description="wrong_version: the version expected; without it, no value was."),
    ] = None
    found: Annotated[
        int | None,
        Meta(description="wrong_version: that of the key's last record; without it there is none."),
    ] = None
    err_code: Annotated[
        int | None, Meta(description="What a NATS publisher of the message would have got.")
    ] = None
    differences: Annotated[
        dict[str, list[Any]] | None,
        Meta(description="stream_conflict: field -> [existing value, requested value]."),
    ] = None


class ErrorBody(Struct, kw_only=True):
    """The body of every error response."""

    error: ErrorDetail


def stream_body(info: StreamInfo) -> StreamBody:
    definition = info.definition
    config = definition.config
    return StreamBody(
        name=definition.name,
        id=definition.id.hex(),
        created_ms=definition.created_ms,
        paused=definition.paused,
        config=msgspec.convert(asdict(config), StreamConfiguration),
        partitions=[partition_body(partition) for partition in info.partitions],
        refusal=info.refusal,
        overlaps=[msgspec.convert(asdict(each), OverlapBody) for each in info.overlaps],
        duplicates=[msgspec.convert(asdict(each), DuplicateBody) for each in info.duplicates],
    )


def purged_body(before: StreamInfo, after: StreamInfo) -> Purged:
    """The difference between the states of a stream before and after a purge."""
    earlier = {partition.partition: partition for partition in before.partitions}
    return Purged(
        name=after.definition.name,
        partitions=[
            PurgedPartitionBody(
                partition=now.partition,
                start_offset_before=earlier[now.partition].start_offset,
                start_offset=now.start_offset,
                high_watermark=now.high_watermark,
                bytes_before=earlier[now.partition].bytes,
                bytes=now.bytes,
            )
            for now in after.partitions
            if now.partition in earlier
        ],
    )


def scrubbed_body(name: str, replicas: Sequence[ScrubbedReplica]) -> Scrubbed:
    return Scrubbed(
        name=name,
        is_done=all(each.is_done for each in replicas),
        replicas=[ScrubbedReplicaBody(**asdict(each)) for each in replicas],
    )


def repaired_body(name: str, repaired: Sequence[RepairedPartition]) -> Repaired:
    return Repaired(name=name, partitions=[RepairedPartitionBody(**asdict(p)) for p in repaired])


def health_body(parts: tuple[PartHealth, ...]) -> Health:
    states = {part.state for part in parts}
    worst: Literal["ok", "degraded", "not_ready"] = "degraded" if "degraded" in states else "ok"
    if "down" in states:
        worst = "not_ready"
    return Health(
        status=worst,
        parts=[
            PartHealthBody(part=part.part, state=part.state, reason=part.reason) for part in parts
        ],
    )


def partition_body(info: PartitionInfo) -> PartitionBody:
    return msgspec.convert(info, PartitionBody, from_attributes=True)


def cluster_body(info: ClusterInfo) -> ClusterBody:
    return msgspec.convert(info, ClusterBody, from_attributes=True)


def node_body(info: NodeInfo) -> NodeBody:
    return msgspec.convert(info, NodeBody, from_attributes=True)
