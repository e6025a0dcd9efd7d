"""Other people's Spark: with the jars of Iceberg and Delta, in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
SITE = ROOT / "build" / "foreign-spark"
"""`make foreign-spark` installs a Spark there for which Iceberg and Delta have jars."""
PROGRAM = Path(__file__).with_name("foreign_spark_session.py")


class ForeignSpark:
    """A running process of `foreign_spark_session.py`."""

    def __init__(self, log: Path) -> None:
        self._log = log
        with log.open("w") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-P", str(PROGRAM)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env={**os.environ, "PYTHONPATH": str(SITE)},
            )

    def ask(self, **asked: str) -> list[Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(asked) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        assert line, f"Spark has ended:\n{self._log.read_text()[-2_000:]}"
        told = json.loads(line)
        assert "error" not in told, f"{asked}: {told['error'][:2_000]}"
        rows: list[Any] = told["rows"]
        return rows

    def sql(self, *statements: str) -> list[Any]:
        rows: list[Any] = []
        for statement in statements:
            rows = self.ask(sql=statement)
        return rows

    def close(self) -> None:
        """The end of its input ends the process. Its pipes are closed too."""
        try:
            self._process.communicate(timeout=60)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.communicate()
            raise
