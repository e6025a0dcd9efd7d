"""Many seeds: what is counted, and what is reported of it."""

from __future__ import annotations

import json

import msgspec
import pytest
import typer

from bascule.cli import exit_codes
from bascule.sim.raft.run import SimulationFailed
from bascule.sim.seeds import FAILED, INTERRUPTED, USAGE, SeedResults, Tally, report_many, run_many


class Result(msgspec.Struct):
    """Of a seed that broke nothing."""

    simulated_seconds: float = 2.0
    faults: dict[str, int] = msgspec.field(default_factory=lambda: {"kill": 1})
    acked: int = 3


def run_until(end: int, tally: Tally, ends_with: type[BaseException] | None = None) -> None:
    def run(seeds: range) -> SeedResults:
        if seeds[0] >= end and ends_with is not None:
            raise ends_with
        return 0.5, [Result() for _ in seeds]

    run_many(run, range(10), tally, jobs=1, chunk=2, keep_going=False)


def test_seeds_are_counted() -> None:
    tally = Tally(("acked",))
    run_until(10, tally)
    assert (tally.runs, tally.simulated_seconds, tally.core_seconds) == (10, 20, 2.5)
    assert (tally.counts, tally.faults) == ({"acked": 30}, {"kill": 10})
    report_many(tally, as_json=True)


def test_a_run_that_is_interrupted_reports_the_seeds_before(
    capsys: pytest.CaptureFixture[str],
) -> None:
    tally = Tally(("acked",))
    run_until(6, tally, KeyboardInterrupt)
    with pytest.raises(typer.Exit) as raised:
        report_many(tally, as_json=True)
    assert raised.value.exit_code == INTERRUPTED
    found = json.loads(capsys.readouterr().out)
    assert (found["runs"], found["interrupted"], found["acked"]) == (6, True, 18)


def test_another_exception_ends_the_program() -> None:
    with pytest.raises(RuntimeError):
        run_until(6, Tally(("acked",)), RuntimeError)


def test_a_failed_seed_decides_the_exit_code() -> None:
    tally = Tally(("acked",), is_interrupted=True)
    tally.add(SimulationFailed(7, "progress", "it stands still", last_events=(), replay=""))
    with pytest.raises(typer.Exit) as raised:
        report_many(tally, as_json=True)
    assert raised.value.exit_code == 1


def test_exit_codes_are_those_of_the_command_line() -> None:
    """Neither package sees the other."""
    expected = (exit_codes.FAILED, exit_codes.USAGE, exit_codes.INTERRUPTED)
    assert expected == (FAILED, USAGE, INTERRUPTED)
