"""Waits for the key that ends a live view."""

from __future__ import annotations

import os
import select
import sys
import termios
import time
import tty
from types import TracebackType
from typing import Any, Final

QUIT_KEYS: Final = frozenset(b"qQ")


class QuitKey:
    """Reads single keys from standard input while the block runs, if it is a terminal.

    The terminal's settings are restored at the end. Ctrl-C still interrupts.
    """

    def __init__(self) -> None:
        self._fd = sys.stdin.fileno() if sys.stdin.isatty() else -1
        self._settings: list[Any] = []

    def wait(self, seconds: float) -> bool:
        """Wait. Return True at once after the key, False after `seconds`."""
        deadline = time.monotonic() + seconds
        while self._fd >= 0:
            ready, _, _ = select.select([self._fd], [], [], max(deadline - time.monotonic(), 0))
            if not ready:
                return False
            keys = os.read(self._fd, 64)
            if not keys:
                self._fd = -1  # the terminal has been closed
            if QUIT_KEYS & set(keys):
                return True
        time.sleep(max(deadline - time.monotonic(), 0))
        return False

    def __enter__(self) -> QuitKey:
        if self._fd >= 0:
            self._settings = termios.tcgetattr(self._fd)
            tty.setcbreak(self._fd)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._settings:
            termios.tcsetattr(sys.stdin.fileno(), termios.TCSADRAIN, self._settings)
