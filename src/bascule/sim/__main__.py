"""`python -m bascule.sim raft|cluster`: runs one seed or many, and replays a seed exactly."""

from __future__ import annotations

import json
import sys
import time
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Annotated, Final

import msgspec
import typer

from bascule.sim.checkers import standard_checkers
from bascule.sim.cluster_command import cluster
from bascule.sim.mutants import MUTANTS
from bascule.sim.raft.plan import HeartbeatPace
from bascule.sim.raft.run import RunOptions, RunResult, SimulationFailed, run_seed
from bascule.sim.raft.trace import Trace
from bascule.sim.seeds import (
    FAILED,
    USAGE,
    out,
    parse_range,
    print_broken,
    progress,
    report_failure,
    run_parallel,
)

CHUNK_SEEDS: Final = 8
"""Seeds that a process runs at a time."""

app = typer.Typer(
    name="python -m bascule.sim",
    help="Run the production code with simulated time, network and disks, drawn from a seed.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


app.command()(cluster)


@dataclass
class Tally:
    """The results of many runs."""

    runs: int = 0
    simulated_seconds: float = 0.0
    core_seconds: float = 0.0
    """Of all processes."""
    events: int = 0
    committed: int = 0
    operations: int = 0
    crashes: int = 0
    changes: int = 0
    faults: dict[str, int] = field(default_factory=dict)
    failures: list[SimulationFailed] = field(default_factory=list)

    def add(self, result: RunResult) -> None:
        self.simulated_seconds += result.simulated_seconds
        self.events += result.events
        self.committed += result.committed
        self.operations += result.operations
        self.crashes += result.crashes
        self.changes += result.changes
        for fault, times in result.faults.items():
            self.faults[fault] = self.faults.get(fault, 0) + times

    @property
    def speed(self) -> float:
        """Simulated seconds per second of one core."""
        return self.simulated_seconds / self.core_seconds if self.core_seconds else 0.0

    def as_json(self) -> dict[str, object]:
        return {
            "runs": self.runs,
            "simulated_seconds": round(self.simulated_seconds, 1),
            "core_seconds": round(self.core_seconds, 1),
            "simulated_per_core_second": round(self.speed),
            "events": self.events,
            "committed": self.committed,
            "operations": self.operations,
            "crashes": self.crashes,
            "changes_of_members": self.changes,
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


SeedResults = tuple[float, list[RunResult | SimulationFailed]]


def run_seeds(seeds: range, options: RunOptions, mutant: str) -> SeedResults:
    """Run seeds in this process; (CPU seconds, results)."""
    began = time.process_time()
    found: list[RunResult | SimulationFailed] = []
    with _patched(mutant):
        for seed in seeds:
            try:
                found.append(run_seed(seed, options, checkers=standard_checkers, mutant=mutant))
            except SimulationFailed as failure:
                found.append(failure)
    return time.process_time() - began, found


def _patched(name: str) -> AbstractContextManager[object]:
    return MUTANTS[name].patch() if name else nullcontext()


def _run_many(
    seeds: range, options: RunOptions, mutant: str, *, jobs: int, keep_going: bool
) -> Tally:
    tally = Tally()
    run = partial(run_seeds, options=options, mutant=mutant)
    with progress() as bar:
        task = bar.add_task("seeds", total=len(seeds), speed="")
        for seconds, found in run_parallel(run, seeds, jobs=jobs, chunk=CHUNK_SEEDS):
            tally.core_seconds += seconds
            for result in found:
                tally.runs += 1
                if isinstance(result, RunResult):
                    tally.add(result)
                else:
                    tally.failures.append(result)
                    print_broken(bar, result)
            speed = f"{tally.speed:,.0f} simulated s per core s"
            bar.update(task, advance=len(found), speed=speed)
            if tally.failures and not keep_going:
                break
    return tally


@app.command()
def raft(
    seed: Annotated[int | None, typer.Option(help="Run this seed.")] = None,
    seeds: Annotated[str, typer.Option(help="Run these, as FIRST-LAST.")] = "",
    jobs: Annotated[int, typer.Option(min=1, help="Processes at once.")] = 1,
    mutant: Annotated[str, typer.Option(help="Run with this mutant; `help` lists them.")] = "",
    trace: Annotated[bool, typer.Option("--trace", help="Print every event.")] = False,
    seconds: Annotated[int, typer.Option(help="Simulated seconds with faults; 0: drawn.")] = 0,
    nodes: Annotated[int, typer.Option(help="Number of initial members; 0: drawn.")] = 0,
    pace: Annotated[
        HeartbeatPace,
        typer.Option(help="Heartbeats: slow is 0.5 to 2 s, fast 100 ms, as in the driver."),
    ] = HeartbeatPace.ANY,
    all_faults: Annotated[
        bool, typer.Option("--all-faults", help="Draw every kind of fault.")
    ] = False,
    by_codec: Annotated[
        bool, typer.Option("--by-codec", help="Encode and decode every message.")
    ] = False,
    keep_going: Annotated[
        bool, typer.Option("--keep-going", help="Continue after a failed seed.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for programs.")] = False,
) -> None:
    """Run a Raft group with faults drawn from a seed, and check every invariant."""
    if mutant and mutant not in MUTANTS:
        for name, each in MUTANTS.items():
            out.print(f"{name}: found by {', '.join(each.found_by)}", markup=False)
        raise typer.Exit(0 if mutant == "help" else USAGE)
    options = RunOptions(
        nodes=nodes, pace=pace, all_faults=all_faults, by_codec=by_codec, seconds=seconds
    )
    if seeds:
        tally = _run_many(parse_range(seeds), options, mutant, jobs=jobs, keep_going=keep_going)
        _report_many(tally, as_json=as_json)
    else:
        _run_one(0 if seed is None else seed, options, mutant, trace=trace, as_json=as_json)


def _run_one(seed: int, options: RunOptions, mutant: str, *, trace: bool, as_json: bool) -> None:
    began = time.perf_counter()
    trace_writer = Trace(lambda line: out.print(line, markup=False)) if trace else None
    try:
        with _patched(mutant):
            result = run_seed(
                seed, options, checkers=standard_checkers, trace=trace_writer, mutant=mutant
            )
    except SimulationFailed as failure:
        report_failure(failure)
        raise typer.Exit(FAILED) from None
    if as_json:
        sys.stdout.write(json.dumps(msgspec.to_builtins(result), indent=2) + "\n")
        return
    real = time.perf_counter() - began
    faults = ", ".join(f"{times} {name}" for name, times in result.faults.items())
    out.print(
        f"seed {seed}: {result.nodes} members, {result.simulated_seconds:,.1f} s simulated in "
        f"{real:.2f} s, heartbeat {result.heartbeat_ms:.0f} ms; {result.messages:,} messages, "
        f"{result.committed:,} entries committed, {result.crashes} crashes, {result.changes} "
        f"changes of members\nfaults: {faults}\ndigest {result.digest}",
        markup=False,
    )


def _report_many(tally: Tally, *, as_json: bool) -> None:
    if as_json:
        sys.stdout.write(json.dumps(tally.as_json(), indent=2) + "\n")
    else:
        for failure in tally.failures[:1]:
            report_failure(failure)
        out.print(
            f"{tally.runs:,} seeds, {len(tally.failures)} failed; "
            f"{tally.simulated_seconds:,.0f} s simulated in {tally.core_seconds:,.1f} core s "
            f"({tally.speed:,.0f} to 1); {tally.events:,} events, {tally.committed:,} entries "
            f"committed, {tally.crashes:,} crashes, {tally.changes:,} changes of members"
        )
    if tally.failures:
        raise typer.Exit(FAILED)


if __name__ == "__main__":
    app()
