"""From an event to Spark's sink at 1,000 events a second on one partition: our source over one that
makes the same events in Python, in one session, to the same sink."""

from __future__ import annotations

import json
import os
import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import SparkSession
from pyspark.sql.datasource import (
    DataSource,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.streaming.datasource import ReadLimit

from bench.harness import (
    Node,
    in_child,
    median_ratio,
    nats_connection,
    node,
    report,
    row,
    work_directory,
)
from bench.spark import session

EVENTS_PER_S = 1_000
WARM_S = 15
SUBJECT = "bench.latency"
PACE_S = 0.005
ROUNDS = 4


def publish(port: int, seconds: float) -> None:
    """An event a millisecond; its value is the time it was made, in Unix nanoseconds."""
    sock = nats_connection(port)
    began = time.time_ns()
    sent = 0
    while sent < seconds * EVENTS_PER_S:
        due = (time.time_ns() - began) * EVENTS_PER_S // 10**9
        if due > sent:
            stamps = [b"%019d" % (began + n * 10**9 // EVENTS_PER_S) for n in range(sent, due)]
            sock.sendall(b"".join(b"PUB %s 19\r\n%s\r\n" % (SUBJECT.encode(), s) for s in stamps))
            sent = due
        time.sleep(PACE_S)
    sock.close()


class Events(InputPartition):
    def __init__(self, start: int, end: int) -> None:
        super().__init__(start)
        self.start, self.end = start, end


class EventReader(DataSourceStreamReader):
    """The same events without a broker; offsets are milliseconds since `began`."""

    def __init__(self, options: dict[str, str]) -> None:
        self.began = int(options["began"])

    def _now(self) -> int:
        return (time.time_ns() - self.began) * EVENTS_PER_S // 10**9

    def initialOffset(self) -> dict[str, int]:
        return {"at": self._now()}

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:
        return {"at": self._now()}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[Events]:
        return [Events(start["at"], end["at"])]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Events)
        numbers = range(partition.start, partition.end)
        values = [b"%019d" % (self.began + n * 10**9 // EVENTS_PER_S) for n in numbers]
        if values:
            yield pa.RecordBatch.from_arrays([pa.array(values, pa.binary())], ["value"])


class EventSource(DataSource):
    @classmethod
    def name(cls) -> str:
        return "events"

    def schema(self) -> str:
        return "value binary"

    def streamReader(self, schema: Any) -> EventReader:
        return EventReader(dict(self.options))


class LatencyWriter(DataSourceStreamArrowWriter):
    def __init__(self, file: str) -> None:
        self.file = file

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        with Path(self.file).open("a") as output:
            for batch in iterator:
                made = pc.cast(pc.cast(batch.column("value"), pa.string()), pa.int64())
                now = time.time_ns()
                latencies = pc.subtract(pa.scalar(now), made).to_pylist()
                output.write(json.dumps([now, latencies]) + "\n")
        return WriterCommitMessage()


class LatencySink(DataSource):
    @classmethod
    def name(cls) -> str:
        return "latency"

    def streamWriter(self, schema: Any, overwrite: bool) -> LatencyWriter:
        return LatencyWriter(self.options["file"])


def latencies_ms(
    spark: SparkSession, frame: Any, directory: Path, name: str, seconds: float
) -> dict[str, float]:
    """Run the query so long; percentiles of what came after it was warm."""
    file = directory / f"{name}-{time.monotonic_ns()}"
    query = (
        frame.select("value")
        .writeStream.format("latency")
        .option("file", str(file))
        .option("checkpointLocation", f"{file}-checkpoint")
        .trigger(processingTime="0 seconds")
        .start()
    )
    while not file.exists():
        time.sleep(0.1)
    time.sleep(WARM_S)
    warm = time.time_ns()
    time.sleep(seconds)
    query.stop()
    found = [json.loads(line) for line in file.read_text().splitlines()]
    taken = sorted(ns / 1e6 for now, all_ns in found if now > warm for ns in all_ns)
    assert len(taken) > 0.5 * seconds * EVENTS_PER_S, len(taken)
    cuts = statistics.quantiles(taken, n=100)
    return {"p50": cuts[49], "p99": cuts[98]}


def measure(spark: SparkSession, running: Node, directory: Path, seconds: float) -> list[Any]:
    spark.dataSource.register(EventSource)
    spark.dataSource.register(LatencySink)
    port, rounds = running.port, []

    def publishing() -> None:
        publish(port, WARM_S + seconds + 25)

    for _ in range(ROUNDS):
        made = spark.readStream.format("events").option("began", str(time.time_ns())).load()
        synthetic = latencies_ms(spark, made, directory, "synthetic", seconds)
        child = in_child(publishing)
        frame = spark.readStream.format("bascule").options(
            server=running.addresses["http"], stream="latency", columns="value"
        )
        ours = latencies_ms(spark, frame.load(), directory, "ours", seconds)
        os.kill(child, 9)
        os.waitpid(child, 0)
        rounds.append((ours, synthetic))
    return rounds


def run(*, quick: bool = False) -> None:
    with work_directory() as directory, node(directory) as running:
        running.create("latency", SUBJECT)
        spark = session(directory)
        try:
            rounds = measure(spark, running, directory, 10 if quick else 30)
        finally:
            spark.stop()
    rows = []
    for which, bar in (("p50", 1.25), ("p99", None)):
        ratios = median_ratio([a[which] for a, _ in rounds], [b[which] for _, b in rounds])
        figure = f"event to sink at 1,000/s, {which} in ms, over a source in Python"
        rows.append(row(figure, ratios, at_most=bar) if bar else {"figure": figure, **ratios})
    report("spark_latency", rows)
