"""Spark's sink, with acks and dedupe on, against the Python client's acked `publish_many`."""

from __future__ import annotations

import statistics
import time
from pathlib import Path
from typing import Any

import bascule
from bascule.client import SyncClient
from bascule.pipeline.session import local_session
from bench.harness import Node, median_ratio, node, report, row, work_directory

MESSAGES = 1_000_000
SIZE = 128
KEYS = 10_000
SUBJECTS = 100
SETTINGS = {"spark.driver.memory": "1g", "spark.sql.session.timeZone": "UTC"}


def messages(name: str, count: int) -> list[tuple[str, bytes, bytes]]:
    value = b"x" * (SIZE - 8)
    return [
        (f"{name}.{n % SUBJECTS}", b"%08d" % n + value, b"key-%05d" % (n % KEYS))
        for n in range(count)
    ]


def frame(spark: Any, name: str, count: int) -> Any:
    """The same messages as rows, in as many tasks as Spark has threads."""
    return spark.range(0, count, 1, 2).selectExpr(
        f"concat('{name}.', id % {SUBJECTS}) AS subject",
        f"concat(lpad(id, 8, '0'), repeat('x', {SIZE - 8})) AS value",
        f"concat('key-', lpad(id % {KEYS}, 5, '0')) AS key",
    )


def by_client(running: Node, client: SyncClient, count: int) -> float:
    """Messages/s of `publish_many`; the messages are made before."""
    running.create("plain", "plain.>")
    made = messages("plain", count)
    began = time.perf_counter()
    client.publish_many(made, stream="plain")
    seconds = time.perf_counter() - began
    running.wait_stored("plain", count)
    running.delete("plain")
    return count / seconds


def by_write(spark: Any, running: Node, count: int) -> float:
    """Rows/s of one `df.write`, planning and all."""
    running.create("rows", "rows.>")
    began = time.perf_counter()
    (
        frame(spark, "rows", count)
        .write.format("bascule")
        .options(server=running.addresses["http"], stream="rows", dedupe="require")
        .mode("append")
        .save()
    )
    seconds = time.perf_counter() - began
    assert running.partition("rows")["high_watermark"] == count
    running.delete("rows")
    return count / seconds


def by_stream(spark: Any, running: Node, directory: Path, count: int) -> float:
    """Rows/s of one micro-batch from a stream into another, without the start of the query."""
    running.create("copy", "copy.>")
    source = (
        spark.readStream.format("bascule")
        .options(server=running.addresses["http"], stream="source", startingOffsets="earliest")
        .option("minPartitions", "2")
        .load()
    )
    shaped = source.selectExpr("concat('copy.', substr(subject, 8)) AS subject", "key", "value")
    query = (
        shaped.writeStream.format("bascule")
        .options(server=running.addresses["http"], stream="copy", dedupe="require")
        .option("checkpointLocation", str(directory / f"checkpoint-{time.time_ns()}"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    seconds = sum(p["durationMs"]["addBatch"] for p in query.recentProgress) / 1_000
    assert running.partition("copy")["high_watermark"] == count
    running.delete("copy")
    return count / seconds


def run(*, quick: bool = False) -> None:
    count = MESSAGES // 10 if quick else MESSAGES
    rounds = 3 if quick else 5
    ours, streamed, others = [], [], []
    with work_directory() as directory, node(directory) as running:
        spark = local_session(directory, master="local[2]", settings=SETTINGS)
        spark.sparkContext.setLogLevel("ERROR")
        try:
            with bascule.connect_sync(running.addresses["http"]) as client:
                running.create("source", "source.>")
                client.publish_many(messages("source", count))
                for round_number in range(-1, rounds):
                    # The first is a full round of warming up: the JVM compiles for seconds.
                    wrote = by_write(spark, running, count)
                    copied = by_stream(spark, running, directory, count)
                    plain = by_client(running, client, count)
                    if round_number >= 0:
                        ours.append(wrote)
                        streamed.append(copied)
                        others.append(plain)
        finally:
            spark.stop()
    shown = {"messages": count, "bytes": SIZE, "rows_per_s": round(statistics.median(ours))}
    report(
        "spark_sink",
        [
            row("df.write with acks and ids over publish_many with acks",
                {**median_ratio(ours, others), **shown}, at_least=0.6),
            row("a micro-batch from stream to stream over publish_many with acks",
                {**median_ratio(streamed, others), "messages": count,
                 "rows_per_s": round(statistics.median(streamed))}, at_least=0.4),
        ],
    )  # fmt: skip
