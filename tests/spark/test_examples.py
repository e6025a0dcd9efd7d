"""The files of `examples/flights`, run as they are, and what comes out held to the CSV."""

from __future__ import annotations

import io
import os
import re
import runpy
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyarrow import csv

from bascule.cli.demo.flights import data_directory
from bascule.client import SyncClient
from bascule.pipeline import lake
from bascule.pipeline.declare import dispatch, load
from bascule.pipeline.jobs.model import NO_PROGRESS, JobResult
from support.processes import Node

pytestmark = pytest.mark.tier3

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
ARCHIVED, MORE = 3_000, 500


@pytest.fixture(scope="module")
def flights() -> pa.Table:
    """The CSV as Arrow reads it."""
    with zipfile.ZipFile(data_directory() / "flights.csv.zip") as archive:
        table = csv.read_csv(
            io.BytesIO(archive.read("flights.csv")),
            convert_options=csv.ConvertOptions(strings_can_be_null=True),
        )
    return table.slice(0, ARCHIVED + MORE)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the examples: they leave their tables beside their files."""
    folder = tmp_path_factory.mktemp("examples") / "flights"
    left = shutil.ignore_patterns("lake*", "checkpoints", "data", "*.html")
    return Path(shutil.copytree(EXAMPLES / "flights", folder, ignore=left))


class Flights:
    """The examples' story, step by step."""

    def __init__(self, spark: Any, node: Node, folder: Path) -> None:
        self.spark, self.node, self.folder = spark, node, folder

    def publish(self, *arguments: str) -> str:
        done = subprocess.run(
            [sys.executable, "publish.py", *arguments],
            cwd=self.folder,
            env={**os.environ, "BASCULE_SERVER": self.node.addresses["http"]},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def run(self, kind: str) -> JobResult:
        """Run a declaration in the Spark of all tests."""
        path = self.folder / f"{kind}.toml"
        server = (
            [] if kind == "compact-lake" else [f"pipeline.server={self.node.addresses['http']}"]
        )
        declaration = load(path, environment={}, settings=server)
        return dispatch.run(self.spark, declaration, str(path), NO_PROGRESS)

    def rows(self, name: str) -> pa.Table:
        table = lake.open_table(lake.TableAddress("parquet", str(self.folder / "lake" / name)))
        snapshot = table.snapshot()
        assert snapshot is not None
        return pa.Table.from_batches(lake.read_files(table.files(snapshot), table.schema))


@pytest.fixture(scope="module")
def story(spark: Any, node: Node, folder: Path) -> Flights:
    """The flights archived, with a tail behind the archive."""
    told = Flights(spark, node, folder)
    assert told.publish("--limit", str(ARCHIVED)) == "3,000 flights are in stream flights\n"
    assert told.run("archive").summary["rows"] == ARCHIVED
    told.publish("--skip", str(ARCHIVED), "--limit", str(MORE))
    return told


def test_lake_and_log_are_one_table(  # the first: those below move the archive's end
    story: Flights,
    flights: pa.Table,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert story.rows("flights").num_rows == ARCHIVED
    monkeypatch.setattr(sys, "argv", ["one_view.py", "--server", story.node.addresses["http"]])
    runpy.run_path(str(story.folder / "one_view.py"), run_name="__main__")
    told = capsys.readouterr().out
    miles = pc.sum(flights["distance"]).as_py()
    assert f"in all 3,500 flights, {miles:,} miles\n" in told
    by_carrier = flights.group_by("carrier").aggregate([("distance", "sum"), ("distance", "count")])
    expected = {
        (row["carrier"], row["distance_count"], row["distance_sum"])
        for row in by_carrier.to_pylist()
    }
    lines = re.findall(r"^(\w+) +([\d,]+) flights +([\d,]+) miles", told, re.MULTILINE)
    found = {(c, int(n.replace(",", "")), int(m.replace(",", ""))) for c, n, m in lines}
    assert found == expected


def test_the_archive_goes_on_and_its_audit_is_clean(story: Flights, flights: pa.Table) -> None:
    story.run("archive")
    found = story.run("audit")
    assert found.ok, found
    assert found.summary["rows"] == ARCHIVED + MORE
    held = story.rows("flights")
    values = held["value"].combine_chunks()
    assert held["offset"].to_pylist() == list(range(ARCHIVED + MORE))
    for name in ("carrier", "tailnum", "dep_delay", "distance"):
        assert pc.struct_field(values, name).to_pylist() == flights[name].to_pylist(), name
    first = pc.struct_field(values, "time_hour")[0].as_py().isoformat()
    assert first == "2013-01-01T10:00:00+00:00"


def test_days_of_airlines_add_up(story: Flights, flights: pa.Table) -> None:
    story.run("rollup")
    last = {}
    for row in sorted(story.rows("by_day").to_pylist(), key=lambda row: row["batch"]):
        last[row["day"], row["carrier"]] = row
    assert sum(row["flights"] for row in last.values()) == flights.num_rows
    assert sum(row["miles"] for row in last.values()) == pc.sum(flights["distance"]).as_py()


def test_each_aircraft_is_where_it_went_last(story: Flights, flights: pa.Table) -> None:
    story.run("archive")
    story.run("compact-lake")
    rows = story.rows("aircraft").to_pylist()
    went = {bytes(row["key"]).decode(): row["value"]["dest"] for row in rows}
    assert len(went) == len(rows)
    tails, places = flights["tailnum"].to_pylist(), flights["dest"].to_pylist()
    assert went == {
        tail: place for tail, place in zip(tails, places, strict=True) if tail is not None
    }


def test_a_replay_gives_back_every_byte(story: Flights, client: SyncClient) -> None:
    story.run("archive")
    client.create_stream("flights-again", "again.>", sync="interval")
    story.run("replay")
    before = [(f"again.{m.subject}", m.key, m.value) for m in client.read("flights")]
    assert [(m.subject, m.key, m.value) for m in client.read("flights-again")] == before
