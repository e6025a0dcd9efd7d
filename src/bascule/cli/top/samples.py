"""Samples of a node's `/metrics`, and the rates between two samples."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from bascule.errors import RemoteProtocolError

STREAM_SUMS: Final = {
    "bascule_stream_records_total": "records",
    "bascule_stream_appended_bytes_total": "bytes_in",
    "bascule_stream_fetched_bytes_total": "bytes_out",
    "bascule_stream_refused_messages_total": "refused",
    "bascule_partition_end_offset": "end_offset",
    "bascule_partition_bytes": "bytes",
    "bascule_partition_failed": "failed",
    "bascule_stream_paused": "paused",
    "bascule_stream_subscription_refused": "unsubscribed",
    "bascule_stream_under_replicated": "under_replicated",
}
"""Metric -> field of `StreamSample`, summed over partitions."""
STREAM_LAG: Final = "bascule_stream_sync_lag_seconds"
NODE: Final = {
    "bascule_ready": "ready",
    "bascule_uptime_seconds": "uptime_s",
    "bascule_nats_connected": "nats_connected",
    "bascule_ingest_buffer_waiting_bytes": "buffer_bytes",
    "bascule_ingest_buffer_limit_bytes": "buffer_bytes_max",
    "bascule_ingest_stalled_seconds_total": "stalled_s",
    "bascule_client_connections": "connections",
    "bascule_disk_free_bytes": "disk_free_bytes",
    "bascule_disk_size_bytes": "disk_size_bytes",
    "bascule_cluster_controller": "controller",
    "bascule_cluster_leaderless_partitions": "leaderless",
    "bascule_cluster_under_min_isr_partitions": "under_min_isr",
    "bascule_cluster_under_replicated_partitions": "under_replicated",
    "process_resident_memory_bytes": "memory_bytes",
    "process_cpu_seconds_total": "cpu_s",
}
"""Metric -> field of `NodeSample`."""
INFO: Final = "bascule_node_info"
NODE_ALIVE: Final = "bascule_cluster_node_alive"
GROUP_LAG: Final = "bascule_group_lag"
GROUP_SIZE: Final = "bascule_group_size"
WANTED: Final = (*STREAM_SUMS, STREAM_LAG, *NODE, INFO, NODE_ALIVE, GROUP_LAG, GROUP_SIZE)


@dataclass(slots=True)
class StreamSample:
    """One stream: counters since the node started, offsets and bytes over all partitions."""

    records: float = 0
    bytes_in: float = 0
    bytes_out: float = 0
    refused: float = 0
    end_offset: float = 0
    bytes: float = 0
    failed: float = 0
    paused: float = 0
    unsubscribed: float = 0
    under_replicated: float = 0
    partitions: int = 0
    sync_lag_s: float = 0
    """Sync lag of the partition with the greatest lag."""


@dataclass(slots=True)
class GroupSample:
    """One group that the node coordinates."""

    state: str = "Empty"
    members: int = 0
    partitions: int = 0
    lag: int = 0
    """Of all partitions with a committed offset."""


@dataclass(slots=True)
class NodeSample:
    """Metrics of the node."""

    version: str = ""
    twin: str = ""
    node_id: str = ""
    nodes: int = 0
    """Of the cluster."""
    nodes_alive: int = 0
    controller: float = 0
    """The id of a node; 0: none is known."""
    leaderless: float = 0
    under_min_isr: float = 0
    under_replicated: float = 0
    """Partitions of the cluster, as in the two before."""
    ready: float = 0
    uptime_s: float = 0
    nats_connected: float = 0
    buffer_bytes: float = 0
    buffer_bytes_max: float = 0
    stalled_s: float = 0
    connections: float = 0
    disk_free_bytes: float = 0
    disk_size_bytes: float = 0
    memory_bytes: float = 0
    cpu_s: float = 0


@dataclass(slots=True)
class Sample:
    """All metrics at one moment."""

    at_s: float
    """On a monotonic clock."""
    node: NodeSample = field(default_factory=NodeSample)
    streams: dict[str, StreamSample] = field(default_factory=dict)
    groups: dict[str, GroupSample] = field(default_factory=dict)


def sample_of(text: str, *, at_s: float) -> Sample:
    """Parse the exposition text. Raises: RemoteProtocolError if it is not a node's."""
    from prometheus_client.parser import text_string_to_metric_families

    # A node with many streams has tens of thousands of lines. Parse only those that are shown.
    lines = [line for line in text.splitlines() if line.startswith(WANTED)]
    sample = Sample(at_s)
    try:
        for family in text_string_to_metric_families("\n".join([*lines, ""])):
            for item in family.samples:
                _take(sample, item.name, item.labels, item.value)
    except (ValueError, KeyError) as error:
        raise RemoteProtocolError(f"the node's metrics are not valid: {error}") from error
    if not sample.node.version:
        raise RemoteProtocolError("the response has no bascule_node_info; is it a Bascule node?")
    return sample


