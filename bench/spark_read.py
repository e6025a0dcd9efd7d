"""Spark reads a stream of 128 B records, in batch and with AvailableNow: over a source of prebuilt
Arrow batches, and over Spark's Kafka connector at our client listener. One percent, pushed down."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

import bascule
from bench.harness import Node, median_ratio, node, report, row, work_directory
from bench.ingest import publish
from bench.spark import (
    BATCH_ROWS,
    kafka_jars,
    like,
    seconds_available_now,
    seconds_to_noop,
    session,
)

RECORDS = 10_000_000
ROUNDS = 5


def sources(spark: SparkSession, running: Node, file: Path, records: int) -> dict[str, Any]:
    """A frame to read in batch of each source."""
    return {
        "ours": spark.read.format("bascule")
        .options(server=running.addresses["http"], stream="read", minPartitions="2"),
        "prebuilt": spark.read.format("prebuilt").options(file=str(file), rows=str(records)),
        "kafka": spark.read.format("kafka").options(**kafka_options(running)),
    }  # fmt: skip


def kafka_options(running: Node) -> dict[str, str]:
    return {
        "kafka.bootstrap.servers": running.addresses["client"],
        "subscribe": "read",
        "startingOffsets": "earliest",
        # One partition is one task otherwise, and half of the machine waits.
        "minPartitions": "2",
    }


def streams(spark: SparkSession, running: Node, file: Path, records: int) -> dict[str, Any]:
    return {
        "ours": spark.readStream.format("bascule")
        .options(server=running.addresses["http"], stream="read", startingOffsets="earliest")
        .option("minPartitions", "2"),
        "prebuilt": spark.readStream.format("prebuilt").options(file=str(file), rows=str(records)),
        "kafka": spark.readStream.format("kafka").options(**kafka_options(running)),
    }  # fmt: skip


def write_batch_like(running: Node, file: Path) -> None:
    """One Arrow batch of real rows, in the source's columns, for the ceiling to repeat."""
    from bascule.pipeline.source.columns import RowProjector
    from bascule.pipeline.source.options import SourceOptions

    with bascule.connect_sync(running.addresses["http"]) as client:
        fetched = next(client.read_batches("read", batch_bytes=16 << 20))
    projector = RowProjector(SourceOptions.parse({"stream": "read"}), "read")
    file.write_bytes(like(projector.project(fetched.slice(0, BATCH_ROWS))))


def measure(spark: SparkSession, running: Node, directory: Path, records: int) -> dict[str, Any]:
    """Seconds of each round, by kind and source."""
    file = directory / "batch.arrow"
    write_batch_like(running, file)
    seconds: dict[str, dict[str, list[float]]] = {}
    for kind, readers in (
        ("batch", sources(spark, running, file, records)),
        ("stream", streams(spark, running, file, records)),
    ):
        taken = seconds.setdefault(kind, {name: [] for name in readers})
        for turn in range(ROUNDS + 1):
            for name, reader in readers.items():
                frame = reader.load()
                if kind == "batch":
                    spent = seconds_to_noop(frame)
                else:
                    spent = seconds_available_now(frame, directory)
                if turn:  # The first warms Java up.
                    taken[name].append(spent)
    return seconds


def pushed_down(spark: SparkSession, running: Node, records: int) -> list[dict[str, float]]:
    """Seconds of a whole read, of one percent of it, and of a job that reads nothing."""
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    first = records * 6 // 10
    options = {"server": running.addresses["http"], "stream": "read", "pushdown": "true"}
    wheres = {
        "all": "offset >= 0",
        "percent": f"offset >= {first} and offset < {first + records // 100}",
        "none": "offset < 0",
    }
    rounds = []
    for turn in range(ROUNDS + 1):
        spent = {
            name: seconds_to_noop(
                spark.read.format("bascule").options(**options).load().where(where)
            )
            for name, where in wheres.items()
        }
        if turn:
            rounds.append(spent)
    spark.conf.unset("spark.sql.python.filterPushdown.enabled")
    return rounds


def run(*, quick: bool = False) -> None:
    records = RECORDS // 10 if quick else RECORDS
    with work_directory() as directory:
        with_kafka = shutil.which("mvn") is not None
        jars = kafka_jars(directory / "jars") if with_kafka else ""
        with node(directory) as running:
            running.create("read", "bench.ingest")
            publish(running.port, 128, records)
            running.wait_stored("read", records)
            spark = session(directory, **({"spark.jars": jars} if jars else {}))
            try:
                seconds = measure(spark, running, directory, records)
                percent = pushed_down(spark, running, records)
            finally:
                spark.stop()
    rows = []
    for kind, what in (("batch", "batch read"), ("stream", "AvailableNow")):
        ours = [records / s for s in seconds[kind]["ours"]]
        for name, over, bar in (
            ("prebuilt", "a source of prebuilt Arrow batches", 0.85),
            ("kafka", "Spark's Kafka connector at our listener", 1.2),
        ):
            others = [records / s for s in seconds[kind][name]]
            rows.append(row(f"{what}, rows/s over {over}",
                            {**median_ratio(ours, others), "records": records},
                            at_least=bar))  # fmt: skip
    beyond = [r["percent"] - r["none"] for r in percent]
    whole = [r["all"] - r["none"] for r in percent]
    rows.append(row("one percent pushed down, beyond a job's fixed cost, over the whole read",
                    {**median_ratio(beyond, whole), "rounds": percent}, at_most=0.03))  # fmt: skip
    report("spark_read", rows)
