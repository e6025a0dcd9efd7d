"""The settings of a stream, as keyword arguments of the client."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypedDict

from bascule.model import (
    AckPolicy,
    Cleanup,
    Compression,
    Discard,
    KeyFrom,
    PartitionBy,
    RecordHeader,
    SyncPolicy,
)


class AlterableSettings(TypedDict, total=False):
    """Settings that `alter_stream` may change; see `StreamConfig`. Missing or None: unchanged."""

    sync: SyncPolicy | str | None
    sync_interval_ms: int | None
    segment_bytes_max: int | None
    segment_age_ms_max: int | None
    message_bytes_max: int | None
    partitions: int | None
    compression: Compression | str | None
    cleanup: Sequence[Cleanup | str] | None
    retention_ms_max: int | None
    retention_bytes_max: int | None
    retention_messages_max: int | None
    retention_after: str | None
    discard: Discard | str | None
    tombstone_retention_ms: int | None
    min_compaction_lag_ms: int | None
    max_compaction_lag_ms: int | None
    dirty_percent_min: int | None
    dedupe_window_ms: int | None
    dedupe_messages_max: int | None
    rate_messages_max: int | None
    rate_bytes_max: int | None
    read_only: bool | None
    replicas: int | None
    min_isr: int | None
    unclean_election: bool | None
    acks: bool | None
    ack_policy: AckPolicy | str | None
    shared: bool | None
    record_headers: Sequence[RecordHeader | str] | None
    table: bool | None
    table_ttl_ms: int | None


class StreamSettings(AlterableSettings, total=False):
    """Settings of `create_stream`. Missing or None: the node's default."""

    group: str | None
    partition_by: PartitionBy | str | None
    key_from: KeyFrom | str | None
