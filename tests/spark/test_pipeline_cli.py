"""`bascule pipeline` as people run it: a Spark of its own, which ends with the command."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from bascule.cli import exit_codes
from bascule.client import SyncClient
from support.processes import Node

pytestmark = [pytest.mark.tier3, pytest.mark.timeout(500)]
pytest.importorskip("pyspark", reason="the extra `spark` is not installed")

BASCULE = [sys.executable, "-m", "bascule.cli.main", "pipeline"]
WAIT_S = 240

ROLLUP = """
[pipeline]
name = "by-subject"
kind = "rollup"
server = "{server}"
checkpoint = "checkpoint"
report = "report.html"
master = "local[2]"
prometheus_port = 0

[source]
stream = "{stream}"
startingOffsets = "earliest"

[rollup]
sql = "SELECT window.start AS at, subject, count(*) AS n FROM records GROUP BY window(timestamp, '1 second'), subject"
mode = "update"

[table]
format = "parquet"
location = "table"
"""  # noqa: E501


def declared(folder: Path, node: Node, stream: str) -> Path:
    path = folder / "rollup.toml"
    path.write_text(ROLLUP.format(server=node.addresses["http"], stream=stream))
    return path


def fill(client: SyncClient, stream: str, count: int) -> None:
    client.publish_many((f"{stream}.{n % 3}", b"%d" % n) for n in range(count))


def bascule(*arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*BASCULE, *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=False,
    )


def mentions(folder: Path) -> list[int]:
    """Processes whose command line or environment names the folder: Java and Python workers."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal() or int(entry.name) == os.getpid():
            continue
        try:
            text = (entry / "cmdline").read_bytes() + (entry / "environ").read_bytes()
        except OSError:
            continue
        if str(folder).encode() in text:
            found.append(int(entry.name))
    return found


def wait_until(holds: Any) -> None:
    deadline = time.monotonic() + WAIT_S
    while not holds():
        assert time.monotonic() < deadline, f"not within {WAIT_S} s"
        Event().wait(0.1)


