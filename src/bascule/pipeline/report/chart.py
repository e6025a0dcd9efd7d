"""Draws a line over time as inline SVG. Pure."""

from __future__ import annotations

import math
from html import escape
from typing import Final

from bascule.pipeline.jobs.model import Series
from bascule.pipeline.report.formatting import short

WIDTH: Final = 640
HEIGHT: Final = 240
LEFT: Final = 56
RIGHT: Final = 16
TOP: Final = 16
BOTTOM: Final = 36
TICKS: Final = 5
DOTS_MAX: Final = 60
"""A line with more points has no dots."""

Point = tuple[float, float]


def chart(series: Series) -> str:
    """Draw the series as an SVG element. Its colours are CSS variables of the page."""
    points = [point for point in series.points if all(map(math.isfinite, point))]
    if not points:
        return ""
    x_ticks = ticks(min(x for x, _ in points), max(x for x, _ in points))
    y_ticks = ticks(0.0, max(0.0, *(y for _, y in points)))
    scale = _Scale((x_ticks[0], x_ticks[-1]), (y_ticks[0], y_ticks[-1]))
    return "".join(
        [
            f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
            f'aria-label="{escape(series.title)}: {escape(series.y_name)} over '
            f'{escape(series.x_name)}">',
            *_y_axis(scale, y_ticks),
            *_x_axis(scale, x_ticks, series.x_name),
            *_line(scale, points, series),
            "</svg>",
        ]
    )


def ticks(low: float, high: float, count: int = TICKS) -> list[float]:
    """About `count` round numbers, the first not above `low` and the last not below `high`."""
    if high <= low:
        high = low + (abs(low) or 1.0)
    rough = (high - low) / count
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(s * power for s in (1, 2, 2.5, 5, 10) if s * power >= rough * (1 - 1e-9))
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [n * step for n in range(first, max(last, first + 1) + 1)]


class _Scale:
    """Converts values to coordinates."""

    def __init__(self, x: Point, y: Point) -> None:
        self._x, self._y = x, y

    def x(self, value: float) -> float:
        low, high = self._x
        return round(LEFT + (value - low) / (high - low) * (WIDTH - LEFT - RIGHT), 1)

    def y(self, value: float) -> float:
        low, high = self._y
        return round(HEIGHT - BOTTOM - (value - low) / (high - low) * (HEIGHT - TOP - BOTTOM), 1)


def _y_axis(scale: _Scale, values: list[float]) -> list[str]:
    found = []
    for value in values:
        y = scale.y(value)
        found.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y}" y2="{y}"/>')
        found.append(f'<text x="{LEFT - 8}" y="{y + 4}" text-anchor="end">{short(value)}</text>')
    return found


def _x_axis(scale: _Scale, values: list[float], name: str) -> list[str]:
    y = HEIGHT - BOTTOM
    found = []
    for number, value in enumerate(values):
        is_last = number == len(values) - 1
        text = short(value) + (f" {escape(_unit(name))}" if is_last else "")
        anchor = "end" if is_last else "middle"
        x = WIDTH - RIGHT if is_last else scale.x(value)
        found.append(f'<text x="{x}" y="{y + 20}" text-anchor="{anchor}">{text}</text>')
    return found


def _unit(name: str) -> str:
    return {"seconds": "s", "minutes": "min"}.get(name, name)


def _line(scale: _Scale, points: list[Point], series: Series) -> list[str]:
    path = " ".join(f"{scale.x(x)},{scale.y(y)}" for x, y in points)
    base = scale.y(0.0)
    first, last = scale.x(points[0][0]), scale.x(points[-1][0])
    found = []
    if len(points) > 1:
        found.append(f'<polygon class="area" points="{first},{base} {path} {last},{base}"/>')
        found.append(f'<polyline class="line" points="{path}"/>')
    for x, y in points if len(points) <= DOTS_MAX else []:
        what = escape(f"{y:,.6g} {series.y_name} at {x:,.4g} {_unit(series.x_name)}")
        found.append(
            f'<circle class="dot" cx="{scale.x(x)}" cy="{scale.y(y)}" r="3">'
            f"<title>{what}</title></circle>"
        )
    return found
