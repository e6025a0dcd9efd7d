"""The trigger of a streaming query: parsing and conversion to Spark's arguments. Pure."""

from __future__ import annotations

import re
from typing import Any, Final

from bascule.errors import ConfigError

AVAILABLE_NOW: Final = "available-now"
"""Process everything that is committed when the run starts, then end."""
_INTERVAL: Final = re.compile(r"(\d+)\s*(ms|s|min|m|h)")
_UNIT_MS: Final = {"ms": 1, "s": 1_000, "m": 60_000, "min": 60_000, "h": 3_600_000}


def trigger_ms(text: str) -> int | None:
    """Return the milliseconds between micro-batches; None for `available-now`.

    Raises: ConfigError.
    """
    if text == AVAILABLE_NOW:
        return None
    matched = _INTERVAL.fullmatch(text.strip())
    if matched is None:
        raise ConfigError(
            f"{text!r} is not a trigger: expected {AVAILABLE_NOW}, or 10s, 500ms, 1min"
        )
    return int(matched[1]) * _UNIT_MS[matched[2]]


def trigger_of(text: str) -> dict[str, Any]:
    """Return the arguments for `DataStreamWriter.trigger`. Raises: ConfigError."""
    interval_ms = trigger_ms(text)
    if interval_ms is None:
        return {"availableNow": True}
    return {"processingTime": f"{interval_ms} milliseconds"}
