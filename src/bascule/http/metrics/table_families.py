"""The metrics of tables, and of the key-value clients that read and watch them; see `families`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from bascule.http.metrics.metric_family import MetricFamily, gauge

TABLE_FAMILIES: Final[Mapping[str, MetricFamily]] = {
    "tables.held": gauge("tables", "Tables of which this node has a replica."),
    "tables.stopped": gauge(
        "tables_stopped",
        "Those of them that have not followed their logs for some seconds: others are read.",
    ),
    "table_reads.elsewhere": MetricFamily(
        "table_reads_elsewhere",
        "Reads that other replicas were asked for, as that of this node was behind or stopped.",
    ),
    "table_watches.watchers": gauge("table_watchers", "Watchers of tables on this node."),
    "table_watches.changes": MetricFamily(
        "table_watch_changes", "Changes handed to watchers of tables, one for each watcher."
    ),
    "table_watches.lagged": MetricFamily(
        "table_watch_lags", "Times a watcher was too slow, and had to read the table."
    ),
    "table_watches.restarted": MetricFamily(
        "table_watch_states", "Times a watcher was shown the whole state of a table."
    ),
    "table_expiry.expired": MetricFamily(
        "table_keys_expired", "Keys of tables that were removed as their time to live was over."
    ),
    "table_expiry.failed": MetricFamily(
        "table_expiries_failed",
        "Batches of removals of expired keys that were not stored, or may not be; they are "
        "repeated.",
    ),
    "table_forgetting.rows": MetricFamily(
        "table_rows_forgotten",
        "Rows deleted from the databases of tables: of purged records, and of removed keys.",
    ),
    "table_followers.followers": gauge(
        "table_followers",
        "Copies of tables outside the cluster that have asked this node within a minute.",
    ),
    "table_followers.lag": gauge(
        "table_follower_lag",
        "Records that are committed and not in the copy of the slowest of these.",
    ),
    "table_followers.pages": MetricFamily(
        "table_follower_pages", "Pages of changes sent to copies of tables outside the cluster."
    ),
    "table_followers.full_pages": MetricFamily(
        "table_follower_full_pages",
        "Those of them that had all keys of a range: the copy was away for longer than the oplog "
        "reaches.",
    ),
    "table_followers.rows": MetricFamily(
        "table_follower_rows", "Keys sent to copies of tables outside the cluster."
    ),
    "key_value.consumers": gauge("key_value_consumers", "Watchers of key-value clients."),
    "key_value.messages": MetricFamily(
        "key_value_messages", "Messages delivered to watchers of key-value clients."
    ),
    "key_value.stalled": MetricFamily(
        "key_value_stalls", "Times a watcher of a key-value client was waited for."
    ),
    "key_value.oversize": MetricFamily(
        "key_value_oversize_values",
        "Values that key-value clients did not get, since the NATS server takes less in a message.",
    ),
    "key_value.gone": MetricFamily(
        "key_value_consumers_gone", "Watchers that ended since nobody listened any more."
    ),
}
