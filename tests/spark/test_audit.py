"""The audit finds what is wrong with a table: each test damages one in one way."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from support.lake_jobs import World

Manifest = dict[str, Any]


@pytest.fixture
def archived(world: World) -> World:
    """A table of 1,200 records in six files, and its audit is clean."""
    world.fill(1_200)
    world.archive(offsets_per_trigger_max=200)
    found = world.audit()
    assert found.ok, found
    assert found.summary["rows"] == 1_200
    return world


def damage_manifest(world: World, change: Callable[[Manifest], None]) -> None:
    """Change the snapshot files that name data files."""
    for path in sorted((world.folder / "lake/_bascule/snapshots").glob("*.json")):
        text = json.loads(path.read_text())
        change(text)
        path.unlink()
        path.write_text(json.dumps(text))


def file_of(world: World, offset: int) -> Path:
    table = world.open()
    snapshot = table.snapshot()
    assert snapshot is not None
    [path] = [
        Path(file.path)
        for file in table.files(snapshot)
        if file.span and file.span.start <= offset < file.span.end
    ]
    return path


def rewrite(path: Path, change: Callable[[list[dict[str, Any]]], None]) -> None:
    table = pq.read_table(path)
    rows = table.to_pylist()
    change(rows)
    pq.write_table(pa.Table.from_pylist(rows, table.schema), path)


def faults(found: Any) -> list[tuple[int, str]]:
    return [(fault["offset"], fault["kind"]) for fault in found.summary["first_faults"]]


def test_a_file_that_the_manifest_lost(archived: World) -> None:
    def drop(text: Manifest) -> None:
        text["added"] = [f for f in text.get("added", []) if f["span"][1] != 400]

    damage_manifest(archived, drop)
    found = archived.audit()
    assert not found.ok
    assert found.summary["missing"] == 200
    assert found.summary["spans_wrong"] == 1
    assert (400, "missing") in faults(found)
    assert (400, "rows") in faults(found)
    [row] = found.tables[0].rows
    assert dict(zip(found.tables[0].columns, row, strict=True))["missing"] == 200


def test_a_file_that_is_there_twice(archived: World) -> None:
    def repeat(text: Manifest) -> None:
        text["added"] = [f for f in text.get("added", []) for _ in range(1 + (f["span"][1] == 400))]

    damage_manifest(archived, repeat)
    found = archived.audit()
    assert not found.ok
    assert found.summary["duplicate"] == 200
    assert (400, "duplicate") in faults(found)


def test_a_cell_that_changed(archived: World) -> None:
    changes = [
        ("value", b"other"),
        ("key", None),
        ("subject", "s.t"),
        ("headers", []),
        ("key", b""),
    ]
    path = file_of(archived, 500)
    whole = path.read_bytes()
    for column, value in changes:

        def flip(rows: list[dict[str, Any]], column: str = column, value: object = value) -> None:
            [row] = [row for row in rows if row["offset"] == 500]
            assert row[column] != value
            row[column] = value

        rewrite(path, flip)
        found = archived.audit()
        assert not found.ok
        assert (found.summary["differing"], found.summary["spans_wrong"]) == (1, 1)
        assert faults(found) == [(400, "crc"), (500, "differing")]
        assert found.summary["first_faults"][1]["detail"] == column
        path.write_bytes(whole)


def test_an_offset_that_changed(archived: World) -> None:
    def swap(rows: list[dict[str, Any]]) -> None:
        rows[-1]["offset"] = 5_000

    rewrite(file_of(archived, 1_100), swap)
    found = archived.audit()
    assert not found.ok
    assert found.summary["missing"] == 1


def test_a_file_that_cannot_be_read(archived: World) -> None:
    path = file_of(archived, 500)
    data = bytearray(path.read_bytes())
    data[len(data) // 2 - 200 : len(data) // 2 + 200] = bytes(400)
    path.write_bytes(data)
    broken = archived.audit()
    assert not broken.ok
    path.unlink()
    gone = archived.audit()
    assert not gone.ok
    assert gone.summary["missing"] == 200
    assert (400, "unreadable") in faults(gone)


def test_below_the_start_of_the_log(archived: World) -> None:
    """What the log holds no more is held against what was recorded when it was archived."""
    archived.client.purge_stream(archived.stream, to_offset=900)
    clean = archived.audit()
    assert clean.ok, clean
    assert (clean.summary["rows"], clean.summary["rows_of_log"]) == (1_200, 300)

    def flip(rows: list[dict[str, Any]]) -> None:
        rows[3]["value"] = b"other"

    rewrite(file_of(archived, 500), flip)
    found = archived.audit()
    assert not found.ok
    assert faults(found) == [(400, "crc")]
    assert "[400, 600)" in found.summary["first_faults"][0]["detail"]


def test_lag_is_a_fault_unless_allowed(archived: World) -> None:
    archived.fill(30, first=1_200)
    found = archived.audit()
    assert not found.ok
    assert found.summary["lag"] == 30
    assert faults(found) == [(1_200, "missing")]
    assert archived.audit(allow_lag=True).ok


def test_compaction_of_the_log_is_no_fault(world: World) -> None:
    """Records that the log's compaction removed stay in the table."""
    name = world.stream = f"compacted_{world.stream}"
    world.client.create_stream(
        name, f"{name}.>", cleanup=["compact"], dirty_percent_min=0, dedupe_window_ms=0,
        segment_bytes_max=20_000,
    )  # fmt: skip
    for _ in range(4):
        world.client.publish_many((f"{name}.x", b"x" * 100, f"k{n % 10}") for n in range(1_000))
    world.archive()
    deadline = time.monotonic() + 60
    found = world.audit()
    while not found.summary["compacted_since"]:
        assert time.monotonic() < deadline, "compaction never ran"
        assert found.ok, found
        time.sleep(1)
        found = world.audit()
    assert found.ok, found
    assert found.summary["rows"] > found.summary["rows_of_log"]
