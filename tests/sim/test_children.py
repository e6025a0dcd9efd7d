"""Calls in child processes."""

from __future__ import annotations

import os
import signal

import pytest

from bascule.sim.children import call_in_child
from bascule.sim.raft.run import SimulationFailed
from bascule.sim.seeds import run_each_in_child

pytestmark = pytest.mark.tier2


def test_a_result_comes_back_and_nothing_else() -> None:
    found: list[int] = []

    def call() -> int:
        found.append(1)
        return sum(range(1_000_000))

    seconds, result = call_in_child(call)
    assert result == 499_999_500_000
    assert seconds > 0
    assert found == []


def test_a_child_that_raises_or_dies_is_reported(capfd: pytest.CaptureFixture[str]) -> None:
    def fail() -> None:
        raise ValueError("something is wrong")

    with pytest.raises(ChildProcessError, match="status 1"):
        call_in_child(fail)
    assert "something is wrong" in capfd.readouterr().err
    with pytest.raises(ChildProcessError, match="status -9"):
        call_in_child(lambda: os.kill(os.getpid(), signal.SIGKILL))


def test_failed_seeds_are_results() -> None:
    def run(seed: int) -> object:
        raise SimulationFailed(seed, "nothing is lost", "it was", last_events=("a",), replay="b")

    seconds, failures = run_each_in_child(run, range(3, 5))  # type: ignore[arg-type]
    assert seconds > 0
    assert [
        (each.seed, each.invariant) for each in failures if isinstance(each, SimulationFailed)
    ] == [
        (3, "nothing is lost"),
        (4, "nothing is lost"),
    ]
