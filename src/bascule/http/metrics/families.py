"""Name, help text and type of each metric; `docs/metrics.md` lists them.

A new field of a `*Counts` or `*Statistics` class needs an entry here and a line in the document. A
test compares all three.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from bascule.http.metrics.metric_family import MetricFamily, gauge, histogram
from bascule.http.metrics.payload_families import PAYLOAD_FAMILIES
from bascule.http.metrics.table_families import TABLE_FAMILIES

PARTITION_GAUGES: Final[Mapping[str, str]] = {
    "start_offset": "First offset in the log.",
    "high_watermark": "End of the committed records; consumers read up to it.",
    "synced_offset": "End of the records that are synced to disk.",
    "end_offset": "Offset of the next record.",
    "replicated_offset": "End of the committed records that all replicas have synced, in sync or "
    "not, as far as this node knows; compaction keeps later tombstones.",
    "leader_epoch": "Leader epoch of the partition.",
    "bytes": "Bytes of record batches in the log.",
}
NANOSECONDS: Final = 1e-9
PARTITION: Final = ("stream", "partition")


METRIC_FAMILIES: Final[Mapping[str, MetricFamily]] = {
    "nats.bytes_received": MetricFamily("nats_received_bytes", "Bytes read from NATS."),
    "nats.connects": MetricFamily("nats_connects", "Connections made to a NATS server."),
    "nats.disconnects": MetricFamily("nats_disconnects", "Connections to a NATS server lost."),
    "nats.moves": MetricFamily(
        "nats_moves", "Times the node moved from a NATS server in lame duck mode to another server."
    ),
    "nats.unsubscribed_ns": MetricFamily(
        "nats_unsubscribed_seconds",
        "Time between the loss of a NATS connection and the next one with all subscriptions.",
        scale=NANOSECONDS,
    ),
    "nats.connect_failures": MetricFamily(
        "nats_connect_failures", "Failed attempts to reconnect to a NATS server."
    ),
    "nats.refusals": MetricFamily(
        "nats_refusals",
        "Reconnects that failed because of credentials, limits or unreadable files.",
    ),
    "nats.slow_consumer_disconnects": MetricFamily(
        "nats_slow_consumer_disconnects",
        "Times the NATS server dropped the node as a slow consumer; messages were lost.",
    ),
    "nats.server_errors": MetricFamily(
        "nats_server_errors", "-ERR lines of the NATS server, by kind.", label="kind"
    ),
    "nats.acks_bytes_sent": MetricFamily("acks_sent_bytes", "Bytes of acks sent to publishers."),
    "nats.acks_bytes_dropped": MetricFamily(
        "acks_dropped_bytes", "Bytes of acks dropped because no NATS server was connected."
    ),
    "nats.max_payload_bytes": gauge(
        "nats_max_payload_bytes",
        "Largest message that the connected NATS server or account accepts.",
    ),
    "subscription.refused": MetricFamily(
        "stream_subscription_refused",
        "Whether the NATS server refuses to deliver to the stream: 1 or 0.",
        counter=False,
        label="stream",
    ),
    "announcements.sent": MetricFamily(
        "announcements_sent", "Announcements sent to other nodes on the same NATS."
    ),
    "announcements.received": MetricFamily(
        "announcements_received", "Announcements received, of nodes of any cluster."
    ),
    "announcements.refused": MetricFamily(
        "announcements_refused", "Announcements that were ignored, by reason.", label="reason"
    ),
    "announcements.left_out": gauge(
        "announcements_left_out_streams", "Streams too large for an announcement."
    ),
    "announcements.nodes": gauge(
        "announced_nodes", "Nodes of other clusters that announce themselves on the same NATS."
    ),
    "announcements.unheard": gauge(
        "nodes_unheard",
        "Nodes of this cluster that are alive and are not heard on this node's NATS.",
    ),
    "announcements.conflict": gauge(
        "stream_conflict",
        "Whether another cluster on the same NATS has the stream, too, and that is not expected: "
        "1 or 0.",
        label="stream",
    ),
    "nats.connected": gauge("nats_connected", "Whether a NATS server is connected: 1 or 0."),
    "nats_server.ends": MetricFamily(
        "nats_server_ends", "Times the embedded nats-server ended although it was not stopped."
    ),
    "nats_server.restarts": MetricFamily(
        "nats_server_restarts", "Times the embedded nats-server was started again after it ended."
    ),
    "nats_server.routes_missing": gauge(
        "nats_server_routes_missing",
        "Embedded NATS servers of other nodes that are alive to which this one is not connected.",
    ),
    **TABLE_FAMILIES,
    "ingest.messages": MetricFamily("ingest_messages", "Messages received from NATS for a stream."),
    "ingest.batches": MetricFamily(
        "ingest_batches", "Record batches built from received messages."
    ),
    "ingest.envelopes": MetricFamily("ingest_envelopes", "Messages unpacked from an envelope."),
    "ingest.header_blocks_malformed": MetricFamily(
        "ingest_malformed_headers",
        "Messages whose header block is malformed: stored with it as it is, or refused if it asks "
        "for something.",
    ),
    "ingest.messages_refused": MetricFamily(
        "ingest_refused_messages", "Messages larger than their stream accepts."
    ),
    "ingest.messages_unrouted": MetricFamily(
        "ingest_unrouted_messages", "Messages received for a subscription that had ended."
    ),
    "buffer.stalls": MetricFamily(
        "ingest_stalls", "Times reading from NATS paused because the ingest buffer was full."
    ),
    "buffer.stalled_ns": MetricFamily(
        "ingest_stalled_seconds",
        "Time reading from NATS was paused because the ingest buffer was full.",
        scale=NANOSECONDS,
    ),
    "buffer.waiting_bytes": gauge(
        "ingest_buffer_waiting_bytes", "Bytes read from NATS that are not yet written to disk."
    ),
    "buffer.limit_bytes": gauge(
        "ingest_buffer_limit_bytes", "Size of the ingest buffer at which reading from NATS pauses."
    ),
    "buffer.allocated_bytes": gauge(
        "ingest_buffer_bytes", "Memory allocated for the ingest buffer."
    ),
    "buffer.allocated_bytes_max": gauge(
        "ingest_buffer_bytes_max", "Highest memory allocated for the ingest buffer."
    ),
    "stream.records": MetricFamily("stream_records", "Records appended.", label=PARTITION),
    "stream.bytes": MetricFamily(
        "stream_appended_bytes", "Bytes of record batches appended.", label=PARTITION
    ),
    "stream.batches": MetricFamily("stream_batches", "Batches appended.", label=PARTITION),
    "stream.batch_bytes": histogram(
        "stream_batch_bytes", "Size of appended batches.", label=PARTITION
    ),
    "stream.batch_records": histogram(
        "stream_batch_records", "Records per appended batch.", label=PARTITION
    ),
    "stream.syncs": MetricFamily("stream_syncs", "Syncs of the log.", label=PARTITION),
    "stream.sync_ns": histogram(
        "stream_sync_seconds", "Duration of a sync of the log.", label=PARTITION, scale=NANOSECONDS
    ),
    "stream.sync_lag_ns": gauge(
        "stream_sync_lag_seconds",
        "Age of the oldest record that is not synced to disk.",
        label=PARTITION,
        scale=NANOSECONDS,
    ),
    "stream.unsynced_bytes": gauge(
        "stream_unsynced_bytes", "Bytes appended and not synced to disk.", label=PARTITION
    ),
    "stream.fetches": MetricFamily(
        "stream_fetches", "Fetch responses that contained records.", label=PARTITION
    ),
    "stream.fetched_bytes": MetricFamily(
        "stream_fetched_bytes", "Bytes of record batches in fetch responses.", label=PARTITION
    ),
    "stream.refused": MetricFamily(
        "stream_refused_messages",
        "Messages that got no ack, by reason: too_large, closed (paused or read-only), limit "
        "(rate, or full with discard = new), expectation, headers (a header that cannot be "
        "satisfied), not_stored (the append failed), indeterminate (the disk failed after the "
        "append: they may be stored). Publishers that asked for an ack got an error.",
        label=(*PARTITION, "reason"),
    ),
    "stream.duplicates": MetricFamily(
        "stream_duplicate_messages",
        "Messages with an id that is already stored; they are acked and not stored again.",
        label=PARTITION,
    ),
    "stream.ids_dropped_early": MetricFamily(
        "stream_message_ids_dropped_early",
        "Message ids dropped before the end of the dedupe window because of dedupe_messages_max.",
        label=PARTITION,
    ),
    "stream.records_dropped": MetricFamily(
        "stream_dropped_messages",
        "Messages that came, or waited for their ack, while this node does not lead the partition. "
        "They got no answer: the leader may have stored them.",
        label=PARTITION,
    ),
    "stream.handover_duplicates": MetricFamily(
        "stream_handover_duplicate_messages",
        "Messages that this node received before it led the partition, and that its log had "
        "already from the leader before. They were not stored again.",
        label=PARTITION,
    ),
    "stream.records_lost": MetricFamily(
        "stream_lost_messages",
        "Messages that this node removed, since the leader of an unclean election does not have "
        "them.",
        label=PARTITION,
    ),
    "stream.replicated_bytes": MetricFamily(
        "stream_replicated_bytes",
        "Bytes of record batches copied from the leader.",
        label=PARTITION,
    ),
    "stream.under_replicated": gauge(
        "stream_under_replicated",
        "Whether a partition that this node leads has replicas that are not in sync, or fewer "
        "replicas than the stream asks for: 1 or 0.",
        label=PARTITION,
    ),
    "stream.in_sync_replicas": gauge(
        "stream_in_sync_replicas",
        "Replicas in sync of a partition that this node leads, itself included.",
        label=PARTITION,
    ),
    "stream.replica_lag": gauge(
        "stream_replica_lag_records",
        "Offsets by which a follower is behind this leader, as far as the leader knows.",
        label=(*PARTITION, "node"),
    ),
    "stream.disk_errors": MetricFamily(
        "stream_disk_errors", "Appends and syncs that failed with an I/O error.", label=PARTITION
    ),
    "disk.free_bytes": gauge(
        "disk_free_bytes", "Free bytes of the file system of the data directory."
    ),
    "disk.total_bytes": gauge("disk_size_bytes", "Size of the file system of the data directory."),
    "disk.sync_ns": histogram(
        "disk_sync_seconds", "Duration of a sync of any log.", scale=NANOSECONDS
    ),
    "offsets.commits": MetricFamily("offsets_commits", "Offset commits read."),
    "offsets.removals": MetricFamily("offsets_removals", "Removals of offset commits read."),
    "offsets.malformed": MetricFamily(
        "offsets_malformed_records", "Records of the stream _offsets that are not valid commits."
    ),
    "offsets.repairs": MetricFamily(
        "offsets_repairs", "Commits published again because a malformed record had replaced them."
    ),
    "offsets.fenced": MetricFamily(
        "offsets_fenced", "Commits over NATS for groups with members, which are ignored."
    ),
    "offsets.held": gauge("offsets_held", "Commits in memory, one per consumer and partition."),
    "groups.states": gauge(
        "groups", "Groups with members that this node coordinates, by state.", label="state"
    ),
    "groups.members": gauge("group_members", "Members of these groups."),
    "group.size": gauge(
        "group_size",
        "Members of a group that this node coordinates, by its state.",
        label=("group", "state"),
    ),
    "group.lag": gauge(
        "group_lag",
        "Records between the committed offset of a group that this node coordinates and the end of "
        "the partition, of at most groups.lag_series_max offsets.",
        label=("group", "stream", "partition"),
    ),
    "group.left_out": gauge(
        "group_lags_left_out",
        "Committed offsets without a lag in these metrics: beyond groups.lag_series_max, or the "
        "end of the partition is not known.",
    ),
    "groups.size_bytes": gauge(
        "group_memory_bytes",
        "Memory of all groups that this node coordinates, about, with their stored states. At most "
        "256 MiB.",
    ),
    "groups.refusals": MetricFamily(
        "group_refusals",
        "Joins, assignments and heartbeats refused because all groups take as much memory as they "
        "may.",
    ),
    "groups.rebalances": MetricFamily(
        "group_rebalances",
        "Rebalances that began, and targets computed for groups of the consumer protocol.",
    ),
    "groups.expired": MetricFamily(
        "group_members_expired",
        "Members removed because their sessions ended, or because they did not join in time.",
    ),
    "scrub.bytes": MetricFamily("scrub_bytes", "Bytes of logs that the scrubber has read."),
    "scrub.records": MetricFamily("scrub_records", "Records in them."),
    "scrub.passes": MetricFamily("scrub_logs", "Logs that the scrubber has read to their end."),
    "scrub.damaged": MetricFamily("scrub_damaged_logs", "Logs in which it has found damage."),
    "scrub.failures": MetricFamily("scrub_failures", "Logs that it could not read to their end."),
    "scrub.last_pass_ms": gauge(
        "scrub_last_pass_timestamp_seconds",
        "When the scrubber had read a log and no other one was due; 0: not yet.",
        scale=1e-3,
    ),
    "refusals.confirmed": MetricFamily(
        "refusals_confirmed", "Batches with refused messages that were answered, as this node led."
    ),
    "refusals.deposed": MetricFamily(
        "refusals_dropped", "Batches with refused messages that were left to the next leader."
    ),
    "refusals.unconfirmed": MetricFamily(
        "refusals_unconfirmed",
        "Batches with refused messages that were answered as messages that may be stored, since "
        "nobody confirmed that this node still led, or it handed the partition over.",
    ),
    "comparison.differing": gauge(
        "replicas_differing",
        "Replicas of this node that differ from one on another node, although all CRCs are good.",
    ),
    "comparison.compared": MetricFamily(
        "replicas_compared_records", "Offsets whose records were compared with another replica."
    ),
    "comparison.differences": MetricFamily(
        "replicas_found_differing", "Comparisons of replicas that have found a difference."
    ),
    "healing.found": MetricFamily(
        "damaged_log_reads", "Times that reads, compaction, followers or the scrubber met damage."
    ),
    "healing.healed": MetricFamily(
        "healed_replicas", "Replicas opened up to their damage, to be copied from there on."
    ),
    "healing.failures": MetricFamily(
        "healing_failures", "Attempts to heal a replica that failed or were not allowed."
    ),
    "compaction.runs": MetricFamily("compaction_runs", "Completed compactions of a log."),
    "compaction.runs_cut_short": MetricFamily(
        "compaction_cut_short_runs", "Compactions that ended early because the key map was full."
    ),
    "compaction.failures": MetricFamily("compaction_failures", "Compactions that failed."),
    "compaction.records": MetricFamily(
        "compaction_removed_records", "Records removed by compaction."
    ),
    "compaction.bytes_read": MetricFamily("compaction_read_bytes", "Bytes read by compaction."),
    "compaction.bytes_written": MetricFamily(
        "compaction_written_bytes", "Bytes written by compaction."
    ),
    "compaction.bytes_removed": MetricFamily(
        "compaction_removed_bytes", "Bytes by which compaction reduced logs."
    ),
    "compaction.run_ns": MetricFamily(
        "compaction_seconds", "Time spent compacting logs.", scale=1e-9
    ),
    "retention.records": MetricFamily("retention_removed_records", "Records removed by retention."),
    "retention.segments": MetricFamily(
        "retention_removed_segments", "Segments removed by retention."
    ),
    "retention.bytes": MetricFamily(
        "retention_removed_bytes", "Bytes of record batches removed by retention."
    ),
    "retention.failures": MetricFamily(
        "retention_failures", "Retention passes over a log that failed."
    ),
    "client_listener.connections": gauge("client_connections", "Client connections open now."),
    "client_listener.waiting": gauge(
        "client_waiting_requests", "Fetch requests waiting for data now."
    ),
    "client_listener.connections_accepted": MetricFamily(
        "client_connections_accepted", "Client connections accepted."
    ),
    "client_listener.connections_refused": MetricFamily(
        "client_connections_refused",
        "Client connections refused because of limits.connections_max.",
    ),
    "client_listener.connections_expired": MetricFamily(
        "client_connections_expired", "Client connections closed because of a timeout."
    ),
    "client_listener.connections_out_of_memory": MetricFamily(
        "client_connections_overdrawn",
        "Client connections closed because of limits.client_memory_bytes_max.",
    ),
    "client_listener.memory_bytes": gauge(
        "client_memory_bytes", "Memory of client requests and responses beyond the base buffers."
    ),
    "client_listener.memory_bytes_max": gauge(
        "client_memory_bytes_max", "Highest value of client_memory_bytes."
    ),
    "client_listener.protocol_errors": MetricFamily(
        "client_protocol_errors", "Client connections closed because of a protocol error."
    ),
    "client_listener.trailing_bytes": MetricFamily(
        "client_trailing_bytes", "Bytes behind client requests, which are ignored."
    ),
    "client_listener.handler_errors": MetricFamily(
        "client_handler_errors", "Requests that failed with an internal error."
    ),
    "client_listener.requests": MetricFamily(
        "client_requests", "Client requests answered.", label="api"
    ),
    "client_listener.request_ns": histogram(
        "client_request_seconds",
        "Time from the complete request to the last byte of its response, including a fetch's wait "
        "for data.",
        label="api",
        scale=NANOSECONDS,
    ),
    "client_listener.bytes_in": MetricFamily(
        "client_received_bytes", "Bytes received from clients."
    ),
    "client_listener.bytes_out": MetricFamily("client_sent_bytes", "Bytes sent to clients."),
    "client_listener.bytes_sendfile": MetricFamily(
        "client_sendfile_bytes", "Bytes sent to clients by sendfile."
    ),
    "client_listener.cold_reads": MetricFamily(
        "client_cold_reads", "File ranges that a thread had to read into the page cache first."
    ),
    "cluster.controller": gauge(
        "cluster_controller", "Id of the node that is the controller, as this node knows; 0: none."
    ),
    "cluster.node_alive": gauge(
        "cluster_node_alive", "Whether a node of the cluster is alive: 1 or 0.", label="node"
    ),
    "cluster.node_drained": gauge(
        "cluster_node_drained",
        "Whether an operator has drained a node of the cluster: 1 or 0.",
        label="node",
    ),
    "cluster.node_lacks_nats": gauge(
        "cluster_node_lacks_nats",
        "Whether a node of the cluster is alive and has no NATS connection: 1 or 0.",
        label="node",
    ),
    "cluster.version": gauge(
        "cluster_version", "Cluster version in force: the newest that all nodes support."
    ),
    "cluster.node_version_max": gauge(
        "cluster_node_version_max",
        "Newest cluster version that the release of a node supports.",
        label="node",
    ),
    "cluster.moving": gauge(
        "cluster_moving_partitions", "Partitions whose replicas move to other nodes."
    ),
    "cluster.catch_up_rate": gauge(
        "cluster_catch_up_bytes_per_second_max",
        "What each node sends at most to replicas that are not in sync; 0: no limit.",
    ),
    "cluster.leaderless": gauge(
        "cluster_leaderless_partitions",
        "Partitions of the cluster that have no leader, as in the next four on any of its nodes.",
    ),
    "cluster.under_min_isr": gauge(
        "cluster_under_min_isr_partitions",
        "Partitions with fewer replicas in sync than messages need.",
    ),
    "cluster.under_replicated": gauge(
        "cluster_under_replicated_partitions",
        "Partitions with replicas that are not in sync, or with fewer replicas than their streams "
        "ask for.",
    ),
    "cluster.short": gauge(
        "cluster_short_partitions",
        "Partitions with fewer replicas than their streams ask for, for want of a node alone.",
    ),
    "cluster.unclean": gauge(
        "cluster_unclean_partitions",
        "Partitions with an unclean election that no operator has acknowledged.",
    ),
    "controller.unclean_elections": MetricFamily(
        "unclean_elections",
        "Partitions that this node, as the controller, gave a leader that was not in sync.",
    ),
    "controller.silence_reports": MetricFamily(
        "silence_reports",
        "Reports to this node, as the controller, of followers whose leader does not answer them.",
    ),
    "controller.silent_leaders_replaced": MetricFamily(
        "silent_leaders_replaced",
        "Partitions that this node, as the controller, took from a leader that does not answer its "
        "followers.",
    ),
    "foreign_peers.refused": MetricFamily(
        "foreign_peers_refused",
        "Connections from and to nodes of other clusters, which were refused.",
    ),
    "heartbeats.longest_ns": MetricFamily(
        "heartbeat_silence_max_seconds",
        "The longest time in which the present process of another node, which goes on, did not "
        "answer heartbeats, by its node. Near 0.6 s the limit grows with it, up to 1.5 s.",
        counter=False,
        label="node",
        scale=NANOSECONDS,
    ),
    "replica_fetch.requests": MetricFamily(
        "replica_fetch_requests", "Fetch requests of followers answered."
    ),
    "replica_fetch.reports": MetricFamily(
        "replica_fetch_reports", "Partitions named in fetch requests of followers."
    ),
    "replica_fetch.bytes": MetricFamily(
        "replica_fetch_sent_bytes", "Bytes of record batches sent to followers."
    ),
    "replica_fetch.truncations": MetricFamily(
        "replica_fetch_truncations", "Times a follower was told to truncate a diverging log."
    ),
    "replica_fetch.stale": MetricFamily(
        "replica_fetch_stale_reports",
        "Partitions refused to an older process of a follower's node.",
    ),
    "fetcher.requests": MetricFamily(
        "fetcher_requests", "Fetch requests sent to a leader, by its node.", label="leader"
    ),
    "fetcher.bytes": MetricFamily(
        "fetcher_received_bytes", "Bytes of fetch responses of a leader.", label="leader"
    ),
    "fetcher.connects": MetricFamily(
        "fetcher_connects", "Connections made to a leader.", label="leader"
    ),
    "fetcher.failures": MetricFamily(
        "fetcher_failures",
        "Connections to a leader that failed or could not be made.",
        label="leader",
    ),
    **PAYLOAD_FAMILIES,
    "http_listener.connections": gauge("http_connections", "HTTP connections open now."),
    "http_listener.connections_accepted": MetricFamily(
        "http_connections_accepted", "HTTP connections accepted."
    ),
    "http_listener.connections_refused": MetricFamily(
        "http_connections_refused",
        "HTTP connections refused because of limits.http_connections_max.",
    ),
    "http_listener.connections_displaced": MetricFamily(
        "http_connections_displaced",
        "HTTP connections closed while waiting for a request, in favour of a new one, at "
        "limits.http_connections_max.",
    ),
    "http_listener.connections_expired": MetricFamily(
        "http_connections_expired", "HTTP connections closed because of a timeout."
    ),
    "http_listener.protocol_errors": MetricFamily(
        "http_protocol_errors", "HTTP connections closed because of a protocol error."
    ),
    "http_listener.requests": MetricFamily(
        "http_requests", "HTTP requests answered.", label=("operation", "status")
    ),
    "http_listener.request_ns": histogram(
        "http_request_seconds", "Duration of HTTP requests.", label="operation", scale=NANOSECONDS
    ),
    "http_listener.bytes_out": MetricFamily("http_sent_bytes", "Bytes of response bodies sent."),
}
"""Path in `StatusSource.statistics()` -> metric family; a test compares it with the document."""