def started(folder: Path, *arguments: str) -> subprocess.Popen[bytes]:
    """A run that goes on until it is stopped, with an environment to be known by."""
    return subprocess.Popen(
        [*BASCULE, *arguments, "--set", "pipeline.trigger=500ms"],
        cwd=folder,
        env={**os.environ, "KNOWN_BY": str(folder)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )


def batches(folder: Path) -> int:
    return len(list((folder / "checkpoint" / "commits").glob("[0-9]*")))


def test_a_run_tells_its_result_and_writes_its_report(
    node: Node, client: SyncClient, stream: str, tmp_path: Path
) -> None:
    fill(client, stream, 3_000)
    path = declared(tmp_path, node, stream)
    done = bascule("run", path.name, "--json", folder=tmp_path)
    assert done.returncode == exit_codes.OK, done.stderr
    *progress, result = [json.loads(line) for line in done.stdout.splitlines()]
    assert {line["event"] for line in progress} <= {"progress", "say"}
    assert (result["event"], result["kind"]) == ("result", "rollup")
    assert result["summary"]["rows"] == 3_000
    page = (tmp_path / "report.html").read_text()
    assert "<svg" in page
    assert not re.search(r"(?:src|href)=|@import|url\(|<script|<link", page), "it fetches nothing"
    for told in (node.addresses["http"], "Started", "spark 4.3", "kind = &quot;rollup&quot;"):
        assert told in page
    assert result["run"]["server"] == node.addresses["http"]
    again = bascule("run", path.name, folder=tmp_path)
    assert again.returncode == exit_codes.OK, again.stderr
    assert "by-subject rollup: done" in again.stderr
    assert mentions(tmp_path) == []


@pytest.mark.long
def test_an_application_of_spark_submit(
    node: Node, client: SyncClient, stream: str, tmp_path: Path
) -> None:
    """The master is spark-submit's, the result is the last line of standard output."""
    fill(client, stream, 300)
    path = declared(tmp_path, node, stream)
    submit = Path(sys.executable).parent / "spark-submit"
    application = Path(__file__).resolve().parents[2] / "examples" / "run_pipeline.py"
    done = subprocess.run(
        [str(submit), "--master", "local[1]", "--conf", "spark.ui.enabled=false", "--conf",
         "spark.sql.shuffle.partitions=2", str(application),
         str(path), "--set", "pipeline.prometheus_port=0"],
        env={**os.environ, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"},
        cwd=tmp_path, capture_output=True, text=True, timeout=WAIT_S, check=False,
    )  # fmt: skip
    assert done.returncode == exit_codes.OK, done.stderr
    assert json.loads(done.stdout.splitlines()[-1])["summary"]["rows"] == 300


def test_what_fails_in_spark_is_one_sentence(node: Node, tmp_path: Path) -> None:
    path = declared(tmp_path, node, "nowhere")
    done = bascule("run", path.name, folder=tmp_path)
    assert done.returncode == exit_codes.UNKNOWN
    assert "error: no stream is named 'nowhere'" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_spark_in_order(
    node: Node, client: SyncClient, tmp_path: Path, number: signal.Signals
) -> None:
    stream = f"ends_on_{number.name.lower()}"
    client.create_stream(stream, f"{stream}.>", sync="interval")
    fill(client, stream, 100)
    path = declared(tmp_path, node, stream)
    process = started(tmp_path, "run", path.name, "--json")
    wait_until(lambda: batches(tmp_path) == 1)
    fill(client, stream, 100)  # Spark reports a batch only after it is committed
    wait_until(lambda: batches(tmp_path) == 2)
    assert process.stdout is not None
    told = iter(process.stdout.readline, b"")  # a line every 10 s, while the run goes on
    first = next(line for line in map(json.loads, told) if line.get("done"))
    assert (first["event"], first["name"], first["step"]) == ("progress", "by-subject", "rollup")
    process.send_signal(number)
    output, news = process.communicate(timeout=WAIT_S)
    output = output.splitlines()[-1]
    assert process.returncode == exit_codes.INTERRUPTED, news
    summary = json.loads(output)["summary"]
    assert summary["interrupted"] is True
    assert summary["rows"] >= 100
    assert (tmp_path / "report.html").exists()
    assert mentions(tmp_path) == []


@pytest.mark.long
def test_kill_9_leaves_no_java_and_loses_nothing(
    node: Node, client: SyncClient, stream: str, tmp_path: Path
) -> None:
    fill(client, stream, 100)
    path = declared(tmp_path, node, stream)
    process = started(tmp_path, "run", path.name)
    wait_until(lambda: batches(tmp_path) or process.poll() is not None)
    assert process.poll() is None, process.communicate()
    assert mentions(tmp_path), "Java runs, and is found by what it was given"
    process.kill()
    process.communicate(timeout=WAIT_S)
    wait_until(lambda: not mentions(tmp_path))
    fill(client, stream, 50)
    done = bascule("run", path.name, "--json", folder=tmp_path)
    assert done.returncode == exit_codes.OK, done.stderr
    assert sum_of_last_versions(tmp_path / "table") == 150


def sum_of_last_versions(folder: Path) -> int:
    """Of each window and subject, the count with the greatest batch."""
    import pyarrow as pa

    from bascule.pipeline import lake

    table = lake.open_table(lake.TableAddress("parquet", str(folder)))
    snapshot = table.snapshot()
    assert snapshot is not None
    rows = pa.Table.from_batches(lake.read_files(table.files(snapshot), table.schema)).to_pylist()
    latest: dict[Any, dict[str, Any]] = {}
    for row in sorted(rows, key=lambda row: row["batch"]):
        latest[row["at"], row["subject"]] = row
    return sum(row["n"] for row in latest.values())
