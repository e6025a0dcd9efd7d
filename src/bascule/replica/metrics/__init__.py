"""Metrics of a partition.

    histogram           counts in buckets whose bounds grow by four
    partition_metrics   batches, syncs and reads of one partition

The cost is an addition for each batch, sync or fetch, and none for each message. Sums and lags are
computed when they are read.
"""

from bascule.replica.metrics.histogram import SECONDS, Histogram
from bascule.replica.metrics.partition_metrics import PartitionMetrics

__all__ = ["SECONDS", "Histogram", "PartitionMetrics"]
