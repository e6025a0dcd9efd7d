"""The archive on Spark: a stream once in its table, whatever becomes of Spark's own state."""

from __future__ import annotations

import json
import shutil
import time

import pytest

from bascule.errors import ConfigError
from bascule.pipeline.lake import open_table
from bascule.pipeline.lake.address import malformed_address
from support.lake_jobs import World

SCHEMA = {"valueFormat": "json", "valueSchema": "n bigint, name string"}


def test_a_stream_is_in_its_table_as_it_was(world: World) -> None:
    world.fill(1_000)
    done = world.archive(offsets_per_trigger_max=300, checkpoint=str(world.folder / "checkpoint"))
    assert done.ok
    assert (done.summary["rows"], done.summary["lag"], done.summary["batches"]) == (1_000, 0, 4)
    rows = world.rows()
    assert [row["offset"] for row in rows] == list(range(1_000))
    assert rows[5] == {
        "key": b"k0", "value": b"5", "subject": f"{world.stream}.5", "partition": 0, "offset": 5,
        "timestamp": rows[5]["timestamp"], "headers": rows[5]["headers"],
    }  # fmt: skip
    assert rows[5]["headers"][-1] == {"key": "H", "value": b"x"}
    assert world.committed() == {0: 1_000}
    world.fill(10, first=1_000)
    assert world.archive(checkpoint=str(world.folder / "checkpoint")).summary["rows"] == 10
    assert world.archive(checkpoint=str(world.folder / "checkpoint")).summary["rows"] == 0
    assert world.offsets() == list(range(1_010))
    assert world.audit().ok


@pytest.mark.long
def test_spark_state_is_not_the_position(world: World) -> None:
    """A checkpoint that is lost, older than the table, or newer than it changes nothing."""
    kept, older = world.folder / "checkpoint", world.folder / "older"
    world.fill(500)
    world.archive(checkpoint=str(kept), offsets_per_trigger_max=100)
    shutil.copytree(kept, older)
    world.fill(500, first=500)
    world.archive(checkpoint=str(kept), offsets_per_trigger_max=100)
    world.fill(100, first=1_000)
    world.archive(checkpoint=str(older), offsets_per_trigger_max=70)
    shutil.rmtree(kept)
    world.fill(100, first=1_100)
    world.archive(checkpoint=str(kept))
    assert world.offsets() == list(range(1_200))
    shutil.rmtree(world.folder / "lake")
    assert (
        world.archive(checkpoint=str(kept), offsets_per_trigger_max=1_200).summary["rows"] == 1_200
    )
    assert world.audit().ok


@pytest.mark.long
def test_latest_is_where_the_first_run_began(world: World) -> None:
    """Also when that run found nothing, and Spark kept nothing of it."""
    world.fill(100)
    assert world.archive(starting_offsets="latest").summary["rows"] == 0
    world.fill(50, first=100)
    assert world.archive(starting_offsets="latest").summary["rows"] == 50
    assert world.offsets() == list(range(100, 150))
    found = world.audit()
    assert not found.ok
    assert found.summary["missing"] == 100


def test_a_batch_that_spark_repeats_is_there_once(world: World) -> None:
    """The crash between the table's commit and Spark's note of it."""
    checkpoint = world.folder / "checkpoint"
    world.fill(300)
    world.archive(checkpoint=str(checkpoint), offsets_per_trigger_max=100)
    last = max((checkpoint / "commits").glob("[0-9]*"), key=lambda path: int(path.name))
    last.unlink()
    (checkpoint / "commits" / f".{last.name}.crc").unlink(missing_ok=True)
    world.fill(50, first=300)
    world.archive(checkpoint=str(checkpoint), offsets_per_trigger_max=100)
    assert world.offsets() == list(range(350))
    assert world.audit().ok


