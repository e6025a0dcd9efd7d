"""The Spark source against a real node, in the Spark of all tests and in one that is killed."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from bascule.client import SyncClient
from bascule.pipeline import BasculeDataSource
from bascule.pipeline.session import SHORT_LIVED, local_session
from running import Node

WAIT_S = 90


def fill(client: SyncClient, stream: str, count: int, *, first: int = 0) -> None:
    client.publish_many(
        (f"{stream}.{n % 7}", b"%d" % n, f"k{n % 5}", {"H": "x"} if n % 3 else None)
        for n in range(first, first + count)
    )


def options(node: Node, stream: str, **more: str) -> dict[str, str]:
    return {"server": node.doors["http"], "stream": stream, **more}


def reading(spark: Any, node: Node, stream: str, **more: str) -> Any:
    return spark.read.format("bascule").options(**options(node, stream, **more)).load()


def offsets_of(frame: Any) -> list[int]:
    return sorted(row.offset for row in frame.select("offset").collect())


def wait_until(look: Any) -> None:
    deadline = time.monotonic() + WAIT_S
    while not look():
        assert time.monotonic() < deadline, f"not within {WAIT_S} s"
        time.sleep(0.05)


# Batch


def test_all_columns(spark: Any, node: Node, client: SyncClient, stream: str) -> None:
    """Found without registration: `pyspark_bascule` is on the path."""
    from pyspark.sql.pandas.types import to_arrow_schema

    from bascule.record.columns import SCHEMA

    fill(client, stream, 1_000)
    frame = reading(spark, node, stream, minPartitions="3")
    assert to_arrow_schema(frame.schema, timezone="UTC").equals(SCHEMA)
    assert frame.rdd.getNumPartitions() >= 3
    rows = sorted(frame.collect(), key=lambda row: row.offset)
    for row, message in zip(rows, client.read(stream), strict=True):
        assert (row.offset, row.partition) == (message.offset, message.partition)
        assert bytes(row.key) == message.key
        assert bytes(row.value) == message.value == b"%d" % message.offset
        assert row.subject == message.subject
        assert row.timestamp.astimezone(UTC) == message.timestamp
        headers = [(entry.key, bytes(entry.value)) for entry in row.headers]
        assert headers == [("reply", (message.reply or "").encode()), *message.headers]
    grouped = frame.groupBy("subject").count().collect()
    assert sum(row["count"] for row in grouped) == 1_000
    assert len(grouped) == 7
    at = datetime.now(UTC)
    assert frame.where(frame.timestamp > at).count() == 0


def test_ranges(spark: Any, node: Node, client: SyncClient, stream: str) -> None:
    fill(client, stream, 500)
    spark.dataSource.register(BasculeDataSource)

    def read(**more: str) -> list[int]:
        return offsets_of(reading(spark, node, stream, **more))

    assert read() == list(range(500))
    assert read(startingOffsets='{"0": 490}') == list(range(490, 500))
    asked = {"startingOffsets": '{"0": 100}', "endingOffsets": '{"0": 140}', "minPartitions": "9"}
    assert read(**asked) == list(range(100, 140))
    assert read(startingOffsets="latest") == []
    by_path = spark.read.format("bascule").option("server", node.doors["http"]).load(stream)
    assert by_path.count() == 500


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"stream": "nowhere"}, "no stream is named 'nowhere'"),
        ({"startingOffset": "earliest"}, "did you mean 'startingOffsets'"),
        ({"startingOffsets": '{"0": 99}'}, "offset 99 is not in [0, 0]"),
        ({"endingOffsets": '{"0": 99}'}, "endingOffsets is 99, the partition ends at 0"),
        ({"server": "http://127.0.0.1:9"}, "no Bascule node answers"),
    ],
)
def test_mistakes_reach_the_user(
    spark: Any, node: Node, client: SyncClient, more: dict[str, str], said: str
) -> None:
    client.create_stream("mistakes", "mistakes")
    from pyspark.errors import PySparkException

    with pytest.raises(PySparkException, match=re.escape(said)):
        reading(spark, node, **{"stream": "mistakes", **more}).count()


# Streams


class Query:
    """A query from a stream to Parquet, run to the end of what there is, or until stopped."""

    def __init__(self, spark: Any, node: Node, stream: str, directory: Path) -> None:
        self.spark, self.node, self.stream, self.directory = spark, node, stream, directory

    def start(self, *, available_now: bool, **more: str) -> Any:
        wanted = {"startingOffsets": "earliest", **more}
        frame = self.spark.readStream.format("bascule").options(
            **options(self.node, self.stream, **wanted)
        )
        writer = (
            frame.load()
            .writeStream.format("parquet")
            .option("checkpointLocation", str(self.directory / "checkpoint"))
            .option("path", str(self.directory / "out"))
        )
        if available_now:
            return writer.trigger(availableNow=True).start()
        return writer.trigger(processingTime="0 seconds").start()

    def run(self, **more: str) -> Any:
        query = self.start(available_now=True, **more)
        assert query.awaitTermination(WAIT_S), f"not within {WAIT_S} s"
        return query

    def written(self) -> list[int]:
        """Offsets in the output, as Spark's own log of the sink counts them."""
        return offsets_of(self.spark.read.parquet(str(self.directory / "out")))


