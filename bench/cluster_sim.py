"""Simulated time per second of one core: whole nodes, every kind of fault, every checker on.

Five nodes with 20 partitions of three replicas, two publishers on the average. What a second costs
is mostly the messages and the changes of the metadata in it. Each seed runs in a child process, as
in `make sim`. The parts of the time are sampled in a second run of some seeds. As in `raft_sim`,
the time is that of the core alone; what other processes do to its caches is in the figure, so it
stands beside the speed of `raft_sim`'s group, measured in the same process.
"""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any, Final

import bascule
from bascule.sim.children import call_in_child
from bascule.sim.cluster.run import ClusterOptions, run_seed
from bascule.sim.raft.plan import HeartbeatPace
from bench import raft_sim
from bench.harness import report, row

OPTIONS: Final = ClusterOptions(
    nodes=5, streams=20, groups=0, seconds=20, all_faults=True, traits="plain"
)
SAMPLE_SECONDS: Final = 0.002
SOURCE: Final = str(Path(bascule.__file__).parent)
PARTS: Final = (
    ("sim/cluster/checkers/", "checkers"),
    ("sim/cluster/world/loop.py", "event loop of the simulation"),
    ("sim/", "rest of the simulated world"),
    ("", "nodes"),
)
"""Beginning of a path in the package -> the part that it is of; the first one that fits."""


def measure(seeds: range) -> dict[str, Any]:
    """All seeds one after another; `value` is simulated seconds over core seconds of all."""
    simulated, events, published, starts, faults, unrepaired, core = 0.0, 0, 0, 0, 0, 0, 0.0
    for seed in seeds:
        seconds, result = call_in_child(partial(run_seed, seed, OPTIONS))
        core += seconds
        simulated += result.simulated_seconds
        events += result.events
        published += result.published
        starts += result.starts
        unrepaired += result.unrepaired
        faults += sum(result.faults.values())
    return {
        "value": round(simulated / core, 1),
        "seeds": len(seeds),
        "simulated_s": round(simulated),
        "core_s": round(core, 2),
        "core_s_per_seed": round(core / len(seeds), 2),
        "us_per_event": round(1e6 * core / events, 1),
        "events_per_simulated_s": round(events / simulated),
        "messages_per_simulated_s": round(published / simulated, 1),
        "faults_per_simulated_minute": round(60 * faults / simulated, 1),
        "starts": starts,
        "unrepaired": unrepaired,
    }


def part_of(path: str) -> str:
    """Which part of the time a file takes."""
    if not path.startswith(SOURCE):
        return "asyncio and the rest of the standard library"
    inside = path[len(SOURCE) + 1 :]
    return next(part for start, part in PARTS if inside.startswith(start))


@contextmanager
def sampled(found: Counter[str]) -> Iterator[None]:
    """Count in which parts the processor is while the context is open."""

    def sample(_: int, frame: FrameType | None) -> None:
        if frame is not None:
            found[part_of(frame.f_code.co_filename)] += 1

    before = signal.signal(signal.SIGPROF, sample)
    signal.setitimer(signal.ITIMER_PROF, SAMPLE_SECONDS, SAMPLE_SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def run(*, quick: bool) -> None:
    seeds = range(100_000, 100_003 if quick else 100_020)
    run_seed(1, ClusterOptions(nodes=3, streams=1, seconds=1))  # pays for imports and caches
    reference = raft_sim.measure(HeartbeatPace.ANY, range(100_000, 100_005 if quick else 100_020))
    whole = measure(seeds)
    counts: Counter[str] = Counter()
    with sampled(counts):
        for seed in seeds[:5]:
            run_seed(seed, OPTIONS)
    total = counts.total()
    shares = {part: round(count / total, 2) for part, count in counts.most_common()}
    report(
        "cluster_sim",
        [
            row("simulated s per core s, 5 nodes, 20 partitions, all faults", whole, at_least=20),
            {"figure": "share of the nodes in the core's time", "value": shares["nodes"], **shares},
            {"figure": "beside it: raft_sim, heartbeats of 20 ms to 2 s", **reference},
        ],
    )
