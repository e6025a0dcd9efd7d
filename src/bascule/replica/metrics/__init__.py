"""Metrics of a partition.

    histogram           counts in buckets whose bounds grow by four
    partition_metrics   batches, syncs and reads of one partition
    replication_counts  what followers fetch here, and what this node fetches

The cost is an addition for each batch, sync or fetch, and none for each message. Sums and lags are
computed when they are read.
"""

from bascule.replica.metrics.histogram import SECONDS, Histogram
from bascule.replica.metrics.partition_metrics import PartitionCounts, PartitionMetrics
from bascule.replica.metrics.replication_counts import FetcherCounts, ReplicaFetchCounts

__all__ = [
    "SECONDS",
    "FetcherCounts",
    "Histogram",
    "PartitionCounts",
    "PartitionMetrics",
    "ReplicaFetchCounts",
]
