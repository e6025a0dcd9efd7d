"""The commands of `bascule pipeline` and their output."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bascule.cli import exit_codes
from bascule.cli.help import CommandGroup
from bascule.cli.output import JsonOption, err, out, print_json
from bascule.cli.pipeline.examples import example
from bascule.errors import MissingExtra

if TYPE_CHECKING:
    from bascule.pipeline.declare import Declaration

FileArgument = Annotated[
    Path, typer.Argument(metavar="FILE", help="The pipeline's TOML file.", show_default=False)
]
SetOption = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Set a key, such as table.format=delta."),
]

JsonLinesOption = Annotated[
    bool,
    typer.Option("--json", help="Print lines of JSON: progress every 10 s, the result at the end."),
]

pipeline = CommandGroup(
    help="Archive, replay, audit and roll up streams with Spark, declared in a file.",
)


@pipeline.command()
def run(
    file: FileArgument,
    settings: SetOption = None,
    report: Annotated[
        Path | None,
        typer.Option("--report", metavar="HTML", help="Write a page with figures and plots."),
    ] = None,
    json: JsonLinesOption = False,
) -> None:
    """Run a pipeline to the current end of the stream, or, with an interval, until Ctrl-C.

    A killed run continues when it is started again. The exit code is 6 if an audit found a fault.
    """
    from bascule.cli.pipeline.runner import run_declared

    chosen = settings or []
    declaration = _load(file, chosen)
    result = run_declared(file, declaration, chosen, report=report, as_json=json)
    if result.interrupted:
        raise typer.Exit(exit_codes.INTERRUPTED)
    if not result.ok:
        raise typer.Exit(exit_codes.CORRUPT)


@pipeline.command()
def check(file: FileArgument, settings: SetOption = None, json: JsonOption = False) -> None:
    """Check a file. Needs neither Spark nor a node."""
    declaration = _load(file, settings or [])
    if json:
        print_json(_facts(declaration))
        return
    facts = _facts(declaration)
    out.print(f"[green]{file} is valid[/green]: " + _sentence(facts))


@pipeline.command()
def new(
    kind: Annotated[
        str,
        typer.Argument(
            metavar="KIND", help="archive, replay, audit, rollup or compact-lake.",
            show_default=False,
        ),
    ],
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE", help="Output file; - is standard output.",
                     show_default="KIND.toml"),
    ] = None,
) -> None:  # fmt: skip
    """Write an example file that explains its keys."""
    text = example(kind)
    path = output or Path(f"{kind}.toml")
    if str(path) == "-":
        out.print(text, end="", markup=False)
        return
    if path.exists():
        raise typer.BadParameter(f"{path} exists; use --output for another file")
    path.write_text(text, encoding="utf-8")
    err.print(f"wrote {path}; next: bascule pipeline check {path}")


@pipeline.command()
def sdp(
    file: FileArgument,
    into: Annotated[
        Path, typer.Option("--into", metavar="DIR", help="The project's folder.")
    ],
    settings: SetOption = None,
) -> None:  # fmt: skip
    """Write an archive or a rollup as a project of Spark Declarative Pipelines.

    Run it with `bascule pipeline sdp-run DIR` or `spark-pipelines run`.
    """
    declaration = _load(file, settings or [])
    from bascule.pipeline.sdp import write_project

    written = write_project(declaration, file, into, settings=settings or [])
    for path in written:
        err.print(f"wrote {path}")
    err.print(f"next: bascule pipeline sdp-run {into}")


@pipeline.command(name="sdp-run")
def sdp_run(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The project's folder.",
                                           exists=True, file_okay=False)],
    json: JsonLinesOption = False,
) -> None:  # fmt: skip
    """Run a project of Spark Declarative Pipelines, and exit with its outcome.

    `spark-pipelines run` of Spark 4.3.0 exits with 1 after a COMPLETED run with a Python source.
    This command exits with 0 if and only if the run COMPLETED.
    """
    from bascule.cli.pipeline.sdp_runner import run_project

    facts = run_project(folder, as_json=json)
    if not facts["completed"]:
        raise typer.Exit(exit_codes.FAILED)


def _load(file: Path, settings: list[str]) -> Declaration:
    """Raises: ConfigError, MissingExtra."""
    if importlib.util.find_spec("numpy") is None:
        raise MissingExtra("a pipeline", "numpy", "pipelines")
    from bascule.pipeline.declare import load

    return load(file, environment=os.environ, settings=settings)


def _facts(declaration: Declaration) -> dict[str, Any]:
    """The values of a file that contain no secrets: no options, no catalog."""
    table = declaration.table
    return {
        "name": declaration.pipeline.name,
        "kind": declaration.pipeline.kind,
        "stream": declaration.source.get("stream"),
        "table": str(table.address()) if table else None,
        "trigger": declaration.pipeline.trigger,
        "checkpoint": declaration.pipeline.checkpoint or None,
    }


def _sentence(facts: dict[str, Any]) -> str:
    parts = [f"{facts['kind']} {facts['name']}"]
    if facts["stream"]:
        parts.append(f"stream {facts['stream']}")
    if facts["table"]:
        parts.append(f"table {facts['table']}")
    return ", ".join([*parts, facts["trigger"]])
