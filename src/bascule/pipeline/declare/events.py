"""Events of a running pipeline: one JSON object per line.

    {"event": "started", "spark": "4.3.0", "prometheus": 9464}
    {"event": "begin", "what": "archive", "total": 100000}
    {"event": "advance", "done": 12000}            absolute, within the step begun last
    {"event": "lag", "rows": 12000, "rows_per_s": 50000.0, "lag": 88000, "late_rows": 0}
    {"event": "say", "text": "..."}
    {"event": "result", "result": {...}}           a `JobResult`; only "report" may follow
    {"event": "report", "path": "/x.html"}
    {"event": "failed", "error": "DataLoss", "text": "..."}

Pure.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, Final

import msgspec

from bascule import errors
from bascule.errors import BasculeError
from bascule.pipeline.jobs.model import JobResult
from bascule.pipeline.worker_errors import own_error, worker_error

Event = dict[str, Any]

_SENTENCE_MAX: Final = 600


class EventWriter:
    """Writes events. It is the `JobProgress` of the job."""

    def __init__(self, write: Callable[[str], object]) -> None:
        self._write = write

    def tell(self, event: str, **facts: Any) -> None:
        self._write(json.dumps({"event": event, **facts}, default=str) + "\n")

    def begin(self, what: str, total: int | None) -> None:
        self.tell("begin", what=what, total=total)

    def advance(self, done: int) -> None:
        self.tell("advance", done=done)

    def say(self, text: str) -> None:
        self.tell("say", text=text)

    def result(self, result: JobResult) -> None:
        self.tell("result", result=msgspec.to_builtins(result))


def decode_line(line: bytes) -> dict[str, Any] | None:
    """Decode the JSON object in a line; None for other output."""
    try:
        found = json.loads(line)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


def decode_event(line: bytes) -> Event | None:
    """Decode the event in a line; None for other output."""
    event = decode_line(line)
    return event if event is not None and "event" in event else None


def decode_result(facts: Any) -> JobResult:
    """Raises: msgspec.ValidationError."""
    return msgspec.convert(facts, JobResult)


def failure_of(error: BaseException) -> tuple[str, str]:
    """Return the class name and the text of a failure. Finds Bascule's error, or another exception
    of a Python worker, inside an error of Spark."""
    if isinstance(error, BasculeError):
        return type(error).__name__, str(error)
    text = str(error)
    if (found := own_error(text)) is not None:
        return found
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    sentence = worker_error(text) or (lines[0] if lines else type(error).__name__)
    return "BasculeError", sentence[:_SENTENCE_MAX]


def error_of(name: str) -> type[BasculeError]:
    """Return the error class of a name; BasculeError for an unknown name."""
    found = getattr(errors, name, None)
    if isinstance(found, type) and issubclass(found, BasculeError):
        return found
    return BasculeError
