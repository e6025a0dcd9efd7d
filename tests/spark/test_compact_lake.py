"""Last values of an archive, against a dictionary that a person would fill."""

from __future__ import annotations

import random
from typing import Any

import pytest

from bascule.pipeline.jobs.compact_lake.run import run as compact_lake
from bascule.pipeline.jobs.compact_lake.spec import CompactLakeSpec
from bascule.pipeline.jobs.tables import TableSpec
from bascule.pipeline.lake import open_table
from support.lake_jobs import World


def compacted(world: World, **more: Any) -> tuple[Any, dict[bytes, bytes | None]]:
    into = TableSpec(location=str(world.folder / "last"))
    spec = CompactLakeSpec(name="last", table=world.table, into=into, **more)
    done = compact_lake(world.spark, spec)
    rows = world.rows(open_table(into.address()))
    assert len({row["key"] for row in rows}) == len(rows) == done.summary["keys"]
    return done, {row["key"]: row["value"] for row in rows}


def publish(world: World, count: int, seed: int) -> dict[bytes, bytes | None]:
    """The last value of each key of what the stream holds, tombstones as None."""
    dice = random.Random(seed)
    messages = []
    for n in range(count):
        key = f"k{dice.randrange(40)}"
        dead = dice.random() < 0.1
        messages.append(
            (f"{world.stream}.{n % 3}", b"" if dead else b"%d.%d" % (seed, n), key,
             {"KV-Operation": "DEL"} if dead else None)
        )  # fmt: skip
    world.client.publish_many(messages)
    world.client.publish(f"{world.stream}.x", b"no key")
    last: dict[bytes, bytes | None] = {}
    for info in world.client.stream(world.stream).partitions:
        for message in world.client.read(world.stream, partition=info.partition):
            if message.key is not None:
                last[message.key] = message.value
    return last


def test_the_last_value_of_each_key(world: World) -> None:
    last = publish(world, 500, 1)
    world.archive(offsets_per_trigger_max=200)
    done, found = compacted(world)
    assert found == {key: value for key, value in last.items() if value is not None}
    assert done.summary["changed"]
    again, found = compacted(world)
    assert not again.summary["changed"]
    last = publish(world, 100, 2)
    world.archive()
    done, found = compacted(world, keep_tombstones=True)
    assert found == last
    assert done.summary["rows"] == 602


@pytest.mark.long
def test_keys_of_several_partitions(world: World) -> None:
    name = world.stream = f"parts_{world.stream}"
    world.client.create_stream(name, f"{name}.>", partitions=3, partition_by="key")
    last = publish(world, 400, 3)
    world.archive()
    _, found = compacted(world)
    assert found == {key: value for key, value in last.items() if value is not None}


def test_a_key_that_moved_has_its_latest_value(world: World) -> None:
    """By subject, a key is in several partitions; the time decides."""
    name = world.stream = f"moved_{world.stream}"
    world.client.create_stream(name, f"{name}.>", partitions=4, partition_by="subject")
    seen = set()
    for n in range(30):
        ack = world.client.publish(f"{name}.{n % 9}", b"%d" % n, key="k")
        seen.add(ack.partition)
    assert len(seen) > 1
    world.archive()
    records = [
        message
        for partition in range(4)
        for message in world.client.read(name, partition=partition)
    ]
    latest = max(records, key=lambda m: (m.timestamp_ms, m.offset, m.partition))
    assert compacted(world)[1] == {b"k": latest.value}


@pytest.mark.long
def test_rows_that_others_deleted_do_not_count(world: World) -> None:
    """Files of deltalake lack the columns of their folder, here the subject."""
    from deltalake import DeltaTable

    location = str(world.folder / "flights")
    world.table = TableSpec(format="delta", location=location, partition_by=("subject",))
    world.fill(700)
    world.archive()
    _, found = compacted(world)
    assert found == {b"k%d" % (n % 5): b"%d" % n for n in range(695, 700)}
    DeltaTable(location).delete('"offset" in (699, 694)')
    DeltaTable(location).optimize.compact()
    done, found = compacted(world)
    assert done.summary["changed"]
    assert found == {b"k%d" % (n % 5): b"%d" % n for n in (689, *range(695, 699))}
    into = open_table(TableSpec(location=str(world.folder / "last")).address())
    assert {(row["offset"], row["subject"]) for row in world.rows(into)} == {
        (n, f"{world.stream}.{n % 7}") for n in (689, *range(695, 699))
    }
    again, _ = compacted(world)
    assert not again.summary["changed"]
