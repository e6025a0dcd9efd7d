"""What each of the node's numbers is called as a metric; `docs/metrics.md` lists them.

Whoever adds a field to a `*Counts` or `*Statistics` class adds a line here and one there: a test
holds all three together.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

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
    label: str | tuple[str, ...] = ()
    """The statistic is a mapping, and this is what its keys are; tuples of keys, or mappings in
    mappings, have several."""
    scale: float = 1.0
    """Into the base unit: seconds, bytes."""
    histogram: bool = False
    """The statistic is a `metrics.Histogram`; those that counted nothing are left out."""

    @property
    def labels(self) -> tuple[str, ...]:
        return (self.label,) if isinstance(self.label, str) else self.label

    @property
    def exposed(self) -> str:
        """The metric's name as `/metrics` shows it."""
        total = "_total" if self.counter and not self.histogram else ""
        return f"{PREFIX}_{self.name}{total}"

    @property
    def kind(self) -> str:
        return "histogram" if self.histogram else "counter" if self.counter else "gauge"


def _gauge(
    name: str, about: str, *, label: str | tuple[str, ...] = (), scale: float = 1.0
) -> Described:
    return Described(name, about, counter=False, label=label, scale=scale)


def _histogram(
    name: str, about: str, *, label: str | tuple[str, ...] = (), scale: float = 1.0
) -> Described:
    return Described(name, about, label=label, scale=scale, histogram=True)


