"""From sections to the specs of jobs: every kind, its example and its documentation."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from bascule.cli.pipeline.examples import example
from bascule.errors import ConfigError, DataLoss
from bascule.pipeline.declare import Declaration, load
from bascule.pipeline.declare.dispatch import own_keys, spec_of
from bascule.pipeline.declare.events import (
    EventWriter,
    decode_event,
    decode_result,
    error_of,
    failure_of,
)
from bascule.pipeline.declare.loader import all_keys
from bascule.pipeline.declare.sections import KINDS, Kind
from bascule.pipeline.jobs.archive.spec import ArchiveSpec
from bascule.pipeline.jobs.audit.spec import AuditSpec
from bascule.pipeline.jobs.compact_lake.spec import CompactLakeSpec
from bascule.pipeline.jobs.model import JobResult, RunFacts, Series, Sum, Table
from bascule.pipeline.jobs.replay.spec import ReplaySpec

ROOT = Path(__file__).resolve().parents[3]


def declared(folder: Path, kind: str, *settings: str) -> tuple[Declaration, str]:
    path = folder / f"{kind}.toml"
    path.write_text(example(kind))
    return load(path, environment={}, settings=settings), str(path)


@pytest.mark.parametrize("kind", KINDS)
def test_the_example_of_every_kind_is_sound(tmp_path: Path, kind: Kind) -> None:
    declaration, origin = declared(tmp_path, kind)
    assert declaration.pipeline.kind == kind
    assert spec_of(declaration, origin)


@pytest.mark.parametrize("kind", KINDS)
def test_every_key_of_an_example_that_is_a_comment_is_known(tmp_path: Path, kind: Kind) -> None:
    for section, name in commented_keys(example(kind)):
        if section in ("sink", "source", "spark", "table.catalog"):
            continue
        known = {*all_keys(), *(f"{kind.replace('-', '_')}.{own}" for own in own_keys(kind))}
        assert f"{section}.{name}" in known


def commented_keys(text: str) -> list[tuple[str, str]]:
    section, found = "", []
    for line in text.splitlines():
        header = re.match(r"(?:# )?\[([\w.]+)\]", line)
        if header:
            section = header[1]
        elif key := re.match(r"# (\w+) = ", line):
            found.append((section, key[1]))
    return found


def test_sections_become_the_spec_of_an_archive(tmp_path: Path) -> None:
    declaration, origin = declared(
        tmp_path,
        "archive",
        "archive.compact_every=10",
        "source.maxOffsetsPerTrigger=5000",
        "value.format=json",
        "value.schema=a int",
    )
    spec = spec_of(declaration, origin)
    assert isinstance(spec, ArchiveSpec)
    assert (spec.stream, spec.compact_every, spec.offsets_per_trigger_max) == ("flights", 10, 5_000)
    assert spec.value["valueSchema"] == "a int"
    assert spec.table.location == str(tmp_path / "lake")
    assert spec.checkpoint == str(tmp_path / "checkpoint")


def test_sections_become_the_specs_of_the_others(tmp_path: Path) -> None:
    replay = spec_of(*declared(tmp_path, "replay"))
    assert isinstance(replay, ReplaySpec)
    assert (replay.to, replay.subject) == ("flights-again", "again.{subject}")
    audit = spec_of(*declared(tmp_path, "audit", "pipeline.retry_timeout=5s"))
    assert isinstance(audit, AuditSpec)
    assert (audit.stream, audit.retry_timeout_ms) == ("flights", 5_000)
    compaction = spec_of(*declared(tmp_path, "compact-lake"))
    assert isinstance(compaction, CompactLakeSpec)
    assert compaction.into.location == str(tmp_path / "lake")


@pytest.mark.parametrize(
    ("kind", "setting", "expected"),
    [
        ("archive", "archive.compact_evry=1", "archive.compact_evry is unknown; did you mean arch"),
        ("archive", "archive.compact_every=often", "compact_every is wrong: expected int"),
        ("archive", "archive.stream=x", "archive.stream is unknown"),
        (
            "archive",
            "source.minPartitions=3",
            "source.minPartitions is not allowed for kind",
        ),
        ("audit", "pipeline.checkpoint=x", "pipeline.checkpoint is not allowed for kind audit"),
        ("audit", "pipeline.trigger=10s", "pipeline.trigger is not allowed for kind audit"),
        ("audit", "audit.faults_max=-1", "[audit]: faults_max is -1: expected at least 0"),
        ("audit", "audit.retry_timeout_ms=1", "audit.retry_timeout_ms is unknown"),
        ("replay", "source.stream=x", "[source] is not allowed for kind replay"),
        ("replay", "replay.subject={oops}", "[replay]: subject is '{oops}'"),
        ("compact-lake", "compact_lake.into.name=archive.flights", "into is the archived table"),
        (
            "compact-lake",
            "pipeline.server=http://x",
            "pipeline.server is not allowed for kind",
        ),
    ],
)
def test_what_a_job_does_not_take_is_named(
    tmp_path: Path, kind: str, setting: str, expected: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        declared(tmp_path, kind, setting)
    assert f"{tmp_path}/{kind}.toml:" in str(refused.value)
    assert expected in str(refused.value)


def test_a_kind_without_an_example() -> None:
    with pytest.raises(ConfigError, match="did you mean rollup"):
        example("rolup")


def test_every_key_is_documented() -> None:
    text = (ROOT / "docs" / "pipelines" / "declaration.md").read_text()
    keys = [key for key in all_keys() if key.rpartition(".")[2] not in ("archive", "audit")]
    for kind in KINDS:
        keys += [f"{kind.replace('-', '_')}.{name}" for name in own_keys(kind)]
    missing = [key for key in keys if f"| `{key}" not in text and f"`[{key}]`" not in text]
    assert not missing, f"docs/pipelines/declaration.md lacks {missing}"


def test_a_check_starts_no_spark(tmp_path: Path) -> None:
    for kind in KINDS:
        declared(tmp_path, kind)
    program = (
        "import sys, pathlib\n"
        "from bascule.pipeline.declare import load\n"
        f"for path in pathlib.Path({str(tmp_path)!r}).glob('*.toml'):\n"
        "    load(path, environment={})\n"
        "assert 'pyspark' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


def test_a_result_travels_as_an_event() -> None:
    lines: list[str] = []
    result = JobResult(
        "audit", "a", False, {"rows": 1, "spans": {"0": [1, 2]}},
        (Table("t", ("a",), ((1,), (None,))),), (Series("s", "x", "y", ((0.0, 1.5),)),),
        Sum((("rows", 1), ("malformed", 2)), ("offsets", 3)),
        RunFacts("2026-11-22 08:00:00 UTC", "p.toml", versions={"spark": "4.3.0"}),
    )  # fmt: skip
    events = EventWriter(lines.append)
    events.begin("audit", None)
    events.advance(5)
    events.result(result)
    decoded = [decode_event(line.encode()) for line in lines]
    assert [event["event"] for event in decoded if event] == ["begin", "advance", "result"]
    assert decoded[-1] is not None
    assert decode_result(decoded[-1]["result"]) == result


@pytest.mark.parametrize("line", [b"26/11/21 WARN x", b"[1]", b'{"a": 1}', b"", b"\xff"])
def test_what_else_is_printed_is_no_event(line: bytes) -> None:
    assert decode_event(line) is None


def test_failures_are_told_in_our_own_words() -> None:
    loss = DataLoss("flights", 0, "gone")
    assert failure_of(loss) == ("DataLoss", str(loss))
    wrapped = RuntimeError(
        f"[STREAM_FAILED] x\nTraceback\nbascule.errors.DataLoss: {loss}\n SQLSTATE"
    )
    assert failure_of(wrapped) == ("DataLoss", str(loss))
    where = f"{DataLoss.__module__}.DataLoss"  # as a traceback of a worker names it
    assert failure_of(RuntimeError(f"x\n{where}: {loss}\n")) == ("DataLoss", str(loss))
    assert failure_of(RuntimeError("[TABLE] no\nplan")) == ("BasculeError", "[TABLE] no")


WORKER = """An error occurred while calling o57.collectToPython.
: org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 in stage 0.0 failed
org.apache.spark.api.python.PythonException: An exception was thrown from the Python worker. Please see the stack trace below.
Traceback (most recent call last):
  File "/lib/file_reader.py", line 140, in _sorted_rows
    ordered = table.take(order)
              ^^^^^^^^^^^^^^^^^
pyarrow.lib.ArrowNotImplementedError: Function 'array_take' has no kernel matching input types
{chained}
\tat org.apache.spark.api.python.BasePythonRunner.handlePythonException(PythonRunner.scala:654)
\tat java.base/java.lang.Thread.run(Thread.java:840)
Driver stacktrace:
"""  # noqa: E501
CHAINED = """
During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "/lib/worker.py", line 3, in main
    raise KeyError(name) from None
KeyError: 'offset'
"""


def test_an_exception_of_a_worker_is_told_without_its_wrapping() -> None:
    name, text = failure_of(RuntimeError(WORKER.replace("{chained}", "")))
    assert name == "BasculeError"
    assert text == (
        "pyarrow.lib.ArrowNotImplementedError: Function 'array_take' has no kernel matching input "
        "types"
    )
    chained = failure_of(RuntimeError(WORKER.replace("{chained}", CHAINED)))
    assert chained == ("BasculeError", "KeyError: 'offset'")
    assert error_of("DataLoss") is DataLoss
    assert error_of("Final").__name__ == "BasculeError"
