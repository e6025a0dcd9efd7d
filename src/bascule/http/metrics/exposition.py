"""A snapshot of the node as Prometheus's exposition text, version 0.0.4.

Written line by line: a node of a thousand busy streams tells 60,000, which the client library
takes ten times as long for. https://prometheus.io/docs/instrumenting/exposition_formats
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest

from bascule.http.metrics.families import PARTITION, PARTITION_GAUGES, PREFIX, STATISTICS, Described
from bascule.model import NodeInfo, StreamInfo
from bascule.replica.metrics import Histogram
from bascule.replica.metrics.histogram import Scale

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"

Keys = tuple[str, ...]
Number = int | float


class Exposition:
    """Lines of families, each begun by its help and type."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self._labelled: dict[tuple[Keys, Keys], str] = {}
        self._bounds: dict[tuple[Scale, float], list[str]] = {}

    def family(self, name: str, kind: str, about: str) -> str:
        """Begin a family; returns the name its samples have."""
        full = f"{PREFIX}_{name}"
        told = about.replace("\\", r"\\").replace("\n", r"\n")
        self.lines += (f"# HELP {full} {told}", f"# TYPE {full} {kind}")
        return full

    def numbers(
        self, name: str, labels: Keys, samples: Iterable[tuple[Keys, Number]], *, scale: float = 1.0
    ) -> None:
        """A sample each of (label values, number); numbers are multiplied by `scale`."""
        add, labelled = self.lines.append, self._label
        if scale == 1.0:
            for keys, number in samples:
                add(f"{name}{labelled(labels, keys)} {number}")
        else:
            for keys, number in samples:
                add(f"{name}{labelled(labels, keys)} {number * scale!r}")

    def histograms(
        self, name: str, labels: Keys, samples: Iterable[tuple[Keys, Histogram]], *, scale: float
    ) -> None:
        """Buckets, sum and count of each histogram that has counted something."""
        for keys, histogram in samples:
            if not histogram.count:
                continue
            text = self._label(labels, keys)
            begin = f"{name}_bucket{text[:-1]}," if text else f"{name}_bucket{{"
            cumulated = 0
            for bound, count in zip(
                self._bounds_of(histogram.scale, scale), histogram.counts, strict=True
            ):
                cumulated += count
                self.lines.append(f"{begin}{bound} {cumulated}")
            self.lines.append(f"{name}_sum{text} {histogram.total * scale!r}")
            self.lines.append(f"{name}_count{text} {cumulated}")

    def _label(self, labels: Keys, keys: Keys) -> str:
        """`{stream="a",partition="0"}`, or nothing without labels."""
        if not labels:
            return ""
        known = self._labelled.get((labels, keys))
        if known is None:
            pairs = zip(labels, keys, strict=True)
            known = "{" + ",".join(f'{label}="{_escaped(key)}"' for label, key in pairs) + "}"
            self._labelled[labels, keys] = known
        return known

    def _bounds_of(self, scale: Scale, unit: float) -> list[str]:
        known = self._bounds.get((scale, unit))
        if known is None:
            bounds = [format(bound * unit, ".6g") for bound in scale.bounds()]
            known = [f'le="{bound}"}}' for bound in [*bounds, "+Inf"]]
            self._bounds[scale, unit] = known
        return known


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def render(node: NodeInfo, statistics: Mapping[str, Any], streams: Sequence[StreamInfo]) -> bytes:
    """The exposition text of a snapshot, with the process's own metrics."""
    exposition = Exposition()
    _node(exposition, node, streams)
    _partitions(exposition, streams)
    for path, described in STATISTICS.items():
        value: Any = statistics
        for part in path.split("."):
            value = value.get(part) if isinstance(value, Mapping) else None
        if value is not None:
            _statistic(exposition, described, value)
    registry = CollectorRegistry(auto_describe=False)
    ProcessCollector(registry=registry)
    return "\n".join([*exposition.lines, ""]).encode() + generate_latest(registry)


def _node(exposition: Exposition, node: NodeInfo, streams: Sequence[StreamInfo]) -> None:
    def one(name: str, about: str, number: Number) -> None:
        exposition.numbers(exposition.family(name, "gauge", about), (), [((), number)])

    labels = ("version", "twin", "node_id", "cluster_id")
    keys = (node.version, node.twin, str(node.node_id), node.cluster_id)
    about = "One sample of value 1 that carries the node's facts."
    exposition.numbers(exposition.family("node_info", "gauge", about), labels, [(keys, 1)])
    one("ready", "Whether the node serves: 1 or 0.", int(node.ready))
    one("uptime_seconds", "Time since start.", node.uptime_ms / 1_000)
    one("streams", "Streams.", len(streams))
    about = "Whether the stream takes no messages, being paused or read-only: 1 or 0."
    definitions = [stream.definition for stream in streams]
    exposition.numbers(
        exposition.family("stream_paused", "gauge", about),
        ("stream",),
        (((d.name,), int(d.paused or d.config.read_only)) for d in definitions),
    )


def _partitions(exposition: Exposition, streams: Sequence[StreamInfo]) -> None:
    every = [
        ((stream.definition.name, str(partition.partition)), partition)
        for stream in streams
        for partition in stream.partitions
    ]
    for name, about in PARTITION_GAUGES.items():
        full = exposition.family(f"partition_{name}", "gauge", about)
        exposition.numbers(full, PARTITION, ((keys, getattr(p, name)) for keys, p in every))
    about = "Whether the partition stopped: 1 or 0."
    exposition.numbers(
        exposition.family("partition_failed", "gauge", about),
        PARTITION,
        ((keys, int(p.failure is not None)) for keys, p in every),
    )


def _statistic(exposition: Exposition, described: Described, value: Any) -> None:
    name = described.exposed.removeprefix(f"{PREFIX}_")
    full = exposition.family(name, described.kind, described.about)
    tell: Callable[..., None] = exposition.histograms if described.histogram else exposition.numbers
    tell(full, described.labels, _samples(value, ()), scale=described.scale)


def _samples(value: Any, keys: Keys) -> Iterator[tuple[Keys, Any]]:
    """The numbers or histograms in nested mappings, each with its label values."""
    if not isinstance(value, Mapping):
        yield keys, int(value) if isinstance(value, bool) else value
        return
    for key, inner in value.items():
        parts = key if isinstance(key, tuple) else (key,)
        yield from _samples(inner, (*keys, *map(str, parts)))
