"""`bascule pipeline` without Spark: new, check, sdp, what a bar shows, what a summary says."""

from __future__ import annotations

import io
import json
import threading
from pathlib import Path

import pytest
from rich.console import Console

from bascule.cli import exit_codes
from bascule.cli.main import main
from bascule.cli.pipeline import display
from bascule.cli.pipeline.display import ProgressDisplay, summary
from bascule.cli.pipeline.json_lines import JsonLines
from bascule.cli.pipeline.spark_log import SparkLogFollower
from bascule.errors import DataLoss, UnknownStream
from bascule.pipeline.declare.sections import KINDS
from bascule.pipeline.jobs.model import JobResult, Table


@pytest.mark.parametrize("kind", KINDS)
def test_a_new_file_is_sound(kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "p.toml"
    assert main(["pipeline", "new", kind, "--output", str(path)]) == exit_codes.OK
    assert main(["pipeline", "check", str(path)]) == exit_codes.OK
    assert f"is valid: {kind} flights-{kind}" in capsys.readouterr().out.replace("\n", " ")
    assert main(["pipeline", "check", str(path), "--json"]) == exit_codes.OK
    facts = json.loads(capsys.readouterr().out)
    assert facts["kind"] == kind
    assert str(tmp_path) in facts["table"]


def test_new_overwrites_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "p.toml"
    path.write_text("mine")
    assert main(["pipeline", "new", "audit", "-o", str(path)]) == exit_codes.USAGE
    assert path.read_text() == "mine"
    assert main(["pipeline", "new", "audit", "-o", "-"]) == exit_codes.OK
    assert 'kind = "audit"' in capsys.readouterr().out
    assert main(["pipeline", "new", "adit"]) == exit_codes.USAGE
    assert "did you mean audit?" in capsys.readouterr().err


def test_what_is_wrong_is_told_with_its_key(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "p.toml"
    main(["pipeline", "new", "archive", "-o", str(path)])
    for command in ("check", "run"):
        wrong = ["pipeline", command, str(path), "--set", "table.formt=delta"]
        assert main(wrong) == exit_codes.USAGE
        told = capsys.readouterr().err.replace("\n", "")
        assert "table.formt is unknown; did you mean table.format?" in told


def test_a_check_tells_no_secret(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CREDENTIAL", "hunter2")
    path = tmp_path / "p.toml"
    main(["pipeline", "new", "archive", "-o", str(path)])
    path.write_text(path.read_text() + '\n[table.catalog]\ncredential = "${CREDENTIAL}"\n')
    assert main(["pipeline", "check", str(path), "--json"]) == exit_codes.OK
    assert "hunter2" not in capsys.readouterr().out


def test_a_project_is_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "p.toml"
    main(["pipeline", "new", "rollup", "-o", str(path)])
    into = tmp_path / "project"
    assert main(["pipeline", "sdp", str(path), "--into", str(into)]) == exit_codes.OK
    assert (into / "spark-pipeline.yml").exists()
    assert main(["pipeline", "sdp-run", str(tmp_path)]) == exit_codes.USAGE
    assert "holds no spark-pipeline.yml" in capsys.readouterr().err.replace("\n", "")


def test_codes_of_errors_that_another_process_told() -> None:
    assert exit_codes.explain_class(UnknownStream)[0] == exit_codes.UNKNOWN
    assert exit_codes.explain_class(DataLoss)[0] == exit_codes.FAILED


def test_the_bar_shows_rows_lag_and_late_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    console = Console(file=io.StringIO(), force_terminal=True, width=160, highlight=False)
    monkeypatch.setattr(display, "err", console)
    with ProgressDisplay("flights") as shown:
        shown.show({"event": "started", "spark": "4.3.0", "prometheus": 9464})
        shown.show({"event": "begin", "what": "archive [x]", "total": 1_000})
        shown.show({"event": "advance", "done": 250})
        shown.show({"event": "lag", "rows_per_s": 9.0, "lag": 750, "late_rows": 3})
        shown.show({"event": "say", "text": "joining [small] files"})
        shown.show({"event": "unknown to this version"})
    assert isinstance(console.file, io.StringIO)
    text = console.file.getvalue()
    for word in ("http://127.0.0.1:9464/metrics", "250 rows", "lag 750", "late 3", "[small]"):
        assert word in text


def test_lines_of_json_tell_the_state_of_a_run() -> None:
    written: list[str] = []
    now = iter([100.0, 110.0, 120.0, 130.0, 140.0])
    lines = JsonLines("flights", write=written.append, clock=lambda: next(now))
    lines.progress()
    lines.show({"event": "started", "spark": "4.3.0", "prometheus": None})
    lines.show({"event": "begin", "what": "archive flights", "total": 1_000})
    lines.progress()
    lines.show({"event": "advance", "done": 250})
    lines.show({"event": "lag", "rows": 250, "rows_per_s": 9.0, "lag": 750, "late_rows": 3})
    lines.show({"event": "say", "text": "compacting"})
    lines.show({"event": "unknown to this version"})
    lines.progress()
    lines.result({"kind": "archive", "ok": True})
    assert all(line.endswith("}\n") for line in written)
    assert [json.loads(line) for line in written] == [
        {"event": "progress", "seconds": 10.0, "name": "flights", "step": "starting Spark"},
        {"event": "progress", "seconds": 20.0, "name": "flights", "step": "archive flights",
         "done": 0, "total": 1_000},
        {"event": "say", "text": "compacting"},
        {"event": "progress", "seconds": 30.0, "name": "flights", "step": "archive flights",
         "done": 250, "total": 1_000, "rows": 250, "rows_per_s": 9.0, "lag": 750, "late_rows": 3},
        {"event": "result", "kind": "archive", "ok": True},
    ]  # fmt: skip


def test_lines_of_json_come_while_nothing_happens() -> None:
    written: list[str] = []
    enough = threading.Event()

    def write(line: str) -> None:
        written.append(line)
        if len(written) == 3:
            enough.set()

    with JsonLines("flights", write=write, interval_s=0.001):
        assert enough.wait(60)
    count = len(written)
    assert all(json.loads(line)["event"] == "progress" for line in written)
    assert len(written) == count, "the last line is written before the end"


def test_the_log_of_spark_is_searched_for_messages_of_ours(tmp_path: Path) -> None:
    log = tmp_path / "spark.log"
    log.write_text("26/11/22 WARN x\nbascule: no node at h; retrying\n")
    said: list[str] = []
    follower = SparkLogFollower(log, said.append)
    follower.poll()
    with log.open("a") as file:
        file.write(
            "bascule: no node at h; retrying\n" * 4 + "26/11/22 ERROR bascule: back\nbascule: ha"
        )
    follower.poll()
    assert said == ["no node at h; retrying", "back"]
    with log.open("a") as file:
        file.write("lf a line\n")
    follower.poll()
    assert said[2:] == ["half a line"]


def test_the_end_of_the_log_is_read_at_the_end(tmp_path: Path) -> None:
    log = tmp_path / "spark.log"
    log.touch()
    said: list[str] = []
    with pytest.raises(ValueError), SparkLogFollower(log, said.append):
        log.write_text("bascule: no node at h; retrying\n")
        raise ValueError
    assert said == ["no node at h; retrying"]


def test_the_summary_is_one_table_and_what_the_job_found() -> None:
    result = JobResult(
        "audit",
        "nightly",
        False,
        {"rows": 1_000, "seconds": 2.0, "note": "[red]plain[/red]"},
        (Table("Faults", ("partition", "offset"), tuple((0, n) for n in range(50))),),
    )
    console = Console(file=io.StringIO(), width=100)
    console.print(summary(result))
    assert isinstance(console.file, io.StringIO)
    text = console.file.getvalue()
    assert "nightly audit: faults found" in text
    assert "[red]plain[/red]" in text
    assert "and 30 more" in text