NANOSECONDS: Final = 1e-9
PARTITION: Final = ("stream", "partition")


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
        "nats_refusals", "Those of them refused: credentials, limits, unreadable files."
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
        "ingest_stalled_seconds", "Time reading NATS waited for the disk.", scale=NANOSECONDS
    ),
    "buffer.waiting_bytes": _gauge(
        "ingest_buffer_waiting_bytes", "Bytes read from NATS that wait for the disk."
    ),
    "buffer.limit_bytes": _gauge(
        "ingest_buffer_limit_bytes", "Bytes at which reading NATS stops until there is room."
    ),
    "buffer.allocated_bytes": _gauge("ingest_buffer_bytes", "Memory of the ingest buffer."),
    "buffer.allocated_bytes_max": _gauge(
        "ingest_buffer_bytes_max", "Most memory the ingest buffer ever had."
    ),
    "stream.records": Described("stream_records", "Records appended.", label=PARTITION),
    "stream.bytes": Described(
        "stream_appended_bytes", "Bytes of record batches appended.", label=PARTITION
    ),
    "stream.batches": Described("stream_batches", "Batches appended.", label=PARTITION),
    "stream.batch_bytes": _histogram("stream_batch_bytes", "Size of batches.", label=PARTITION),
    "stream.batch_records": _histogram("stream_batch_records", "Records a batch.", label=PARTITION),
    "stream.syncs": Described("stream_syncs", "Times the log was synced.", label=PARTITION),
    "stream.sync_ns": _histogram(
        "stream_sync_seconds", "What a sync of the log took.", label=PARTITION, scale=NANOSECONDS
    ),
    "stream.sync_lag_ns": _gauge(
        "stream_sync_lag_seconds",
        "How long the oldest record not known to be on the disk has waited for it.",
        label=PARTITION,
        scale=NANOSECONDS,
    ),
    "stream.unsynced_bytes": _gauge(
        "stream_unsynced_bytes", "Bytes appended and not known to be on the disk.", label=PARTITION
    ),
    "stream.fetches": Described(
        "stream_fetches", "Answers to readers that carried records.", label=PARTITION
    ),
    "stream.fetched_bytes": Described(
        "stream_fetched_bytes", "Bytes of record batches in them.", label=PARTITION
    ),
    "stream.refused": Described(
        "stream_refused_messages",
        "Messages not stored, by reason: too_large, closed (paused or read-only), limit (rate, or "
        "full with discard = new), expectation, headers (a header that asks for what cannot be), "
        "not_stored (the log could not take them). Who asked for an ack got an error.",
        label=(*PARTITION, "reason"),
    ),
    "stream.duplicates": Described(
        "stream_duplicate_messages",
        "Messages whose id was stored before: acked again, not stored again.",
        label=PARTITION,
    ),
    "stream.ids_dropped_early": Described(
        "stream_message_ids_dropped_early",
        "Message ids forgotten before their time because there were too many.",
        label=PARTITION,
    ),
    "stream.disk_errors": Described(
        "stream_disk_errors", "Appends and syncs that the disk refused.", label=PARTITION
    ),
    "disk.free_bytes": _gauge("disk_free_bytes", "Free room where the data directory is."),
    "disk.total_bytes": _gauge("disk_size_bytes", "Size of that file system."),
    "disk.sync_ns": _histogram(
        "disk_sync_seconds", "What a sync of any log took.", scale=NANOSECONDS
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
    "compaction.runs": Described("compaction_runs", "Compactions of a log that were completed."),
    "compaction.runs_cut_short": Described(
        "compaction_cut_short_runs", "Of these, those whose key map was full before the end."
    ),
    "compaction.failures": Described(
        "compaction_failures", "Compactions of a log that an error broke off."
    ),
    "compaction.records": Described("compaction_removed_records", "Records compaction removed."),
    "compaction.bytes_read": Described("compaction_read_bytes", "Bytes compaction read."),
    "compaction.bytes_written": Described("compaction_written_bytes", "Bytes compaction wrote."),
    "compaction.bytes_removed": Described(
        "compaction_removed_bytes", "Bytes by which compaction made logs smaller."
    ),
    "compaction.run_ns": Described("compaction_seconds", "Time spent compacting logs.", scale=1e-9),
    "retention.records": Described(
        "retention_removed_records", "Records that retention made unreadable."
    ),
    "retention.segments": Described("retention_removed_segments", "Segments retention removed."),
    "retention.bytes": Described("retention_removed_bytes", "Bytes of batches in them."),
    "retention.failures": Described(
        "retention_failures", "Passes of retention over a log that an error broke off."
    ),
    "client_listener.connections": _gauge("client_connections", "Client connections open now."),
    "client_listener.waiting": _gauge("client_waiting_requests", "Requests waiting for data now."),
    "client_listener.connections_accepted": Described(
        "client_connections_accepted", "Client connections accepted."
    ),
    "client_listener.connections_refused": Described(
        "client_connections_refused", "Client connections refused: too many."
    ),
    "client_listener.connections_expired": Described(
        "client_connections_expired", "Client connections closed for idling or not reading."
    ),
    "client_listener.connections_overdrawn": Described(
        "client_connections_overdrawn", "Client connections closed: no memory for their requests."
    ),
    "client_listener.memory_bytes": _gauge(
        "client_memory_bytes", "Memory of client requests and responses beyond small ones."
    ),
    "client_listener.memory_bytes_max": _gauge("client_memory_bytes_max", "The most it ever was."),
    "client_listener.protocol_errors": Described(
        "client_protocol_errors", "Client connections closed for breaking the protocol."
    ),
    "client_listener.handler_errors": Described(
        "client_handler_errors", "Requests that failed for an unexpected reason."
    ),
    "client_listener.requests": Described("client_requests", "Requests answered.", label="api"),
    "client_listener.request_ns": _histogram(
        "client_request_seconds",
        "From a whole request to the last byte of its answer; a fetch waits for data in it.",
        label="api",
        scale=NANOSECONDS,
    ),
    "client_listener.bytes_in": Described("client_received_bytes", "Bytes of requests."),
    "client_listener.bytes_out": Described("client_sent_bytes", "Bytes of responses."),
    "client_listener.bytes_sendfile": Described(
        "client_sendfile_bytes", "Bytes of responses that the kernel moved from file to socket."
    ),
    "client_listener.cold_reads": Described(
        "client_cold_reads", "Ranges a thread had to bring into the page cache first."
    ),
    "http_listener.connections": _gauge("http_connections", "HTTP connections open now."),
    "http_listener.connections_accepted": Described(
        "http_connections_accepted", "HTTP connections accepted."
    ),
    "http_listener.connections_refused": Described(
        "http_connections_refused", "HTTP connections refused: too many."
    ),
    "http_listener.connections_expired": Described(
        "http_connections_expired", "HTTP connections closed for being too slow."
    ),
    "http_listener.protocol_errors": Described(
        "http_protocol_errors", "HTTP connections closed for breaking the protocol."
    ),
    "http_listener.requests": Described(
        "http_requests", "HTTP requests answered.", label=("operation", "status")
    ),
    "http_listener.request_ns": _histogram(
        "http_request_seconds", "What they took.", label="operation", scale=NANOSECONDS
    ),
    "http_listener.bytes_out": Described("http_sent_bytes", "Bytes of bodies sent."),
}
"""Path in `StreamAdmin.statistics()` -> metric. `docs/metrics.md` is held to it by a test."""
