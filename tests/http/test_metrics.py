"""Histograms and statistics; every counter is a metric and every metric is documented."""

from __future__ import annotations

import ast
import importlib
import re
from dataclasses import fields, is_dataclass
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

import bascule
from bascule.http.health import disk_health
from bascule.http.metrics.exposition import render
from bascule.http.metrics.families import METRIC_FAMILIES, PARTITION_GAUGES
from bascule.http.metrics.statistics import (
    PARTITION_METRICS,
    REFUSALS,
    LazyMapping,
    counter_values,
    sum_histograms,
)
from bascule.listening.limits import ListenerStatistics
from bascule.model import NodeInfo
from bascule.replica.metrics.histogram import BYTES, COUNTS, SECONDS, Histogram, Scale
from bascule.replica.metrics.partition_metrics import PartitionMetrics

NODE = NodeInfo(
    node_id=1, cluster_id="c", version="0.1.0", twin="compiled", pid=7, data="/data",
    nats="nats://127.0.0.1:4222", nats_embedded=True, client="127.0.0.1:9092",
    http="http://127.0.0.1:9080",
)  # fmt: skip
SOURCE = Path(bascule.__file__).parent
DOCUMENT = (Path(__file__).parents[2] / "docs" / "metrics.md").read_text()


@given(st.sampled_from([SECONDS, BYTES, COUNTS]), st.lists(st.integers(0, 1 << 70), max_size=20))
def test_a_value_counts_in_the_lowest_bucket_that_includes_it(
    scale: Scale, values: list[int]
) -> None:
    histogram = Histogram(scale)
    expected = [0] * scale.buckets
    for value in values:
        histogram.observe(value)
        inside = [index for index, bound in enumerate(scale.bounds()) if value <= bound]
        expected[inside[0] if inside else -1] += 1
    assert histogram.counts == expected
    assert (histogram.count, histogram.total) == (len(values), sum(values))


@pytest.mark.parametrize("scale", [SECONDS, BYTES, COUNTS])
def test_bounds_are_inclusive(scale: Scale) -> None:
    for index, bound in enumerate(scale.bounds()):
        histogram = Histogram(scale)
        histogram.observe(bound)
        histogram.observe(bound + 1)
        assert histogram.counts[index : index + 2] == [1, 1]


def test_histograms_add_up() -> None:
    one, other = Histogram(SECONDS), Histogram(SECONDS)
    one.observe(1_000)
    other.observe(10**9)
    whole = sum_histograms([one, other])
    assert (whole.count, whole.total) == (2, 10**9 + 1_000)


def test_statistics_are_read_lazily() -> None:
    asked: list[str] = []
    lazy = LazyMapping({"a": lambda: asked.append("a") or 1, "b": lambda: asked.append("b") or 2})
    assert (set(lazy), len(lazy), asked) == ({"a", "b"}, 2, [])
    assert (lazy["b"], lazy.get("c"), asked) == (2, None, ["b"])
    grows = ListenerStatistics()
    copied = counter_values(grows)
    grows.requests["Fetch"] += 1
    assert copied["requests"] == {}


