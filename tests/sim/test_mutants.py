"""The simulator finds every mutant within its range of seeds, by an invariant that the mutant
breaks."""

from __future__ import annotations

import pytest

from bascule.raft.node import RaftNode
from bascule.raft.roles.core import Core
from bascule.sim.checkers import standard_checkers
from bascule.sim.mutants import MUTANTS
from bascule.sim.raft.run import CRASHED, SimulationFailed, run_seed
from support.mutant_seeds import RAFT, seeds_of

pytestmark = pytest.mark.tier2


@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_is_found(name: str) -> None:
    bug = MUTANTS[name]
    with bug.patch():
        for seed in seeds_of(RAFT, name, bug.range):
            try:
                run_seed(seed, checkers=standard_checkers, mutant=name)
            except SimulationFailed as failed:
                assert failed.invariant in bug.found_by, failed
                assert f'--mutant "{name}"' in failed.replay
                return
    pytest.fail(f"{name} lives through the seeds {bug.range}")


@pytest.mark.parametrize("seed", sorted({bug.range[-1] for bug in MUTANTS.values()}))
def test_the_seeds_break_nothing_without_a_mutant(seed: int) -> None:
    """The mutants cause the failures, not the seeds. Most mutants have the same range."""
    run_seed(seed, checkers=standard_checkers)


def test_every_invariant_of_a_mutant_has_a_checker() -> None:
    names = {checker.name for checker in standard_checkers()} | {CRASHED}
    for bug in MUTANTS.values():
        assert set(bug.found_by) <= names, bug.name


def test_a_mutant_is_removed_afterwards() -> None:
    before = {owner: dict(vars(owner)) for owner in (Core, RaftNode)}
    for bug in MUTANTS.values():
        with bug.patch():
            pass
    for owner, fields in before.items():
        assert dict(vars(owner)) == fields
