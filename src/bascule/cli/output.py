"""Output of commands: text for readers, JSON for programs, and questions to the user."""

from __future__ import annotations

import json
import re
import sys
from typing import Annotated, Any, Final

import typer
from rich.console import Console, ConsoleOptions

from bascule.cli.completion import stream_names
from bascule.errors import ConfigError

ServerOption = Annotated[
    str | None,
    typer.Option(
        "--server",
        envvar="BASCULE_SERVER",
        metavar="HOST:PORT,...",
        help="HTTP addresses of nodes; the first one that answers is asked.",
        show_default="127.0.0.1:9080",
        show_envvar=True,
    ),
]
StreamArgument = Annotated[
    str,
    typer.Argument(metavar="STREAM", help="Name of the stream.", autocompletion=stream_names),
]
YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]

PIPED_WIDTH: Final = 1 << 20
"""Columns of a pipe or a file: more than any table has."""


BLANKS_AT_ENDS: Final = re.compile(r" +$", re.MULTILINE)


class PipeConsole(Console):
    """A console that cuts nothing for the width of a terminal unless it writes to one."""

    @property
    def options(self) -> ConsoleOptions:
        given = super().options
        return given if self.file.isatty() else given.update_width(PIPED_WIDTH)

    def print(self, *objects: Any, **options: Any) -> None:
        """As of any console. In a pipe the rows of a table end with their last character: one long
        cell does not make them all as long."""
        if self.file.isatty() or all(isinstance(each, str) for each in objects):
            super().print(*objects, **options)
            return
        with self.capture() as captured:
            super().print(*objects, **options)
        self.file.write(BLANKS_AT_ENDS.sub("", captured.get()))
        self.file.flush()


out = PipeConsole(highlight=False, soft_wrap=True)
"""Results, on standard output."""
err = PipeConsole(stderr=True, highlight=False, soft_wrap=True)
"""Progress and messages, on standard error."""


def print_json(value: Any, *, indent: bool = True) -> None:
    """Print one JSON value to standard output; without `indent` on one line."""
    sys.stdout.write(json.dumps(value, indent=2 if indent else None, ensure_ascii=False) + "\n")


def print_error(text: str, hint: str = "") -> None:
    """Print an error to standard error, and below it what to do."""
    err.print("[red]error:[/red]", end=" ")
    err.print(text, markup=False)
    if hint:
        err.print(hint, markup=False, style="dim")


def print_warning(text: str) -> None:
    """Print a warning to standard error: the command has been carried out."""
    err.print("[yellow]warning:[/yellow]", end=" ")
    err.print(text, markup=False)


def confirm(question: str, *, yes: bool) -> None:
    """Return if `yes`, or if the user confirms on standard input.

    Raises: typer.Abort after another answer; ConfigError if standard input ends without one.
    """
    if yes:
        return
    err.print(f"{question} [y/N] ", end="", markup=False)
    answer = sys.stdin.readline()
    if not answer.endswith("\n") or not sys.stdin.isatty():
        err.print()
    if not answer:
        raise ConfigError("nobody answered: give --yes where standard input is not a terminal")
    if answer.strip().lower() not in ("y", "yes"):
        raise typer.Abort
