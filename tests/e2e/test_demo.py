"""The demo as a user runs it: every check passes, twice in a row, and nothing is left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from bascule.cli.demo.output_folder import MARK
from bascule.cli.demo.processes import members_of_session

DEMO = [sys.executable, "-m", "bascule.cli.main", "demo"]
SECONDS_MAX = 110


def start(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*DEMO, "--output", str(folder), *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={**os.environ, "COLUMNS": "100"},
    )


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
def folder(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "demo"
    yield folder
    assert commands_that_name(folder) == []


@pytest.mark.timeout(2 * SECONDS_MAX + 20)
def test_twice_in_a_row_everything_agrees(folder: Path) -> None:
    for count in (3_000, 2_000):
        demo = start(folder, "--limit", str(count))
        out, err = demo.communicate(timeout=SECONDS_MAX)
        assert demo.returncode == 0, err
        assert f"offsets 0..{count - 1}" in out
        assert out.count("Σ miles") == 2
        picture = (folder / "departures.png").read_bytes()
        assert picture.startswith(b"\x89PNG")
        assert members_of_session(demo.pid) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_leaves_no_process(folder: Path, number: signal.Signals) -> None:
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


def test_a_folder_of_somebody_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("years of work")
    demo = start(tmp_path, "--limit", "10")
    _, err = demo.communicate(timeout=SECONDS_MAX)
    assert demo.returncode == 2
    assert "was not made by a demo" in err
    assert (tmp_path / "thesis.txt").read_text() == "years of work"
    assert not (tmp_path / MARK).exists()
