"""`python -m bascule.sim cluster`: whole nodes under faults."""

from __future__ import annotations

import time
from enum import Enum
from functools import partial
from typing import Annotated, Final

import typer

from bascule.sim.cluster.consumers.traits import GroupTrait
from bascule.sim.cluster.plan import ClusterFault
from bascule.sim.cluster.run import ClusterOptions, run_seed
from bascule.sim.cluster.streams import StreamTrait
from bascule.sim.mutants.cluster import CLUSTER_MUTANTS
from bascule.sim.raft.run import SimulationFailed
from bascule.sim.seeds import (
    FAILED,
    SeedResults,
    Tally,
    check_mutant,
    faults_text,
    out,
    parse_range,
    patched,
    report_failure,
    report_many,
    report_one,
    run_each_in_child,
    run_many,
)

CHUNK_SEEDS: Final = 2
"""Seeds that a process of the pool runs at a time, each in a child: the suspended threads and tasks
of the simulated nodes stay in memory, 20 to 80 MB a seed."""

COUNTED: Final = (
    "events",
    "published",
    "acked",
    "starts",
    "read",
    "payloads",
    "payloads_read",
    "unclean",
    "unrepaired",
    "repairs",
    "table_reads",
    "table_writes",
    "watched",
    "forgotten",
)
"""Fields of `ClusterResult` that are added up."""


def run_seeds(seeds: range, options: ClusterOptions, mutant: str) -> SeedResults:
    """Run seeds, each in a process; (CPU seconds, results)."""
    with patched(CLUSTER_MUTANTS, mutant):
        return run_each_in_child(partial(run_seed, options=options, mutant=mutant), seeds)


def cluster(
    seed: Annotated[int | None, typer.Option(help="Run this seed.")] = None,
    seeds: Annotated[str, typer.Option(help="Run these, as FIRST-LAST.")] = "",
    jobs: Annotated[int, typer.Option(min=1, help="Processes at once.")] = 1,
    mutant: Annotated[str, typer.Option(help="Run with this mutant; `help` lists them.")] = "",
    trace: Annotated[bool, typer.Option("--trace", help="Print every event.")] = False,
    seconds: Annotated[int, typer.Option(help="Simulated seconds with faults; 0: drawn.")] = 0,
    nodes: Annotated[int, typer.Option(help="Number of nodes; 0: drawn.")] = 0,
    streams: Annotated[int, typer.Option(help="Number of streams; 0: drawn.")] = 0,
    groups: Annotated[int, typer.Option(help="Number of groups of consumers; -1: drawn.")] = -1,
    readers: Annotated[
        int, typer.Option(help="Number of consumers without a group; -1: drawn.")
    ] = -1,
    all_faults: Annotated[
        bool, typer.Option("--all-faults", help="Draw every kind of fault.")
    ] = False,
    faults: Annotated[
        str, typer.Option(help="Draw these kinds of faults often, such as kill,outage.")
    ] = "",
    traits: Annotated[
        str, typer.Option(help="What all streams have, such as compacted,split; empty: drawn.")
    ] = "",
    group_traits: Annotated[
        str, typer.Option(help="What all groups have, such as static,deleted; empty: drawn.")
    ] = "",
    wide: Annotated[
        bool, typer.Option("--wide", help="Draw also what other runs do not draw.")
    ] = False,
    keep_going: Annotated[
        bool, typer.Option("--keep-going", help="Continue after a failed seed.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for programs.")] = False,
) -> None:
    """Run whole nodes with faults drawn from a seed, and check what publishers and readers see."""
    check_mutant(CLUSTER_MUTANTS, mutant)
    _check_names("fault", faults, ClusterFault)
    _check_names("trait", traits, StreamTrait)
    _check_names("trait of groups", group_traits, GroupTrait)
    options = ClusterOptions(
        nodes=nodes, streams=streams, groups=groups, readers=readers, seconds=seconds,
        all_faults=all_faults, faults=faults, traits=traits, group_traits=group_traits,
        wide=wide,
    )  # fmt: skip
    if mutant and not seeds and seed is None:
        found = CLUSTER_MUTANTS[mutant]
        seeds, options = f"{found.range[0]}-{found.range[-1]}", found.options
    if seeds:
        tally = Tally(COUNTED)
        run = partial(run_seeds, options=options, mutant=mutant)
        run_many(
            run, parse_range(seeds), tally, jobs=jobs, chunk=CHUNK_SEEDS, keep_going=keep_going,
        )  # fmt: skip
        report_many(tally, as_json=as_json)
    else:
        _run_one(seed or 0, options, mutant, trace=trace, as_json=as_json)


def _check_names(what: str, text: str, kind: type[Enum]) -> None:
    """Raises: BadParameter for a name that is none of the values."""
    known = {each.value for each in kind}
    if unknown := [each for each in text.split(",") if each and each not in known]:
        raise typer.BadParameter(f"no {what} is named {unknown[0]!r}; there are {sorted(known)}")


def _run_one(
    seed: int, options: ClusterOptions, mutant: str, *, trace: bool, as_json: bool
) -> None:
    began = time.perf_counter()
    write = (lambda line: out.print(line, markup=False)) if trace else None
    try:
        with patched(CLUSTER_MUTANTS, mutant):
            result = run_seed(seed, options, mutant=mutant, write=write)
    except SimulationFailed as failure:
        report_failure(failure)
        raise typer.Exit(FAILED) from None
    real = time.perf_counter() - began
    report_one(
        result,
        f"seed {seed}: {result.nodes} nodes, {result.streams} streams, "
        f"{result.simulated_seconds:,.1f} s simulated in {real:.2f} s; {result.events:,} events, "
        f"{result.acked:,} messages acked, {result.starts} starts of nodes, "
        f"{result.payloads} payloads acked\n"
        f"faults: {faults_text(result.faults)}\ndigest {result.digest}",
        as_json=as_json,
    )
