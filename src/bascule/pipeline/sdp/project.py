"""Writes the folder of a project."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from bascule.errors import ConfigError
from bascule.pipeline.declare.loader import VARIABLE, apply_setting
from bascule.pipeline.declare.sections import Declaration

SPEC: Final = "spark-pipeline.yml"
DEFINITIONS: Final = "transformations/pipeline.py"
STORAGE: Final = "storage"
KINDS: Final = ("archive", "rollup")
DEFAULTS: Final = {
    "spark.sql.session.timeZone": "UTC",
    # Spark's default of 200 is for clusters. Each partition is a state store with files in every
    # batch.
    "spark.sql.shuffle.partitions": "2",
}
"""Settings that the declaration does not set; equal to those of a local session."""

_DEFINITIONS: Final = '''\
"""Written by `bascule pipeline sdp`: the flow of {file}."""

from bascule.pipeline.sdp.flows import define

define(spark, {file!r}, {settings!r})  # noqa: F821 (spark-pipelines gives it)
'''


def write_project(
    declaration: Declaration, file: Path, into: Path, *, settings: Sequence[str] = ()
) -> list[Path]:
    """Write the project of `declaration`, which was loaded from `file`. Return the files.

    Raises: ConfigError for a kind that is not a streaming flow, a folder with other content, or a
    setting of Spark from the environment, whose value would be written.
    """
    check(declaration)
    _refuse_variables(file, settings)
    spec, definitions = into / SPEC, into / DEFINITIONS
    if into.exists() and any(into.iterdir()) and not spec.exists():
        raise ConfigError(f"{into} is not empty and not a project: use another folder")
    definitions.parent.mkdir(parents=True, exist_ok=True)
    (into / STORAGE).mkdir(exist_ok=True)
    spec.write_text(spec_text(declaration, into), encoding="utf-8")
    definitions.write_text(
        _DEFINITIONS.format(file=str(file.absolute()), settings=list(settings)), encoding="utf-8"
    )
    return [spec, definitions]


def check(declaration: Declaration) -> None:
    """Raises: ConfigError if Spark Declarative Pipelines cannot run the declaration."""
    kind = declaration.pipeline.kind
    if kind not in KINDS:
        raise ConfigError(
            f"kind {kind} is not a streaming flow: Spark Declarative Pipelines run "
            + " and ".join(KINDS)
        )
    if declaration.rollup is not None and declaration.rollup.mode != "append":
        raise ConfigError(
            "rollup.mode is 'update': flows of Spark Declarative Pipelines append; "
            "use `bascule pipeline run`"
        )


def _refuse_variables(file: Path, settings: Sequence[str]) -> None:
    """Refuse `${NAME}` in the settings of Spark: the project has their values, and no secret.

    Raises: ConfigError.
    """
    document = tomllib.loads(file.read_text(encoding="utf-8"))
    for setting in settings:
        apply_setting(document, setting)
    for name, value in document.get("spark", {}).items():
        variables = [found[1] for found in VARIABLE.finditer(str(value)) if found[1]]
        if variables:
            raise ConfigError(
                f"spark.{name} names ${{{variables[0]}}}, and its value would be written to "
                f"{SPEC}: set it in Spark's conf/spark-defaults.conf, or write the value into the "
                "declaration"
            )


def spec_text(declaration: Declaration, into: Path) -> str:
    """The YAML text. Every value is JSON, which is valid YAML."""
    from bascule.pipeline.declare.validation import option_text

    settings = {name: option_text(value) for name, value in declaration.spark.items()}
    for name, text in DEFAULTS.items():
        settings.setdefault(name, text)
    lines = [
        f"name: {json.dumps(declaration.pipeline.name)}",
        f"storage: {json.dumps((into / STORAGE).absolute().as_uri())}",
        "libraries:",
        "  - glob:",
        f"      include: {json.dumps(DEFINITIONS)}",
        "configuration:",
        *(f"  {json.dumps(name)}: {json.dumps(text)}" for name, text in settings.items()),
    ]
    return "\n".join(lines) + "\n"
