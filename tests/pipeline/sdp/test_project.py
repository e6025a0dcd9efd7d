"""What a project holds, and how the output of a run is judged."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from bascule.cli.pipeline.examples import example
from bascule.errors import ConfigError
from bascule.pipeline.declare import Declaration, load
from bascule.pipeline.sdp.outcome import outcome_of
from bascule.pipeline.sdp.project import write_project

COMPLETED = "2026-11-21 10:00:00: Run is COMPLETED."
FAULT = (
    "pyspark.errors.exceptions.base.PySparkValueError: [UNKNOWN_RESPONSE] Unknown response: "
    "Plan observed(__python_accumulator__=...)"
)


def declared(folder: Path, kind: str, *settings: str) -> tuple[Declaration, Path]:
    path = folder / f"{kind}.toml"
    path.write_text(example(kind))
    return load(path, environment={}, settings=settings), path


@pytest.mark.parametrize("kind", ["archive", "rollup"])
def test_a_project_names_its_declaration(tmp_path: Path, kind: str) -> None:
    setting = 'spark."spark.sql.shuffle.partitions"=4'
    declaration, path = declared(tmp_path, kind)
    files = write_project(declaration, path, tmp_path / "project", settings=[setting])
    spec = yaml.safe_load(files[0].read_text())
    assert spec["name"] == f"flights-{kind}"
    assert spec["storage"] == (tmp_path / "project" / "storage").as_uri()
    assert spec["libraries"] == [{"glob": {"include": "transformations/pipeline.py"}}]
    assert all(isinstance(text, str) for text in spec["configuration"].values())
    text = files[1].read_text()
    compile(text, "pipeline.py", "exec")
    assert repr(str(path)) in text
    assert repr([setting]) in text
    assert write_project(declaration, path, tmp_path / "project") == files, "written anew"


def test_secrets_stay_in_the_environment(tmp_path: Path) -> None:
    path = tmp_path / "a.toml"
    path.write_text(example("archive") + '\n[table.catalog]\ncredential = "${SECRET}"\n')
    declaration = load(path, environment={"SECRET": "hunter2"})
    for file in write_project(declaration, path, tmp_path / "project"):
        assert "hunter2" not in file.read_text()


@pytest.mark.parametrize("text", ["${SECRET}", "a ${SECRET:-default}", "$${ and ${SECRET}"])
def test_settings_of_spark_from_the_environment_are_not_written(tmp_path: Path, text: str) -> None:
    path = tmp_path / "a.toml"
    path.write_text(
        example("archive") + f'\n[spark]\n"spark.hadoop.fs.s3a.secret.key" = "{text}"\n'
    )
    declaration = load(path, environment={"SECRET": "hunter2"})
    with pytest.raises(ConfigError, match=r"secret.key names \$\{SECRET\}") as refused:
        write_project(declaration, path, tmp_path / "project")
    assert "hunter2" not in str(refused.value)
    assert not (tmp_path / "project").exists()


def test_what_is_no_flow_is_refused(tmp_path: Path) -> None:
    declaration, path = declared(tmp_path, "audit")
    with pytest.raises(ConfigError, match="kind audit is not a streaming flow"):
        write_project(declaration, path, tmp_path / "project")
    declaration, path = declared(tmp_path, "rollup", "rollup.mode=update")
    with pytest.raises(ConfigError, match="flows of Spark Declarative Pipelines append"):
        write_project(declaration, path, tmp_path / "project")


def test_a_folder_of_something_else_is_left_alone(tmp_path: Path) -> None:
    declaration, path = declared(tmp_path, "archive")
    with pytest.raises(ConfigError, match="is not empty and not a project"):
        write_project(declaration, path, tmp_path)


def test_a_run_that_completed() -> None:
    outcome = outcome_of([COMPLETED], 0)
    assert outcome.completed
    assert not outcome.corrected


def test_the_known_fault_behind_a_run_that_completed_is_corrected() -> None:
    outcome = outcome_of([COMPLETED, "Traceback", FAULT], 1)
    assert outcome.completed
    assert outcome.corrected


@pytest.mark.parametrize(
    ("lines", "code"),
    [
        ([], 0),
        (["Run is RUNNING."], 0),
        ([FAULT], 1),
        ([COMPLETED, "ValueError: something else"], 1),
        ([COMPLETED, "Run is FAILED.", FAULT], 1),
        (["Run is FAILED."], 1),
        ([COMPLETED], 137),
    ],
)
def test_anything_else_did_not_complete(lines: list[str], code: int) -> None:
    outcome = outcome_of(lines, code)
    assert not outcome.completed
    assert outcome.error


def test_the_error_is_ours_where_there_is_one() -> None:
    lines = ["Run is FAILED.", "  bascule.errors.UnknownStream: no stream is named 'x'"]
    assert outcome_of(lines, 1).error == "no stream is named 'x'"
