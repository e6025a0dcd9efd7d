"""The demo as a user runs it: every check passes, twice in a row, and nothing is left behind."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from bascule.cli.demo.output_folder import MARK
from bascule.cli.demo.processes import members_of_session

DEMO = [sys.executable, "-m", "bascule.cli.main", "demo"]
SECONDS_MAX = 400
"""For one demo; 20 s where nothing else runs."""
Start = Callable[..., subprocess.Popen[str]]

pytestmark = pytest.mark.timeout(2 * SECONDS_MAX + 20)


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts a demo, `start(folder, *arguments)`. At the end no process of it is left."""
    started: list[subprocess.Popen[str]] = []

    def start(folder: Path, *arguments: str) -> subprocess.Popen[str]:
        demo = subprocess.Popen(
            [*DEMO, "--output", str(folder), *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            env={**os.environ, "COLUMNS": "100"},
        )
        started.append(demo)
        return demo

    yield start
    for demo in started:
        demo.kill()
        demo.communicate()


def commands_that_name(folder: Path) -> list[str]:
    """The command lines of running processes that mention the demo's folder."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            except OSError:
                continue
            if str(folder) in command:
                found.append(command)
    return found


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "demo"


def check_demo(start: Start, folder: Path, count: int) -> None:
    """Run a demo of `count` flights to its end."""
    demo = start(folder, "--limit", str(count))
    out, err = demo.communicate(timeout=SECONDS_MAX)
    assert demo.returncode == 0, err
    assert f"offsets 0..{count - 1}" in out
    assert out.count("Σ miles") == 2
    # Piped, each stage says that it begins and that it has ended.
    for stage in ("read CSV", "publish, acked", "start Spark", "query Parquet", "draw"):
        assert f"{stage} ...\n" in err
        assert re.search(rf"^{stage}[ \d,]*: done in [\d.]+ s$", err, re.MULTILINE), err
    last = out.rstrip().splitlines()[-1]
    command = last.removeprefix("the log  ").split(" serve ")[0]
    version = subprocess.run(
        [*shlex.split(command), "--version"], capture_output=True, text=True, check=False
    )
    assert version.stdout.startswith("bascule "), (last, version)
    picture = (folder / "departures.png").read_bytes()
    assert picture.startswith(b"\x89PNG")
    assert members_of_session(demo.pid) == []
    assert commands_that_name(folder) == []


def check_interrupt(start: Start, folder: Path, number: signal.Signals) -> None:
    """Run a demo until its Java starts, then send it a signal."""
    demo = start(folder, "--limit", "2000")
    # Spark's log appears when node, publishing and reading are done and Java starts.
    log = folder / "spark.log"
    while not log.exists() or b"Spark" not in log.read_bytes():
        assert demo.poll() is None, demo.communicate()
        time.sleep(0.05)
    assert commands_that_name(folder) != []
    os.kill(demo.pid, number)
    _, err = demo.communicate(timeout=SECONDS_MAX)
    assert demo.returncode == 130, err
    assert "interrupted" in err
    assert commands_that_name(folder) == []


def test_everything_agrees_after_an_interrupt(start: Start, folder: Path) -> None:
    check_interrupt(start, folder, signal.SIGINT)
    check_demo(start, folder, 2_000)


@pytest.mark.long
def test_twice_in_a_row_everything_agrees(start: Start, folder: Path) -> None:
    check_interrupt(start, folder, signal.SIGTERM)
    for count in (3_000, 2_000):
        check_demo(start, folder, count)


def test_a_folder_of_somebody_else_is_left_alone(start: Start, tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("years of work")
    demo = start(tmp_path, "--limit", "10")
    _, err = demo.communicate(timeout=SECONDS_MAX)
    assert demo.returncode == 2
    assert "was not made by a demo" in err
    assert (tmp_path / "thesis.txt").read_text() == "years of work"
    assert not (tmp_path / MARK).exists()
