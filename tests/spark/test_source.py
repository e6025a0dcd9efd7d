"""The Spark source against a real node, in the Spark of all tests and in one that is killed."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from bascule.client import SyncClient
from bascule.pipeline import BasculeDataSource
from bascule.pipeline.session import SHORT_LIVED, local_session
from support.processes import Node

WAIT_S = 90


def fill(client: SyncClient, stream: str, count: int, *, first: int = 0) -> None:
    client.publish_many(
        (f"{stream}.{n % 7}", b"%d" % n, f"k{n % 5}", {"H": "x"} if n % 3 else None)
        for n in range(first, first + count)
    )


def options(node: Node, stream: str, **more: str) -> dict[str, str]:
    return {"server": node.addresses["http"], "stream": stream, **more}


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

    from bascule.pipeline.source.columns import schema_arrow
    from bascule.pipeline.source.options import SourceOptions

    fill(client, stream, 1_000)
    more = {"minPartitions": "3", "includeHeaders": "true"}
    frame = reading(spark, node, stream, **more)
    promised = schema_arrow(SourceOptions.parse({"stream": stream, **more}))
    assert to_arrow_schema(frame.schema, timezone="UTC").equals(promised)
    assert frame.rdd.getNumPartitions() >= 3
    rows = sorted(frame.collect(), key=lambda row: row.offset)
    for row, message in zip(rows, client.read(stream), strict=True):
        assert (row.offset, row.partition) == (message.offset, message.partition)
        assert bytes(row.key) == message.key
        assert bytes(row.value) == message.value == b"%d" % message.offset
        assert (row.subject, row.stream) == (message.subject, stream)
        assert row.timestamp.astimezone(UTC) == message.timestamp
        headers = [(entry.key, bytes(entry.value)) for entry in row.headers]
        assert headers == list(message.headers)
    grouped = frame.groupBy("subject").count().collect()
    assert sum(row["count"] for row in grouped) == 1_000
    assert len(grouped) == 7
    at = datetime.now(UTC)
    assert frame.where(frame.timestamp > at).count() == 0


@pytest.mark.long
def test_the_subject_of_records_that_do_not_repeat_it(
    spark: Any, node: Node, client: SyncClient
) -> None:
    name, subject = "source_literal", "source.literal"
    client.create_stream(name, subject, record_headers=["subject", "reply"])
    client.publish_many((subject, b"%d" % n) for n in range(10))
    client.alter_stream(name, record_headers=[])
    client.publish_many((subject, b"%d" % n) for n in range(10, 20))
    frame = reading(spark, node, name, includeHeaders="true")
    rows = sorted(frame.collect(), key=lambda row: row.offset)
    assert [row.subject for row in rows] == [subject] * 20
    assert [[h.key for h in row.headers] for row in rows] == [["reply"]] * 10 + [[]] * 10
    assert frame.where(frame.subject == subject).count() == 20
    assert frame.where(frame.subject.startswith("other")).count() == 0
    assert frame.where(frame.subject.isNull()).count() == 0


@pytest.mark.long
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
    by_path = spark.read.format("bascule").option("server", node.addresses["http"]).load(stream)
    assert by_path.count() == 500


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"stream": "nowhere"}, "no stream is named 'nowhere'"),
        ({"startingOffset": "earliest"}, "did you mean 'startingOffsets'"),
        ({"startingOffsets": '{"0": 99}'}, "offset 99 is not in [0, 0]"),
        ({"endingOffsets": '{"0": 99}'}, "endingOffsets is 99, the partition ends at 0"),
        ({"server": "http://127.0.0.1:9", "retryTimeout": "1s"}, "no Bascule node answers"),
    ],
)
def test_mistakes_reach_the_user(
    spark: Any, node: Node, client: SyncClient, more: dict[str, str], said: str
) -> None:
    client.create_stream("mistakes", "mistakes")
    from pyspark.errors import PySparkException

    with pytest.raises(PySparkException, match=re.escape(said)):
        reading(spark, node, **{"stream": "mistakes", **more}).count()


@pytest.mark.long
def test_several_streams_at_once(spark: Any, node: Node, client: SyncClient) -> None:
    for name, partitions in (("many_a", 1), ("many_b", 3), ("manyother", 1)):
        client.create_stream(
            name, f"{name}.>", partitions=partitions, partition_by="subject", sync="interval"
        )
        fill(client, name, 100)
    http = node.addresses["http"]

    def places(**said: str) -> set[tuple[str, int, int]]:
        frame = spark.read.format("bascule").options(server=http, **said).load()
        rows = frame.select("stream", "partition", "offset").collect()
        assert len(rows) == len(set(rows))
        return {tuple(row) for row in rows}

    both = places(streams="many_a,many_b")
    assert len(both) == 200
    assert {partition for stream, partition, _ in both if stream == "many_b"} == {0, 1, 2}
    assert places(streamPattern="many_.") == both
    starts = '{"many_a": {"0": 90}, "many_b": {"0": -1, "1": -1, "2": -1}}'
    some = places(streams="many_a,many_b", startingOffsets=starts)
    assert some == {("many_a", 0, offset) for offset in range(90, 100)}


@pytest.mark.long
def test_times(spark: Any, node: Node, client: SyncClient, stream: str) -> None:
    fill(client, stream, 100)
    time.sleep(0.05)
    middle = datetime.now(UTC)
    time.sleep(0.05)
    fill(client, stream, 50, first=100)
    middle_ms = str(round(middle.timestamp() * 1000))

    def read(**more: str) -> list[int]:
        return offsets_of(reading(spark, node, stream, **more))

    assert read(startingTimestamp=middle.isoformat()) == list(range(100, 150))
    assert read(endingTimestamp=middle_ms) == list(range(100))
    assert read(startingOffsetsByTimestamp=f'{{"0": {middle_ms}}}') == list(range(100, 150))
    late = {"startingTimestamp": "2100-01-01T00:00:00Z"}
    assert read(**late, startingOffsetsByTimestampStrategy="latest") == []
    from pyspark.errors import PySparkException

    with pytest.raises(PySparkException, match="has no record at or after"):
        read(**late)


@pytest.mark.long
def test_columns_and_task_sizes(spark: Any, node: Node, client: SyncClient, stream: str) -> None:
    fill(client, stream, 300)
    frame = reading(spark, node, stream, columns="offset,subject", maxRecordsPerPartition="100")
    assert frame.columns == ["offset", "subject"]
    assert frame.rdd.getNumPartitions() == 3
    assert offsets_of(frame) == list(range(300))


@pytest.mark.parametrize("session_allows", [False, True])
def test_filters_give_the_same_rows_pushed_down_or_not(
    spark: Any, node: Node, client: SyncClient, session_allows: bool
) -> None:
    """What the tasks read is seen in the number of rows that leave the source."""
    stream = f"filtered_{session_allows}".lower()
    client.create_stream(stream, f"{stream}.>", sync="interval")
    fill(client, stream, 200)
    time.sleep(0.05)
    middle = datetime.now(UTC)
    time.sleep(0.05)
    fill(client, stream, 800, first=200)
    spark.conf.set("spark.sql.python.filterPushdown.enabled", str(session_allows).lower())
    try:
        everything = list(range(1_000))
        for condition, wanted in (
            ("offset >= 990", everything[990:]),
            ("offset > 5 and offset < 8", [6, 7]),
            ("offset in (5, 7)", [5, 7]),
            ("partition = 1", []),
            ("key = cast('k3' as binary)", [n for n in everything if n % 5 == 3]),
            (f"subject like '{stream}.3%'", [n for n in everything if n % 7 == 3]),
            (f"stream = '{stream}' and offset < 3", [0, 1, 2]),
            (f"timestamp >= timestamp '{middle.isoformat()}'", everything[200:]),
            (f"timestamp < timestamp '{middle.isoformat()}'", everything[:200]),
            ("offset < 3 or offset = 7", [0, 1, 2, 7]),
        ):
            found = reading(spark, node, stream, pushdown="true").where(condition)
            assert offsets_of(found) == wanted, condition
        small = {"maxRecordsPerPartition": "10"}
        tasks = reading(spark, node, stream, pushdown="true", **small).where("offset < 20")
        assert tasks.rdd.getNumPartitions() == (2 if session_allows else 100)
        frame = reading(spark, node, stream)  # Not asked for: many filters on one frame are fine.
        assert [frame.where(f"offset < {n}").count() for n in (20, 500)] == [20, 500]
        assert frame.count() == 1_000
        assert frame.where("offset < 2").union(frame.where("offset >= 999")).count() == 3
    finally:
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")


def test_typed_values(spark: Any, node: Node, client: SyncClient, stream: str) -> None:
    values = [b'{"a": 1, "b": "x"}', b'{"a": "no number"}', b"{", b'{"a": 4, "c": true}']
    client.publish_many((f"{stream}.1", value) for value in values)
    typed = {"valueFormat": "json", "valueSchema": "a int, b string"}
    frame = reading(spark, node, stream, **typed).orderBy("offset")
    rows = frame.selectExpr("value.a", "value.b", "_corrupt_record").collect()
    found = [(a, b, None if bad is None else bytes(bad)) for a, b, bad in rows]
    assert found == [
        (1, "x", None),
        (None, None, values[1]),
        (None, None, values[2]),
        (4, None, None),
    ]
    from pyspark.errors import PySparkException

    with pytest.raises(PySparkException, match=r"the value at offset 1 of stream .* is malformed"):
        reading(spark, node, stream, **typed, mode="FAILFAST").collect()


@pytest.mark.long
def test_views_of_a_stream_with_keys(spark: Any, node: Node, client: SyncClient) -> None:
    client.create_stream(
        "prices", "prices.>", partitions=2, partition_by="key", key_from="header",
        cleanup=["compact"], sync="interval",
    )  # fmt: skip
    client.publish_many(("prices.x", b"%d" % n, f"k{n % 10}") for n in range(100))
    gone = ("prices.x", b"", "k3", {"KV-Operation": "DEL"})
    client.publish_many([gone, ("prices.x", b"new", "k4")])

    def read(**more: str) -> dict[bytes, bytes]:
        rows = reading(spark, node, "prices", view="latest", **more).collect()
        assert len({bytes(row.key) for row in rows}) == len(rows)
        return {bytes(row.key): bytes(row.value) for row in rows}

    latest = read()
    expected = {b"k%d" % n: b"%d" % (90 + n) for n in range(10)}
    expected[b"k4"] = b"new"
    expected.pop(b"k3")
    assert latest == expected
    ends = {str(p.partition): p.high_watermark for p in client.stream("prices").partitions}
    rows = reading(spark, node, "prices", view="changes").collect()
    assert len(rows) == sum(ends.values()) == 102
    assert [row.change for row in rows if bytes(row.key) == b"k3"].count("delete") == 1
    assert [row.change for row in rows].count("upsert") == 101
    starts = json.dumps({p: end - 1 for p, end in ends.items()})
    assert reading(spark, node, "prices", view="changes", startingOffsets=starts).count() == 2


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


@pytest.mark.long
def test_a_batch_waits_until_it_is_large_enough(
    spark: Any, node: Node, client: SyncClient, stream: str, tmp_path: Path
) -> None:
    fill(client, stream, 10)
    query = Query(spark, node, stream, tmp_path)
    patient = {"minOffsetsPerTrigger": "100", "maxTriggerDelay": "1h"}
    running = query.start(available_now=False, **patient)
    try:
        wait_until(lambda: (tmp_path / "checkpoint/metadata").exists())
        fill(client, stream, 50, first=10)
        time.sleep(1)
        assert not (tmp_path / "checkpoint/offsets/0").exists()
        fill(client, stream, 60, first=60)
        wait_until(lambda: (tmp_path / "checkpoint/commits/0").exists())
    finally:
        running.stop()
    assert query.written() == list(range(120))
    query.run(**patient)
    fill(client, stream, 1, first=120)
    query.run(**patient)
    assert query.written() == list(range(121))


def test_streams_and_partitions_that_come_later(
    spark: Any, node: Node, client: SyncClient, tmp_path: Path
) -> None:
    client.create_stream("late_a", "late_a.>", partition_by="subject", sync="interval")
    fill(client, "late_a", 100)

    def run() -> list[tuple[str, int, int]]:
        query = (
            spark.readStream.format("bascule")
            .options(
                server=node.addresses["http"], streamPattern="late_.*", startingOffsets="earliest"
            )
            .load()
            .writeStream.format("parquet")
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .option("path", str(tmp_path / "out"))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(WAIT_S)
        rows = spark.read.parquet(str(tmp_path / "out")).select("stream", "partition", "offset")
        return sorted(tuple(row) for row in rows.collect())

    def held() -> list[tuple[str, int, int]]:
        return sorted(
            (name, p.partition, offset)
            for name in ("late_a", "late_b")
            for p in client.stream(name).partitions
            for offset in range(p.high_watermark)
        )

    assert len(run()) == 100
    client.alter_stream("late_a", partitions=3)
    client.create_stream("late_b", "late_b.>", sync="interval")
    fill(client, "late_a", 100)
    fill(client, "late_b", 50)
    rows = run()
    assert rows == held()
    assert len(rows) == 250


def test_retention_under_a_query_is_an_error_or_told(
    spark: Any, node: Node, client: SyncClient, tmp_path: Path
) -> None:
    stream = "retained"  # Only what is synced can be purged.
    client.create_stream(stream, f"{stream}.>", sync="always")
    query = Query(spark, node, stream, tmp_path)
    fill(client, stream, 100)
    query.run(maxOffsetsPerTrigger="40")
    fill(client, stream, 100, first=100)
    [purged] = client.purge_stream(stream, to_offset=150)
    assert purged.start_offset == 150
    from pyspark.errors import PySparkException

    with pytest.raises(PySparkException, match=r"offset 100 is not in \[150, 200\]"):
        query.run()
    query.run(failOnDataLoss="false")
    assert query.written() == [*range(100), *range(150, 200)]


@pytest.mark.long
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


@pytest.mark.long
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


@pytest.mark.long
def test_a_checkpoint_of_another_stream_is_called_what_it_is(
    spark: Any, node: Node, client: SyncClient, stream: str, tmp_path: Path
) -> None:
    from pyspark.errors import PySparkException

    fill(client, stream, 10)
    Query(spark, node, stream, tmp_path).run()
    other = f"{stream}_other"
    client.create_stream(other, f"{other}.>")
    said = f"holds a position in stream '{stream}', and this query reads '{other}'"
    with pytest.raises(PySparkException, match=re.escape(said)):
        Query(spark, node, other, tmp_path).run()


@pytest.mark.long
def test_columns_and_order_are_checked_on_the_driver(
    spark: Any, node: Node, client: SyncClient, stream: str
) -> None:
    from pyspark.errors import PySparkException

    fill(client, stream, 10)
    reader = spark.read.format("bascule").options(server=node.addresses["http"], stream=stream)
    with pytest.raises(PySparkException, match=r"takes no \.schema") as refused:
        reader.schema("a int").load().count()
    assert "stage failure" not in str(refused.value)
    wrong = {"startingOffsets": '{"0": 5}', "endingTimestamp": "2026-01-01T00:00:00Z"}
    fresh = spark.read.format("bascule").options(server=node.addresses["http"], stream=stream)
    with pytest.raises(PySparkException, match="would start after its end"):
        fresh.options(**wrong).load().count()


@pytest.mark.long
def test_a_read_waits_for_a_node_that_is_away_as_it_begins(
    spark: Any, node: Node, client: SyncClient, stream: str
) -> None:
    from pyspark.errors import PySparkException

    fill(client, stream, 100)
    patient = reading(spark, node, stream, retryTimeout="5m")
    with ThreadPoolExecutor(1) as threads:
        node.stop()
        try:
            with pytest.raises(PySparkException, match=r"errors\.system\.Broken"):
                reading(spark, node, stream, retryTimeout="1s").count()
            counted = threads.submit(patient.count)
        finally:
            node.start()
        assert counted.result() == 100


def test_a_killed_query_repeats_and_skips_nothing(
    spark: Any, node: Node, client: SyncClient, stream: str, tmp_path: Path
) -> None:
    """Spark as a process of its own is killed between and within its batches."""
    fill(client, stream, 4_000)
    log = (tmp_path / "spark.log").open("wb")
    process = subprocess.Popen(
        [sys.executable, __file__, node.addresses["http"], stream, str(tmp_path)],
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