def test_a_query_goes_on_where_it_stopped(
    spark: Any, node: Node, client: SyncClient, stream: str, tmp_path: Path
) -> None:
    query = Query(spark, node, stream, tmp_path)
    fill(client, stream, 1_000)
    first = query.run(maxOffsetsPerTrigger="300")
    sizes = [p["numInputRows"] for p in first.recentProgress]
    assert sizes == [300, 300, 300, 100]
    assert query.written() == list(range(1_000))
    fill(client, stream, 50, first=1_000)
    assert [p["numInputRows"] for p in query.run().recentProgress] == [50]
    assert sum(p["numInputRows"] for p in query.run().recentProgress) == 0
    assert query.written() == list(range(1_050))


def test_latest_is_where_the_query_began(
    spark: Any, node: Node, client: SyncClient, stream: str, tmp_path: Path
) -> None:
    fill(client, stream, 100)
    query = Query(spark, node, stream, tmp_path)
    running = query.start(available_now=False, startingOffsets="latest")
    try:
        wait_until(lambda: (tmp_path / "checkpoint/offsets/0").exists())
        fill(client, stream, 100, first=100)
        running.processAllAvailable()
    finally:
        running.stop()
    assert query.written() == list(range(100, 200))


def test_a_query_outlives_a_restart_of_the_node(
    spark: Any, node: Node, client: SyncClient, stream: str, tmp_path: Path
) -> None:
    query = Query(spark, node, stream, tmp_path)
    fill(client, stream, 100)
    running = query.start(available_now=False)
    try:
        running.processAllAvailable()
        node.stop(signal.SIGKILL)
        node.start()
        fill(client, stream, 100, first=100)
        running.processAllAvailable()
    finally:
        running.stop()
    assert query.written() == list(range(200))


def test_lost_records_end_a_query_unless_it_may_go_on(
    spark: Any, node: Node, client: SyncClient, stream: str, tmp_path: Path
) -> None:
    query = Query(spark, node, stream, tmp_path)
    fill(client, stream, 100)
    query.run()
    client.delete_stream(stream)
    client.create_stream(stream, f"{stream}.>")
    fill(client, stream, 120)
    from pyspark.errors import PySparkException

    with pytest.raises(PySparkException, match="deleted and created again"):
        query.run()
    query.run(failOnDataLoss="false")
    assert query.written() == sorted([*range(100), *range(120)])


def test_a_killed_query_repeats_and_skips_nothing(
    spark: Any, node: Node, client: SyncClient, stream: str, tmp_path: Path
) -> None:
    """Spark as a process of its own is killed between and within its batches."""
    fill(client, stream, 4_000)
    log = (tmp_path / "spark.log").open("wb")
    process = subprocess.Popen(
        [sys.executable, __file__, node.doors["http"], stream, str(tmp_path)],
        stdout=log,
        stderr=subprocess.STDOUT,
        start_new_session=True,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])},
    )
    commits = tmp_path / "checkpoint/commits"

    def has_committed() -> bool:
        assert process.poll() is None, (tmp_path / "spark.log").read_text()
        return commits.exists() and sum(p.name.isdigit() for p in commits.iterdir()) >= 3

    try:
        wait_until(has_committed)
        fill(client, stream, 1_000, first=4_000)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(20)
        log.close()
    fill(client, stream, 1_000, first=5_000)
    before = sum(p.name.isdigit() for p in commits.iterdir())
    query = Query(spark, node, stream, tmp_path)
    query.run(maxOffsetsPerTrigger="1000")
    assert query.written() == list(range(6_000))
    assert sum(p.name.isdigit() for p in commits.iterdir()) > before
    table = pa.Table.from_pandas(
        spark.read.parquet(str(tmp_path / "out")).select("offset", "value").toPandas()
    )
    assert all(
        value == b"%d" % offset
        for offset, value in zip(*(column.to_pylist() for column in table.columns), strict=True)
    )


def main(server: str, stream: str, directory: Path) -> None:
    """The query that is killed: small batches, as fast as they go."""
    spark = local_session(directory, master="local[2]", settings=SHORT_LIVED)
    running = (
        spark.readStream.format("bascule")
        .options(server=server, stream=stream, startingOffsets="earliest")
        .option("maxOffsetsPerTrigger", "100")
        .load()
        .writeStream.format("parquet")
        .option("checkpointLocation", str(directory / "checkpoint"))
        .option("path", str(directory / "out"))
        .trigger(processingTime="0 seconds")
        .start()
    )
    running.awaitTermination()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
