"""What a node tells of itself: histograms, its statistics for metrics, and its health.

    histogram    counts in buckets that grow by four: an addition per batch, sync or request
    partition    what one partition's batches, syncs and reads were like
    statistics   every counter of the node as one nested mapping, for `http.metrics`
    health       which part lives and which serves, with the reason where not

Nothing here works per message, and nothing is computed until somebody asks.
"""

from bascule.replica.metrics.histogram import SECONDS, Histogram
from bascule.replica.metrics.partition_metrics import PartitionMetrics

__all__ = ["SECONDS", "Histogram", "PartitionMetrics"]
