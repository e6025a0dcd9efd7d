"""What measurements on Spark need: one local session, sources that cost nothing, timed queries."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
)
from pyspark.sql.streaming.datasource import ReadLimit, SupportsTriggerAvailableNow

from bascule.pipeline.session import local_session

ROOT: Final = Path(__file__).resolve().parents[1]
KAFKA_JARS: Final = (
    # The newest that the registry has: 4.3.0 is not there, and 4.2.0 runs on Spark 4.3.0.
    "org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0",
    "org.apache.spark:spark-token-provider-kafka-0-10_2.13:4.0.0",
    "org.apache.kafka:kafka-clients:3.9.2",
    "org.apache.commons:commons-pool2:2.13.1",
)
BATCH_ROWS: Final = 65_536


def kafka_jars(folder: Path) -> str:
    """Spark's Kafka connector out of Maven, as `spark.jars` takes it."""
    folder.mkdir()
    (folder / "pom.xml").write_text(
        "<project><modelVersion>4.0.0</modelVersion><groupId>bench</groupId>"
        "<artifactId>bench</artifactId><version>1</version></project>"
    )
    for artifact in KAFKA_JARS:
        subprocess.run(
            ["mvn", "-q", "-B", "dependency:copy", f"-Dartifact={artifact}",
             "-Dmdep.useBaseVersion=true", f"-DoutputDirectory={folder}"],
            cwd=folder, check=True, stdout=sys.stderr,
        )  # fmt: skip
    return ",".join(str(path) for path in sorted(folder.glob("*.jar")))


def session(folder: Path, **settings: str) -> SparkSession:
    """`local[2]` with the JVM as it comes, whose workers find this package."""
    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), *sys.path])
    chosen = {"spark.driver.memory": "4g", **settings}
    spark = local_session(folder, name="bench", master="local[2]", settings=chosen)
    spark.sparkContext.setLogLevel("ERROR")
    spark.dataSource.register(Prebuilt)
    return spark


def seconds_to_noop(frame: DataFrame) -> float:
    began = time.perf_counter()
    frame.write.format("noop").mode("overwrite").save()
    return time.perf_counter() - began


def seconds_available_now(frame: DataFrame, folder: Path, sink: str = "noop", **more: str) -> float:
    """A whole streaming query with a new checkpoint, from start to end."""
    checkpoint = folder / f"checkpoint-{time.monotonic_ns()}"
    began = time.perf_counter()
    query = (
        frame.writeStream.format(sink)
        .option("checkpointLocation", str(checkpoint))
        .options(**more)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return time.perf_counter() - began


# A source that yields the same Arrow batch again and again: what Spark can take from Python.


def like(batch: pa.RecordBatch) -> bytes:
    """`batch` as IPC, for the option `file` of `Prebuilt`."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return bytes(sink.getvalue())


class Slice(InputPartition):
    def __init__(self, rows: int) -> None:
        super().__init__(rows)
        self.rows = rows


class _Yields:
    def __init__(self, options: dict[str, str]) -> None:
        self.rows = int(options["rows"])
        self.tasks = int(options.get("tasks", "2"))
        self.path = options["file"]

    def slices(self, rows: int) -> list[Slice]:
        edges = [rows * n // self.tasks for n in range(self.tasks + 1)]
        return [Slice(b - a) for a, b in pairwise(edges)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Slice)
        [batch] = pa.ipc.open_stream(Path(self.path).read_bytes())
        left = partition.rows
        while left > 0:
            count = min(left, batch.num_rows)
            yield batch.slice(0, count)
            left -= count


class PrebuiltReader(_Yields, DataSourceReader):
    def partitions(self) -> list[Slice]:
        return self.slices(self.rows)


class PrebuiltStream(_Yields, DataSourceStreamReader, SupportsTriggerAvailableNow):
    def initialOffset(self) -> dict[str, int]:
        return {"at": 0}

    def prepareForTriggerAvailableNow(self) -> None:
        pass

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:
        return {"at": self.rows}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[Slice]:
        return self.slices(end["at"] - start["at"])


class Prebuilt(DataSource):
    """Options: `file` of one Arrow batch, `rows` in all, `tasks`."""

    @classmethod
    def name(cls) -> str:
        return "prebuilt"

    def schema(self) -> Any:
        from pyspark.sql.pandas.types import from_arrow_schema

        return from_arrow_schema(pa.ipc.open_stream(Path(self.options["file"]).read_bytes()).schema)

    def reader(self, schema: Any) -> PrebuiltReader:
        return PrebuiltReader(dict(self.options))

    def streamReader(self, schema: Any) -> PrebuiltStream:
        return PrebuiltStream(dict(self.options))
