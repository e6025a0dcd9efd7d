"""Spark Declarative Pipelines for real: a project is written, run, run again, and judged."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from bascule.cli import exit_codes
from bascule.client import SyncClient
from support.processes import Node

pytestmark = pytest.mark.tier3
pytest.importorskip("pyspark", reason="the extra `pipelines` is not installed")
pytest.importorskip("grpc", reason="the extra `pipelines` is not installed")

BASCULE = [sys.executable, "-m", "bascule.cli.main", "pipeline"]
WAIT_S = 200

ROLLUP = """
[pipeline]
name = "counts"
kind = "rollup"
server = "{server}"
checkpoint = "checkpoint"

[source]
stream = "{stream}"
startingOffsets = "earliest"

[rollup]
sql = "SELECT window.start AS at, count(*) AS n FROM records GROUP BY window(at, '1 minute')"
watermark = {{ column = "at", delay = "1 minute", expression = "timestamp_seconds(offset)" }}

[table]
format = "parquet"
location = "table"
"""


def bascule(*arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*BASCULE, *arguments],
        cwd=folder, capture_output=True, text=True, timeout=WAIT_S, check=False,
    )  # fmt: skip


def counted(folder: Path) -> dict[int, int]:
    """Start of a window in seconds -> records in it."""
    import pyarrow as pa

    from bascule.pipeline import lake

    table = lake.open_table(lake.TableAddress("parquet", str(folder)))
    snapshot = table.snapshot()
    assert snapshot is not None
    rows = pa.Table.from_batches(lake.read_files(table.files(snapshot), table.schema)).to_pylist()
    assert len({row["at"] for row in rows}) == len(rows), "a window is in the table twice"
    return {int(row["at"].timestamp()): row["n"] for row in rows}


@pytest.mark.long
@pytest.mark.timeout(400)
def test_a_rollup_runs_twice(node: Node, client: SyncClient, stream: str, tmp_path: Path) -> None:
    client.publish_many((f"{stream}.x", b"%d" % n) for n in range(600))
    path = tmp_path / "rollup.toml"
    path.write_text(ROLLUP.format(server=node.addresses["http"], stream=stream))
    written = bascule("sdp", path.name, "--into", "project", folder=tmp_path)
    assert written.returncode == exit_codes.OK, written.stderr
    done = bascule("sdp-run", "project", "--json", folder=tmp_path)
    assert done.returncode == exit_codes.OK, done.stderr + done.stdout
    outcome = json.loads(done.stdout.splitlines()[-1])
    assert outcome["completed"]
    assert counted(tmp_path / "table") == {60 * minute: 60 for minute in range(8)}
    client.publish_many((f"{stream}.x", b"%d" % n) for n in range(600, 1_200))
    again = bascule("sdp-run", "project", folder=tmp_path)
    assert again.returncode == exit_codes.OK, again.stderr
    assert "COMPLETED" in again.stderr
    assert counted(tmp_path / "table") == {60 * minute: 60 for minute in range(18)}


@pytest.mark.long
@pytest.mark.timeout(400)
def test_a_run_that_failed_is_not_taken_for_the_known_fault(node: Node, tmp_path: Path) -> None:
    path = tmp_path / "rollup.toml"
    path.write_text(ROLLUP.format(server=node.addresses["http"], stream="nowhere"))
    assert (
        bascule("sdp", path.name, "--into", "project", folder=tmp_path).returncode == exit_codes.OK
    )
    done = bascule("sdp-run", "project", folder=tmp_path)
    assert done.returncode == exit_codes.FAILED
    assert "no stream is named 'nowhere'" in done.stderr
