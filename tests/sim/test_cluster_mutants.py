"""The simulator of whole nodes finds bugs that are put into the production classes."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from bascule.sim.cluster.run import run_seed
from bascule.sim.mutants.cluster import CLUSTER_MUTANTS
from bascule.sim.raft.run import SimulationFailed
from support.mutant_seeds import CLUSTER, seeds_of

pytestmark = pytest.mark.tier2

LONG = {
    # One seed in hundreds finds these: `make mutants` looks for it.
    "commits answered early",
    "requests taken again",
    "table said to be synced",
    # The seeds of these take more than two seconds of a core.
    "appends after a handover",
    "commits not fenced",
    "commits of replaced static members taken",
    "data of moved replicas kept",
    "held messages dropped in a handover",
    "leftovers kept",
    "log kept by a replica that left",
    "log start not followed",
    "logs not compared",
    "payloads not scrubbed",
    "proposed additions not counted",
    "purged values kept",
    "table position committed before its rows",
    "watcher skips at failover",
}
"""Found by `make test-long`."""


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.long] if name in LONG else [])
        for name in CLUSTER_MUTANTS
    ],
)
def test_a_mutant_is_found(name: str) -> None:
    bug = CLUSTER_MUTANTS[name]
    with bug.patch():
        for seed in seeds_of(CLUSTER, name, bug.range):
            try:
                run_seed(seed, bug.options, mutant=name)
            except SimulationFailed as failed:
                assert failed.invariant in bug.found_by, failed
                assert f"--seed {seed}" in failed.replay
                assert f'--mutant "{name}"' in failed.replay
                assert failed.last_events
                return
    pytest.fail(f"{name} lives through the seeds {bug.range}")


def test_the_seeds_break_nothing_without_a_mutant() -> None:
    """The mutants cause the failures, not their options."""
    for options in {bug.options.traits: bug.options for bug in CLUSTER_MUTANTS.values()}.values():
        run_seed(0, replace(options, seconds=2, streams=1))
