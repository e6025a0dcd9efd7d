"""Run pages in order, one folder and one set of servers for all of them.

    python -m support.documents.runner [--with-spark] PAGE...

What fails goes to standard output, with its place; the exit code is 1 if anything did. Without
`--with-spark` the steps that need it are left out.
"""

from __future__ import annotations

import argparse
import doctest
import json
import os
import re
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

from support import http_calls, spark_java
from support.children import child_pids, kill_trees
from support.documents import network
from support.documents.commands import commands_in
from support.documents.pages import ROOT, Page, Step, read_page
from support.documents.shell import Shell, interrupted

BIN = Path(sys.executable).parent
INTERPRETER = Path(__file__).with_name("interpreter.py")
STEP_SECONDS_MAX = 900.0
NODE_SECONDS_MAX = 120.0
STARTS_A_NODE = re.compile(r"bascule serve .*&\s*(#.*)?$", re.MULTILINE)
TIME = re.compile(r"\b\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z?")
HTTP_PORT = re.compile(r"--http-port (\d+)")
FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


class StepError(Exception):
    """A step that failed, with what it printed."""


class Interpreter:
    """The program `interpreter.py`, in the page's folder."""

    def __init__(self, folder: Path, notes: Path, environment: Mapping[str, str]) -> None:
        self._notes, self._count = notes, 0
        self._log = notes / "python.log"
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, str(INTERPRETER)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                cwd=folder,
                env=environment,
                text=True,
                bufsize=1,
            )

    def run(self, step: Step) -> str:
        """Run a block; returns what it printed. Raises: StepError."""
        self._count += 1
        output = self._notes / f"python.{self._count}"
        request = {
            "code": "\n" * (step.line - 1) + step.text,
            "name": step.page,
            "doctest": step.language == "pycon",
            "output": str(output),
        }
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        ready, _, _ = select.select([self._process.stdout], [], [], STEP_SECONDS_MAX)
        answer = self._process.stdout.readline() if ready else ""
        printed = output.read_text() if output.exists() else ""
        if not answer:
            log = self._log.read_text()[-3_000:]
            raise StepError(f"no end after {STEP_SECONDS_MAX:.0f} s, or it ended\n{printed}{log}")
        if error := json.loads(answer)["error"]:
            raise StepError(f"{printed}{error}")
        return printed


class Reader:
    """Somebody who reads pages from the top and does what they say."""

    def __init__(self, folder: Path, *, with_spark: bool) -> None:
        self.with_spark = with_spark
        self.folder, self.notes = folder / "page", folder / "notes"
        home = folder / "home"
        for path in (self.folder, self.notes, home):
            path.mkdir()
        shutil.copytree(
            ROOT / "examples",
            self.folder / "examples",
            ignore=shutil.ignore_patterns("lake*", "checkpoints", "data", "*.html", "__pycache__"),
        )
        # An HTTP error is a failure, and no progress bar is shown.
        (home / ".curlrc").write_text("fail-with-body\nsilent\nshow-error\n")
        self.environment = page_environment(home)
        self.shell = Shell(
            self.folder, self.notes, commands_in(folder / "commands", self.environment)
        )
        self.interpreter: Interpreter | None = None
        self.printed: str | None = ""
        """By the block before; None where it failed."""

    def left_out(self, page: Page, step: Step) -> bool:
        return "not run" in step.marks or (
            not self.with_spark and (page.with_spark or "with Spark" in step.marks)
        )

    def follow(self, step: Step) -> None:
        """Do one step. Raises: StepError, TimeoutError, EOFError."""
        if "file" in step.marks:
            path = self.shell.folder() / step.marks["file"]
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(step.text)
        elif "output" in step.marks:
            if self.printed is not None:
                require_output(step.text, self.printed)
        elif text := step.marks.get("Ctrl-C after"):
            self.run_until(step, text)
        elif step.language == "sh":
            self.printed = self.run_shell(step.text)
        elif step.language == "console":
            self.run_console(step)
        elif step.language in ("python", "pycon"):
            if self.interpreter is None:
                self.interpreter = Interpreter(self.folder, self.notes, self.environment)
            self.printed = self.interpreter.run(step)

    def run_shell(self, text: str) -> str:
        ran = self.shell.run(text, seconds_max=STEP_SECONDS_MAX)
        if ran.failures:
            raise StepError(f"{ran.failures}{ran.output}{ran.errors}")
        if STARTS_A_NODE.search(text):
            port = HTTP_PORT.search(text)
            wait_until_ready(int(port[1]) if port else 9080)
        return ran.output + ran.errors

    def run_console(self, step: Step) -> None:
        """Run each command after `$ ` (`> ` continues it) and compare what it prints."""
        failures = []
        for command in re.split(r"^\$ ", step.text, flags=re.MULTILINE)[1:]:
            first, *rest = command.splitlines()
            while rest and rest[0].startswith("> "):
                first += "\n" + rest.pop(0)[2:]
            try:
                require_output("\n".join(rest), self.run_shell(first))
            except StepError as error:
                failures.append(f"$ {first}\n{error}")
        if failures:
            raise StepError("\n".join(failures))

    def run_until(self, step: Step, text: str) -> None:
        code = step.text
        if step.language == "python":
            (self.shell.folder() / "program.py").write_text(step.text)
            code = "python program.py"
        exit_code, output = interrupted(
            code, self.shell.folder(), self.environment, after=text, seconds_max=STEP_SECONDS_MAX
        )
        if exit_code not in (0, 130, -signal.SIGINT):
            raise StepError(f"exit code {exit_code} after Ctrl-C\n{output}")
        self.printed = output


