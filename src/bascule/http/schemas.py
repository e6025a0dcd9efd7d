"""The shapes of the HTTP API's answers: what the JSON looks like, and how the model becomes it.

The OpenAPI document is made from these types, so what is described is what is served.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

from bascule.model import NodeInfo, PartHealth, PartitionInfo, StreamInfo

Sync = Literal["always", "interval", "never"]
PartitionBy = Literal["group", "subject", "key"]
KeyFrom = Literal["header", "subject"]
Compression = Literal["none", "gzip", "snappy", "lz4", "zstd"]
Cleanup = Literal["delete", "compact"]
Discard = Literal["old", "new"]


class StreamConfiguration(Struct, kw_only=True):
    """What a stream was created with, or altered to. A limit of 0 is none."""

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


class Partition(Struct, kw_only=True):
    """One partition now. Offsets are 64-bit integers; every end is exclusive."""

    partition: int
    start_offset: Annotated[int, Meta(description="First offset still held.")]
    high_watermark: Annotated[int, Meta(description="Consumers read up to here.")]
    synced_offset: Annotated[int, Meta(description="Everything before is on the disk.")]
    end_offset: Annotated[int, Meta(description="The offset the next record gets.")]
    leader_epoch: int
    bytes: Annotated[int, Meta(description="Bytes of record batches held.")]
    failure: Annotated[str | None, Meta(description="Why the partition stopped, or null.")]


class Stream(Struct, kw_only=True):
    """A stream: its definition and its partitions now."""

    name: str
    id: Annotated[str, Meta(description="32 hex digits; another after re-creation.")]
    created_ms: Annotated[int, Meta(description="Unix time of creation, milliseconds.")]
    paused: bool
    config: StreamConfiguration
    partitions: list[Partition]
    refusal: Annotated[
        str | None, Meta(description="Why the NATS server does not deliver to it, or null.")
    ]


class StreamList(Struct, kw_only=True):
    """All streams, by name."""

    streams: list[Stream]


class Node(Struct, kw_only=True):
    """The node: its doors, and what it runs on."""

    node_id: int
    cluster_id: str
    version: str
    twin: Annotated[
        str, Meta(description="compiled, interpreted or mixed: which hot code is loaded.")
    ]
    pid: int
    data: Annotated[str, Meta(description="Data directory.")]
    nats: Annotated[str, Meta(description="URLs of the NATS servers, comma separated.")]
    nats_server: Annotated[str, Meta(description="The one connected now; empty: none.")]
    nats_embedded: bool
    client: Annotated[str, Meta(description="host:port of the Kafka wire protocol.")]
    http: str
    uptime_ms: int
    ready: bool


class PurgedPartition(Struct, kw_only=True):
    """A partition whose oldest records went; what did not change, did not go."""

    partition: int
    start_offset_before: Annotated[int, Meta(description="First offset held before.")]
    start_offset: Annotated[int, Meta(description="First offset held now.")]
    high_watermark: int
    bytes_before: int
    bytes: Annotated[int, Meta(description="Bytes held now: only whole segments leave the disk.")]


class Purged(Struct, kw_only=True):
    """What a purge did, by partition."""

    name: str
    partitions: list[PurgedPartition]


class Part(Struct, kw_only=True):
    """One part of the node, as its health goes."""

    part: Annotated[str, Meta(description="node, nats, threads, partitions or disk.")]
    state: Annotated[
        Literal["ok", "degraded", "down"],
        Meta(description="degraded: it works for some, or not as well as it should."),
    ]
    reason: Annotated[str, Meta(description="What is wrong, or how it is.")]


class Health(Struct, kw_only=True):
    """Whether the node lives (`/healthz`) or serves (`/readyz`), and which part says so."""

    status: Annotated[
        Literal["ok", "degraded", "not_ready"], Meta(description="The worst of its parts.")
    ]
    parts: list[Part]


class ErrorDetail(Struct, kw_only=True, omit_defaults=True):
    """What went wrong. Further fields depend on the code."""

    code: Annotated[str, Meta(description="Stable word for programs, as `stream_conflict`.")]
    message: Annotated[str, Meta(description="A sentence for people.")]
    retriable: Annotated[
        bool, Meta(description="Whether the same request may succeed later unchanged.")
    ] = False
    field: Annotated[str | None, Meta(description="The part of the request that is wrong.")] = None
    present: Annotated[Any, Meta(description="cannot_alter: what the field holds.")] = None
    held: Annotated[
        list[int] | None,
        Meta(
            description="offset_out_of_range: [asked for, first offset held, end]; "
            "unknown_partition: [asked for, how many there are]."
        ),
    ] = None
    differences: Annotated[
        dict[str, list[Any]] | None,
        Meta(description="stream_conflict: field -> [what exists, what was asked for]."),
    ] = None


class ErrorBody(Struct, kw_only=True):
    """The body of every answer that is not a success."""

    error: ErrorDetail


def stream_of(info: StreamInfo) -> Stream:
    definition = info.definition
    config = definition.config
    return Stream(
        name=definition.name,
        id=definition.id.hex(),
        created_ms=definition.created_ms,
        paused=definition.paused,
        config=msgspec.convert(asdict(config), StreamConfiguration),
        partitions=[partition_of(partition) for partition in info.partitions],
        refusal=info.refusal,
    )


def purged_of(before: StreamInfo, after: StreamInfo) -> Purged:
    """What went between two looks at a stream."""
    held = {partition.partition: partition for partition in before.partitions}
    return Purged(
        name=after.definition.name,
        partitions=[
            PurgedPartition(
                partition=now.partition,
                start_offset_before=held[now.partition].start_offset,
                start_offset=now.start_offset,
                high_watermark=now.high_watermark,
                bytes_before=held[now.partition].bytes,
                bytes=now.bytes,
            )
            for now in after.partitions
            if now.partition in held
        ],
    )


def health_of(parts: tuple[PartHealth, ...]) -> Health:
    states = {part.state for part in parts}
    worst: Literal["ok", "degraded", "not_ready"] = "degraded" if "degraded" in states else "ok"
    if "down" in states:
        worst = "not_ready"
    return Health(
        status=worst,
        parts=[Part(part=part.part, state=part.state, reason=part.reason) for part in parts],
    )


def partition_of(info: PartitionInfo) -> Partition:
    return msgspec.convert(info, Partition, from_attributes=True)


def node_of(info: NodeInfo) -> Node:
    return msgspec.convert(info, Node, from_attributes=True)
