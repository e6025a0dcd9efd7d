"""The node's numbers as Prometheus metrics; `docs/metrics.md` lists them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
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

GAUGE_WORDS: Final = frozenset(
    {"open", "current", "pending", "buffered", "waiting", "capacity", "age", "lag", "in_flight"}
)
"""A statistic whose last word is one of these, or whose name starts with one, goes up and down."""

LABELLED: Final[Mapping[str, str]] = {"by_api": "api", "by_error": "error", "by_stream": "stream"}
"""A group of statistics with one of these names becomes one metric with a label."""


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
    """Nested counters as metrics: `{"ingest": {"messages": 5}}` is `bascule_ingest_messages_total`.

    Times in `_ms` become seconds; texts and None are left out.
    """
    yield from _walk((PREFIX,), statistics)


def _walk(path: tuple[str, ...], group: Mapping[str, Any]) -> Iterator[Metric]:
    for key, value in group.items():
        if isinstance(value, Mapping):
            label = LABELLED.get(key)
            if label is None:
                yield from _walk((*path, key), value)
            else:
                family = CounterMetricFamily(
                    _metric_name(path), f"{_sentence(path)}, by {label}.", labels=(label,)
                )
                for name, number in value.items():
                    family.add_metric((str(name),), number)
                yield family
        elif isinstance(value, int | float):
            yield _leaf((*path, key), value)


def _leaf(path: tuple[str, ...], value: float) -> Metric:
    last = path[-1]
    if last.endswith("_ms"):
        path, value = (*path[:-1], last.removesuffix("_ms") + "_seconds"), value / 1_000
    elif last.endswith("_ns"):
        path, value = (*path[:-1], last.removesuffix("_ns") + "_seconds"), value / 1e9
    name, about = _metric_name(path), _sentence(path) + "."
    words = last.split("_")
    if isinstance(value, bool) or GAUGE_WORDS & {words[0], words[-1], last} or "max" in words:
        return GaugeMetricFamily(name, about, value=float(value))
    return CounterMetricFamily(name, about, value=value)


def _metric_name(path: tuple[str, ...]) -> str:
    return re.sub(r"[^a-zA-Z0-9_]", "_", "_".join(path))


def _sentence(path: tuple[str, ...]) -> str:
    return " ".join(path[1:]).replace("_", " ").capitalize()


def render(node: NodeInfo, statistics: Mapping[str, Any], streams: Sequence[StreamInfo]) -> bytes:
    """The exposition text of a snapshot, with the process's own metrics."""
    registry = CollectorRegistry(auto_describe=False)
    ProcessCollector(registry=registry)
    registry.register(NodeCollector(node, statistics, streams))
    return generate_latest(registry)
