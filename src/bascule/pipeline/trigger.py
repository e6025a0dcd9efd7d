"""When a streaming query takes its next micro-batch, as a user says it. Pure."""

from __future__ import annotations

import re
from typing import Any, Final

from bascule.errors import ConfigError

AVAILABLE_NOW: Final = "available-now"
"""Take what is there when the run starts, in as many batches as it takes, and end."""
_INTERVAL: Final = re.compile(r"(\d+)\s*(ms|s|min|m|h)")
_UNIT_MS: Final = {"ms": 1, "s": 1_000, "m": 60_000, "min": 60_000, "h": 3_600_000}


def trigger_ms(text: str) -> int | None:
    """Milliseconds between micro-batches; None for `available-now`.

    Raises: ConfigError.
    """
    if text == AVAILABLE_NOW:
        return None
    matched = _INTERVAL.fullmatch(text.strip())
    if matched is None:
        raise ConfigError(f"{text!r} is no trigger: expected {AVAILABLE_NOW}, or 10s, 500ms, 1min")
    return int(matched[1]) * _UNIT_MS[matched[2]]


def trigger_of(text: str) -> dict[str, Any]:
    """What `DataStreamWriter.trigger` takes. Raises: ConfigError."""
    interval_ms = trigger_ms(text)
    if interval_ms is None:
        return {"availableNow": True}
    return {"processingTime": f"{interval_ms} milliseconds"}
