"""Defects that are put into the nodes are found by a run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.tier3

TESTS = Path(__file__).parents[1]


@pytest.mark.parametrize(
    ("mutant", "faults", "expected"),
    [
        ("message ids forgotten at failover", "kill", "is stored at the offsets"),
        ("commit by one follower", "power,power-all", "where is"),
    ],
)
def test_a_defect_is_found(
    tmp_path: Path, request: pytest.FixtureRequest, mutant: str, faults: str, expected: str
) -> None:
    if not request.config.getoption("--torture"):
        pytest.skip("a minute each: with --torture only")
    out = tmp_path / "out"
    command = [sys.executable, "-m", "torture", "--seed", "2", "--rounds", "3", "--rate", "500"]
    done = subprocess.run(
        [*command, "--faults", faults, "--mutant", mutant, "--out", str(out)],
        cwd=TESTS,
        env={**os.environ, "PYTHONPATH": str(TESTS)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1, done.stdout + done.stderr
    findings = json.loads((out / "result.json").read_text())["findings"]
    assert any(expected in finding for finding in findings), findings
