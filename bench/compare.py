"""`python -m bench.compare --before DIR [--rounds N] [FIGURE ...]`: two checkouts in turn.

Each round runs a figure once in the checkout DIR and once in this one, each in a process of its
own, and changes which comes first; so what else the machine does falls on both. A ratio is after
over before, pair by pair; more is better, and the bar is 0.97 of the median. Metrics per CPU second
are steadier than rates where other processes use the cores. Both checkouts must be built.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from bench.harness import keep, median_ratio, row

AFTER = Path(__file__).resolve().parents[1]
FIGURES_FILE = AFTER / "bench" / "compare_figures.py"
FIGURES = (
    "ingest", "acked", "reading", "fetch", "decode", "compaction", "raft_sim", "restart",
)  # fmt: skip
BAR = 0.97


def measure(figure: str, checkout: Path) -> dict[str, float]:
    """One round of one side; raises: subprocess.CalledProcessError."""
    paths = (checkout / "src", checkout, checkout / "tests")
    ended = subprocess.run(
        [sys.executable, "-P", str(FIGURES_FILE), figure, str(checkout)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, paths))},
        cwd=checkout,
        stdout=subprocess.PIPE,
        check=True,
    )
    found: dict[str, float] = json.loads(ended.stdout.splitlines()[-1])
    return found


def compare(figure: str, before: Path, rounds: int) -> list[dict[str, Any]]:
    """A row for each metric of the figure."""
    found: dict[Path, list[dict[str, float]]] = {before: [], AFTER: []}
    for number in range(rounds):
        for checkout in (before, AFTER) if number % 2 == 0 else (AFTER, before):
            found[checkout].append(measure(figure, checkout))
            print(".", end="", file=sys.stderr, flush=True)
    return [
        row(
            f"{figure}: {metric}",
            median_ratio([m[metric] for m in found[AFTER]], [m[metric] for m in found[before]]),
            at_least=BAR,
        )
        for metric in found[AFTER][0]
    ]


def show(rows: list[dict[str, Any]], before: Path) -> None:
    table = Table(title=f"{before} -> {AFTER}")
    for column in ("figure", "before", "after", "ratio", "range", "bar"):
        table.add_column(column, justify="left" if column == "figure" else "right")
    for line in rows:
        table.add_row(
            line["figure"],
            *(f"{sorted(line[side])[len(line[side]) // 2]:,.1f}" for side in ("others", "ours")),
            f"{line['ratio']:.3f}",
            f"{line['ratio_min']:.3f}-{line['ratio_max']:.3f}",
            "kept" if line["kept"] else "MISSED",
        )
    Console(width=110).print(table)


def commit_of(checkout: Path) -> str:
    """The commit of a checkout, marked where files differ from it."""
    command = ["git", "-C", str(checkout), "describe", "--always", "--dirty", "--abbrev=12"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.compare", description=__doc__)
    parser.add_argument("figures", nargs="*", metavar="FIGURE", help=f"of: {', '.join(FIGURES)}")
    parser.add_argument("--before", type=Path, required=True, help="a built checkout")
    parser.add_argument("--rounds", type=int, default=5, help="pairs of runs (5)")
    arguments = parser.parse_args()
    unknown = set(arguments.figures) - set(FIGURES)
    if unknown:
        parser.error(f"no figure is named {', '.join(sorted(unknown))}; there are {FIGURES}")
    before = arguments.before.resolve()
    rows = []
    for figure in arguments.figures or FIGURES:
        print(f"== {figure} ", end="", file=sys.stderr, flush=True)
        rows += compare(figure, before, arguments.rounds)
        print(file=sys.stderr)
    for line in rows:
        line |= {"before": commit_of(before), "after": commit_of(AFTER)}
    show(rows, before)
    keep("compare", rows)


if __name__ == "__main__":
    main()
