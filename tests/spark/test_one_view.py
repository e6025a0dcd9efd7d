"""History from a lake table and the tail from the log as one frame: each offset once."""

from __future__ import annotations

import json
import time
from datetime import UTC, datetime
from typing import Any

import pytest

from support.lake_jobs import World

TYPED = {"valueFormat": "json", "valueSchema": "n bigint, name string"}


def table_of(world: World) -> str:
    return f"parquet:{world.folder / 'lake'}"


def drop_from_log(world: World, offset: int) -> None:
    """Leave the log from an offset on; only what is synced can be purged."""
    deadline = time.monotonic() + 30
    while world.client.stream(world.stream).partitions[0].synced_offset < offset:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    [purged] = world.client.purge_stream(world.stream, to_offset=offset)
    assert purged.start_offset == offset


def read(world: World, **more: str) -> Any:
    return (
        world.spark.read.format("bascule")
        .options(
            server=world.node.addresses["http"],
            stream=world.stream,
            archive=table_of(world),
            **more,
        )
        .load()
    )


def rows(frame: Any) -> list[tuple[Any, ...]]:
    found = frame.select("offset", "key", "value", "subject", "timestamp", "headers").collect()
    return sorted(tuple(row) for row in found)


@pytest.fixture
def archived(world: World) -> World:
    """1,000 records archived, 400 of them gone from the log, 500 more only in the log."""
    world.fill(1_000)
    world.archive(offsets_per_trigger_max=300)
    world.fill(500, first=1_000)
    return world


def test_rows_are_the_same_from_history_and_log(archived: World) -> None:
    world = archived
    whole = (
        world.spark.read.format("bascule")
        .options(server=world.node.addresses["http"], stream=world.stream, includeHeaders="true")
        .load()
    )
    expected = rows(whole)
    drop_from_log(world, 400)
    assert rows(read(world, includeHeaders="true")) == expected
    assert len(expected) == 1_500
    some = read(world, columns="offset", minPartitions="7", startingOffsets='{"0": 900}')
    assert some.columns == ["offset"]
    assert sorted(row.offset for row in some.collect()) == list(range(900, 1_500))
    assert read(world, columns="stream,key").count() == 1_500
    early = read(world, startingOffsets='{"0": 100}', endingOffsets='{"0": 110}')
    assert sorted(row.offset for row in early.collect()) == list(range(100, 110))
    keyed = read(world).where("key = cast('k3' as binary)")
    assert keyed.count() == 300


@pytest.mark.long
def test_times_are_found_in_history_too(world: World) -> None:
    world.fill(100)
    moments = [datetime.now(UTC)]
    for first in (100, 200):
        time.sleep(0.05)
        world.fill(100, first=first)
        moments.append(datetime.now(UTC))
        world.archive()
    world.fill(100, first=300)
    drop_from_log(world, 250)

    def offsets(**more: str) -> list[int]:
        return sorted(row.offset for row in read(world, columns="offset", **more).collect())

    assert offsets(startingTimestamp=moments[0].isoformat()) == list(range(100, 400))
    assert offsets(startingTimestamp=moments[2].isoformat()) == list(range(300, 400))
    assert offsets(endingTimestamp=moments[1].isoformat()) == list(range(200))


def test_a_query_starts_in_history_and_follows_the_log(archived: World) -> None:
    world = archived
    drop_from_log(world, 400)
    spark = world.spark

    def run() -> list[int]:
        query = (
            spark.readStream.format("bascule")
            .options(
                server=world.node.addresses["http"], stream=world.stream, archive=table_of(world)
            )
            .options(startingOffsets="earliest", maxOffsetsPerTrigger="333")
            .load()
            .writeStream.format("parquet")
            .option("checkpointLocation", str(world.folder / "view-checkpoint"))
            .option("path", str(world.folder / "view"))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(90)
        written = spark.read.parquet(str(world.folder / "view")).select("offset").collect()
        return sorted(row.offset for row in written)

    assert run() == list(range(1_500))
    world.fill(300, first=1_500)
    world.archive(offsets_per_trigger_max=300)
    drop_from_log(world, 1_700)
    assert run() == list(range(1_800))


@pytest.mark.long
def test_typed_history_and_what_does_not_parse(world: World) -> None:
    values = [json.dumps({"n": n, "name": f"n{n}"}).encode() for n in range(100)]
    values[7] = b"no json"
    world.client.publish_many((f"{world.stream}.x", value, "k") for value in values[:60])
    world.archive(value=TYPED)
    world.client.publish_many((f"{world.stream}.x", value, "k") for value in values[60:])
    drop_from_log(world, 50)
    found = read(world, **TYPED).orderBy("offset").collect()
    assert [row.offset for row in found] == list(range(100))
    assert [row.value and row.value.n for row in found] == [
        None if n == 7 else n for n in range(100)
    ]
    assert bytes(found[7]._corrupt_record) == b"no json"
    from pyspark.errors import PySparkException

    with pytest.raises(PySparkException, match="the archive holds values of type"):
        read(world).collect()
    with pytest.raises(PySparkException, match=r"value at offset 7 .* is malformed"):
        read(world, **TYPED, mode="FAILFAST").collect()


@pytest.mark.long
def test_a_gap_between_archive_and_log_is_told(archived: World) -> None:
    world = archived
    drop_from_log(world, 1_200)
    from pyspark.errors import PySparkException

    with pytest.raises(PySparkException, match=r"the archive holds \[0, 1000\) and the log"):
        read(world).collect()


def test_a_stream_created_again_is_another(archived: World) -> None:
    world = archived
    world.client.delete_stream(world.stream)
    world.client.create_stream(world.stream, f"{world.stream}.>")
    from pyspark.errors import PySparkException

    with pytest.raises(PySparkException, match="deleted and created again since it was archived"):
        read(world).collect()
