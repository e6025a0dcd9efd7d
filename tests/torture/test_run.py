"""A short run of everything: `make torture` runs longer ones."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.tier3

TESTS = Path(__file__).parents[1]


def test_acks_are_kept_under_overlapping_faults(tmp_path: Path) -> None:
    out = tmp_path / "out"
    command = [sys.executable, "-m", "torture", "--seed", "4", "--rounds", "1", "--rate", "300"]
    done = subprocess.run(
        [*command, "--faults", "kill,pause,flip,power", "--json", "--out", str(out)],
        cwd=TESTS,
        env={**os.environ, "PYTHONPATH": str(TESTS)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads(done.stdout)
    assert result == json.loads((out / "result.json").read_text())
    assert result["findings"] == []
    assert result["rounds"] == 1
    assert {each["kind"] for each in result["faults"]} == {"flip", "pause", "power"}
    assert result["acked"] > 0
    table = result["table"]
    operations = "linearizable_reads", "linearizable_writes", "session_reads"
    assert min(table[each] for each in operations) > 20, table
    assert (out / "torture.png").read_bytes().startswith(b"\x89PNG")
    events = [json.loads(line) for line in (out / "events.jsonl").read_text().splitlines()]
    assert {"begin", "end", "in sync"} == {each["event"] for each in events}
