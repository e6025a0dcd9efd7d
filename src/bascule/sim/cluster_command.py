"""`python -m bascule.sim cluster`: whole nodes under faults."""

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

from bascule.sim.cluster.plan import ClusterFault
from bascule.sim.cluster.run import ClusterOptions, ClusterResult, run_seed
from bascule.sim.mutants.cluster import CLUSTER_MUTANTS
from bascule.sim.raft.run import SimulationFailed
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

CHUNK_SEEDS: Final = 2
"""Seeds that a process runs at a time."""

SeedResults = tuple[float, list[ClusterResult | SimulationFailed]]


@dataclass
class ClusterTally:
    """The results of many runs."""

    runs: int = 0
    simulated_seconds: float = 0.0
    core_seconds: float = 0.0
    """Of all processes."""
    events: int = 0
    acked: int = 0
    starts: int = 0
    faults: dict[str, int] = field(default_factory=dict)
    failures: list[SimulationFailed] = field(default_factory=list)

    def add(self, result: ClusterResult) -> None:
        """Count a run that broke nothing."""
        self.simulated_seconds += result.simulated_seconds
        self.events += result.events
        self.acked += result.acked
        self.starts += result.starts
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
            "simulated_seconds": round(self.simulated_seconds, 1),
            "core_seconds": round(self.core_seconds, 1),
            "simulated_per_core_second": round(self.speed, 1),
            "events": self.events,
            "acked": self.acked,
            "starts": self.starts,
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


def run_seeds(seeds: range, options: ClusterOptions, mutant: str) -> SeedResults:
    """Run seeds in this process; (CPU seconds, results)."""
    began = time.process_time()
    found: list[ClusterResult | SimulationFailed] = []
    with _patched(mutant):
        for seed in seeds:
            try:
                found.append(run_seed(seed, options, mutant=mutant))
            except SimulationFailed as failure:
                found.append(failure)
    return time.process_time() - began, found


def _patched(name: str) -> AbstractContextManager[object]:
    return CLUSTER_MUTANTS[name].patch() if name else nullcontext()


def cluster(
    seed: Annotated[int | None, typer.Option(help="Run this seed.")] = None,
    seeds: Annotated[str, typer.Option(help="Run these, as FIRST-LAST.")] = "",
    jobs: Annotated[int, typer.Option(min=1, help="Processes at once.")] = 1,
    mutant: Annotated[str, typer.Option(help="Run with this mutant; `help` lists them.")] = "",
    trace: Annotated[bool, typer.Option("--trace", help="Print every event.")] = False,
    seconds: Annotated[int, typer.Option(help="Simulated seconds with faults; 0: drawn.")] = 0,
    nodes: Annotated[int, typer.Option(help="Number of nodes; 0: drawn.")] = 0,
    streams: Annotated[
        int, typer.Option(help="Number of streams, of one partition each; 0: drawn.")
    ] = 0,
    all_faults: Annotated[
        bool, typer.Option("--all-faults", help="Draw every kind of fault.")
    ] = False,
    faults: Annotated[
        str, typer.Option(help="Draw these kinds of faults often, such as kill,outage.")
    ] = "",
    keep_going: Annotated[
        bool, typer.Option("--keep-going", help="Continue after a failed seed.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for programs.")] = False,
) -> None:
    """Run whole nodes with faults drawn from a seed, and check what publishers and readers see."""
    if mutant and mutant not in CLUSTER_MUTANTS:
        for name, each in CLUSTER_MUTANTS.items():
            out.print(f"{name}: found by {', '.join(each.found_by)}", markup=False)
        raise typer.Exit(0 if mutant == "help" else USAGE)
    known = {fault.value for fault in ClusterFault}
    if unknown := [each for each in faults.split(",") if each and each not in known]:
        raise typer.BadParameter(f"no fault is named {unknown[0]!r}; there are {sorted(known)}")
    options = ClusterOptions(
        nodes=nodes, streams=streams, seconds=seconds, all_faults=all_faults, faults=faults
    )
    if mutant and not seeds and seed is None:
        found = CLUSTER_MUTANTS[mutant]
        seeds, options = f"{found.range[0]}-{found.range[-1]}", found.options
    if seeds:
        tally = _run_many(parse_range(seeds), options, mutant, jobs=jobs, keep_going=keep_going)
        _report_many(tally, as_json=as_json)
    else:
        _run_one(seed or 0, options, mutant, trace=trace, as_json=as_json)


def _run_many(
    seeds: range, options: ClusterOptions, mutant: str, *, jobs: int, keep_going: bool
) -> ClusterTally:
    tally = ClusterTally()
    run = partial(run_seeds, options=options, mutant=mutant)
    with progress() as bar:
        task = bar.add_task("seeds", total=len(seeds), speed="")
        for seconds, found in run_parallel(run, seeds, jobs=jobs, chunk=CHUNK_SEEDS):
            tally.core_seconds += seconds
            for result in found:
                tally.runs += 1
                if isinstance(result, ClusterResult):
                    tally.add(result)
                else:
                    tally.failures.append(result)
                    print_broken(bar, result)
            speed = f"{tally.speed:,.1f} simulated s per core s"
            bar.update(task, advance=len(found), speed=speed)
            if tally.failures and not keep_going:
                break
    return tally


def _run_one(
    seed: int, options: ClusterOptions, mutant: str, *, trace: bool, as_json: bool
) -> None:
    began = time.perf_counter()
    write = (lambda line: out.print(line, markup=False)) if trace else None
    try:
        with _patched(mutant):
            result = run_seed(seed, options, mutant=mutant, write=write)
    except SimulationFailed as failure:
        report_failure(failure)
        raise typer.Exit(FAILED) from None
    if as_json:
        sys.stdout.write(json.dumps(msgspec.to_builtins(result), indent=2) + "\n")
        return
    real = time.perf_counter() - began
    faults = ", ".join(f"{times} {name}" for name, times in result.faults.items())
    out.print(
        f"seed {seed}: {result.nodes} nodes, {result.streams} streams, "
        f"{result.simulated_seconds:,.1f} s simulated in {real:.2f} s; {result.events:,} events, "
        f"{result.acked:,} messages acked, {result.starts} starts of nodes\n"
        f"faults: {faults or 'none'}\ndigest {result.digest}",
        markup=False,
    )


def _report_many(tally: ClusterTally, *, as_json: bool) -> None:
    if as_json:
        sys.stdout.write(json.dumps(tally.as_json(), indent=2) + "\n")
    else:
        for failure in tally.failures[:1]:
            report_failure(failure)
        faults = ", ".join(f"{times} {name}" for name, times in sorted(tally.faults.items()))
        out.print(
            f"{tally.runs:,} seeds, {len(tally.failures)} failed; "
            f"{tally.simulated_seconds:,.0f} s simulated in {tally.core_seconds:,.1f} core s "
            f"({tally.speed:,.1f} to 1); {tally.events:,} events, {tally.acked:,} messages acked, "
            f"{tally.starts:,} starts of nodes\nfaults: {faults or 'none'}"
        )
    if tally.failures:
        raise typer.Exit(FAILED)
