"""A snapshot of the node as Prometheus's exposition text."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from bascule.broker.http.metrics import PARTITION_GAUGES, PREFIX, STATISTICS, Described
from bascule.broker.measures import Histogram
from bascule.model import NodeInfo, PartitionInfo, StreamInfo

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"


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
        yield self._paused()
        yield from self._partitions()
        yield from statistics_metrics(self._statistics)

    def _paused(self) -> Metric:
        paused = GaugeMetricFamily(
            f"{PREFIX}_stream_paused",
            "Whether the stream takes no messages, being paused or read-only: 1 or 0.",
            labels=("stream",),
        )
        for stream in self._streams:
            definition = stream.definition
            refuses = definition.paused or definition.config.read_only
            paused.add_metric((definition.name,), float(refuses))
        return paused

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
        if value is not None:
            yield _metric(described, value)


def _metric(described: Described, value: Any) -> Metric:
    labels = described.labels
    name = f"{PREFIX}_{described.name}"
    if described.histogram:
        histograms = HistogramMetricFamily(name, described.about, labels=labels)
        for keys, histogram in _samples(value, ()):
            if histogram.count:
                buckets, total = _buckets(histogram, described.scale)
                histograms.add_metric(keys, buckets, sum_value=total)
        return histograms
    family = CounterMetricFamily if described.counter else GaugeMetricFamily
    metric = family(name, described.about, labels=labels)
    for keys, number in _samples(value, ()):
        metric.add_metric(keys, float(number) * described.scale)
    return metric


def _samples(value: Any, keys: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    """The numbers or histograms in nested mappings, each with its label values."""
    if not isinstance(value, Mapping):
        yield keys, value
        return
    for key, inner in value.items():
        parts = key if isinstance(key, tuple) else (key,)
        yield from _samples(inner, (*keys, *(str(part) for part in parts)))


def _buckets(histogram: Histogram, scale: float) -> tuple[list[tuple[str, float]], float]:
    """Cumulated counts by upper bound, and the sum, both in the base unit."""
    bounds = [format(bound * scale, ".6g") for bound in histogram.scale.bounds()]
    cumulated = 0
    buckets: list[tuple[str, float]] = []
    for bound, count in zip([*bounds, "+Inf"], histogram.counts, strict=True):
        cumulated += count
        buckets.append((bound, float(cumulated)))
    return buckets, histogram.total * scale


def render(node: NodeInfo, statistics: Mapping[str, Any], streams: Sequence[StreamInfo]) -> bytes:
    """The exposition text of a snapshot, with the process's own metrics."""
    registry = CollectorRegistry(auto_describe=False)
    ProcessCollector(registry=registry)
    registry.register(NodeCollector(node, statistics, streams))
    return generate_latest(registry)
