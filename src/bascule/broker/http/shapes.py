"""The shapes of the HTTP API: what its JSON looks like, and how the model becomes it.

The OpenAPI document is made from these types, so what is described is what is served.
"""

from __future__ import annotations

import difflib
from dataclasses import asdict
from typing import Annotated, Any, Literal, TypeVar, get_args

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from bascule.config import StreamDefaults, stream_config
from bascule.errors import BasculeError
from bascule.model import NodeInfo, PartitionInfo, StreamConfig, StreamInfo

_T = TypeVar("_T")

Sync = Literal["always", "interval", "never"]
PartitionBy = Literal["group", "subject", "key"]
KeyFrom = Literal["header", "subject"]
Compression = Literal["none", "gzip", "snappy", "lz4", "zstd"]
Cleanup = Literal["delete", "compact"]
Discard = Literal["old", "new"]


class MalformedRequest(BasculeError):
    """A request body is not what the API takes; `field` is the path of the wrong part."""

    def __init__(self, message: str, *, field: str | None = None) -> None:
        super().__init__(message)
        self.field = field


class CreateStreamRequest(Struct, kw_only=True, forbid_unknown_fields=True):
    """A stream to create. What is left out gets the node's default (`[streams]`)."""

    name: Annotated[
        str, Meta(description="1 to 200 of A-Z a-z 0-9 . _ -, led by a letter or digit.")
    ]
    subject: Annotated[str, Meta(description="NATS subject; wildcards * and > are allowed.")]
    group: Annotated[
        str | None, Meta(description="NATS queue group to subscribe in, so that groups share.")
    ] = None
    sync: Annotated[Sync | UnsetType, Meta(description="When an ack may leave.")] = UNSET
    sync_interval_ms: int | UnsetType = UNSET
    segment_bytes_max: int | UnsetType = UNSET
    segment_age_ms_max: int | UnsetType = UNSET
    message_bytes_max: int | UnsetType = UNSET
    partitions: int | UnsetType = UNSET
    partition_by: PartitionBy | UnsetType = UNSET
    key_from: KeyFrom | UnsetType = UNSET
    compression: Compression | UnsetType = UNSET
    cleanup: list[Cleanup] | UnsetType = UNSET
    retention_ms_max: int | UnsetType = UNSET
    retention_bytes_max: int | UnsetType = UNSET
    retention_messages_max: int | UnsetType = UNSET
    retention_after: str | UnsetType = UNSET
    discard: Discard | UnsetType = UNSET
    tombstone_retention_ms: int | UnsetType = UNSET
    min_compaction_lag_ms: int | UnsetType = UNSET
    max_compaction_lag_ms: int | UnsetType = UNSET
    dirty_percent_min: int | UnsetType = UNSET
    dedupe_window_ms: int | UnsetType = UNSET
    dedupe_messages_max: int | UnsetType = UNSET
    rate_messages_max: int | UnsetType = UNSET
    rate_bytes_max: int | UnsetType = UNSET
    read_only: bool | UnsetType = UNSET

    def config(self, defaults: StreamDefaults) -> StreamConfig:
        """The configuration asked for, completed by `defaults`."""
        plain = asdict(defaults)
        for name in plain:
            if (value := getattr(self, name)) is not UNSET:
                plain[name] = value
        return stream_config(plain, subject=self.subject, group=self.group)


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
    nats: Annotated[str, Meta(description="URL of the NATS server, for any NATS client.")]
    nats_embedded: bool
    client: Annotated[str, Meta(description="host:port of the Kafka wire protocol.")]
    http: str
    uptime_ms: int
    ready: bool


class Health(Struct, kw_only=True):
    """Whether the node lives (`/healthz`) or serves (`/readyz`)."""

    status: Literal["ok", "not_ready"]


class ErrorDetail(Struct, kw_only=True, omit_defaults=True):
    """What went wrong. Further fields depend on the code."""

    code: Annotated[str, Meta(description="Stable word for programs, as `stream_conflict`.")]
    message: Annotated[str, Meta(description="A sentence for people.")]
    retriable: Annotated[
        bool, Meta(description="Whether the same request may succeed later unchanged.")
    ] = False
    field: Annotated[str | None, Meta(description="The part of the request that is wrong.")] = None
    differences: Annotated[
        dict[str, list[Any]] | None,
        Meta(description="stream_conflict: field -> [what exists, what was asked for]."),
    ] = None


class ErrorBody(Struct, kw_only=True):
    """The body of every answer that is not a success."""

    error: ErrorDetail


def decode_body(data: bytes, type_: type[_T]) -> _T:
    """A request body as `type_`, strictly: no unknown field, no coerced type.

    Raises: MalformedRequest naming the field, and the nearest known one for an unknown.
    """
    try:
        raw = msgspec.json.decode(data)
    except msgspec.DecodeError as error:
        raise MalformedRequest(f"the body is not valid JSON: {error}") from error
    if not isinstance(raw, dict):
        raise MalformedRequest(f"the body must be a JSON object, got {type(raw).__name__}")
    known = [field.encode_name for field in msgspec.structs.fields(type_)]  # type: ignore[arg-type]
    for name in raw:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
            hint = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(known)}"
            raise MalformedRequest(f"unknown field {name!r}; {hint}", field=name)
    try:
        return msgspec.convert(raw, type_, strict=True)
    except msgspec.ValidationError as error:
        message, _, path = str(error).partition(" - at ")
        field = path.strip("`").removeprefix("$.") or None
        if message.startswith("Invalid enum value"):
            message += f"; expected one of {', '.join(get_args(Sync))}"
        where = f"{field}: " if field else ""
        raise MalformedRequest(where + message.replace("`", "'"), field=field) from error


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
    )


def partition_of(info: PartitionInfo) -> Partition:
    return msgspec.convert(info, Partition, from_attributes=True)


def node_of(info: NodeInfo) -> Node:
    return msgspec.convert(info, Node, from_attributes=True)
