"""The metrics of data streaming."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from bascule.http.metrics.metric_family import MetricFamily, gauge

PAYLOAD_FAMILIES: Final[Mapping[str, MetricFamily]] = {
    "datastream.connections": gauge(
        "payload_connections", "Connections of data streaming open now."
    ),
    "datastream.sessions": gauge(
        "payload_sessions", "Payloads that this node receives now, or whose sender may come back."
    ),
    "datastream.opened": MetricFamily(
        "payload_opened", "Payloads that this node began to receive."
    ),
    "datastream.bytes_received": MetricFamily(
        "payload_received_bytes",
        "Bytes of payloads received from clients and from nodes before this one.",
    ),
    "datastream.bytes_forwarded": MetricFamily(
        "payload_forwarded_bytes", "Bytes of payloads sent to the next nodes of a tree."
    ),
    "datastream.bytes_read": MetricFamily(
        "payload_read_bytes", "Bytes of whole payloads sent to readers and to other replicas."
    ),
    "datastream.linked": MetricFamily(
        "payload_links", "Payloads closed here, whose records the leader was asked to append."
    ),
    "datastream.fetched": MetricFamily(
        "payload_fetched", "Payloads that this node lacked and got from another replica."
    ),
    "datastream.bytes_fetched": MetricFamily("payload_fetched_bytes", "Bytes of these."),
    "datastream.fetches_failed": MetricFamily(
        "payload_fetch_failures", "Attempts to get a payload that no replica answered."
    ),
    "datastream.lost": MetricFamily(
        "payload_lost", "Payloads that no replica has any more, whose records were copied."
    ),
    "datastream.damaged": MetricFamily(
        "payload_damaged", "Payloads of this node whose files were found damaged or lost."
    ),
    "datastream.repaired": MetricFamily(
        "payload_repaired", "Damaged or lost files that were replaced from another replica."
    ),
    "datastream.repairs_failed": MetricFamily(
        "payload_repair_failures", "Attempts at that which failed."
    ),
    "scrub.payload_bytes": MetricFamily(
        "scrub_payload_bytes", "Bytes of payloads that the scrubber has read."
    ),
    "scrub.payloads_damaged": MetricFamily(
        "scrub_damaged_payloads",
        "Payloads that do not have the checksum that their records say, or are lost.",
    ),
    "datastream.successors_lost": MetricFamily(
        "payload_successors_lost", "Nodes left out of a tree because they failed."
    ),
    "datastream.refused": MetricFamily(
        "payload_refusals", "Requests of data streaming that were refused."
    ),
    "datastream.gave_way": MetricFamily(
        "payload_gave_way",
        "Connections and payloads that have lost their places to others, as silent or slow ones.",
    ),
    "datastream.abandoned": MetricFamily(
        "payload_abandoned",
        "Payloads removed because the connection that sent them has begun many others.",
    ),
    "datastream.disk_limit": gauge(
        "payload_disk_bytes_per_second_max",
        "What payloads may write to the disk a second, since logs are synced beside them; "
        "0: no limit.",
    ),
    "datastream.disk_waited_ns": MetricFamily(
        "payload_disk_waited_seconds",
        "How long writes of payloads to the disk have waited for that limit.",
        scale=1e-9,
    ),
    "datastream.nats_payloads": gauge(
        "payload_nats_payloads", "Payloads that NATS clients send to this node in chunks now."
    ),
    "datastream.nats_chunks": MetricFamily(
        "payload_nats_chunks", "Chunks of payloads received from NATS for partitions led here."
    ),
    "datastream.nats_chunks_refused": MetricFamily(
        "payload_nats_chunks_refused",
        "Of these, chunks refused: malformed, behind a gap, with another checksum, or too many.",
    ),
    "datastream.nats_chunks_dropped": MetricFamily(
        "payload_nats_chunks_dropped",
        "Chunks from NATS that were not taken because 64 MiB of them were not written yet.",
    ),
    "datastream.nats_expired": MetricFamily(
        "payload_nats_expired", "Payloads in chunks given up because nothing came for a minute."
    ),
    "datastream.unlinked_removed": MetricFamily(
        "payload_unlinked_removed", "Payloads removed because nobody has closed them."
    ),
    "datastream.unlinked_bytes_removed": MetricFamily(
        "payload_unlinked_removed_bytes", "Bytes of these."
    ),
    "retention.payload_bytes": MetricFamily(
        "retention_removed_payload_bytes", "Bytes of payloads whose records were removed."
    ),
}
"""A part of `families.METRIC_FAMILIES`."""
