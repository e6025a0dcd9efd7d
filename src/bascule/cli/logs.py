"""The node's log: one event per line, as text or JSON.

Code logs with the standard library: `log.info("opened stream", extra={"stream": name})`. The
message is the event, and `extra` holds its fields.
"""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime
from typing import IO, Final

from bascule.config import LoggingConfig

_STANDARD: Final = frozenset(
    vars(logging.LogRecord("", 0, "", 0, "", (), None))
    | {"message": "", "asctime": "", "taskName": ""}
)

QUIET: Final = ("asyncio", "uvicorn", "uvicorn.error", "httpx", "httpcore")
"""Libraries whose level is at least `warning`."""


def set_up_logging(config: LoggingConfig, stream: IO[str] | None = None) -> None:
    """Send every log record to `stream` (default: standard error) in the format of `config`."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonFormatter() if config.format == "json" else TextFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(config.level.upper())
    for name in QUIET:
        logging.getLogger(name).setLevel(max(logging.WARNING, root.level))


def fields_of(record: logging.LogRecord) -> dict[str, object]:
    """The fields given as `extra`, in order."""
    return {
        key: value
        for key, value in vars(record).items()
        if key not in _STANDARD and not key.startswith("_") and key != "color_message"
    }


def _when(record: logging.LogRecord) -> str:
    moment = datetime.fromtimestamp(record.created, UTC)
    return moment.strftime("%Y-%m-%dT%H:%M:%S.") + f"{moment.microsecond // 1_000:03d}Z"


class TextFormatter(logging.Formatter):
    """`2026-01-02T03:04:05.678Z info  bascule.server opened stream stream=flights ms=3`."""

    def format(self, record: logging.LogRecord) -> str:
        words = [_when(record), f"{record.levelname.lower():<7}", record.name, record.getMessage()]
        words += [f"{key}={self._value(value)}" for key, value in fields_of(record).items()]
        line = " ".join(words)
        if record.exc_info:
            line += "\n" + self.formatException(record.exc_info)
        return line

    @staticmethod
    def _value(value: object) -> str:
        text = str(value)
        plain = bool(text) and text.isprintable() and not set(text) & set(' "=')
        return text if plain else json.dumps(text, ensure_ascii=False)


class JsonFormatter(logging.Formatter):
    """One JSON object per line: time, level, logger, event, then the fields."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "time": _when(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": record.getMessage(),
        }
        for key, value in fields_of(record).items():
            line[key if key not in line else f"{key}_"] = value
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str, ensure_ascii=False)
