"""The simulator finds every planted bug within its bound of seeds, by an invariant it breaks."""

from __future__ import annotations

import pytest

from bascule.raft.node import Node
from bascule.raft.roles.core import Core
from bascule.sim.checkers import standard
from bascule.sim.mutants import PLANTED
from bascule.sim.raft.run import CRASHED, SimulationFailed, run_seed

pytestmark = pytest.mark.tier2


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_bug_is_found(name: str) -> None:
    bug = PLANTED[name]
    with bug.patch():
        for seed in bug.range:
            try:
                run_seed(seed, checkers=standard, planted=name)
            except SimulationFailed as failed:
                assert failed.invariant in bug.found_by, failed
                assert f'--planted "{name}"' in failed.replay
                return
    pytest.fail(f"{name} lives through the seeds {bug.range}")


@pytest.mark.parametrize("name", PLANTED)
def test_without_the_bug_its_seeds_break_nothing(name: str) -> None:
    """What is found is the bug, not the seed."""
    run_seed(PLANTED[name].range[-1], checkers=standard)


def test_every_invariant_a_bug_may_break_is_checked() -> None:
    names = {checker.name for checker in standard()} | {CRASHED}
    for bug in PLANTED.values():
        assert set(bug.found_by) <= names, bug.name


def test_a_planted_bug_is_gone_afterwards() -> None:
    before = {owner: dict(vars(owner)) for owner in (Core, Node)}
    for bug in PLANTED.values():
        with bug.patch():
            pass
    for owner, fields in before.items():
        assert dict(vars(owner)) == fields
