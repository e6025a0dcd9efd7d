"""The archive, its audit and the last values in every table format, split over lake partitions."""

from __future__ import annotations

from typing import Any

import pytest

from bascule.pipeline import CompactLakeSpec, TableSpec, compact_lake
from bascule.pipeline.lake import open_table
from bascule.pipeline.lake.model import TableFormat
from support.lake_jobs import World


def address(world: World, form: TableFormat, name: str) -> dict[str, Any]:
    if form == "iceberg":
        return {"location": str(world.folder / "warehouse"), "name": f"archive.{name}"}
    return {"location": str(world.folder / name)}


def check(world: World, form: TableFormat) -> None:
    if form == "iceberg":
        pytest.importorskip("pyiceberg")
    if form == "delta":
        pytest.importorskip("deltalake")
    split = ("day(timestamp)", "subject")
    world.table = TableSpec(format=form, partition_by=split, **address(world, form, "flights"))
    value = {"valueFormat": "json", "valueSchema": "n bigint"}
    world.client.publish_many(
        (f"{world.stream}.{n % 3}", b"bad" if n % 50 == 9 else b'{"n": %d}' % n, f"k{n % 5}")
        for n in range(600)
    )
    done = world.archive(value=value, offsets_per_trigger_max=200, compact_every=2)
    assert done.summary["rows"] == 588
    found = world.audit(value=value)
    assert found.ok, found
    assert (found.summary["rows"], found.summary["malformed"]) == (600, 12)
    world.archive(value=value, compact_at_end=True, expire_after_ms=0)
    assert world.audit(value=value).ok
    assert world.offsets() == [n for n in range(600) if n % 50 != 9]
    into = TableSpec(format=form, **address(world, form, "last"))
    for _ in range(2):
        last = compact_lake(world.spark, CompactLakeSpec(name="last", table=world.table, into=into))
        assert last.summary["keys"] == 5
    rows = world.rows(open_table(into.address()))
    assert sorted((row["value"]["n"], row["subject"]) for row in rows) == [
        (n, f"{world.stream}.{n % 3}") for n in range(595, 600)
    ]


def test_parquet(world: World) -> None:
    check(world, "parquet")


def test_iceberg(world: World) -> None:
    check(world, "iceberg")


def test_delta(world: World) -> None:
    check(world, "delta")
