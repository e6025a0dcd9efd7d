"""Output of commands: text for readers, JSON for programs."""

from __future__ import annotations

import json
import sys
from typing import Annotated, Any

import typer
from rich.console import Console

ServerOption = Annotated[
    str | None,
    typer.Option(
        "--server",
        envvar="BASCULE_SERVER",
        help="HTTP address of the node.",
        show_default="http://127.0.0.1:9080",
        show_envvar=True,
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]

out = Console(highlight=False, soft_wrap=True)
"""Results, on standard output."""
err = Console(stderr=True, highlight=False, soft_wrap=True)
"""Progress and messages, on standard error."""


def print_json(value: Any, *, indent: bool = True) -> None:
    """Print one JSON value to standard output; without `indent` on one line."""
    sys.stdout.write(json.dumps(value, indent=2 if indent else None, ensure_ascii=False) + "\n")
