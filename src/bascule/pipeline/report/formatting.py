"""Formats numbers for readers, by the unit at the end of their name. Pure."""

from __future__ import annotations

from typing import Any, Final

_BYTES: Final = ("B", "KiB", "MiB", "GiB", "TiB")


def title_of(name: str) -> str:
    """`rows_per_s` as `Rows/s`, `late_rows` as `Late rows`, `file_bytes` as `File size`."""
    if name in ("seconds", "bytes"):
        return {"seconds": "Duration", "bytes": "Size"}[name]
    words = name.replace("_per_s", "/s").replace("_", " ").strip()
    for unit in (" bytes", " seconds", " ms"):
        words = words.removesuffix(unit)
    return words[:1].upper() + words[1:]


def figure(name: str, value: Any) -> str:
    """Format a value of a summary."""
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int | float):
        return _number(name, value)
    if isinstance(value, dict):
        return ", ".join(f"{inner} {figure(inner, part)}" for inner, part in value.items()) or "–"
    if isinstance(value, list | tuple):
        return ", ".join(figure("", part) for part in value) or "–"
    return str(value)


def _number(name: str, value: float) -> str:
    if name == "bytes" or name.endswith("_bytes"):
        return bytes_text(value)
    if name == "seconds" or name.endswith("_seconds"):
        return seconds_text(value)
    if name.endswith("_ms"):
        return seconds_text(value / 1_000)
    if isinstance(value, int) or value == int(value):
        return f"{int(value):,}"
    return f"{value:,.3g}" if abs(value) < 100 else f"{value:,.0f}"


def bytes_text(count: float) -> str:
    for unit in _BYTES:
        if abs(count) < 1_024 or unit == _BYTES[-1]:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:,.1f} {unit}"
        count /= 1_024
    raise AssertionError("the last unit takes all")


def seconds_text(seconds: float) -> str:
    if abs(seconds) < 1:
        return f"{seconds * 1_000:.0f} ms"
    if seconds < 120:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"


def short(value: float) -> str:
    """Format a tick of an axis: `0`, `0.5`, `950`, `12k`, `1.5M`."""
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if abs(value) >= size:
            return f"{value / size:.3g}{unit}"
    return f"{value:.3g}"
