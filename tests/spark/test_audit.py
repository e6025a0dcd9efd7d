"""The audit finds what is wrong with a table: each test damages one in one way."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from math import inf
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bascule.cli import exit_codes
from bascule.errors import Broken
from bascule.pipeline.jobs.audit.task import AuditTaskSpec, SpanGroup, check_span_group
from bascule.pipeline.jobs.tables import TableSpec
from bascule.pipeline.lake.model import Span
from bascule.pipeline.values.spec import ValueSpec
from support.lake_jobs import World
from support.processes import Node

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


@pytest.mark.long
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


@pytest.mark.long
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


@pytest.mark.long
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


@pytest.mark.long
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
        segment_bytes_max=20_000, min_compaction_lag_ms=86_400_000,
    )  # fmt: skip
    for _ in range(4):
        world.client.publish_many((f"{name}.x", b"x" * 100, f"k{n % 10}") for n in range(1_000))
    world.archive()
    world.client.alter_stream(name, min_compaction_lag_ms=0)
    deadline = time.monotonic() + 60
    found = world.audit()
    while not found.summary["compacted_since"]:
        assert time.monotonic() < deadline, "compaction never ran"
        assert found.ok, found
        time.sleep(1)
        found = world.audit()
    assert found.ok, found
    assert found.summary["rows"] > found.summary["rows_of_log"]


class NodeStop:
    """Progress of a job that stops the node as the tasks begin, and starts it `up_after` reports
    later."""

    def __init__(self, node: Node, up_after: float) -> None:
        self._node, self._left = node, up_after

    def begin(self, what: str, total: int | None) -> None:
        self._node.stop()

    def advance(self, done: int) -> None:
        self._left -= 1
        if self._left == 0:
            self._node.start()

    def say(self, text: str) -> None:
        pass


@pytest.mark.long
def test_the_driver_waits_for_a_node_that_is_away(
    archived: World, caplog: pytest.LogCaptureFixture
) -> None:
    with ThreadPoolExecutor(1) as threads:
        archived.node.stop()
        try:
            with pytest.raises(Broken):
                archived.audit(retry_timeout_ms=1_000)
            assert "retrying for up to 1 s" in caplog.text
            found = threads.submit(partial(archived.audit, retry_timeout_ms=300_000))
            while "retrying for up to 5 min" not in caplog.text:
                assert not found.done(), found.result()
                time.sleep(0.05)
        finally:
            archived.node.start()
        assert found.result().ok


@pytest.mark.long
def test_tasks_wait_for_a_node_that_is_away(
    archived: World, caplog: pytest.LogCaptureFixture
) -> None:
    from pyspark.errors import PySparkException

    assert archived.audit(NodeStop(archived.node, up_after=3), retry_timeout_ms=300_000).ok
    try:
        with pytest.raises(PySparkException, match=r"errors\.system\.Broken"):
            archived.audit(NodeStop(archived.node, up_after=inf), retry_timeout_ms=500)
        span = Span(0, 0, 200)
        task_spec = AuditTaskSpec(
            server=archived.node.addresses["http"],
            stream=archived.stream,
            value=ValueSpec.from_options({}),
            raw=False,
            compacted=False,
            faults_max=1,
            retry_timeout_ms=1_000,
        )
        with pytest.raises(Broken):
            check_span_group(task_spec, SpanGroup((span,), (None,), 0, 1_200, (), ()))
        assert "retrying for up to 1 s" in caplog.text
    finally:
        archived.node.start()


AUDIT = """
[pipeline]
name = "privacy"
kind = "audit"
server = "{server}"
master = "local[1]"

[source]
stream = "{stream}"

[table]
format = "delta"
location = "{location}"
"""


@pytest.mark.long
def test_rows_that_deltalake_deleted(world: World) -> None:
    """As privacy requests are fulfilled: `DeltaTable.delete`, also below the log start."""
    from deltalake import DeltaTable

    location = str(world.folder / "flights")
    world.table = TableSpec(format="delta", location=location, partition_by=("day(timestamp)",))
    world.fill(1_200)
    world.archive(offsets_per_trigger_max=200)
    DeltaTable(location).delete('"offset" in (7, 8, 700)')
    version = DeltaTable(location).version()
    world.client.purge_stream(world.stream, to_offset=300)
    found = world.audit()
    assert not found.ok
    assert found.summary["missing"] == 3
    texts = {
        f["offset"]: f["detail"] for f in found.summary["first_faults"] if f["kind"] == "missing"
    }
    assert texts.keys() == {7, 700}
    assert texts[7].startswith(f"offsets [7, 9), removed by snapshot {version} (DELETE) of 20")
    assert texts[700].startswith(f"offset 700, removed by snapshot {version} (DELETE) of 20")
    [removal] = found.summary["removals"]
    assert (removal["rows"], removal["offsets"]) == (3, [[7, 9], [700, 701]])
    allowed = world.audit(deletions="allowed")
    assert allowed.ok, allowed
    assert (allowed.summary["missing"], allowed.summary["deleted"]) == (0, 3)

    path = world.folder / "audit.toml"
    path.write_text(
        AUDIT.format(server=world.node.addresses["http"], stream=world.stream, location=location)
    )
    for more, code in ((), exit_codes.CORRUPT), (("--set", "audit.deletions=allowed"), 0):
        command = [sys.executable, "-m", "bascule.cli.main", "pipeline", "run", str(path), "--json"]
        done = subprocess.run(
            [*command, *more],
            cwd=world.folder,
            capture_output=True,
            text=True,
            timeout=400,
            check=False,
        )
        assert done.returncode == code, done.stderr
        assert "Python worker" not in done.stdout + done.stderr
        assert json.loads(done.stdout.splitlines()[-1])["summary"]["lag"] == 0


def test_a_run_waits_and_says_so(archived: World) -> None:
    path = archived.folder / "audit.toml"
    text = AUDIT.format(
        server=archived.node.addresses["http"],
        stream=archived.stream,
        location=archived.folder / "lake",
    ).replace("delta", "parquet")
    path.write_text(text.replace("[source]", 'retry_timeout = "1500ms"\n\n[source]'))
    command = [sys.executable, "-m", "bascule.cli.main", "pipeline", "run", str(path), "--json"]
    archived.node.stop()
    try:
        done = subprocess.run(
            command, cwd=archived.folder, capture_output=True, text=True, timeout=400, check=False
        )
    finally:
        archived.node.start()
    assert done.returncode == exit_codes.UNREACHABLE, done.stderr
    assert "no Bascule node answers at" in done.stderr
    said = [line["text"] for line in map(json.loads, done.stdout.splitlines()) if "text" in line]
    assert any("retrying for up to 2 s" in line for line in said), said
