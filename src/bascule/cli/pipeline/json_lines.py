"""The output of a run for programs: one JSON object per line, the last one with the result.

{"event": "progress", "name": "flights", "seconds": 10.0, "step": "archive flights", "done": 12000, "total": 100000}
{"event": "say", "text": "no Bascule node answers at http://node:9080; retrying for up to 2 min"}
{"event": "result", "kind": "archive", "name": "flights", "ok": true, "summary": {...}, ...}
"""  # noqa: E501

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from bascule.cli.pipeline.periodic_call import PeriodicCall

if TYPE_CHECKING:
    from bascule.pipeline.declare.events import Event

INTERVAL_S: Final = 10.0
_OF_LAG: Final = ("rows", "rows_per_s", "lag", "late_rows")


class JsonLines(PeriodicCall):
    """Writes the state of a run every ten seconds, from its start on. Thread-safe."""

    def __init__(
        self,
        name: str,
        *,
        step: str = "starting Spark",
        write: Callable[[str], object] | None = None,
        clock: Callable[[], float] = time.monotonic,
        interval_s: float = INTERVAL_S,
    ) -> None:
        super().__init__(self.progress, interval_s)
        self._write = write or _write
        self._clock = clock
        self._began_s = clock()
        self._state: dict[str, Any] = {"name": name, "step": step}
        self._lock = threading.Lock()

    def show(self, event: Event) -> None:
        """Take in an event of the run."""
        with self._lock:
            match event["event"]:
                case "started":
                    self._state["step"] = "preparing"
                case "begin":
                    self._state |= {"step": event["what"], "done": 0, "total": event["total"]}
                case "advance":
                    self._state["done"] = event["done"]
                case "lag":
                    self._state |= {name: event[name] for name in _OF_LAG if name in event}
        if event["event"] == "say":
            self.say(str(event["text"]))

    def say(self, text: str) -> None:
        """Write a message at once."""
        self._tell({"event": "say", "text": text})

    def progress(self) -> None:
        """Write the state."""
        seconds = round(self._clock() - self._began_s, 1)
        with self._lock:
            state = {"event": "progress", "seconds": seconds, **self._state}
        self._tell(state)

    def result(self, result: Mapping[str, Any]) -> None:
        """Write the result. It is the last line."""
        self._tell({"event": "result", **result})

    def _tell(self, value: Mapping[str, Any]) -> None:
        with self._lock:
            self._write(json.dumps(value, ensure_ascii=False) + "\n")


def _write(line: str) -> None:
    sys.stdout.write(line)
    sys.stdout.flush()
