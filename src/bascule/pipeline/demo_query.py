"""The demo's query: copies a stream of flights to Parquet and summarises the files.

    python -m bascule.pipeline.demo_query --server URL --stream NAME --output DIR

It runs as a separate program, so that its parent can end Java together with it. It prints its
progress as JSON, one object per line: `{"event": "started"}`, `{"event": "progress", "rows": n}`,
`{"event": "written", ...}` and `{"event": "summary", ...}`.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming.query import StreamingQuery

from bascule.pipeline.session import SHORT_LIVED, local_session
from bascule.pipeline.source import BasculeDataSource

FLIGHT: Final = (
    "year int, month int, day int, dep_time int, sched_dep_time int, dep_delay int, arr_time int, "
    "sched_arr_time int, arr_delay int, carrier string, flight int, tailnum string, "
    "origin string, dest string, air_time int, distance int, hour int, minute int, "
    "time_hour timestamp"
)
RECORDS_PER_TRIGGER: Final = 50_000
"""Small enough to show progress, large enough to amortise the planning of a batch."""
THREADS: Final = 2
POLL_SECONDS: Final = 1


def say(event: str, **facts: Any) -> None:
    sys.stdout.write(json.dumps({"event": event, **facts}) + "\n")
    sys.stdout.flush()


def flights_of(spark: SparkSession, *, server: str, stream: str) -> DataFrame:
    """The stream as a streaming frame with one column for each field of a flight."""
    records = (
        spark.readStream.format("bascule")
        .option("server", server)
        .option("stream", stream)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", RECORDS_PER_TRIGGER)
        .option("minPartitions", THREADS)
        .load()
    )
    flight = f.from_json(f.col("value").cast("string"), FLIGHT).alias("flight")
    return records.select(
        "offset", "timestamp", "subject", f.col("key").cast("string").alias("key"), flight
    ).select("offset", "timestamp", "subject", "key", "flight.*")


def rows_so_far(query: StreamingQuery) -> int:
    return sum(progress["numInputRows"] for progress in query.recentProgress)


def write_parquet(flights: DataFrame, folder: Path) -> int:
    """Run until everything that the stream held at the start is in Parquet files. Return the
    rows."""
    query = (
        flights.writeStream.format("parquet")
        .option("path", str(folder / "flights.parquet"))
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    while not query.awaitTermination(POLL_SECONDS):
        say("progress", rows=rows_so_far(query))
    return rows_so_far(query)


def summarise(spark: SparkSession, folder: Path) -> dict[str, Any]:
    """Aggregate the Parquet files for the checks and the chart."""
    flights = spark.read.parquet(str(folder / "flights.parquet"))
    [totals] = flights.agg(
        f.count("*").alias("rows"),
        f.sum("distance").alias("distance_sum"),
        f.count_distinct("offset").alias("offsets"),
        f.min("offset").alias("first"),
        f.max("offset").alias("last"),
        f.sum((f.col("key").eqNullSafe(f.col("tailnum"))).cast("int")).alias("keys_matching"),
    ).collect()
    by_hour = (
        flights.groupBy("carrier", "hour")
        .agg(f.count("dep_time").alias("departures"), f.avg("dep_delay").alias("delay_mean"))
        .orderBy("carrier", "hour")
        .collect()
    )
    return {**totals.asDict(), "by_hour": [row.asDict() for row in by_hour]}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bascule.pipeline.demo_query")
    parser.add_argument("--server", required=True)
    parser.add_argument("--stream", required=True)
    parser.add_argument("--output", required=True, type=Path)
    arguments = parser.parse_args()
    spark = local_session(
        arguments.output, name="bascule-demo", master=f"local[{THREADS}]", settings=SHORT_LIVED
    )
    try:
        spark.dataSource.register(BasculeDataSource)
        say("started", version=spark.version)
        flights = flights_of(spark, server=arguments.server, stream=arguments.stream)
        started = time.perf_counter()
        rows = write_parquet(flights, arguments.output)
        say("written", rows=rows, seconds=time.perf_counter() - started)
        say("summary", **summarise(spark, arguments.output))
    finally:
        spark.stop()


if __name__ == "__main__":
    main()