def page_environment(home: Path) -> dict[str, str]:
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("BASCULE_", "PYTEST", "PYTHON", "PYSPARK", "SPARK"))
    }
    return kept | {
        "HOME": str(home),
        # As in an activated virtual environment.
        "PATH": f"{BIN}:{os.environ['PATH']}",
        "VIRTUAL_ENV": str(BIN.parent),
        "COLUMNS": "100",
        "LANG": "C.UTF-8",
        "TERM": "xterm",
        "SPARK_LOCAL_IP": "127.0.0.1",
        **spark_java.environment(),
    }


def require_output(want: str, got: str) -> None:
    """Compare what is printed on the page and what was printed.

    White space and points in time may differ, and `...` stands for anything.
    """
    if not doctest.OutputChecker().check_output(varying(want), varying(got), FLAGS):
        raise StepError(f"it printed\n{got}\nand not\n{want}")


def varying(text: str) -> str:
    """The text with an `@` for each point in time."""
    return TIME.sub("@", text)


def wait_until_ready(port: int) -> None:
    """As long as a reader takes to see the node's banner."""
    deadline = time.monotonic() + NODE_SECONDS_MAX
    while True:
        try:
            http_calls.get(f"http://127.0.0.1:{port}/readyz", seconds=5)
        except OSError as error:
            if time.monotonic() > deadline:
                raise StepError(f"the node on port {port} is not ready: {error}") from error
            select.select([], [], [], 0.05)
        else:
            return


def run(pages: list[Page], reader: Reader) -> list[str]:
    """Do every step; returns what failed. After a step without an end, nothing more is done."""
    failures = []
    for page in pages:
        for step in page.steps:
            if reader.left_out(page, step):
                continue
            started = time.monotonic()
            try:
                reader.follow(step)
            except StepError as error:
                failures.append(f"{step.where}\n{error}")
                reader.printed = None
            except (TimeoutError, EOFError) as error:
                return [*failures, f"{step.where}\n{error}"]
            print(f"{time.monotonic() - started:6.2f} s  {step.where}", file=sys.stderr)
    return failures


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--with-spark", action="store_true")
    parser.add_argument("pages", nargs="+")
    said = parser.parse_args()
    lock = None
    if network.has_namespaces():
        network.bring_up_loopback()
    else:
        lock = network.take_default_ports()
    network.adopt_orphans()
    # Ignored where a shell started this in the background, and then in every child.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        reader = Reader(Path(folder), with_spark=said.with_spark)
        try:
            failures = run([read_page(ROOT / name) for name in said.pages], reader)
        finally:
            kill_trees(child_pids())
    if lock is not None:
        lock.close()
    print("\n\n".join(failures))
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
