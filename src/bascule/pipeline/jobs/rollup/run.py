"""Runs a rollup: registers the stream as a view, runs the SQL and writes to the table or stream."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import functions as f

from bascule.errors import ConfigError
from bascule.pipeline.declare.validation import option_text
from bascule.pipeline.jobs.model import NO_PROGRESS, JobProgress, JobResult
from bascule.pipeline.jobs.rollup.spec import BATCH, VIEW, RollupSpec
from bascule.pipeline.jobs.tables import TableSpec
from bascule.pipeline.lag import Lags, QueryState
from bascule.pipeline.query_report import series_of, table_of
from bascule.pipeline.session import active_session
from bascule.pipeline.trigger import trigger_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

POLL_S: Final = 1
_WITH: Final = re.compile(r"(?:\s|--[^\n]*\n)*WITH\s", re.IGNORECASE)
SINK_COLUMNS: Final = ("value", "key", "subject", "headers", "partition")
"""Columns that the sink uses by name. Other columns become the JSON of the value."""


def rollup_frame(spark: SparkSession, spec: RollupSpec) -> DataFrame:
    """The result of the SQL as a streaming frame for the table or the sink.

    Raises: ConfigError for a watermark column that does not exist; errors of Spark for the SQL.
    """
    records = spark.readStream.format("bascule").options(**spec.source).load()
    watermark = spec.watermark
    if watermark is not None:
        if watermark.expression:
            records = records.withColumn(watermark.column, f.expr(watermark.expression))
        elif watermark.column not in records.columns:
            raise ConfigError(
                f"rollup.watermark.column {watermark.column!r} is not a column of the stream, and "
                "rollup.watermark.expression, which would create it, is not set"
            )
        records = records.withWatermark(watermark.column, watermark.delay)
    rows = spark.sql(sql_over_frame(spec.sql), records=records)
    return rows if spec.sink is None else sink_rows(rows)


def sql_over_frame(sql: str) -> str:
    """The SQL as a template with the frame `records` as a parameter. No temporary view remains."""
    text = sql.replace("{", "{{").replace("}", "}}")
    view = "WITH {} AS (SELECT * FROM {{{}}})".format(VIEW, VIEW)  # noqa: S608, UP032
    own = _WITH.match(text)
    return f"{view}, {text[own.end() :]}" if own else f"{view}\n{text}"


def lake_options(table: TableSpec) -> dict[str, str]:
    """The options of `bascule_lake` for a table."""
    sql_over_frame = {"format": table.format, "location": table.location, "name": table.name}
    sql_over_frame["partitionBy"] = ", ".join(table.partition_by)
    catalog = {f"catalog.{name}": text for name, text in table.catalog.items()}
    return {name: text for name, text in {**sql_over_frame, **catalog}.items() if text}


def sink_of(spec: RollupSpec) -> tuple[str, dict[str, str]]:
    """Format and options of the target."""
    if spec.table is not None:
        return "bascule_lake", lake_options(spec.table)
    assert spec.sink is not None, "the spec says so"
    own = {name.lower() for name in spec.sink}
    from_source: dict[str, Any] = {
        name: spec.source[name]
        for name in ("server", "retryTimeout")
        if name in spec.source and name.lower() not in own
    }
    given = {**from_source, **spec.sink}
    return "bascule", {name: option_text(value) for name, value in given.items()}


def stream_writer(frame: DataFrame, spec: RollupSpec) -> DataStreamWriter:
    """The stream writer of the frame.

    Spark supports output mode `update` for Python sinks only through `foreachBatch`.
    """
    format, options = sink_of(spec)
    if spec.mode == "append":
        return frame.writeStream.format(format).options(**options)
    if spec.table is None:
        return frame.writeStream.foreachBatch(_to_stream(options))
    from bascule.pipeline.lake_sink import foreach_batch_writer

    return frame.writeStream.foreachBatch(foreach_batch_writer({**options, "batchColumn": BATCH}))


def _to_stream(options: dict[str, str]) -> Callable[[DataFrame, int], None]:
    """Publish each batch. A batch that Spark repeats is published again."""

    def write(rows: DataFrame, batch: int) -> None:
        rows.write.format("bascule").options(**options).mode("append").save()

    return write


def sink_rows(frame: DataFrame) -> DataFrame:
    """The rows for the sink. Without a column `value`, the JSON of the other columns is the
    value."""
    if "value" in frame.columns:
        return frame
    sql_over_frame = [f.col(name) for name in frame.columns if name in SINK_COLUMNS]
    rest = [f.col(name) for name in frame.columns if name not in SINK_COLUMNS]
    if not rest:
        raise ConfigError("the rollup's SQL returns no column for the value")
    return frame.select(*sql_over_frame, f.to_json(f.struct(*rest)).cast("binary").alias("value"))


def run(spark: SparkSession, spec: RollupSpec, progress: JobProgress = NO_PROGRESS) -> JobResult:
    """Run to the current end of the stream, or, with an interval, until stopped.

    Raises: BasculeError; exceptions of Spark.
    """
    register(spark, spec)
    started = time.monotonic()
    progress.begin("rollup", None)
    writer = (
        stream_writer(rollup_frame(spark, spec), spec)
        .queryName(spec.name)
        .outputMode(spec.mode)
        .option("checkpointLocation", spec.checkpoint)
        .trigger(**trigger_of(spec.trigger))
    )
    with active_session(spark):
        query = writer.start()
    lags = Lags()
    try:
        state = await_query(query, lags, progress)
    finally:
        query.stop()
    return result_of(spec, state, time.monotonic() - started)


def register(spark: SparkSession, spec: RollupSpec) -> None:
    from bascule.pipeline import session
    from bascule.pipeline.lake_sink import LakeDataSource
    from bascule.pipeline.source import BasculeDataSource

    session.register(spark, BasculeDataSource)
    if spec.table is not None:
        session.register(spark, LakeDataSource)


def await_query(query: StreamingQuery, lags: Lags, progress: JobProgress) -> QueryState | None:
    """Wait for the end of a query and report progress. None if it had no batch."""
    seen, state = -1, None
    while True:
        ended = query.awaitTermination(POLL_S)
        for report in query.recentProgress:
            if report["batchId"] > seen:
                seen, state = report["batchId"], lags.on_progress(report)
        if state is not None:
            progress.advance(state.rows)
        if ended:
            return state


def result_of(spec: RollupSpec, state: QueryState | None, seconds: float) -> JobResult:
    rows = state.rows if state else 0
    summary: dict[str, Any] = {
        "rows": rows,
        "late_rows": state.late_rows if state else 0,
        "batches": state.batches if state else 0,
        "lag": state.lag if state else 0,
        "seconds": round(seconds, 3),
        "rows_per_s": round(rows / seconds) if seconds else 0,
    }
    if spec.mode == "append":
        # Spark does not know the rows written in `foreachBatch`.
        summary["rows_written"] = state.rows_written if state else 0
    return JobResult(
        kind="rollup",
        name=spec.name,
        ok=True,
        summary=summary,
        tables=table_of([state] if state else []),
        series=series_of(state) if state else (),
    )
