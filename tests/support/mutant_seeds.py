"""Which seed finds each mutant soon, and the search for it: `make mutants`.

A test of a mutant begins with the seed that was found last (`tests/sim/mutant_seeds.json`), so it
takes one run that ends early. A change of the production code or of the simulator changes what
happens in every seed; then the test goes on with the whole range of the mutant, as if nothing were
stored. So a stale file costs time, and hides nothing.

    cd tests && ../.venv/bin/python -m support.mutant_seeds [--jobs 2] [MUTANT...]
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Final

from bascule.sim.checkers import standard_checkers
from bascule.sim.cluster.run import run_seed as run_cluster_seed
from bascule.sim.mutants import MUTANTS
from bascule.sim.mutants.cluster import CLUSTER_MUTANTS
from bascule.sim.raft.run import SimulationFailed
from bascule.sim.raft.run import run_seed as run_raft_seed

STORED: Final = Path(__file__).parents[1] / "sim/mutant_seeds.json"
FOUND_MAX: Final = 4
"""Of so many seeds that find a mutant, the one is stored that takes the least time of a core."""
MORE_SECONDS_MAX: Final = 20.0
"""Time of a core for the search of better seeds than the first one."""
SHORT_SECONDS: Final = 0.5
"""A run that ends within this time of a core is good enough."""
RAFT: Final = "raft"
CLUSTER: Final = "cluster"


def stored_seeds() -> dict[str, dict[str, int]]:
    """Simulator -> mutant -> seed."""
    found: dict[str, dict[str, int]] = json.loads(STORED.read_text())
    return found


def seeds_of(simulator: str, name: str, seeds: range) -> Iterator[int]:
    """All of `seeds`, the stored seed of the mutant first if it is one of them."""
    first = stored_seeds()[simulator].get(name)
    if first in seeds:
        yield first
    yield from (seed for seed in seeds if seed != first)


def search(simulator: str, name: str) -> list[tuple[float, int]]:
    """(Seconds of a core, seed) of some seeds that find the mutant, the shortest run first.

    Raises: SimulationFailed if a seed breaks an invariant that the mutant should not break.
    """
    seeds, found_by, patch, run = _mutant(simulator, name)
    found: list[tuple[float, int]] = []
    more_until = float("inf")
    with patch:
        for seed in seeds_of(simulator, name, seeds):
            began = time.process_time()
            try:
                run(seed)
            except SimulationFailed as failed:
                if failed.invariant not in found_by:
                    raise
                ended = time.process_time()
                found.append((ended - began, seed))
                more_until = min(more_until, ended + MORE_SECONDS_MAX)
            if len(found) == FOUND_MAX or time.process_time() > more_until:
                break
            if found and found[-1][0] < SHORT_SECONDS:
                break
    return sorted(found)


def _mutant(
    simulator: str, name: str
) -> tuple[range, tuple[str, ...], AbstractContextManager[None], Callable[[int], object]]:
    """The range of a mutant, what it may break, its patch, and the run of one seed."""
    if simulator == RAFT:
        bug = MUTANTS[name]
        run = partial(run_raft_seed, checkers=standard_checkers, mutant=name)
        return bug.range, bug.found_by, bug.patch(), run
    cluster = CLUSTER_MUTANTS[name]
    run = partial(run_cluster_seed, options=cluster.options, mutant=name)
    return cluster.range, cluster.found_by, cluster.patch(), run


def main() -> int:
    parser = argparse.ArgumentParser(prog="support.mutant_seeds", description=__doc__)
    parser.add_argument("mutants", nargs="*", help="their names; all by default")
    parser.add_argument("--jobs", type=int, default=2, help="processes at once")
    options = parser.parse_args()
    chosen = [(RAFT, name) for name in MUTANTS] + [(CLUSTER, name) for name in CLUSTER_MUTANTS]
    if options.mutants:
        chosen = [each for each in chosen if each[1] in options.mutants]
    stored = stored_seeds() if STORED.exists() else {RAFT: {}, CLUSTER: {}}
    # Mutants that are gone.
    for simulator, names in ((RAFT, MUTANTS), (CLUSTER, CLUSTER_MUTANTS)):
        stored[simulator] = {k: v for k, v in stored[simulator].items() if k in names}
    wrong = 0
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(options.jobs, mp_context=context, max_tasks_per_child=1) as pool:
        running = {pool.submit(search, *each): each for each in chosen}
        for done in as_completed(running):
            simulator, name = running[done]
            try:
                found = done.result()
            except SimulationFailed as failed:
                wrong += 1
                shown = f"breaks what it should not:\n{failed}"
            else:
                if found:
                    stored[simulator][name] = found[0][1]
                else:
                    wrong += 1
                shown = ", ".join(f"{seed} in {seconds:.1f} s" for seconds, seed in found)
                shown = shown or "no seed of its range finds it"
            print(f"{simulator}: {name}: {shown}", flush=True)
            STORED.write_text(json.dumps(stored, indent=2, sort_keys=True) + "\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
