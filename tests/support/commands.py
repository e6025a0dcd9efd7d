"""Runs `bascule` commands to their end, as `subprocess.run` does, forked where that can be done."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from support.processes import BIN, WAIT_SECONDS_MAX, fork_server


def run(
    *arguments: object,
    input: bytes | str = b"",
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    text: bool = False,
    check: bool = False,
    timeout: float = WAIT_SECONDS_MAX,
) -> subprocess.CompletedProcess[Any]:
    """The result of `bascule ARGUMENTS`, with its output; `env` is added to the environment."""
    command = [str(BIN / "bascule"), *map(str, arguments)]
    environment = {**os.environ, **(env or {})}
    data = input.encode() if isinstance(input, str) else input
    process = _start(command, environment, cwd)
    with process:
        try:
            out, err = process.communicate(data, timeout=timeout)
        except BaseException:
            process.kill()
            raise
    ended: subprocess.CompletedProcess[Any] = subprocess.CompletedProcess(
        command,
        process.returncode,
        out.decode() if text else out,
        err.decode() if text else err,
    )
    if check:
        ended.check_returncode()
    return ended


def _start(
    command: Sequence[str], environment: Mapping[str, str], cwd: Path | None
) -> subprocess.Popen[bytes]:
    server = fork_server(command, environment)
    if server is None:
        pipe = subprocess.PIPE
        return subprocess.Popen(
            command, stdin=pipe, stdout=pipe, stderr=pipe, env=environment, cwd=cwd
        )
    theirs_in, ours_in = os.pipe()
    ours_out, theirs_out = os.pipe()
    ours_err, theirs_err = os.pipe()
    theirs = (theirs_in, theirs_out, theirs_err)
    try:
        process = server.start(command, environment, theirs, cwd)
    finally:
        for descriptor in theirs:
            os.close(descriptor)
    process.stdin = os.fdopen(ours_in, "wb")
    process.stdout = os.fdopen(ours_out, "rb")
    process.stderr = os.fdopen(ours_err, "rb")
    return process
