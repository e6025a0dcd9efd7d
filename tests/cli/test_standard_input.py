"""Standard input of commands, also where it never ends or cannot be read."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

READS = """
import asyncio
from bascule.cli.standard_input import stdin_chunks

async def main():
    async for chunk in stdin_chunks(4):
        print(chunk.decode(), flush=True)

asyncio.run(main())
"""
SECONDS_MAX = 60


def test_chunks_come_as_they_arrive_and_the_end_ends_them() -> None:
    found = subprocess.run(
        [sys.executable, "-c", READS], input=b"abcdefgh1", capture_output=True, check=True,
        timeout=SECONDS_MAX,
    )  # fmt: skip
    assert found.stdout.split() == [b"abcd", b"efgh", b"1"]


def test_an_interrupt_does_not_wait_for_an_open_pipe() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", READS], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ) as process:  # fmt: skip
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(b"abcd")
        process.stdin.flush()
        assert process.stdout.readline() == b"abcd\n"
        process.send_signal(signal.SIGINT)
        assert process.wait(SECONDS_MAX) != 0


@pytest.mark.parametrize("redirection", ["<&-", "0>/dev/null"])
def test_an_input_that_cannot_be_read_is_an_error(redirection: str) -> None:
    """As under a service manager: it is closed, or open for writing."""
    found = subprocess.run(
        ["sh", "-c", f'exec "$0" -c "$1" {redirection}', sys.executable, READS],
        capture_output=True, check=False, timeout=SECONDS_MAX,
    )  # fmt: skip
    assert b"OSError: [Errno 9]" in found.stderr
    assert found.returncode == 1