def _take(sample: Sample, name: str, labels: Mapping[str, str], value: float) -> None:
    if name == INFO:
        sample.node.version, sample.node.twin = labels["version"], labels["twin"]
        sample.node.node_id = labels["node_id"]
    elif name == NODE_ALIVE:
        sample.node.nodes += 1
        sample.node.nodes_alive += value > 0
    elif name in NODE:
        setattr(sample.node, NODE[name], value)
    elif name in (GROUP_LAG, GROUP_SIZE):
        group = sample.groups.setdefault(labels["group"], GroupSample())
        if name == GROUP_SIZE:
            group.state, group.members = labels["state"], int(value)
        else:
            group.partitions += 1
            group.lag += int(value)
    elif name in STREAM_SUMS or name == STREAM_LAG:
        stream = sample.streams.setdefault(labels["stream"], StreamSample())
        if name == STREAM_LAG:
            stream.sync_lag_s = max(stream.sync_lag_s, value)
            return
        field_name = STREAM_SUMS[name]
        setattr(stream, field_name, getattr(stream, field_name) + value)
        stream.partitions += name == "bascule_partition_end_offset"


@dataclass(frozen=True, slots=True)
class StreamRow:
    """The rates of one stream between two samples."""

    name: str
    partitions: int
    records_per_s: float
    bytes_in_per_s: float
    bytes_out_per_s: float
    refused_per_s: float
    end_offset: int
    bytes: int
    sync_lag_s: float
    state: str
    """`ok`, `paused` (or read-only), `no NATS` (refused there), `stopped`, `lagging` (a
    partition that this node leads has replicas that are not in sync, or too few)."""


@dataclass(frozen=True, slots=True)
class GroupLagRow:
    """One group, and how its lag has changed between two samples."""

    name: str
    state: str
    members: int
    partitions: int
    lag: int
    lag_per_s: float
    """Below 0: it catches up."""


def _state(stream: StreamSample) -> str:
    if stream.failed:
        return "stopped"
    if stream.unsubscribed:
        return "no NATS"
    if stream.paused:
        return "paused"
    return "lagging" if stream.under_replicated else "ok"


@dataclass(frozen=True, slots=True)
class RateView:
    """The displayed values: the node now, and the rates since the last sample."""

    node: NodeSample
    seconds: float
    cpu_percent: float
    stalled_percent: float
    """Percentage of time in which reading NATS waited for the disk."""
    rows: tuple[StreamRow, ...]
    groups: tuple[GroupLagRow, ...] = ()
    """Those that the node coordinates, the largest lag first."""


def view_of(before: Sample, now: Sample) -> RateView:
    """The rates between two samples. After a restart, counters start from zero."""
    seconds = max(now.at_s - before.at_s, 1e-9)

    def rate(then: float, new: float) -> float:
        return (new - then if new >= then else new) / seconds

    rows = []
    for name, stream in sorted(now.streams.items()):
        old = before.streams.get(name, StreamSample())
        rows.append(
            StreamRow(
                name=name,
                partitions=stream.partitions,
                records_per_s=rate(old.records, stream.records),
                bytes_in_per_s=rate(old.bytes_in, stream.bytes_in),
                bytes_out_per_s=rate(old.bytes_out, stream.bytes_out),
                refused_per_s=rate(old.refused, stream.refused),
                end_offset=int(stream.end_offset),
                bytes=int(stream.bytes),
                sync_lag_s=stream.sync_lag_s,
                state=_state(stream),
            )
        )
    return RateView(
        node=now.node,
        seconds=seconds,
        cpu_percent=100 * rate(before.node.cpu_s, now.node.cpu_s),
        stalled_percent=min(100 * rate(before.node.stalled_s, now.node.stalled_s), 100.0),
        rows=tuple(rows),
        groups=_group_rows(before, now, seconds),
    )


def _group_rows(before: Sample, now: Sample, seconds: float) -> tuple[GroupLagRow, ...]:
    rows = []
    for name, group in now.groups.items():
        # A group that was not there before has not changed.
        old = before.groups.get(name, group)
        rows.append(
            GroupLagRow(
                name=name,
                state=group.state,
                members=group.members,
                partitions=group.partitions,
                lag=group.lag,
                lag_per_s=(group.lag - old.lag) / seconds,
            )
        )
    return tuple(sorted(rows, key=lambda row: (-row.lag, row.name)))
