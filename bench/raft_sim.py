"""Simulated time per second of one core: 5 members, every kind of fault, every checker on.

What a second costs is the messages in it, so it depends on the heartbeat. The bar is held with the
mix that seeds draw (20 ms to 2 s, evenly over the orders of magnitude), which is what `make sim`
runs; next to it stand heartbeats of 100 ms, the driver's default, and of 0.5 to 2 s. The time is
that of the core alone, since other processes on it are no part of the figure.
"""

from __future__ import annotations

import time
from typing import Any

from bascule.sim.checkers import standard_checkers
from bascule.sim.raft.plan import HeartbeatPace
from bascule.sim.raft.run import RunOptions, run_seed
from bench.harness import report, row

NODES = 5


def measure(pace: HeartbeatPace, seeds: range) -> dict[str, Any]:
    """All seeds one after another; `value` is simulated seconds over core seconds of all."""
    options = RunOptions(nodes=NODES, pace=pace, all_faults=True)
    simulated, events, messages, operations, crashes, faults = 0.0, 0, 0, 0, 0, 0
    began = time.process_time()
    for seed in seeds:
        result = run_seed(seed, options, checkers=standard_checkers)
        simulated += result.simulated_seconds
        events += result.events
        messages += result.messages
        operations += result.operations
        crashes += result.crashes
        faults += sum(result.faults.values())
    seconds = time.process_time() - began
    return {
        "value": round(simulated / seconds),
        "seeds": len(seeds),
        "simulated_s": round(simulated),
        "core_s": round(seconds, 2),
        "events_per_core_s": round(events / seconds),
        "us_per_event": round(1e6 * seconds / events, 1),
        "messages_per_simulated_s": round(messages / simulated, 1),
        "client_operations_per_simulated_s": round(operations / simulated, 2),
        "faults_per_simulated_minute": round(60 * faults / simulated, 1),
        "crashes": crashes,
    }


def run(*, quick: bool) -> None:
    seeds = range(100_000, 100_010 if quick else 100_200)
    measure(
        HeartbeatPace.SLOW, range(100_000, 100_002)
    )  # what runs first pays for imports and caches
    mixed, slow, fast = (
        measure(pace, seeds) for pace in (HeartbeatPace.ANY, HeartbeatPace.SLOW, HeartbeatPace.FAST)
    )
    report(
        "raft_sim",
        [
            row("simulated s per core s, heartbeats of 20 ms to 2 s", mixed, at_least=1_000),
            {"figure": "simulated s per core s, heartbeats of 0.5 to 2 s", **slow},
            {"figure": "simulated s per core s, heartbeats of 100 ms", **fast},
        ],
    )
