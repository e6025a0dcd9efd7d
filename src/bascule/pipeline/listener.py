"""A listener on Spark's streaming queries: lag, rows per second, batch durations, late rows.

    from bascule.pipeline import watch

    listener = watch(spark, prometheus_port=9464)     # or registry=...; or neither
    ...
    str(listener)                                     # a line for each query and partition
    listener.lag()                                    # the same as values

The listener sees every query of the Spark session from the moment it is added. It reports lag only
for queries that read Bascule. All values are those of the last micro-batch. An idle query sends no
reports, because it has no lag.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector
from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from bascule.errors import ConfigError
from bascule.pipeline.lag import Lags, PartitionLag, QueryState

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class LagListener(StreamingQueryListener):
    """Collects the progress reports of queries. `watch` adds it to a session."""

    def __init__(self) -> None:
        self._lags = Lags()
        self._spark: SparkSession | None = None
        self._server: Any = None
        self.port: int | None = None
        """Port of the Prometheus endpoint; None without one."""

    def lag(self) -> list[PartitionLag]:
        """The position and lag of each query in each partition, as of its last micro-batch."""
        return self._lags.partitions()

    def queries(self) -> list[QueryState]:
        """The state of each query: rows, late rows, micro-batches."""
        return self._lags.states()

    def __str__(self) -> str:
        lines = []
        for state in self.queries():
            latest = state.latest
            rate = latest.rows_per_s if latest else 0.0
            seconds = latest.seconds if latest else 0.0
            lines.append(
                f"{state.query}: {state.rows:,} rows, {rate:,.0f} rows/s, batch {seconds:.2f} s, "
                f"lag {state.lag:,}, late {state.late_rows:,}"
            )
            lines += [
                f"  {lag.stream or 'stream'}/{lag.partition}: {lag.position:,} of {lag.end:,}, "
                f"lag {lag.lag:,}"
                for lag in self.lag()
                if lag.query == state.query
            ]
        return "\n".join(lines) or "no query has reported yet"

    def register(self, registry: CollectorRegistry) -> None:
        """Register the metrics in the caller's registry."""
        registry.register(_LagCollector(self._lags))

    def serve(self, port: int) -> int:
        """Open a Prometheus endpoint on a port of this machine; 0 picks a free port. Return the
        port.

        Raises: ConfigError if the port is in use.
        """
        registry = CollectorRegistry()
        self.register(registry)
        try:
            self._server, _ = start_http_server(port, registry=registry)
        except (OSError, OverflowError) as error:
            raise ConfigError(f"prometheus_port {port} cannot be opened: {error}") from error
        self.port = int(self._server.server_port)
        return self.port

    def attach(self, spark: SparkSession) -> None:
        spark.streams.addListener(self)
        self._spark = spark

    def close(self) -> None:
        """Remove the listener and close the Prometheus endpoint. Idempotent."""
        if self._spark is not None:
            self._spark.streams.removeListener(self)
            self._spark = None
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802
        """Nothing is known before the first micro-batch."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802
        self._lags.on_progress(event.progress)

    def onQueryIdle(self, event: QueryIdleEvent) -> None:  # noqa: N802
        """The values stay, because the query read nothing."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802
        self._lags.on_terminated(str(event.id), event.exception)


def watch(
    spark: SparkSession,
    *,
    prometheus_port: int | None = None,
    registry: CollectorRegistry | None = None,
) -> LagListener:
    """Add a listener to the streaming queries of `spark`. The caller closes it.

    `prometheus_port` opens a Prometheus endpoint; 0 picks a free port (`listener.port`). `registry`
    registers the metrics in an existing registry.

    Raises: ConfigError if the port is in use.
    """
    listener = LagListener()
    if prometheus_port is not None:
        listener.serve(prometheus_port)
    if registry is not None:
        listener.register(registry)
    listener.attach(spark)
    return listener


class _LagCollector(Collector):
    """Creates the metrics at each scrape. Nothing runs between scrapes."""

    def __init__(self, lags: Lags) -> None:
        self._lags = lags

    def collect(self) -> Iterable[Metric]:
        lag = GaugeMetricFamily(
            "bascule_pipeline_lag_offsets",
            "Offsets between a query and the end of a partition, at its last micro-batch.",
            labels=("query", "stream", "partition"),
        )
        position = GaugeMetricFamily(
            "bascule_pipeline_position",
            "The next offset a query will read of a partition.",
            labels=("query", "stream", "partition"),
        )
        for found in self._lags.partitions():
            labels = (found.query, found.stream, str(found.partition))
            lag.add_metric(labels, found.lag)
            position.add_metric(labels, found.position)
        yield from (lag, position)
        yield from _query_metrics(self._lags.states())


def _query_metrics(states: list[QueryState]) -> Iterable[Metric]:
    counters = {
        "rows": "Rows a query has read.",
        "late_rows": "Rows dropped because they were behind the watermark.",
        "batches": "Micro-batches of a query.",
    }
    for name, help in counters.items():
        counter = CounterMetricFamily(f"bascule_pipeline_{name}", help, labels=("query",))
        for state in states:
            counter.add_metric((state.query,), getattr(state, name))
        yield counter
    gauges = {
        "rows_per_s": ("rows_per_second", "Rows a second of the last micro-batch."),
        "seconds": ("batch_seconds", "Duration of the last micro-batch."),
        "at_s": ("batch_time_seconds", "Unix time of the start of the last micro-batch."),
    }
    for attribute, (name, help) in gauges.items():
        gauge = GaugeMetricFamily(f"bascule_pipeline_{name}", help, labels=("query",))
        for state in states:
            if state.latest is not None:
                gauge.add_metric((state.query,), getattr(state.latest, attribute))
        yield gauge
    active = GaugeMetricFamily(
        "bascule_pipeline_active", "1 while a query runs.", labels=("query",)
    )
    for state in states:
        active.add_metric((state.query,), int(state.active))
    yield active
