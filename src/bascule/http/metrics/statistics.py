"""The counters of the node's parts as nested mappings, with the paths of `families`.

The mappings are made on the event loop, where streams are added and removed. Their values are read
on a thread, because a thousand streams take some time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import fields
from functools import cache, partial
from operator import attrgetter
from typing import Any, Final

from bascule.metadata.image import Image
from bascule.metadata.troubles import TroubleCounts, count_troubles
from bascule.model import is_internal_stream
from bascule.publish.preconditions import PreconditionCounts
from bascule.replica.metrics import FetcherCounts, PartitionCounts, ReplicaFetchCounts
from bascule.replica.metrics.histogram import SECONDS, Histogram
from bascule.replica.partition import Partition

Streams = Mapping[str, tuple[Partition, ...]]

REFUSALS: Final[Mapping[str, str]] = {
    "messages_refused": "too_large",
    "records_not_stored": "not_stored",
    "records_indeterminate": "indeterminate",
    "preconditions.closed_refused": "closed",
    "preconditions.limit_refused": "limit",
    "preconditions.expectations_failed": "expectation",
    "preconditions.headers_refused": "headers",
}
"""Counter of a partition or of its preconditions -> value of the label `reason`."""

PARTITION_METRICS: Final = ("batch_bytes", "batch_records", "sync_ns", "fetches", "fetched_bytes")
"""Attributes of `PartitionMetrics` that are metrics."""


class LazyMapping(Mapping[str, Any]):
    """A mapping whose values are computed at each access."""

    def __init__(self, readers: Mapping[str, Callable[[], Any]]) -> None:
        self._readers = readers

    def __getitem__(self, name: str) -> Any:
        return self._readers[name]()

    def __iter__(self) -> Iterator[str]:
        return iter(self._readers)

    def __len__(self) -> int:
        return len(self._readers)


def counter_values(counts: object) -> dict[str, Any]:
    """The fields of a dataclass of counters. Mappings are copied because they may still grow."""
    # `asdict` fails on Counter fields: it passes pairs to their constructor.
    values = {item.name: getattr(counts, item.name) for item in fields(counts)}  # type: ignore[arg-type]
    return {
        name: dict(value) if isinstance(value, Mapping) else value for name, value in values.items()
    }


def stream_statistics(streams: Streams, *, now_ns: int) -> LazyMapping:
    """All counters of all partitions: statistic -> (stream, partition) -> value."""
    partitions = [((name, p.index), p) for name, ps in streams.items() for p in ps]

    def each(value: Callable[[Partition], Any]) -> Callable[[], dict[tuple[str, int], Any]]:
        return lambda: {keys: value(partition) for keys, partition in partitions}

    readers: dict[str, Callable[[Partition], Any]] = {
        "refused": _refused,
        "under_replicated": _under_replicated,
        "in_sync_replicas": _in_sync_replicas,
        "replica_lag": _replica_lag,
        "unsynced_bytes": lambda p: p.counts.bytes - p.metrics.synced_bytes,
        "sync_lag_ns": lambda p: p.metrics.sync_lag_ns(now_ns),
    }
    for item in fields(PartitionCounts):
        readers[item.name] = attrgetter(f"counts.{item.name}")
    for item in fields(PreconditionCounts):
        readers[item.name] = attrgetter(f"preconditions.counts.{item.name}")
    for name in PARTITION_METRICS:
        readers[name] = attrgetter(f"metrics.{name}")
    return LazyMapping({name: each(reader) for name, reader in readers.items()})


def _refused(partition: Partition) -> dict[str, int]:
    """Reason -> refused messages."""
    counts, preconditions = partition.counts, partition.preconditions.counts
    return {
        reason: getattr(
            preconditions if path.startswith("preconditions.") else counts, path.split(".")[-1]
        )
        for path, reason in REFUSALS.items()
    }


def _under_replicated(partition: Partition) -> int | dict[str, int]:
    """Nothing where this node does not lead, as in the next two."""
    state = partition.state
    if state is None or not partition.is_leader:
        return {}
    # The cluster's own streams have as many replicas as there are nodes for.
    definition = partition.definition
    wanted = 0 if is_internal_stream(definition.name) else definition.config.replicas
    return int(len(state.isr) < max(len(state.replicas), wanted))


def _in_sync_replicas(partition: Partition) -> int | dict[str, int]:
    state = partition.state
    return {} if state is None or not partition.is_leader else len(state.isr)


def _replica_lag(partition: Partition) -> dict[int, int]:
    """Node -> offsets that it is behind."""
    replication = partition.commitment.replication
    if replication is None:
        return {}
    followers = [n for n in replication.state.replicas if n != replication.node_id]
    return {node: replication.lag(node) for node in followers}


def replication_statistics(
    fetches: ReplicaFetchCounts, fetchers: Mapping[int, FetcherCounts]
) -> dict[str, Any]:
    """What followers fetch from this node, and what this node fetches, by the leader's node."""
    by_leader: dict[str, dict[int, int]] = {item.name: {} for item in fields(FetcherCounts)}
    for leader, counts in fetchers.items():
        for name, value in counter_values(counts).items():
            by_leader[name][leader] = value
    return {"replica_fetch": counter_values(fetches), "fetcher": by_leader}


def cluster_statistics(image: Image, *, controller: int) -> LazyMapping:
    """The cluster as a node knows it; `controller` is a node id, or 0."""
    counts, nodes = cache(lambda: count_troubles(image)), sorted(image.nodes.items())
    readers: dict[str, Callable[[], Any]] = {
        "controller": lambda: controller,
        "node_alive": lambda: {n: int(each.alive) for n, each in nodes},
        "node_drained": lambda: {n: int(each.is_drained) for n, each in nodes},
        "node_lacks_nats": lambda: {n: int(each.alive and each.lacks_nats) for n, each in nodes},
        "version": lambda: image.cluster_version,
        "node_version_max": lambda: {n: each.cluster_version_max for n, each in nodes},
        "moving": lambda: sum(1 for _ in image.moving_states()),
        "catch_up_rate": lambda: image.catch_up_rate,
    }
    for item in fields(TroubleCounts):
        readers[item.name] = partial(_trouble_count, counts, item.name)
    return LazyMapping(readers)


def _trouble_count(counts: Callable[[], TroubleCounts], name: str) -> int:
    count: int = getattr(counts(), name)
    return count


def disk_statistics(streams: Streams, *, free_bytes: int, total_bytes: int) -> LazyMapping:
    """Space of the file system of the data directory, and the duration of all syncs."""
    every = [p.metrics.sync_ns for ps in streams.values() for p in ps]
    return LazyMapping(
        {
            "free_bytes": lambda: free_bytes,
            "total_bytes": lambda: total_bytes,
            "sync_ns": lambda: sum_histograms(every),
        }
    )


def sum_histograms(histograms: Iterable[Histogram]) -> Histogram:
    """The sum of histograms with the scale SECONDS."""
    whole = Histogram(SECONDS)
    for histogram in histograms:
        if histogram.total:
            whole.total += histogram.total
            whole.counts = [a + b for a, b in zip(whole.counts, histogram.counts, strict=True)]
    return whole
