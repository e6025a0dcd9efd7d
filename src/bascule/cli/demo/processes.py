"""Child programs, each in its own session, which are always cleaned up.

In its own session a program does not receive Ctrl-C; the demo stops it in order. Everything that a
program starts (a NATS server, a JVM, Python workers) stays in its session, even in other process
groups. So at the end all processes of the session are killed.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType, TracebackType
from typing import IO, Final

from bascule.errors import Broken

STOP_SECONDS_MAX: Final = 15.0
LOG_LINES_SHOWN: Final = 12
_PROC: Final = Path("/proc")


class Program:
    """One running program. As a context manager it is always stopped at the end."""

    def __init__(
        self,
        name: str,
        arguments: Sequence[str],
        *,
        log: Path,
        environment: Mapping[str, str] | None = None,
        without: str | None = None,
        piped: bool = False,
        tied: bool = False,
    ) -> None:
        """Start the program. Standard error goes to `log`, and so does standard output unless
        `piped`.

        The standard input of a `tied` program ends when this process ends, even by kill -9. The
        program gets this process's environment and `environment`, without variables that begin with
        `without`.
        """
        self.name = name
        inherited = {
            key: value
            for key, value in os.environ.items()
            if without is None or not key.startswith(without)
        }
        self.log = log
        with log.open("ab") as file:
            self._process = subprocess.Popen(
                arguments,
                stdin=subprocess.PIPE if tied else subprocess.DEVNULL,
                stdout=subprocess.PIPE if piped else file,
                stderr=file,
                env={**inherited, **(environment or {})},
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def output(self) -> IO[bytes]:
        assert self._process.stdout is not None, f"{self.name} was not started with piped=True"
        return self._process.stdout

    def interrupt(self) -> None:
        """Send SIGTERM."""
        self._process.terminate()

    def has_ended(self) -> bool:
        return self._process.poll() is not None

    def wait(self, seconds: float) -> int:
        """Wait for the exit code. Raises: Broken if the program does not end in time."""
        try:
            return self._process.wait(seconds)
        except subprocess.TimeoutExpired as error:
            raise Broken(f"{self.name} did not end within {seconds:.0f} s") from error

    def failure(self) -> Broken:
        """An error with the exit code and the last lines of the log."""
        code = self._process.poll()
        lines = self.log.read_text(errors="replace").splitlines()[-LOG_LINES_SHOWN:]
        how = "does not respond" if code is None else f"ended with exit code {code}"
        return Broken("\n  ".join([f"{self.name} {how}; the end of {self.log}:", *lines]))

    def stop(self) -> None:
        """Send SIGTERM, wait, then send SIGKILL to everything left of the session."""
        with signals_held():
            if not self.has_ended():
                self._process.terminate()
                try:
                    self._process.wait(STOP_SECONDS_MAX)
                except subprocess.TimeoutExpired:
                    self._process.kill()
                    self._process.wait()
            for pid in members_of_session(self.pid):
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass
            for pipe in (self._process.stdin, self._process.stdout):
                if pipe is not None:
                    pipe.close()

    def __enter__(self) -> Program:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()


def members_of_session(session: int) -> list[int]:
    """The processes of a session, without zombies."""
    found = []
    for entry in _PROC.iterdir() if _PROC.is_dir() else ():
        if not entry.name.isdecimal():
            continue
        try:
            # Fields after the command's name in parentheses: state, parent, group, session.
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue  # it ended meanwhile
        if int(fields[3]) == session and fields[0] not in "ZX":
            found.append(int(entry.name))
    return found


@contextmanager
def signals_held() -> Iterator[None]:
    """Ignore SIGINT, SIGTERM and SIGHUP while processes are stopped."""
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.signal(number, signal.SIG_IGN) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def interrupted_by_all_signals() -> Iterator[None]:
    """Make SIGTERM and SIGHUP end the demo as Ctrl-C does, with all clean-up."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = {n: signal.signal(n, interrupt) for n in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
