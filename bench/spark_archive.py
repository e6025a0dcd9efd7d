"""The archive of a stream of 128 B records, over Spark's own Parquet sink fed by prebuilt batches;
one view of nine tenths history and one tenth tail, over all of it from the log."""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from bascule.pipeline.jobs.archive.run import run as archive
from bascule.pipeline.jobs.archive.spec import ArchiveSpec
from bascule.pipeline.jobs.tables import TableSpec
from bench.harness import Node, median_ratio, node, report, row, work_directory
from bench.ingest import publish
from bench.spark import seconds_available_now, seconds_to_noop, session
from bench.spark_read import write_batch_like

RECORDS = 10_000_000
ROUNDS = 3


def spec(running: Node, table: Path) -> ArchiveSpec:
    return ArchiveSpec(
        name="bench",
        stream="read",
        server=running.addresses["http"],
        table=TableSpec(location=str(table)),
    )


def archive_seconds(spark: SparkSession, running: Node, table: Path, records: int) -> float:
    began = time.perf_counter()
    done = archive(spark, spec(running, table))
    seconds = time.perf_counter() - began
    assert done.ok, done
    assert done.summary["rows"] == records, done.summary
    return seconds


def archives(
    spark: SparkSession, running: Node, directory: Path, records: int
) -> dict[str, list[float]]:
    """Records/s of the archive and of Spark's Parquet sink, round by round."""
    rates: dict[str, list[float]] = {"ours": [], "spark": []}
    file = directory / "batch.arrow"
    write_batch_like(running, file)
    frame = spark.readStream.format("prebuilt").options(file=str(file), rows=str(records)).load()
    for turn in range(ROUNDS + 1):
        table, output = directory / f"lake{turn}", directory / f"parquet{turn}"
        ours = archive_seconds(spark, running, table, records)
        other = seconds_available_now(frame, directory, "parquet", path=str(output))
        if turn:  # The first warms Java up.
            rates["ours"].append(records / ours)
            rates["spark"].append(records / other)
        shutil.rmtree(table)
        shutil.rmtree(output)
    return rates


def views(
    spark: SparkSession, running: Node, directory: Path, records: int
) -> dict[str, dict[str, list[float]]]:
    """Records/s of a whole read and of an aggregate, from the one view and from the log."""
    table = directory / "view"
    tail = records // 10
    archive_seconds(spark, running, table, records)
    publish(running.port, 128, tail)
    running.wait_stored("read", records + tail)
    total = records + tail
    server = running.addresses["http"]

    def frame(**more: str) -> Any:
        options = {"server": server, "stream": "read", **more}
        return spark.read.format("bascule").options(**options).load()

    view = {"archive": f"parquet:{table}"}
    rates: dict[str, dict[str, list[float]]] = {}
    for turn in range(ROUNDS + 2):
        for name, more in (("view", view), ("log", {})):
            began = time.perf_counter()
            [found] = (
                frame(columns="offset", **more).selectExpr("count(*)", "max(offset)").collect()
            )
            spent = {"read": seconds_to_noop(frame(**more))}
            spent["aggregate"] = time.perf_counter() - began - spent["read"]
            assert tuple(found) == (total, total - 1), found
            if turn:
                for kind, seconds in spent.items():
                    rates.setdefault(kind, {}).setdefault(name, []).append(total / seconds)
    return rates


def run(*, quick: bool = False) -> None:
    records = RECORDS // 10 if quick else RECORDS
    with work_directory() as directory, node(directory) as running:
        running.create("read", "bench.ingest")
        publish(running.port, 128, records)
        running.wait_stored("read", records)
        spark = session(directory)
        try:
            rates = archives(spark, running, directory, records)
            seen = views(spark, running, directory, records)
        finally:
            spark.stop()
    report(
        "spark_archive",
        [
            row("archive, rows/s over Spark's Parquet sink fed by prebuilt batches",
                {**median_ratio(rates["ours"], rates["spark"]), "records": records}, at_least=1.5),
            row("one view of history and tail, rows/s over all from the log",
                median_ratio(seen["read"]["view"], seen["read"]["log"]), at_least=0.8),
            row("an aggregate of one column of the view, rows/s over the log",
                median_ratio(seen["aggregate"]["view"], seen["aggregate"]["log"]), at_least=1.5),
        ],
    )  # fmt: skip
