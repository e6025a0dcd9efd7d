"""What the simulators have in common: ranges of seeds, processes that run them, reports."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from pathlib import Path
from typing import Final, TypeVar

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from bascule.sim.raft.run import SimulationFailed

T = TypeVar("T")

FAILED: Final = 1
USAGE: Final = 2
ROOT: Final = Path(__file__).resolve().parents[3]

out = Console(highlight=False, soft_wrap=True)
err = Console(stderr=True, highlight=False, soft_wrap=True)


def parse_range(text: str) -> range:
    """The seeds FIRST-LAST. Raises: BadParameter."""
    first, _, last = text.partition("-")
    try:
        seeds = range(int(first), int(last or first) + 1)
    except ValueError:
        raise typer.BadParameter(f"expected FIRST-LAST, found {text!r}") from None
    if not seeds:
        raise typer.BadParameter(f"no seed is from {first} to {last}")
    return seeds


def commit() -> str:
    """The version of the code. A seed repeats a run of this version only."""
    shown = subprocess.run(
        ["git", "-C", str(ROOT), "describe", "--always", "--dirty", "--abbrev=40"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    return shown.stdout.strip() or "unknown"


def run_parallel(run: Callable[[range], T], seeds: range, *, jobs: int, chunk: int) -> Iterator[T]:
    """The results of parts of `chunk` seeds in the order of completion, from `jobs` processes."""
    parts = iter(seeds[at : at + chunk] for at in range(0, len(seeds), chunk))
    if jobs == 1:
        yield from map(run, parts)
        return
    with ProcessPoolExecutor(jobs) as pool:
        running: set[Future[T]] = set()
        try:
            while True:
                # Twice as many as run at once, so that a failure ends a long run soon.
                while len(running) < 2 * jobs and (part := next(parts, None)) is not None:
                    running.add(pool.submit(run, part))
                if not running:
                    return
                done, running = wait(running, return_when=FIRST_COMPLETED)
                for future in done:
                    yield future.result()
        finally:
            for future in running:
                future.cancel()


def progress() -> Progress:
    """A bar for many seeds, with a field `speed`."""
    return Progress(
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(),
        TextColumn("{task.fields[speed]}"), console=err, transient=True,
    )  # fmt: skip


def print_broken(bar: Progress, failure: SimulationFailed) -> None:
    """One line of a failed seed above the bar."""
    bar.console.print(
        f"seed {failure.seed} broke {failure.invariant}: {failure.text}", style="red", markup=False
    )


def report_failure(failure: SimulationFailed) -> None:
    """Print the last events, what is broken, and how to replay it."""
    err.print(str(failure), markup=False)
    err.print(f"commit: {commit()}", markup=False)