def test_the_prometheus_parser_reads_the_text() -> None:
    """Escapes, units and cumulative buckets, as the parser of prometheus_client reads them."""
    histogram = Histogram(SECONDS)
    for value in (1, 10**6, 10**12):
        histogram.observe(value)
    odd = 'quote " slash \\ line \n end'
    statistics = {
        "http_listener": {"requests": {(odd, 200): 3}, "request_ns": {"node": histogram}},
        "nats": {"connected": True},
    }
    text = render(NODE, statistics, []).decode()
    samples = {
        (sample.name, *sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
    labels = (("operation", odd), ("status", "200"))
    assert samples["bascule_http_requests_total", *labels] == 3
    assert samples["bascule_nats_connected",] == 1
    seconds = "bascule_http_request_seconds"
    node = ("operation", "node")
    assert samples[f"{seconds}_bucket", ("le", "6.5536e-05"), node] == 1
    assert samples[f"{seconds}_bucket", ("le", "0.00104858"), node] == 2
    assert samples[f"{seconds}_bucket", ("le", "+Inf"), node] == 3
    assert samples[f"{seconds}_count", node] == 3
    assert samples[f"{seconds}_sum", node] == pytest.approx(1_000.001, abs=1e-6)


def test_the_sync_lag_is_the_age_of_the_oldest_unsynced_record() -> None:
    metrics = PartitionMetrics()
    assert metrics.sync_lag_ns(50) == 0
    metrics.on_appended(records=1, bytes=100, now_ns=60)
    metrics.on_appended(records=1, bytes=100, now_ns=70)
    assert metrics.sync_lag_ns(80) == 20
    metrics.on_synced(synced_bytes=200, began_ns=85, now_ns=90, is_dirty=False)
    assert metrics.sync_lag_ns(100) == 0
    metrics.on_appended(records=1, bytes=100, now_ns=110)
    # A sync that began at 120 leaves what came after; its oldest is no older than that.
    metrics.on_synced(synced_bytes=300, began_ns=120, now_ns=130, is_dirty=True)
    assert metrics.sync_lag_ns(140) == 20
    metrics.on_synced(synced_bytes=300, began_ns=140, now_ns=150, is_dirty=False)
    assert (metrics.sync_ns.count, metrics.sync_ns.total) == (2, 15)


def test_a_nearly_full_disk_degrades_the_node() -> None:
    assert disk_health(free_bytes=5, total_bytes=100).state == "ok"
    low = disk_health(free_bytes=4, total_bytes=100)
    assert low.state == "degraded"
    assert "4 of 100 bytes are free" in low.reason


SECTIONS = {
    "SourceCounts": "nats",
    "SequencerCounts": "ingest",
    "BufferCounts": "buffer",
    "PartitionCounts": "stream",
    "PreconditionCounts": "stream",
    "ListenerStatistics": "client_listener",
    "HttpStatistics": "http_listener",
    "OffsetsCounts": "offsets",
    "GroupCounts": "groups",
    "RefusalCounts": "refusals",
    "GroupLagStatistics": "group",
    "RetentionCounts": "retention",
    "CompactionCounts": "compaction",
    "SupervisorCounts": "nats_server",
    "AnnouncementCounts": "announcements",
    "ReplicaFetchCounts": "replica_fetch",
    "FetcherCounts": "fetcher",
    "ControllerCounts": "controller",
    "ComparisonCounts": "comparison",
    "DataStreamCounts": "datastream",
    "HealCounts": "healing",
    "ScrubCounts": "scrub",
    "TroubleCounts": "cluster",
    "ReadCounts": "table_reads",
    "TableCounts": "tables",
    "WatchCounts": "table_watches",
    "FollowerCounts": "table_followers",
    "ExpiryCounts": "table_expiry",
    "ForgettingCounts": "table_forgetting",
    "ConsumerCounts": "key_value",
}
"""Class of counters -> its section of `NodeStatus.statistics`."""
MERGED = {path.rpartition(".")[2] for path in REFUSALS}
"""Fields that form one metric with the label `reason`."""


LIBRARIES = {"client", "raft_driver"}
"""Packages whose counts belong to the program that uses them, not to a node."""


def counting_classes() -> dict[str, type]:
    """Every dataclass of src named `*Counts` or `*Statistics`, but those of `LIBRARIES`."""
    found: dict[str, type] = {}
    for path in SOURCE.rglob("*.py"):
        if path.relative_to(SOURCE).parts[0] in LIBRARIES:
            continue
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef) and re.search("(Counts|Statistics)$", node.name):
                module = ".".join(("bascule", *path.relative_to(SOURCE).with_suffix("").parts))
                cls = getattr(importlib.import_module(module.removesuffix(".__init__")), node.name)
                if is_dataclass(cls):
                    found[node.name] = cls
    return found


def test_every_counter_is_a_metric() -> None:
    classes = counting_classes()
    assert {"PartitionCounts", "ListenerStatistics"} <= classes.keys()
    assert classes.keys() <= SECTIONS.keys(), "add the section of NodeStatus.statistics to SECTIONS"
    missing = [
        f"{SECTIONS[name]}.{item.name}"
        for name, cls in classes.items()
        for item in fields(cls)
        if item.name not in MERGED and f"{SECTIONS[name]}.{item.name}" not in METRIC_FAMILIES
    ]
    assert not missing, f"http/metrics/families.py has no metric for {missing}"
    assert {f"stream.{name}" for name in PARTITION_METRICS} <= METRIC_FAMILIES.keys()


def test_every_metric_is_documented() -> None:
    rows = [
        f"| `{d.full_name}` | {d.kind} | {', '.join(d.labels)} | {d.about} |"
        for d in METRIC_FAMILIES.values()
    ]
    rows += [
        f"| `bascule_partition_{name}` | gauge | stream, partition | {about} |"
        for name, about in PARTITION_GAUGES.items()
    ]
    missing = [row for row in rows if row not in DOCUMENT.splitlines()]
    assert not missing, "docs/metrics.md lacks\n" + "\n".join(missing)
    named = set(re.findall(r"^\| `(bascule_\w+)`", DOCUMENT, re.MULTILINE))
    known = {row.split("`")[1] for row in rows}
    apart = {"node_info", "ready", "uptime_seconds", "streams", "stream_paused", "partition_failed"}
    assert named == known | {f"bascule_{name}" for name in apart}


def test_names_follow_prometheus() -> None:
    """https://prometheus.io/docs/practices/naming: base units last, no `_total` of our own."""
    names = [d.name for d in METRIC_FAMILIES.values()]
    assert len(set(names)) == len(names)
    for family in METRIC_FAMILIES.values():
        assert re.fullmatch(r"[a-z][a-z0-9]*(_[a-z0-9]+)*", family.name)
        assert not re.search("_(total|ms|ns|us|kb|mb|count|sum|bucket)(_|$)", family.name), (
            family.name
        )
        assert family.about.endswith("."), family.name


def test_examples_and_queries_use_existing_metrics() -> None:
    root = Path(__file__).parents[2]
    known = {f"bascule_partition_{name}" for name in PARTITION_GAUGES}
    known |= {family.full_name for family in METRIC_FAMILIES.values()}
    known |= {f"{d.full_name}_bucket" for d in METRIC_FAMILIES.values() if d.histogram}
    known |= {"bascule_ready", "bascule_uptime_seconds", "bascule_partition_failed"}
    known.add("bascule_stream_paused")
    deploy = root / "deploy"
    alerts = (deploy / "prometheus-alerts.yml").read_text()
    alerts += (deploy / "grafana" / "bascule.json").read_text()
    queries = DOCUMENT.partition("```promql")[2].partition("```")[0]
    used = set(re.findall(r"bascule_\w+", alerts + queries))
    assert len(used) > 10
    assert used <= known, f"no such metrics: {used - known}"