def test_values_become_columns_and_strangers_go_aside(world: World) -> None:
    values = [json.dumps({"n": n, "name": f"n{n}"}).encode() for n in range(400)]
    for n in range(3, 400, 50):
        values[n] = b"no json"
    values[10] = b""
    world.client.publish_many((f"{world.stream}.x", value, "k") for value in values)
    done = world.archive(value=SCHEMA, raw=True, offsets_per_trigger_max=150)
    rows = world.rows()
    assert rows[0]["value"] == {"n": 0, "name": "n0"}
    assert rows[0]["raw"] == values[0]
    side = world.rows(open_table(malformed_address(world.table.address())))
    bad = [n for n in range(400) if n == 10 or n % 50 == 3]
    assert [row["offset"] for row in side] == bad
    assert side[0]["value"] == b"no json"
    assert side[0]["reason"]
    assert done.summary["malformed_total"] == len(bad)
    assert done.sum is not None
    parts = dict(done.sum.parts)
    assert sum(parts.values()) == done.sum.total[1] == done.summary["offsets"]
    assert parts["malformed"] == done.summary["malformed"]
    reasons = next(table for table in done.tables if table.title == "Malformed records")
    assert sum(row[0] for row in reasons.rows) == parts["malformed"]
    assert [row["offset"] for row in rows] == [n for n in range(400) if n not in bad]
    found = world.audit(value=SCHEMA)
    assert found.ok, found
    assert found.summary["malformed"] == len(bad)
    assert not world.audit(value={**SCHEMA, "valueSchema": "n bigint, other string"}).ok


def test_small_files_are_joined_and_old_snapshots_forgotten(world: World) -> None:
    world.fill(1_000)
    world.archive(
        offsets_per_trigger_max=100, compact_every=4, compact_at_end=True, expire_after_ms=0
    )
    table = world.open()
    snapshot = table.snapshot()
    assert snapshot is not None
    assert len(table.files(snapshot)) == 1
    assert world.offsets() == list(range(1_000))
    assert world.audit().ok


@pytest.mark.long
def test_a_table_of_another_stream_is_refused(world: World) -> None:
    from bascule.errors import DataLoss

    world.fill(10)
    world.archive()
    world.client.delete_stream(world.stream)
    world.client.create_stream(world.stream, f"{world.stream}.>")
    world.fill(20)
    with pytest.raises(DataLoss, match="deleted and created again"):
        world.archive()
    assert world.offsets() == list(range(10))
    other = f"{world.stream}_other"
    world.client.create_stream(other, f"{other}.>")
    with pytest.raises(ConfigError, match=rf"archives stream '{world.stream}': stream '{other}'"):
        World(world.spark, world.node, world.client, other, world.folder).archive()


def test_a_checkpoint_of_another_archive_is_refused(world: World) -> None:
    from pyspark.errors import PySparkException

    world.fill(10)
    shared = str(world.folder / "checkpoint")
    world.archive(checkpoint=shared)
    other = f"{world.stream}_other"
    world.client.create_stream(other, f"{other}.>")
    second = World(world.spark, world.node, world.client, other, world.folder / "second")
    second.fill(10)
    with pytest.raises(PySparkException, match="it is the checkpoint of another archive"):
        second.archive(checkpoint=shared)
    assert second.archive().summary["rows"] == 10


def test_retention_waits_for_the_archive(world: World) -> None:
    """What the table lacks stays in the log; what it holds may go."""
    world.client.alter_stream(
        world.stream,
        retention_messages_max=1,
        retention_after=f"archive-{world.stream}",
        segment_bytes_max=1 << 20,
    )
    world.client.publish_many((f"{world.stream}.x", b"x" * 1_000) for _ in range(8_000))
    world.archive(offsets_per_trigger_max=3_000)
    world.client.publish_many((f"{world.stream}.x", b"x" * 1_000) for _ in range(8_000))
    deadline = time.monotonic() + 60
    while (start := world.client.stream(world.stream).partitions[0].start_offset) == 0:
        assert time.monotonic() < deadline, "retention never ran"
        time.sleep(0.2)
    assert start <= 8_000
    lagging = world.audit()
    assert not lagging.ok
    assert lagging.summary["lag"] == 8_000
    assert world.audit(allow_lag=True).ok
    world.archive()
    found = world.audit()
    assert found.ok
    assert found.summary["rows"] == 16_000 > found.summary["rows_of_log"]
    assert world.offsets() == list(range(16_000))
