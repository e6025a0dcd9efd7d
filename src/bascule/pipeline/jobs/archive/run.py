"""Runs an archive: starts the streaming query, reports progress and builds the result."""

from __future__ import annotations

import shutil
import tempfile
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import msgspec

from bascule.errors import BasculeError
from bascule.pipeline.jobs.archive.endpoints import ArchiveEndpoints, open_endpoints
from bascule.pipeline.jobs.archive.plan import decode_position
from bascule.pipeline.jobs.archive.spec import ArchiveSpec
from bascule.pipeline.jobs.model import NO_PROGRESS, JobProgress, JobResult, Series, Table
from bascule.pipeline.trigger import trigger_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

POLL_S: Final = 1
"""Interval between progress reports."""


def run(spark: SparkSession, spec: ArchiveSpec, progress: JobProgress = NO_PROGRESS) -> JobResult:
    """Archive a stream into its table.

    With the trigger `available-now` the run ends at the end that the stream had at the start. With
    an interval it runs until it is interrupted. Whatever happened to earlier runs, the table holds
    each offset once afterwards.

    Raises: StreamingQueryException for an error in a batch; UnknownStream, ConfigError, DataLoss
    and ForeignTable before the first batch.
    """
    if spec.tasks == 0:
        spec = msgspec.structs.replace(spec, tasks=spark.sparkContext.defaultParallelism)
    endpoints = open_endpoints(spec)
    held, spans = endpoints.read_state()
    before = {p: end for p, (_, end) in spans.items()}
    watermark = {p: end for p, (_, end) in held.partitions.items()}
    first = {p: before.get(p, start) for p, (start, _) in held.partitions.items()}
    waiting = sum(watermark[p] - first[p] for p in first)
    endless = "availableNow" not in trigger_of(spec.trigger)
    progress.begin(f"archive {spec.stream}", None if endless else max(0, waiting))
    watch = _Watch(progress, sum(first.values()))
    rows, size = _size(endpoints)
    began = time.monotonic()
    checkpoint = spec.checkpoint or tempfile.mkdtemp(prefix="bascule-archive-")
    try:
        watch.await_query(_start(spark, spec, checkpoint))
    finally:
        if spec.checkpoint is None:
            shutil.rmtree(checkpoint, ignore_errors=True)
    seconds = time.monotonic() - began
    rows_after, size_after = _size(endpoints)
    committed = _finish(endpoints, progress)
    return _result(
        endpoints,
        rows=rows_after - rows,
        bytes=size_after - size,
        seconds=seconds,
        committed=committed,
        watch=watch,
    )


def _start(spark: SparkSession, spec: ArchiveSpec, checkpoint: str) -> StreamingQuery:
    from bascule.pipeline.jobs.archive.data_source import FORMAT, ArchiveDataSource, spec_option

    spark.dataSource.register(ArchiveDataSource)
    options = spec_option(spec)
    trigger: Any = trigger_of(spec.trigger)
    return (
        spark.readStream.format(FORMAT)
        .options(**options)
        .load()
        .writeStream.format(FORMAT)
        .queryName(spec.name)
        .options(**options, checkpointLocation=checkpoint)
        .trigger(**trigger)
        .start()
    )


@dataclass
class _Watch:
    """Follows a query and reports its progress."""

    progress: JobProgress
    first: int
    """Sum of the start offsets of all partitions."""
    batches: int = 0

    def __post_init__(self) -> None:
        self.points: list[tuple[float, float]] = [(0.0, 0.0)]
        """(Seconds since the start, offsets archived)."""

    def await_query(self, query: StreamingQuery) -> None:
        """Follow the query until it ends. An interrupt stops it. Raises:
        StreamingQueryException."""
        began = time.monotonic()
        try:
            while not query.awaitTermination(POLL_S):
                self._read_progress(query, began)
        except KeyboardInterrupt:
            self.progress.say("interrupted: the current batch is abandoned")
            query.stop()
        finally:
            if query.isActive:
                query.stop()
        self._read_progress(query, began)

    def _read_progress(self, query: StreamingQuery, began: float) -> None:
        last = query.lastProgress
        if last is None or not last["sources"] or not last["sources"][0]["endOffset"]:
            return
        end = msgspec.json.decode(last["sources"][0]["endOffset"])
        done = sum(decode_position({k: v for k, v in end.items() if k != "again"}).values())
        done = max(0, done - self.first)
        if done > self.points[-1][1]:
            self.points.append((time.monotonic() - began, done))
            self.progress.advance(done)
        self.batches = last["batchId"] + 1


def _size(endpoints: ArchiveEndpoints) -> tuple[int, int]:
    snapshot = endpoints.main.snapshot()
    return (0, 0) if snapshot is None else (snapshot.rows, snapshot.bytes)


def _finish(endpoints: ArchiveEndpoints, progress: JobProgress) -> bool:
    """Compact and commit offsets at the end of a run. Return whether the offsets are committed."""
    if endpoints.spec.compact_at_end:
        progress.say("compacting small files")
        endpoints.compact_and_expire()
    if not endpoints.spec.commit_offsets:
        return False
    try:
        endpoints.commit_offsets()
    except BasculeError as error:
        progress.say(f"the table is complete, but its offsets could not be committed: {error}")
        return False
    return True


def _result(
    endpoints: ArchiveEndpoints,
    *,
    rows: int,
    bytes: int,
    seconds: float,
    committed: bool,
    watch: _Watch,
) -> JobResult:
    spec = endpoints.spec
    held, spans = endpoints.read_state()
    malformed = 0
    if endpoints.side is not None and (snapshot := endpoints.side.snapshot()) is not None:
        malformed = snapshot.rows
    lag = 0
    table = []
    for partition, (start, end) in sorted(held.partitions.items()):
        low, high = spans.get(partition, (start, start))
        lag += max(0, end - high)
        table.append((partition, start, end, low, high, max(0, end - high)))
    return JobResult(
        kind="archive",
        name=spec.name,
        ok=True,
        summary={
            "stream": spec.stream,
            "table": str(endpoints.main.address),
            "rows": rows,
            "bytes": bytes,
            "malformed_total": malformed,
            "batches": watch.batches,
            "seconds": round(seconds, 3),
            "rows_per_s": round(rows / seconds) if seconds else 0,
            "lag": lag,
            "offsets_committed": committed,
        },
        tables=(
            Table(
                "Partitions",
                ("partition", "log start", "watermark", "lake start", "lake end", "lag"),
                tuple(table),
            ),
        ),
        series=(Series("Archived", "seconds", "offsets", tuple(watch.points)),),
    )
