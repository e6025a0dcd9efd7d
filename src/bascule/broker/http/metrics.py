"""The node's numbers as Prometheus metrics; `docs/metrics.md` lists them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from bascule.model import NodeInfo, PartitionInfo, StreamInfo

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
PREFIX: Final = "bascule"

PARTITION_GAUGES: Final[Mapping[str, str]] = {
    "start_offset": "First offset still held.",
    "high_watermark": "First offset not yet committed; consumers read up to it.",
    "synced_offset": "First offset not known to be on the disk.",
    "end_offset": "The offset the next record gets.",
    "leader_epoch": "Leader epoch of the partition.",
    "bytes": "Bytes of record batches held in segments.",
}


@dataclass(frozen=True, slots=True)
class Described:
    """How one statistic of the node becomes a metric."""

    name: str
    """Without prefix, and without the `_total` that every counter gets."""
    about: str
    counter: bool = True
    label: str | None = None
    """The statistic is a mapping, and this is what its keys are."""
    scale: float = 1.0
    """Into the base unit: seconds, bytes."""


def _gauge(name: str, about: str) -> Described:
    return Described(name, about, counter=False)


STATISTICS: Final[Mapping[str, Described]] = {
    "nats.bytes_received": Described("nats_received_bytes", "Bytes read from NATS."),
    "nats.connects": Described("nats_connects", "Connections made to a NATS server."),
    "nats.disconnects": Described("nats_disconnects", "Connections to a NATS server lost."),
    "nats.moves": Described(
        "nats_moves", "Times the node left a NATS server in lame duck mode for another."
    ),
    "nats.connect_failures": Described(
        "nats_connect_failures", "Attempts to connect to a NATS server again that failed."
    ),
    "nats.refusals": Described(
        "nats_refusals", "Those of them that the server refused: credentials or limits."
    ),
    "nats.slow_consumer_disconnects": Described(
        "nats_slow_consumer_disconnects",
        "Times the NATS server dropped the node for reading too slowly: messages were lost.",
    ),
    "nats.server_errors": Described(
        "nats_server_errors", "-ERR lines of the NATS server, by kind.", label="kind"
    ),
    "nats.acks_bytes_sent": Described("acks_sent_bytes", "Bytes of acks sent to publishers."),
    "nats.acks_bytes_dropped": Described(
        "acks_dropped_bytes", "Bytes of acks that could not be sent: no connection took them."
    ),
    "nats.max_payload_bytes": _gauge(
        "nats_max_payload_bytes", "Largest message the connected NATS server or account takes."
    ),
    "subscription.refused": Described(
        "stream_subscription_refused",
        "Whether the NATS server refuses to deliver to the stream: 1 or 0.",
        counter=False,
        label="stream",
    ),
    "nats.connected": _gauge("nats_connected", "Whether a NATS server is connected: 1 or 0."),
    "ingest.messages": Described("ingest_messages", "Messages taken from NATS for a stream."),
    "ingest.batches": Described("ingest_batches", "Record batches made of them."),
    "ingest.envelopes": Described("ingest_envelopes", "Messages unpacked from an envelope."),
    "ingest.header_blocks_malformed": Described(
        "ingest_malformed_headers", "Messages whose headers could not be parsed."
    ),
    "ingest.messages_refused": Described(
        "ingest_refused_messages", "Messages larger than their stream takes."
    ),
    "ingest.messages_unrouted": Described(
        "ingest_unrouted_messages", "Messages of a subscription that was ended meanwhile."
    ),
    "buffer.stalls": Described(
        "ingest_stalls", "Times reading NATS waited because the buffer to the disk was full."
    ),
    "buffer.stalled_ns": Described(
        "ingest_stalled_seconds", "Time reading NATS waited for the disk.", scale=1e-9
    ),
    "buffer.allocated_bytes": _gauge("ingest_buffer_bytes", "Memory of the ingest buffer."),
    "buffer.allocated_bytes_max": _gauge(
        "ingest_buffer_bytes_max", "Most memory the ingest buffer ever had."
    ),
    "stream.records": Described("stream_records", "Records appended.", label="stream"),
    "stream.bytes": Described("stream_appended_bytes", "Bytes appended.", label="stream"),
    "stream.batches": Described("stream_batches", "Batches appended.", label="stream"),
    "stream.syncs": Described("stream_syncs", "Times the log was synced.", label="stream"),
    "stream.messages_refused": Described(
        "stream_refused_messages", "Messages larger than the stream takes.", label="stream"
    ),
    "stream.records_not_stored": Described(
        "stream_records_not_stored",
        "Messages the log could not take; who asked for an ack got an error.",
        label="stream",
    ),
    "offsets.commits": Described("offsets_commits", "Commits of consumers read."),
    "offsets.removals": Described("offsets_removals", "Removals of commits read."),
    "offsets.malformed": Described(
        "offsets_malformed_records", "Records of the stream _offsets that are no commits."
    ),
    "offsets.repairs": Described(
        "offsets_repairs", "Commits made again because a malformed record took their place."
    ),
    "offsets.held": _gauge("offsets_held", "Commits held, one a consumer and partition."),
    "client_door.connections": _gauge("client_connections", "Client connections open now."),
    "client_door.waiting": _gauge("client_waiting_requests", "Requests waiting for data now."),
    "client_door.connections_accepted": Described(
        "client_connections_accepted", "Client connections accepted."
    ),
    "client_door.connections_refused": Described(
        "client_connections_refused", "Client connections refused: too many."
    ),
    "client_door.connections_expired": Described(
        "client_connections_expired", "Client connections closed for idling or not reading."
    ),
    "client_door.protocol_errors": Described(
        "client_protocol_errors", "Client connections closed for breaking the protocol."
    ),
    "client_door.handler_errors": Described(
        "client_handler_errors", "Requests that failed for an unexpected reason."
    ),
    "client_door.requests": Described("client_requests", "Requests answered.", label="api"),
    "client_door.bytes_in": Described("client_received_bytes", "Bytes of requests."),
    "client_door.bytes_out": Described("client_sent_bytes", "Bytes of responses."),
    "client_door.bytes_sendfile": Described(
        "client_sendfile_bytes", "Bytes of responses that the kernel moved from file to socket."
    ),
    "client_door.cold_reads": Described(
        "client_cold_reads", "Ranges a thread had to bring into the page cache first."
    ),
}
"""Path in `StreamAdmin.statistics()` -> metric. `docs/metrics.md` is held to it by a test."""


class NodeCollector(Collector):
    """A snapshot of one node, rendered once: made on the loop, rendered on a thread."""

    def __init__(
        self, node: NodeInfo, statistics: Mapping[str, Any], streams: Sequence[StreamInfo]
    ) -> None:
        self._node = node
        self._statistics = statistics
        self._streams = streams

    def collect(self) -> Iterable[Metric]:
        node = self._node
        info = GaugeMetricFamily(
            f"{PREFIX}_node_info",
            "One sample of value 1 that carries the node's facts.",
            labels=("version", "twin", "node_id", "cluster_id"),
        )
        info.add_metric((node.version, node.twin, str(node.node_id), node.cluster_id), 1)
        yield info
        yield GaugeMetricFamily(
            f"{PREFIX}_ready", "Whether the node serves: 1 or 0.", value=float(node.ready)
        )
        yield GaugeMetricFamily(
            f"{PREFIX}_uptime_seconds", "Time since start.", value=node.uptime_ms / 1_000
        )
        yield GaugeMetricFamily(f"{PREFIX}_streams", "Streams.", value=len(self._streams))
        yield from self._partitions()
        yield from statistics_metrics(self._statistics)

    def _partitions(self) -> Iterator[Metric]:
        labels = ("stream", "partition")
        for name, about in PARTITION_GAUGES.items():
            family = GaugeMetricFamily(f"{PREFIX}_partition_{name}", about, labels=labels)
            for stream, partition in self._each():
                family.add_metric((stream, str(partition.partition)), getattr(partition, name))
            yield family
        failed = GaugeMetricFamily(
            f"{PREFIX}_partition_failed", "Whether the partition stopped: 1 or 0.", labels=labels
        )
        for stream, partition in self._each():
            failed.add_metric(
                (stream, str(partition.partition)), float(partition.failure is not None)
            )
        yield failed

    def _each(self) -> Iterator[tuple[str, PartitionInfo]]:
        for stream in self._streams:
            for partition in stream.partitions:
                yield stream.definition.name, partition


def statistics_metrics(statistics: Mapping[str, Any]) -> Iterator[Metric]:
    """The described ones of nested counters; what is not described is left out."""
    for path, described in STATISTICS.items():
        value: Any = statistics
        for part in path.split("."):
            value = value.get(part) if isinstance(value, Mapping) else None
        if isinstance(value, Mapping):
            # A group by one label may stand one level deeper, under `by_<label>`.
            value = value.get(f"by_{described.label}", value)
        if value is not None:
            yield _metric(described, value)


def _metric(described: Described, value: Any) -> Metric:
    family = CounterMetricFamily if described.counter else GaugeMetricFamily
    name = f"{PREFIX}_{described.name}"
    if described.label is None:
        return family(name, described.about, value=float(value) * described.scale)
    labelled = family(name, described.about, labels=(described.label,))
    for key, number in value.items():
        labelled.add_metric((str(key).removesuffix("Request"),), float(number) * described.scale)
    return labelled


def render(node: NodeInfo, statistics: Mapping[str, Any], streams: Sequence[StreamInfo]) -> bytes:
    """The exposition text of a snapshot, with the process's own metrics."""
    registry = CollectorRegistry(auto_describe=False)
    ProcessCollector(registry=registry)
    registry.register(NodeCollector(node, statistics, streams))
    return generate_latest(registry)
