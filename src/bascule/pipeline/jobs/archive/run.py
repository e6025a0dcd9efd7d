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
from bascule.pipeline.jobs.archive.malformed import malformed_reasons
from bascule.pipeline.jobs.archive.plan import decode_position
from bascule.pipeline.jobs.archive.spec import ArchiveSpec
from bascule.pipeline.jobs.model import NO_PROGRESS, JobProgress, JobResult, Series, Sum, Table
from bascule.pipeline.trigger import trigger_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from bascule.pipeline.lake.model import LakeTable

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
    rows, size = _size(endpoints.main)
    malformed, _ = _size(endpoints.side)
    began = time.monotonic()
    checkpoint = spec.checkpoint or tempfile.mkdtemp(prefix="bascule-archive-")
    try:
        watch.await_query(_start(spark, spec, checkpoint))
    finally:
        if spec.checkpoint is None:
            shutil.rmtree(checkpoint, ignore_errors=True)
    seconds = time.monotonic() - began
    rows_after, size_after = _size(endpoints.main)
    committed = _finish(endpoints, progress)
    return _result(
        endpoints,
        begun=before,
        rows=rows_after - rows,
        malformed=_size(endpoints.side)[0] - malformed,
        bytes=size_after - size,
        seconds=seconds,
        committed=committed,
        watch=watch,
    )


def _start(spark: SparkSession, spec: ArchiveSpec, checkpoint: str) -> StreamingQuery:
    from bascule.pipeline.jobs.archive.data_source import FORMAT, ArchiveDataSource, spec_option
    from bascule.pipeline.session import active_session, register

    register(spark, ArchiveDataSource)
    options = spec_option(spec)
    trigger: Any = trigger_of(spec.trigger)
    writer = (
        spark.readStream.format(FORMAT)
        .options(**options)
        .load()
        .writeStream.format(FORMAT)
        .queryName(spec.name)
        .options(**options, checkpointLocation=checkpoint)
        .trigger(**trigger)
    )
    with active_session(spark):
        return writer.start()


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


def _size(table: LakeTable | None) -> tuple[int, int]:
    """Rows and bytes of a table."""
    snapshot = None if table is None else table.snapshot()
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
    begun: dict[int, int],
    rows: int,
    malformed: int,
    bytes: int,
    seconds: float,
    committed: bool,
    watch: _Watch,
) -> JobResult:
    spec = endpoints.spec
    held, spans = endpoints.read_state()
    written = {p: (begun.get(p, low), high) for p, (low, high) in spans.items()}
    offsets = sum(high - low for low, high in written.values())
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
            "offsets": offsets,
            "rows": rows,
            "malformed": malformed,
            "malformed_total": _size(endpoints.side)[0],
            "bytes": bytes,
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
            *_reasons(endpoints, written, watch.progress),
        ),
        series=(Series("Archived", "seconds", "offsets", tuple(watch.points)),),
        sum=sum_of(offsets, rows=rows, malformed=malformed),
    )


def sum_of(offsets: int, *, rows: int, malformed: int) -> Sum:
    """Each archived offset is a row, a malformed record, or was removed by compaction before."""
    parts = [("rows", rows), ("malformed", malformed)]
    if offsets != rows + malformed:
        parts.append(("compacted away", offsets - rows - malformed))
    return Sum(tuple(parts), ("offsets", offsets))


def _reasons(
    endpoints: ArchiveEndpoints, written: dict[int, tuple[int, int]], progress: JobProgress
) -> tuple[Table, ...]:
    """Why records of this run were malformed."""
    if endpoints.side is None:
        return ()
    try:
        table = malformed_reasons(endpoints.side, written)
    except (BasculeError, OSError) as error:
        progress.say(f"the reasons of malformed records could not be read: {error}")
        return ()
    return () if table is None else (table,)
