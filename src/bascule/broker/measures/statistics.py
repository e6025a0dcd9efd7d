"""The counters of a node's parts as nested mappings, shaped as `http.metrics` names them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields
from typing import Any, Final

from bascule.broker.measures.histogram import SECONDS, Histogram
from bascule.broker.partition import Partition, PartitionCounts
from bascule.ingest.contract import ContractCounts

Streams = Mapping[str, tuple[Partition, ...]]

REFUSALS: Final[Mapping[str, str]] = {
    "messages_refused": "too_large",
    "records_not_stored": "not_stored",
    "contract.closed_refused": "closed",
    "contract.limit_refused": "limit",
    "contract.expectations_failed": "expectation",
    "contract.terms_refused": "terms",
}
"""Counter of a partition, or of its publisher contract -> the reason it stands for."""

MEASURES: Final = ("batch_bytes", "batch_records", "sync_ns", "fetches", "fetched_bytes")


def counters(counts: object) -> dict[str, Any]:
    """The fields of a dataclass of counters. Not `asdict`: it would rebuild its mappings."""
    return {item.name: getattr(counts, item.name) for item in fields(counts)}  # type: ignore[arg-type]


def stream_statistics(streams: Streams, *, now_ns: int) -> dict[str, Any]:
    """Every counter of every partition: statistic -> (stream, partition) -> value."""

    def each(value: Callable[[Partition], Any]) -> dict[tuple[str, int], Any]:
        return {(name, p.index): value(p) for name, ps in streams.items() for p in ps}

    by_name: dict[str, Any] = {
        item.name: each(lambda p, name=item.name: getattr(p.counts, name))  # type: ignore[misc]
        for item in fields(PartitionCounts)
    }
    for name in MEASURES:
        by_name[name] = each(lambda p, name=name: getattr(p.measures, name))  # type: ignore[misc]
    for item in fields(ContractCounts):
        by_name[item.name] = each(
            lambda p, name=item.name: getattr(p.contract.counts, name)  # type: ignore[misc]
        )
    by_name["refused"] = each(_refused)
    by_name["unsynced_bytes"] = each(lambda p: p.counts.bytes - p.measures.synced_bytes)
    by_name["sync_lag_ns"] = each(lambda p: p.measures.sync_lag_ns(now_ns))
    return by_name


def _refused(partition: Partition) -> dict[str, int]:
    """Reason -> messages refused for it."""
    return {
        reason: getattr(
            partition.contract.counts if path.startswith("contract.") else partition.counts,
            path.removeprefix("contract."),
        )
        for path, reason in REFUSALS.items()
    }


def disk_statistics(streams: Streams, *, free_bytes: int, total_bytes: int) -> dict[str, Any]:
    """The file system of the data directory, and what all syncs on it took."""
    every = [p.measures.sync_ns for ps in streams.values() for p in ps]
    return {
        "free_bytes": free_bytes,
        "total_bytes": total_bytes,
        "sync_ns": summed(every),
    }


def summed(histograms: Iterable[Histogram]) -> Histogram:
    """One histogram of what several, of the scale of seconds, have counted."""
    whole = Histogram(SECONDS)
    for histogram in histograms:
        whole.total += histogram.total
        for index, count in enumerate(histogram.counts):
            whole.counts[index] += count
    return whole
