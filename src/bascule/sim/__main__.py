"""`python -m bascule.sim raft|cluster`: runs one seed or many, and replays a seed exactly."""

from __future__ import annotations

import importlib.util
import time
from functools import partial
from typing import Annotated, Final

import typer

from bascule.errors import MissingExtra
from bascule.sim.checkers import standard_checkers
from bascule.sim.mutants import MUTANTS
from bascule.sim.raft.plan import HeartbeatPace
from bascule.sim.raft.run import RunOptions, SimulationFailed, run_seed
from bascule.sim.raft.trace import Trace
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
    run_each,
    run_many,
)

CHUNK_SEEDS: Final = 8
"""Seeds that a process runs at a time."""
COUNTED: Final = ("events", "committed", "operations", "crashes", "changes")
"""Fields of `RunResult` that are added up."""

app = typer.Typer(
    name="python -m bascule.sim",
    help="Run the production code with simulated time, network and disks, drawn from a seed.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

if importlib.util.find_spec("greenlet") is not None:
    from bascule.sim.cluster_command import cluster

    app.command()(cluster)
else:

    @app.command(
        name="cluster", context_settings={"ignore_unknown_options": True, "allow_extra_args": True}
    )
    def refuse_cluster() -> None:
        """Run whole nodes. It needs the extra `sim`."""
        typer.echo(MissingExtra("a simulation of whole nodes", "greenlet", "sim"), err=True)
        raise typer.Exit(2)


def run_seeds(seeds: range, options: RunOptions, mutant: str) -> SeedResults:
    """Run seeds in this process; (CPU seconds, results)."""
    with patched(MUTANTS, mutant):
        run = partial(run_seed, options=options, checkers=standard_checkers, mutant=mutant)
        return run_each(run, seeds)


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
    check_mutant(MUTANTS, mutant)
    options = RunOptions(
        nodes=nodes, pace=pace, all_faults=all_faults, by_codec=by_codec, seconds=seconds
    )
    if seeds:
        tally = Tally(COUNTED)
        run = partial(run_seeds, options=options, mutant=mutant)
        run_many(
            run, parse_range(seeds), tally, jobs=jobs, chunk=CHUNK_SEEDS, keep_going=keep_going
        )
        report_many(tally, as_json=as_json)
    else:
        _run_one(0 if seed is None else seed, options, mutant, trace=trace, as_json=as_json)


def _run_one(seed: int, options: RunOptions, mutant: str, *, trace: bool, as_json: bool) -> None:
    began = time.perf_counter()
    trace_writer = Trace(lambda line: out.print(line, markup=False)) if trace else None
    try:
        with patched(MUTANTS, mutant):
            result = run_seed(
                seed, options, checkers=standard_checkers, trace=trace_writer, mutant=mutant
            )
    except SimulationFailed as failure:
        report_failure(failure)
        raise typer.Exit(FAILED) from None
    real = time.perf_counter() - began
    report_one(
        result,
        f"seed {seed}: {result.nodes} members, {result.simulated_seconds:,.1f} s simulated in "
        f"{real:.2f} s, heartbeat {result.heartbeat_ms:.0f} ms; {result.messages:,} messages, "
        f"{result.committed:,} entries committed, {result.crashes} crashes, {result.changes} "
        f"changes of members\nfaults: {faults_text(result.faults)}\ndigest {result.digest}",
        as_json=as_json,
    )


if __name__ == "__main__":
    app()
