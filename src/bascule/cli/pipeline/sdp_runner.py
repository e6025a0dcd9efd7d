"""Runs `spark-pipelines run` in its own session and reports its outcome."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any, Final

from rich.markup import escape

from bascule.cli.demo.processes import Program, interrupted_by_all_signals
from bascule.cli.demo.stages import require_java
from bascule.cli.output import err
from bascule.cli.pipeline.json_lines import JsonLines
from bascule.errors import ConfigError
from bascule.pipeline.declare.events import decode_line

MODULE: Final = "bascule.pipeline.sdp"


def run_project(folder: Path, *, as_json: bool) -> dict[str, Any]:
    """Run the project in `folder`. Return its outcome.

    Raises: ConfigError if there is no project; Broken if the program ends without an outcome.
    """
    from bascule.pipeline.sdp.project import SPEC

    if not (folder / SPEC).exists():
        raise ConfigError(f"{folder} holds no {SPEC}: `bascule pipeline sdp` writes one")
    require_java()
    arguments = [sys.executable, "-m", MODULE, str(folder.absolute()), "--tied"]
    with tempfile.TemporaryDirectory(prefix="bascule-sdp-") as scratch:
        program = Program(
            "spark-pipelines", arguments, log=Path(scratch) / "run.log", piped=True, tied=True
        )
        with interrupted_by_all_signals(), program:
            facts: dict[str, Any] | None = None
            lines = JsonLines(folder.name, step="running")
            status = err.status(f"{folder.name}: running", spinner="dots")
            with lines if as_json else status:
                for line in program.output:
                    facts = decode_line(line) or facts
        if facts is None:
            raise program.failure()
        if as_json:
            lines.result(facts)
        else:
            _tell(folder.name, facts, program)
    return facts


def _tell(name: str, facts: dict[str, Any], program: Program) -> None:
    if facts["completed"]:
        known = " (exit code of its client corrected)"
        err.print(f"[green]{escape(name)}: COMPLETED[/green]{known if facts['corrected'] else ''}")
        return
    err.print(f"[red]{escape(name)}: not completed[/red]: {escape(facts['error'])}")
    err.print(escape(str(program.failure())), style="dim")
