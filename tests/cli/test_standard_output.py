"""Standard output of commands that is closed, full, or not read to its end."""

from __future__ import annotations

import subprocess
import sys

import pytest

SECONDS_MAX = 60
COMMANDS = (["--version"], ["--help"], ["stream", "--help"])


def run(arguments: list[str], redirection: str) -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-m", "bascule.cli.main", *arguments]
    return subprocess.run(
        ["sh", "-c", f'exec "$@" {redirection}', "sh", *command],
        capture_output=True, check=False, timeout=SECONDS_MAX,
    )  # fmt: skip


@pytest.mark.parametrize("arguments", COMMANDS)
def test_a_closed_output_is_one_line_and_an_exit_code(arguments: list[str]) -> None:
    found = run(arguments, ">&-")
    assert found.stderr == b"error: standard output is closed\n"
    assert found.returncode == 1


@pytest.mark.parametrize("arguments", COMMANDS)
def test_a_full_output_is_one_line_and_an_exit_code(arguments: list[str]) -> None:
    found = run(arguments, ">/dev/full")
    assert found.stderr.startswith(b"error: ")
    assert found.stderr.endswith(b"No space left on device\n")
    assert found.stderr.count(b"\n") == 1
    assert found.returncode == 1


def test_a_command_that_fails_says_why_although_its_output_is_closed() -> None:
    found = run(["stream", "list", "--server", "http://127.0.0.1:1"], ">&-")
    assert found.stderr.startswith(b"error: ")
    assert b"127.0.0.1:1" in found.stderr
    assert found.stderr.count(b"error: ") == 1
    assert found.returncode == 5


def test_no_file_of_the_command_takes_the_place_of_its_output() -> None:
    """Else what a child process prints would go there."""
    script = (
        "import os\n"
        "from bascule.cli import main\n"
        "main.hold_standard_output()\n"
        "os._exit(40 + os.open('/dev/null', os.O_RDONLY))\n"
    )
    found = subprocess.run(
        ["sh", "-c", 'exec "$0" -c "$1" >&-', sys.executable, script],
        check=False, timeout=SECONDS_MAX,
    )  # fmt: skip
    assert found.returncode > 41
