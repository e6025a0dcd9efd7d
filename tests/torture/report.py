"""The table, the figures and the picture of a run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from rich.console import Console
from rich.table import Table

INK: Final = "#1c2733"
SOFT: Final = "#66727f"
PAPER: Final = "#fbfaf7"
BIN_SECONDS: Final = 0.5
TAIL_SECONDS: Final = 2.0
"""Times without an ack are looked for until so long after the end of a fault."""
WAIT_SECONDS_MAX: Final = 300.0
COLUMNS: Final = (
    "count", "s", "alone", "a partition without ack, alone: median s", "max s", "any: max s",
    "all partitions: max s", "longest wait s",
)  # fmt: skip
COLOURS: Final = (
    "#4269d0", "#efb118", "#ff725c", "#6cc5b0", "#3ca951", "#ff8ab7", "#a463f2", "#97bbf5",
    "#9c6b4e", "#9498a0",
)  # fmt: skip


@dataclass(frozen=True)
class Happened:
    """One fault that was carried out."""

    kind: str
    begin: float
    end: float
    what: str
    is_alone: bool
    """Whether no other fault was in its round."""


def happened(events: Sequence[Mapping[str, Any]]) -> list[Happened]:
    """The faults of the lines of `events.jsonl`."""
    begun = {each["fault"]: each for each in events if each["event"] == "begin"}
    counts = Counter(each["round"] for each in begun.values())
    return [
        Happened(
            each["kind"],
            begun[each["fault"]]["at_s"],
            each["at_s"],
            each["what"],
            is_alone=counts[begun[each["fault"]]["round"]] == 1,
        )
        for each in events
        if each["event"] == "end"
    ]


def gap_within(times: np.ndarray, begin: float, end: float) -> float:
    """The longest time without an ack that overlaps with [begin, end), seconds."""
    if not len(times):
        return end - begin
    first = max(0, int(np.searchsorted(times, begin)) - 1)
    last = min(len(times), int(np.searchsorted(times, end)) + 1)
    inside = times[first:last]
    return float(np.max(np.diff(inside), initial=0.0))


@dataclass(frozen=True)
class Acked:
    """When messages were acked, in order of that; seconds since the beginning."""

    times: np.ndarray
    waits: np.ndarray
    """How long each message had waited since it was sent for the first time."""
    partitions: np.ndarray
    """A number for each publisher and partition."""

    def by_partition(self) -> list[np.ndarray]:
        """The times of each partition."""
        return [self.times[self.partitions == each] for each in np.unique(self.partitions)]


def rows_of(faults: Sequence[Happened], acked: Acked) -> list[dict[str, Any]]:
    """What each kind of fault has cost, over all faults and over those without others beside.

    `partition_s`: the longest time without an ack of one partition. `all_s`: of all partitions.
    `wait_s`: how long a message waited for its ack that was sent before the fault ended.
    """
    rows = []
    partitions = acked.by_partition()
    for kind in sorted({fault.kind for fault in faults}):
        mine = [fault for fault in faults if fault.kind == kind]
        gaps = [max((_gap(times, fault) for times in partitions), default=0.0) for fault in mine]
        alone = [gap for gap, fault in zip(gaps, mine, strict=True) if fault.is_alone]
        rows.append(
            {
                "kind": kind,
                "count": len(mine),
                "skipped": sum(fault.what.startswith("skipped") for fault in mine),
                "seconds": round(sum(fault.end - fault.begin for fault in mine), 1),
                "alone": len(alone),
                "alone_partition_s_median": round(float(np.median(alone)), 2) if alone else None,
                "alone_partition_s_max": round(max(alone), 2) if alone else None,
                "partition_s_max": round(max(gaps), 2),
                "all_s_max": round(max(_gap(acked.times, fault) for fault in mine), 2),
                "wait_s_max": round(max(_longest_wait(acked, fault) for fault in mine), 2),
            }
        )
    return rows


def _gap(times: np.ndarray, fault: Happened) -> float:
    return gap_within(times, fault.begin, fault.end + TAIL_SECONDS)


def _longest_wait(acked: Acked, fault: Happened) -> float:
    first = np.searchsorted(acked.times, fault.begin)
    last = np.searchsorted(acked.times, fault.end + WAIT_SECONDS_MAX)
    times, waits = acked.times[first:last], acked.waits[first:last]
    return float(np.max(waits[times - waits < fault.end], initial=0.0))


def print_report(console: Console, result: Mapping[str, Any]) -> None:
    table = Table(title=f"torture, seed {result['seed']}", title_justify="left")
    table.add_column("fault")
    for name in COLUMNS:
        table.add_column(name, justify="right")
    for row in result["faults"]:
        skipped = f" ({row['skipped']} skipped)" if row["skipped"] else ""
        figures = (
            row["seconds"], row["alone"], row["alone_partition_s_median"],
            row["alone_partition_s_max"], row["partition_s_max"], row["all_s_max"],
            row["wait_s_max"],
        )  # fmt: skip
        cells = ("-" if figure is None else f"{figure:g}" for figure in figures)
        table.add_row(row["kind"], f"{row['count']}{skipped}", *cells)
    console.print(table)
    processes = Table(title="processes, the longest life of each node", title_justify="left")
    for name in ("node", "seconds", "rss_mb_first", "rss_mb_last", "rss_mb_max", "descriptors"):
        processes.add_column(name.replace("_", " "), justify="right")
    for row in result["processes"]:
        processes.add_row(*(str(value) for value in row.values()))
    console.print(processes)
    console.print(
        f"{result['acked']:,} acks in {result['seconds']:.0f} s, {result['read']:,} records read; "
        f"{result['rounds']} rounds, {result['flips']} bits flipped, "
        f"{result['cuts']} logs cut: {result['healed']} healed by themselves, "
        f"{result['healed_by_scrub']} of them after a scrub, {result['repaired']} repaired"
    )
    if result["consumers_stuck"]:
        console.print(f"{result['consumers_stuck']} consumers stood still in librdkafka, replaced")
    if result["table"]:
        counts = ", ".join(f"{n:,} {kind.replace('_', ' ')}" for kind, n in result["table"].items())
        console.print(f"table: {counts}")
    for finding in result["findings"]:
        console.print(f"finding: {finding}", style="red", markup=False)
    if not result["findings"]:
        console.print(
            "nothing lost, doubled, reordered or changed; replicas are equal", style="green"
        )


def draw(path: Path, result: Mapping[str, Any], faults: Sequence[Happened], acked: Acked) -> None:
    """Throughput, unavailability and faults over time, as a PNG."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    seconds = float(result["seconds"])
    edges = np.arange(0.0, seconds + BIN_SECONDS, BIN_SECONDS)
    counts, _ = np.histogram(acked.times, edges)
    kinds = sorted({fault.kind for fault in faults})
    with plt.rc_context({"font.family": "DejaVu Sans", "text.color": INK, "axes.labelcolor": SOFT}):
        figure, (rate, gaps, bars) = plt.subplots(
            3, 1, figsize=(max(12.0, min(30.0, seconds / 60)), 5 + 0.24 * len(kinds)), sharex=True,
            facecolor=PAPER, height_ratios=[3, 1.6, 0.6 + 0.24 * len(kinds)], layout="constrained",
        )  # fmt: skip
        rate.fill_between(edges[:-1], counts / BIN_SECONDS, step="post", color="#97bbf5", lw=0)
        rate.set_ylabel("acks/s")
        longest = np.zeros(len(edges))
        for times in acked.by_partition():
            np.maximum(longest, gaps_over(times, len(edges)), out=longest)
        everywhere = gaps_over(acked.times, len(edges))
        gaps.vlines(edges, 0, longest, color="#e8a09a", lw=1.2, label="of one partition")
        gaps.vlines(edges, 0, everywhere, color="#b3201a", lw=1.2, label="of all")
        gaps.legend(loc="upper right", frameon=False, fontsize=8)
        gaps.set_ylabel("no ack, s")
        gaps.set_ylim(0, max(1.0, float(np.max(longest, initial=0.0)) * 1.1))
        for index, kind in enumerate(kinds):
            colour = COLOURS[index % len(COLOURS)]
            spans = [
                (f.begin, max(f.end - f.begin, seconds / 600)) for f in faults if f.kind == kind
            ]
            bars.broken_barh(spans, (index - 0.4, 0.8), color=colour)
            for begin, width in spans:
                rate.axvspan(begin, begin + width, color=colour, alpha=0.13, lw=0)
        bars.set_yticks(range(len(kinds)), kinds)
        bars.invert_yaxis()
        bars.set_xlabel("seconds")
        for axes in (rate, gaps, bars):
            axes.set_facecolor(PAPER)
            axes.spines[["top", "right"]].set_visible(False)
            axes.set_xlim(0, seconds)
            axes.tick_params(colors=SOFT)
        findings = len(result["findings"])
        rate.set_title(
            f"{result['acked']:,} acked messages under {len(faults)} faults, seed "
            f"{result['seed']}: {findings or 'no'} finding{'' if findings == 1 else 's'}",
            loc="left", fontsize=13, fontweight="bold",
        )  # fmt: skip
        figure.savefig(path, dpi=130, facecolor=PAPER)
        plt.close(figure)


def gaps_over(times: np.ndarray, bins: int) -> np.ndarray:
    """The longest time without an ack that begins in each bin of the picture, seconds."""
    longest = np.zeros(bins)
    if len(times):
        where = np.minimum((times[:-1] / BIN_SECONDS).astype(int), bins - 1)
        np.maximum.at(longest, where, np.diff(times))
    return longest
