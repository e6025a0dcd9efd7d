"""The simulated Raft group with a bounded number of seeds, and the report of a failed run.

`make sim SEEDS=0-9999` runs more seeds. A bug that a seed finds gets its own test of the core
(tests/raft/test_restart.py), because a seed gives another history after any change of the random
choices.
"""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys

import pytest

from bascule.sim.checkers import standard_checkers
from bascule.sim.mutants import MUTANTS
from bascule.sim.raft.plan import HeartbeatPace, InjectedFault
from bascule.sim.raft.run import RunOptions, SimulationFailed, run_seed
from bascule.sim.raft.trace import LAST_EVENTS, Trace

SEEDS = range(30)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_seed_breaks_nothing(seed: int) -> None:
    result = run_seed(seed, checkers=standard_checkers)
    assert result.committed > 0
    assert result.acknowledged > 0


@pytest.mark.parametrize("seed", range(500, 506))
def test_every_fault_at_once_breaks_nothing(seed: int) -> None:
    result = run_seed(seed, RunOptions(nodes=5, all_faults=True), checkers=standard_checkers)
    assert result.faults


@pytest.mark.parametrize("seed", range(600, 603))
def test_encoding_all_messages_breaks_nothing(seed: int) -> None:
    plain = run_seed(seed)
    encoded = run_seed(seed, RunOptions(by_codec=True))
    assert encoded.digest == plain.digest


def test_the_seeds_together_have_every_fault() -> None:
    """Faults that are drawn but never happen would test nothing."""
    struck: set[str] = set()
    for seed in range(700, 712):
        struck |= run_seed(seed, RunOptions(all_faults=True, pace=HeartbeatPace.SLOW)).faults.keys()
    assert struck == {fault.value for fault in InjectedFault}


@pytest.mark.parametrize("seed", [3, 11])
def test_a_seed_replays_exactly(seed: int) -> None:
    first = run_seed(seed, checkers=standard_checkers)
    lines: list[str] = []
    again = run_seed(seed, checkers=standard_checkers, trace=Trace(lines.append))
    assert again == first
    repeated: list[str] = []
    run_seed(seed, checkers=standard_checkers, trace=Trace(repeated.append))
    assert repeated == lines


def test_a_seed_replays_exactly_in_another_process() -> None:
    digests = set()
    for hash_seed in ("0", "1"):
        done = subprocess.run(
            [sys.executable, "-m", "bascule.sim", "raft", "--seed", "11", "--json"],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True, check=True,
        )  # fmt: skip
        digests.add(json.loads(done.stdout)["digest"])
    assert digests == {run_seed(11, checkers=standard_checkers).digest}


def test_seeds_differ() -> None:
    assert len({run_seed(seed).digest for seed in range(800, 805)}) == 5


def test_a_failure_has_all_that_a_replay_needs() -> None:
    bug = MUTANTS["no pre-vote"]
    options = RunOptions(nodes=3, pace=HeartbeatPace.FAST)
    with bug.patch(), pytest.raises(SimulationFailed) as caught:
        run_seed(5, options, checkers=standard_checkers, mutant=bug.name)
    failed = caught.value
    assert failed.seed == 5
    assert failed.invariant in bug.found_by
    assert 0 < len(failed.last_events) <= LAST_EVENTS
    assert failed.replay == (
        'python -m bascule.sim raft --seed 5 --nodes 3 --pace fast --mutant "no pre-vote"'
    )
    for part in (failed.text, failed.replay, *failed.last_events):
        assert part in str(failed)
    assert str(pickle.loads(pickle.dumps(failed))) == str(failed)


def test_an_exception_is_a_failed_run() -> None:
    """An exception of production code would have stopped the node in production."""

    class Broken(Trace):
        def on_crash(self, node_id: int) -> None:
            raise KeyError(node_id)

    with pytest.raises(SimulationFailed, match="KeyError") as caught:
        run_seed(2, checkers=lambda: [Broken([].append)])
    assert caught.value.invariant == "no exception"


def test_the_command_prints_the_replay_and_the_commit() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "bascule.sim", "raft", "--seeds", "0-9", "--jobs", "2",
         "--mutant", "no pre-vote"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert "replay: python -m bascule.sim raft --seed " in done.stderr
    assert "\ncommit: " in done.stderr
    assert "the last events:" in done.stderr
