"""Follows the log of Spark for the messages of this package.

Workers and planners are processes of Java. What they say reaches the log and no other place.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Final

from bascule.cli.pipeline.periodic_call import PeriodicCall
from bascule.pipeline.retries import LOG_PREFIX

INTERVAL_S: Final = 1.0


class SparkLogFollower(PeriodicCall):
    """Passes new messages on, once a second. A message that many tasks log is passed on once."""

    def __init__(self, path: Path, say: Callable[[str], object]) -> None:
        super().__init__(self.poll, INTERVAL_S)
        self._path = path
        self._say = say
        self._position = 0
        self._last = ""

    def poll(self) -> None:
        """Read the lines that were added since the last call."""
        with self._path.open("rb") as file:
            file.seek(self._position)
            added = file.read()
        whole = added[: added.rfind(b"\n") + 1]
        self._position += len(whole)
        for line in whole.decode(errors="replace").splitlines():
            _, marked, text = line.partition(LOG_PREFIX)
            if marked and text != self._last:
                self._last = text
                self._say(text)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        super().__exit__(kind, error, trace)
        self.poll()
