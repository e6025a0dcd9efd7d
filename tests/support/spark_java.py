"""The Java of Spark in tests: C1 alone, and Spark's classes from an archive.

A Spark of a test lives for seconds, and spends most of them loading and compiling classes. The
archive (class data sharing of the JVM) holds them loaded and verified: `make spark-classes` writes
it from a run of this program, and a JVM whose jars are others than the archive's ignores it. A JVM
that cannot write one (OpenJ9 has another way) leaves the tests without: they take longer.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ARCHIVE = Path(__file__).resolve().parents[2] / "build" / "spark-classes" / "spark.jsa"
SHORT = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


def archive_options() -> str:
    """Empty without an archive. Warnings about it would be in the output of Spark's programs."""
    return f"-XX:SharedArchiveFile={ARCHIVE} -Xlog:cds=off" if ARCHIVE.exists() else ""


def options() -> str:
    """Of a Java that lives for seconds."""
    return f"{SHORT} {archive_options()}".strip()


def environment() -> dict[str, str]:
    """For every program that starts Spark: options of `spark-submit`, and of what it asks for its
    command."""
    return {
        "SPARK_SUBMIT_OPTS": options(),
        "SPARK_LAUNCHER_OPTS": SHORT,
    }


def write_archive(archive: Path) -> None:
    """Do a little of everything that tests do; the JVM writes the archive as it ends."""
    from bascule.pipeline.session import local_session

    archive.parent.mkdir(parents=True, exist_ok=True)
    options = f"{SHORT} -XX:ArchiveClassesAtExit={archive} -Xlog:cds=off"
    os.environ.update({"SPARK_SUBMIT_OPTS": options, "SPARK_LAUNCHER_OPTS": SHORT})
    with tempfile.TemporaryDirectory() as folder:
        spark = local_session(Path(folder), master="local[2]")
        spark.sparkContext.setLogLevel("OFF")
        read_and_write(spark, Path(folder))
        spark.stop()
        # `stop` leaves Java running, and a killed one writes nothing.
        gateway = type(spark.sparkContext)._gateway
        assert gateway is not None
        gateway.shutdown()
        gateway.proc.stdin.close()
        gateway.proc.wait(300)
    assert archive.exists(), "Java wrote no archive of its classes"


def read_and_write(spark: Any, folder: Path) -> None:
    """SQL, Python functions, files, and a stream with a window."""
    import pyarrow as pa

    def same(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from batches

    table = str(folder / "table")
    frame = spark.range(100).selectExpr("id", "timestamp_seconds(id) AS at", "id % 7 AS key")
    frame.mapInArrow(same, frame.schema).write.parquet(table)
    spark.read.parquet(table).createOrReplaceTempView("numbers")
    spark.sql("SELECT key, count(*) FROM numbers GROUP BY key ORDER BY key").collect()
    query = (
        spark.readStream.schema(frame.schema)
        .parquet(table)
        .withWatermark("at", "1 minute")
        .groupBy("at")
        .count()
        .writeStream.foreachBatch(lambda batch, _: batch.count())
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


if __name__ == "__main__":
    write_archive(ARCHIVE)
