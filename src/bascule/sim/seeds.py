"""What the simulators have in common: ranges of seeds, processes that run them, reports."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final, Protocol, TypeVar

import msgspec
import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from bascule.sim.children import call_in_child
from bascule.sim.raft.run import SimulationFailed

T = TypeVar("T")
K = TypeVar("K")

FAILED: Final = 1
USAGE: Final = 2
INTERRUPTED: Final = 130
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


def run_parallel(
    run: Callable[[range], T],
    seeds: range,
    *,
    jobs: int,
    chunk: int,
) -> Iterator[T]:
    """The results of parts of `chunk` seeds in the order of completion, from `jobs` processes."""
    parts = iter(seeds[at : at + chunk] for at in range(0, len(seeds), chunk))
    if jobs == 1:
        yield from map(run, parts)
        return
    # Ctrl-C reaches all processes of a terminal; the one that waits reports what there is.
    with ProcessPoolExecutor(
        jobs, initializer=signal.signal, initargs=(signal.SIGINT, signal.SIG_IGN)
    ) as pool:
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


class SeedResult(Protocol):
    """What each simulator's result of a seed has."""

    @property
    def simulated_seconds(self) -> float: ...
    @property
    def faults(self) -> dict[str, int]:
        """How often each kind of fault happened."""


class AnyMutant(Protocol):
    """A defect that a simulator must find."""

    @property
    def found_by(self) -> Iterable[str]:
        """The invariants that a run with it breaks."""

    def patch(self) -> AbstractContextManager[object]:
        """The production code has the defect inside."""


SeedResults = tuple[float, list[SeedResult | SimulationFailed]]


@dataclass
class Tally:
    """The results of many seeds."""

    counted: tuple[str, ...]
    """Fields of a result, integers, that are added up."""
    runs: int = 0
    simulated_seconds: float = 0.0
    core_seconds: float = 0.0
    """Of all processes."""
    counts: dict[str, int] = field(default_factory=dict)
    faults: dict[str, int] = field(default_factory=dict)
    failures: list[SimulationFailed] = field(default_factory=list)
    is_interrupted: bool = False
    """Whether Ctrl-C ended the run before the last seed."""

    def add(self, result: SeedResult | SimulationFailed) -> None:
        """Count a run."""
        self.runs += 1
        if isinstance(result, SimulationFailed):
            self.failures.append(result)
            return
        self.simulated_seconds += result.simulated_seconds
        for name in self.counted:
            self.counts[name] = self.counts.get(name, 0) + getattr(result, name)
        for fault, times in result.faults.items():
            self.faults[fault] = self.faults.get(fault, 0) + times

    @property
    def speed(self) -> float:
        """Simulated seconds per second of one core."""
        return self.simulated_seconds / self.core_seconds if self.core_seconds else 0.0

    def as_json(self) -> dict[str, object]:
        """The tally for programs."""
        return {
            "runs": self.runs,
            "interrupted": self.is_interrupted,
            "simulated_seconds": round(self.simulated_seconds, 1),
            "core_seconds": round(self.core_seconds, 1),
            "simulated_per_core_second": round(self.speed, 1),
            **{name: self.counts.get(name, 0) for name in self.counted},
            "faults": self.faults,
            "failures": [
                {
                    "seed": failure.seed,
                    "invariant": failure.invariant,
                    "text": failure.text,
                    "replay": failure.replay,
                }
                for failure in self.failures
            ],
        }


def patched(mutants: Mapping[str, AnyMutant], name: str) -> AbstractContextManager[object]:
    """The production code is that of the mutant inside; without a name, as it is."""
    return mutants[name].patch() if name else nullcontext()


def check_mutant(mutants: Mapping[str, AnyMutant], name: str) -> None:
    """End with a list of the mutants, if `name` is none of them. Raises: Exit."""
    if name and name not in mutants:
        for each, mutant in mutants.items():
            out.print(f"{each}: found by {', '.join(mutant.found_by)}", markup=False)
        raise typer.Exit(0 if name == "help" else USAGE)


def run_each(run_seed: Callable[[int], SeedResult], seeds: range) -> SeedResults:
    """Run seeds in this process; (CPU seconds, results)."""
    began = time.process_time()
    found: list[SeedResult | SimulationFailed] = []
    for seed in seeds:
        try:
            found.append(run_seed(seed))
        except SimulationFailed as failure:
            found.append(failure)
    return time.process_time() - began, found


def run_each_in_child(run_seed: Callable[[int], SeedResult], seeds: range) -> SeedResults:
    """As `run_each`, with a new process for each seed."""
    parts = [call_in_child(partial(run_each, run_seed, range(seed, seed + 1))) for seed in seeds]
    found = [result for _, (_, results) in parts for result in results]
    return sum(seconds for seconds, _ in parts), found


def run_many(
    run: Callable[[range], SeedResults],
    seeds: range,
    tally: Tally,
    *,
    jobs: int,
    chunk: int,
    keep_going: bool,
) -> None:
    """Add the results of the seeds to `tally` and show the progress.

    Ends at the first failure, unless it is to keep going, and at Ctrl-C.
    """
    with progress() as bar, _noting_interrupt(tally):
        task = bar.add_task("seeds", total=len(seeds), speed="")
        for seconds, found in run_parallel(run, seeds, jobs=jobs, chunk=chunk):
            tally.core_seconds += seconds
            for result in found:
                tally.add(result)
                if isinstance(result, SimulationFailed):
                    print_broken(bar, result)
            speed = f"{tally.speed:,.1f} simulated s per core s"
            bar.update(task, advance=len(found), speed=speed)
            if tally.failures and not keep_going:
                break


@contextmanager
def _noting_interrupt(tally: Tally) -> Iterator[None]:
    """Have Ctrl-C end what is inside, and not the program: hours of seeds are worth a report."""
    try:
        yield
    except KeyboardInterrupt:
        tally.is_interrupted = True


def report_one(result: msgspec.Struct, text: str, *, as_json: bool) -> None:
    """Print the result of one seed: `text`, or all of it as JSON."""
    if as_json:
        sys.stdout.write(json.dumps(msgspec.to_builtins(result), indent=2) + "\n")
    else:
        out.print(text, markup=False)


def report_many(tally: Tally, *, as_json: bool) -> None:
    """Print the tally. Raises: Exit with status FAILED after a failed seed, INTERRUPTED after
    Ctrl-C."""
    if as_json:
        sys.stdout.write(json.dumps(tally.as_json(), indent=2) + "\n")
    else:
        for failure in tally.failures[:1]:
            report_failure(failure)
        counts = ", ".join(
            f"{times:,} {name.replace('_', ' ')}" for name, times in tally.counts.items()
        )
        out.print(
            f"{'interrupted: ' if tally.is_interrupted else ''}"
            f"{tally.runs:,} seeds, {len(tally.failures)} failed; "
            f"{tally.simulated_seconds:,.0f} s simulated in {tally.core_seconds:,.1f} core s "
            f"({tally.speed:,.1f} to 1)\n{counts}\nfaults: {faults_text(tally.faults)}"
        )
    if tally.failures:
        raise typer.Exit(FAILED)
    if tally.is_interrupted:
        raise typer.Exit(INTERRUPTED)


def faults_text(faults: Mapping[str, int]) -> str:
    """How often each fault happened, such as "2 kill, 1 outage"."""
    return ", ".join(f"{times} {name}" for name, times in sorted(faults.items())) or "none"


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
