"""A bash that keeps its folder, variables and jobs from block to block, and one in a terminal."""

from __future__ import annotations

import contextlib
import os
import pty
import select
import signal
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

# Of every command that fails, not of the last alone: its line in the block and its exit code.
PRELUDE = """\
set -E -o pipefail
trap 'printf "line %s: %s: exit code %s\\n" "$LINENO" "$BASH_COMMAND" "$?" >&8' ERR
"""


@dataclass(frozen=True)
class Ran:
    """What a block printed, and which of its commands failed."""

    output: str
    errors: str
    failures: str


class Shell:
    def __init__(self, folder: Path, notes: Path, environment: Mapping[str, str]) -> None:
        """Start in `folder`. `notes` is an empty folder for the outputs of blocks."""
        self.environment = environment
        self._notes = notes
        self._count = 0
        self._done, done = os.pipe()
        self._bash = subprocess.Popen(
            ["bash", "--noprofile", "--norc"],
            stdin=subprocess.PIPE,
            cwd=folder,
            env=environment,
            pass_fds=[done],
            text=True,
        )
        os.close(done)
        self._send(f"exec 9>&{done} {done}>&- 8>{notes}/failures\n{PRELUDE}")

    def run(self, text: str, *, seconds_max: float) -> Ran:
        """Run commands as if they were typed. Raises: TimeoutError, EOFError if bash ends."""
        self._count += 1
        block, out, err = (self._notes / f"{self._count}.{kind}" for kind in ("sh", "out", "err"))
        block.write_text(text)
        failures = self._notes / "failures"
        before = failures.stat().st_size if failures.exists() else 0
        self._send(f". {block} >{out} 2>{err} </dev/null 9>&-; echo >&9\n")
        ready, _, _ = select.select([self._done], [], [], seconds_max)
        if not ready:
            raise TimeoutError(f"still running after {seconds_max:.0f} s\n{shown(out, err)}")
        if not os.read(self._done, 1):
            raise EOFError(f"the shell ended\n{shown(out, err)}")
        failed = failures.read_text()[before:].splitlines(keepends=True)
        # The last command failed, and with it the block itself.
        failed = [line for line in failed if f": . {block}" not in line]
        return Ran(out.read_text(), err.read_text(), "".join(failed))

    def folder(self) -> Path:
        return Path(f"/proc/{self._bash.pid}/cwd").resolve()

    def _send(self, text: str) -> None:
        assert self._bash.stdin is not None
        self._bash.stdin.write(text)
        self._bash.stdin.flush()

    def close(self) -> None:
        self._bash.kill()
        self._bash.wait()
        os.close(self._done)
        assert self._bash.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._bash.stdin.close()


def shown(out: Path, err: Path) -> str:
    return f"{out.read_text()}{err.read_text()}".rstrip()


def interrupted(
    text: str, folder: Path, environment: Mapping[str, str], *, after: str, seconds_max: float
) -> tuple[int, str]:
    """Run commands in a terminal and type Ctrl-C once `after` was shown: exit code, what was shown.

    Raises: TimeoutError, EOFError if they end by themselves.
    """
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(folder)
        os.execvpe("bash", ["bash", "--noprofile", "--norc", "-c", text], dict(environment))
    deadline = time.monotonic() + seconds_max
    output, typed = "", False
    try:
        while time.monotonic() < deadline:
            ready, _, _ = select.select([terminal], [], [], deadline - time.monotonic())
            try:
                data = os.read(terminal, 1 << 16) if ready else b""
            except OSError:  # how a terminal says that its last process has ended
                data = b""
            if ready and not data:
                if not typed:
                    raise EOFError(f"it ended before it had shown {after!r}\n{output}")
                return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), output
            output += data.decode(errors="replace")
            if after in output and not typed:
                os.write(terminal, b"\x03")
                typed = True
        raise TimeoutError(f"still running after {seconds_max:.0f} s\n{output}")
    finally:
        with contextlib.suppress(ProcessLookupError, ChildProcessError):
            os.killpg(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        os.close(terminal)
