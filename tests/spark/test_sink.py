"""Spark's sink against a real node: each row once, and mistakes told where they are made."""

from __future__ import annotations

import re
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest

import bascule
from bascule.client import SyncClient
from bascule.pipeline import BasculeDataSource
from support.processes import Node, running_nats, running_node

pytest.importorskip("pyspark", reason="the extra `spark` is not installed")

WAIT_S = 90
ROWS = (
    "concat('{0}.', id % 7) AS subject",
    "concat('k', id % 5) AS key",
    "CASE WHEN id % 11 <> 0 THEN cast(cast(id AS string) AS binary) END AS value",
    "CASE WHEN id % 3 <> 0 THEN map('H', 'x', 'I', cast(id AS string)) END AS headers",
)


@pytest.fixture(autouse=True)
def registered(spark: Any) -> None:
    spark.dataSource.register(BasculeDataSource)


def rows(spark: Any, stream: str, count: int, *, tasks: int = 3) -> Any:
    frame = spark.range(0, count, 1, tasks)
    return frame.selectExpr(*(column.format(stream) for column in ROWS))


def write(frame: Any, node: Node, **options: str) -> None:
    frame.write.format("bascule").options(server=node.addresses["http"], **options).mode(
        "append"
    ).save()


def held(client: SyncClient, stream: str) -> list[Any]:
    count = client.stream(stream).definition.config.partitions
    return [m for partition in range(count) for m in client.read(stream, partition=partition)]


def test_every_column_arrives(spark: Any, node: Node, client: SyncClient, stream: str) -> None:
    write(rows(spark, stream, 5_000), node, stream=stream, dedupe="require")
    messages = held(client, stream)
    assert len(messages) == 5_000
    ids = [m.header("Nats-Msg-Id") for m in messages]
    assert len(set(ids)) == 5_000
    seen = set()
    for m in messages:
        if m.value is None:
            assert m.header("KV-Operation") == b"DEL"
            continue
        n = int(m.value)
        seen.add(n)
        assert (m.subject, m.key) == (f"{stream}.{n % 7}", b"k%d" % (n % 5))
        assert m.header("I") == (b"%d" % n if n % 3 else None)
    assert seen == {n for n in range(5_000) if n % 11}


@pytest.mark.long
def test_partitions_of_a_stream(spark: Any, node: Node, client: SyncClient) -> None:
    client.create_stream("spread", "spread.>", partitions=4, partition_by="key")
    write(rows(spark, "spread", 2_000), node, stream="spread", window="100")
    assert len(held(client, "spread")) == 2_000
    assert all(p.high_watermark for p in client.stream("spread").partitions[:2])


@pytest.mark.long
def test_a_write_repeated_under_its_own_prefix(
    spark: Any, node: Node, client: SyncClient, stream: str
) -> None:
    """As `foreachBatch` may do it, with the number of the batch in the prefix."""
    frame = rows(spark, stream, 3_000)
    for _ in range(2):
        write(frame, node, stream=stream, messageIdPrefix="load-7")
    assert len(held(client, stream)) == 3_000
    write(frame, node, stream=stream, messageIdPrefix="load-8")
    write(frame.limit(10), node, stream=stream)
    write(frame.limit(10), node, stream=stream, dedupe="off")
    assert len(held(client, stream)) == 6_020


def test_ids_from_a_column_outlive_any_order(
    spark: Any, node: Node, client: SyncClient, stream: str
) -> None:
    """After a shuffle rows come in another order each time: then the rows bring their ids."""
    frame = spark.range(1_000).selectExpr(
        "cast(id AS string) AS value", "concat('row-', id) AS messageId"
    )
    for tasks in (2, 3):
        write(frame.repartition(tasks), node, stream=stream, subject=f"{stream}.x")
    messages = held(client, stream)
    assert sorted(int(m.value) for m in messages) == list(range(1_000))
    assert {m.subject for m in messages} == {f"{stream}.x"}


