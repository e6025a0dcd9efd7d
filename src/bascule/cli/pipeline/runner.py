"""Runs Spark in its own session, reads its events, and always cleans up."""

from __future__ import annotations

import signal
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, Final

import typer

from bascule.cli import exit_codes
from bascule.cli.demo.processes import Program
from bascule.cli.demo.stages import require_java
from bascule.cli.output import err
from bascule.cli.pipeline.display import ProgressDisplay, summary
from bascule.cli.pipeline.json_lines import JsonLines

if TYPE_CHECKING:
    from bascule.pipeline.declare import Declaration
    from bascule.pipeline.declare.events import Event

MODULE: Final = "bascule.pipeline.declare"
END_SECONDS_MAX: Final = 30.0


@dataclass(frozen=True, slots=True)
class EndedRun:
    """The result of a run."""

    ok: bool
    interrupted: bool


def run_declared(
    file: Path, declaration: Declaration, settings: list[str], *, report: Path | None, as_json: bool
) -> EndedRun:
    """Run a checked declaration and show its progress on standard error, or as lines of JSON on
    standard output.

    Raises: Broken if Spark ends without a result; typer.Exit after an error was printed.
    """
    require_java()
    arguments = [sys.executable, "-m", MODULE, str(file), "--events", "--tied"]
    for setting in settings:
        arguments += ["--set", setting]
    if report is not None:
        arguments += ["--report", str(report)]
    with tempfile.TemporaryDirectory(prefix="bascule-pipeline-") as folder:
        log = Path(folder) / "spark.log"
        spark = Program(
            "Spark", arguments, log=log, environment=_environment(), piped=True, tied=True
        )
        with spark as program, forward_signals(program):
            return _watch(program, declaration, as_json=as_json)


def _environment() -> dict[str, str]:
    return {
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYTHONWARNINGS": "ignore",
    }


def _watch(program: Program, declaration: Declaration, *, as_json: bool) -> EndedRun:
    from bascule.cli.pipeline.spark_log import SparkLogFollower
    from bascule.pipeline.declare.events import decode_result

    found: dict[str, Any] | None = None
    page = ""
    shown = JsonLines if as_json else ProgressDisplay
    with (
        shown(declaration.pipeline.name) as display,
        SparkLogFollower(program.log, display.say),
    ):
        for event in _events(program):
            display.show(event)
            if event["event"] == "result":
                found = event["result"]
            elif event["event"] == "report":
                page = event["path"]
            elif event["event"] == "failed":
                raise _failed(event)
            elif event["event"] == "interrupted":
                raise typer.Exit(exit_codes.INTERRUPTED)
    if found is None:
        program.wait(END_SECONDS_MAX)
        raise program.failure()
    result = decode_result(found)
    if isinstance(display, JsonLines):
        display.result(found)
    else:
        err.print(summary(result))
    if page:
        err.print(f"report: {page}")
    return EndedRun(result.ok, bool(result.summary.get("interrupted")))


@contextmanager
def forward_signals(program: Program) -> Iterator[None]:
    """The first Ctrl-C (or SIGTERM, SIGHUP) stops the program in order. The next one interrupts."""
    asked = False

    def on_signal(number: int, frame: FrameType | None) -> None:
        nonlocal asked
        if asked:
            raise KeyboardInterrupt
        asked = True
        program.interrupt()

    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.signal(number, on_signal) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _events(program: Program) -> Iterator[Event]:
    from bascule.pipeline.declare.events import decode_event

    while line := program.output.readline():
        event = decode_event(line)
        if event is not None:
            yield event


def _failed(event: Event) -> Exception:
    """Print the error as the command line prints its own errors."""
    from rich.markup import escape

    from bascule.pipeline.declare.events import error_of

    kind = error_of(event["error"])
    code, hint = exit_codes.explain_class(kind)
    err.print(f"[red]error:[/red] {escape(event['text'])}")
    if hint:
        err.print(f"[dim]{escape(hint)}[/dim]")
    return typer.Exit(code)
