"""`python -m bascule.pipeline.sdp DIR`: run a project. The exit code is 0 only if it COMPLETED.

It prints the output of `spark-pipelines run`. The last line of standard output is a JSON object
with `completed`, `exit_code`, `corrected` and `error`. With `--tied` everything ends when standard
input ends.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import threading
from dataclasses import asdict
from pathlib import Path
from typing import Final

from bascule.errors import MissingExtra
from bascule.pipeline.sdp.outcome import ProjectOutcome, outcome_of
from bascule.pipeline.sdp.project import SPEC

LINES_KEPT: Final = 20_000


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bascule.pipeline.sdp")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--tied", action="store_true")
    chosen = parser.parse_args(arguments)
    if chosen.tied:
        threading.Thread(target=_end_with_starter, daemon=True).start()
    outcome = run(chosen.folder)
    sys.stdout.write(json.dumps(asdict(outcome)) + "\n")
    return 0 if outcome.completed else 1


def run(folder: Path) -> ProjectOutcome:
    """Run a project and copy its output to standard error. Raises: MissingExtra."""
    process = subprocess.Popen(
        [_program(), "run", "--spec", str(folder / SPEC)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        cwd=folder,
        env=_environment(),
    )
    assert process.stdout is not None
    lines: list[str] = []
    for line in process.stdout:
        sys.stderr.write(line)
        lines.append(line.rstrip("\n"))
        del lines[:-LINES_KEPT]
    return outcome_of(lines, process.wait())


def _program() -> str:
    """`spark-pipelines` of this Python. Raises: MissingExtra."""
    path = Path(sys.executable).parent / "spark-pipelines"
    if not path.exists():
        raise MissingExtra("a declarative pipeline", "pyspark[pipelines]", "pipelines")
    return str(path)


def _environment() -> dict[str, str]:
    chosen = {"PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable}
    chosen["SPARK_LOCAL_IP"] = "127.0.0.1"
    return {**os.environ, **chosen}


def _end_with_starter() -> None:
    """Kill the process group, which includes Java and its Python workers, when standard input
    ends."""
    while os.read(0, 4_096):
        pass
    os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(main())