@pytest.mark.long
def test_rows_in_another_order_are_stored_twice_and_not_lost(
    spark: Any, node: Node, client: SyncClient, stream: str
) -> None:
    for values in (range(100), range(99, -1, -1)):
        frame = spark.createDataFrame([(str(n),) for n in values], "value string").coalesce(1)
        write(frame, node, subject=f"{stream}.x", messageIdPrefix="turned")
    found = [int(m.value) for m in held(client, stream)]
    assert set(found) == set(range(100))
    assert len(found) == 200


def copy(
    spark: Any, node: Node, source: str, target: str, directory: Path, *, more: dict[str, str]
) -> Any:
    """A query from a stream to another, run to the end of what there is."""
    frame = (
        spark.readStream.format("bascule")
        .options(server=node.addresses["http"], stream=source, startingOffsets="earliest")
        .option("maxOffsetsPerTrigger", "1000")
        .load()
        .selectExpr(f"concat('{target}.', partition) AS subject", "key", "value", "offset")
    )
    query = (
        frame.writeStream.format("bascule")
        .options(server=node.addresses["http"], checkpointLocation=str(directory / "checkpoint"))
        .options(**more)
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(WAIT_S), f"not within {WAIT_S} s"
    return query


def test_a_stream_is_written_to_another(
    spark: Any, node: Node, client: SyncClient, stream: str, tmp_path: Path
) -> None:
    target = f"{stream}-copy"
    client.create_stream(target, f"{target}.>")
    client.publish_many((f"{stream}.x", b"%d" % n, "k") for n in range(2_500))
    more = {"stream": target, "dedupe": "require"}
    query = copy(spark, node, stream, target, tmp_path, more=more)
    assert sum(p["sink"]["numOutputRows"] for p in query.recentProgress) == 2_500
    assert [m.value for m in held(client, target)] == [b"%d" % n for n in range(2_500)]
    # The commit of the last batch is lost, as a crash before it would have it.
    for part in ("2", ".2.crc"):
        (tmp_path / "checkpoint/commits" / part).unlink(missing_ok=True)
    client.publish_many((f"{stream}.x", b"%d" % n, "k") for n in range(2_500, 2_600))
    again = copy(spark, node, stream, target, tmp_path, more=more)
    assert again.recentProgress[0]["batchId"] == 2
    assert [m.value for m in held(client, target)] == [b"%d" % n for n in range(2_600)]


@pytest.mark.long
def test_restarts_of_the_nats_server_during_a_write(spark: Any, tmp_path: Path) -> None:
    with running_nats(tmp_path / "nats") as server, running_node(tmp_path, nats=server.url) as node:
        node.create("rows", "rows.>")
        with bascule.connect_sync(node.addresses["http"]) as client:
            restarts: list[int] = []

            def disturb() -> None:
                for stored in (5_000, 30_000):
                    while (end := client.stream("rows").partitions[0].high_watermark) < stored:
                        time.sleep(0.001)
                    server.stop(signal.SIGKILL)
                    server.start()
                    restarts.append(end)

            disturbing = threading.Thread(target=disturb)
            disturbing.start()
            write(rows(spark, "rows", 60_000, tasks=4), node, stream="rows", window="500")
            disturbing.join()
            assert all(end < 60_000 for end in restarts)
            values = sorted(int(m.value) for m in held(client, "rows") if m.value is not None)
            assert values == [n for n in range(60_000) if n % 11]
            assert client.stream("rows").partitions[0].high_watermark == 60_000


@pytest.mark.long
def test_credentials_for_nats(spark: Any, tmp_path: Path) -> None:
    from pyspark.errors import PySparkException

    login = {"user": "spark", "password": "secret"}
    environment = {"BASCULE_NATS_USER": "spark", "BASCULE_NATS_PASSWORD": "secret"}
    with (
        running_nats(tmp_path / "nats", "--user", "spark", "--pass", "secret") as server,
        running_node(tmp_path, nats=server.url, environment=environment) as node,
    ):
        node.create("rows", "rows.>")
        write(rows(spark, "rows", 100), node, stream="rows", **login)
        assert node.partition("rows")["high_watermark"] == 100
        for wrong in ({}, {**login, "password": "no"}):
            with pytest.raises(PySparkException, match="correct the credentials"):
                write(rows(spark, "rows", 100), node, stream="rows", **wrong)


@pytest.mark.parametrize(
    ("columns", "options", "said"),
    [
        (["value"], {}, "column 'subject': found no such column or option"),
        (["id AS value", "'a' AS subject"], {}, "column 'value': found bigint, expected binary"),
        (["value", "'a' AS subject", "1 AS kee"], {}, "column 'kee': found int"),
        (["value"], {"subject": "a.*"}, "wildcards cannot be published to"),
        (["value"], {"subject": "a", "windows": "1"}, "did you mean 'window'"),
        (["value"], {"subject": "a", "stream": "nowhere"}, "no stream is named 'nowhere'"),
        (["value"], {"subject": "a", "stream": "plain"}, "does not match the stream's subject"),
        (["value"], {"subject": "b.a", "stream": "blank", "dedupe": "require"},
         "has no dedupe window"),
        (["value", "CASE WHEN id = 7 THEN 'plain.*' ELSE 'plain.a' END AS subject"], {},
         "partition 0, row 7 (subject 'plain.*'): "),
        (["value", "CASE WHEN id = 7 THEN 'b' ELSE 'plain.a' END AS subject"],
         {"stream": "plain"}, "the stream takes subjects 'plain.>' only; correct such rows"),
        (["repeat('x', 5000) AS value"], {"subject": "plain.small", "stream": "plain"},
         "partition 0, row 0 (subject 'plain.small'): publish rejected"),
        (["value", "'a\\nb' AS key"], {"subject": "plain.a"}, "key holds a line break"),
        (["value"], {"subject": "nobody.listens"}, "no stream takes subject 'nobody.listens'"),
    ],
)  # fmt: skip
def test_mistakes_are_told(
    spark: Any, node: Node, client: SyncClient, columns: list[str], options: dict[str, str],
    said: str,
) -> None:  # fmt: skip
    from pyspark.errors import PySparkException

    client.create_stream("plain", "plain.>", message_bytes_max=1_000)
    client.create_stream("blank", "b.>", dedupe_window_ms=0)
    frame = spark.range(0, 10, 1, 1).selectExpr("id", "cast(id AS string) AS value")
    with pytest.raises(PySparkException, match=re.escape(said)):
        write(frame.selectExpr(*columns), node, **options)


def test_a_stream_is_not_overwritten(spark: Any, node: Node, stream: str) -> None:
    from pyspark.errors import PySparkException

    frame = spark.range(3).selectExpr("cast(id AS string) AS value")
    writer = frame.write.format("bascule").options(
        server=node.addresses["http"], subject=f"{stream}.a"
    )
    with pytest.raises(PySparkException, match="only appended to"):
        writer.mode("overwrite").save()


def test_a_window_too_short_stops_a_required_write_before_a_row_is_beyond_it(
    spark: Any, node: Node, client: SyncClient
) -> None:
    from pyspark.errors import PySparkException

    client.create_stream("short", "short.>", dedupe_messages_max=1_000)
    frame = spark.range(0, 25_000, 1, 1).selectExpr("cast(id AS string) AS value")
    for dedupe, stored in (("require", 0), ("warn", 25_000)):
        options = {"subject": "short.a", "stream": "short", "dedupe": dedupe}
        if dedupe == "require":
            with pytest.raises(PySparkException, match="--dedupe-messages 40000"):
                write(frame, node, **options)
        else:
            write(frame, node, **options)
        assert client.stream("short").partitions[0].high_watermark == stored
