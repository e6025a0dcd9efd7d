"""The oplog of a table under kill -9 and SIGTERM: no change is missed, and none needs all rows."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from support.table_followers import TableFollower
from support.table_process import open_table, record_at

TESTS = Path(__file__).parents[1]
ROUNDS_USUAL = 10


def test_kill_9_at_any_moment(
    tmp_path: Path, request: pytest.FixtureRequest, caplog: pytest.LogCaptureFixture
) -> None:
    rounds = request.config.getoption("--rounds") or ROUNDS_USUAL
    first_seed = request.config.getoption("--seed") or 7
    print(f"seed {first_seed}")
    dice, follower = random.Random(first_seed), TableFollower()
    values: dict[bytes, bytes | None] = {}
    done = before = full_pages = 0
    for seed in range(first_seed, first_seed + rounds):
        run_and_end(tmp_path, seed, dice)
        file, oplog = open_table(tmp_path)
        while follower.page_of(file, rows_max=100):
            pass
        for offset in range(done, file.position.offset):
            key, _, _, value, _, _ = record_at(offset)
            values[key] = value
        done = file.position.offset
        assert follower.values() == {k: v for k, v in values.items() if v is not None}
        if seed == first_seed or before < oplog.first - 1:
            full_pages = follower.full_pages  # it was behind the oplog
        assert follower.full_pages == full_pages
        before = done
        file.close()
    assert done > 20 * rounds
    assert caplog.text == "", "an oplog had to be mended"


def run_and_end(directory: Path, seed: int, dice: random.Random) -> None:
    process = subprocess.Popen(
        [sys.executable, str(TESTS / "support" / "table_process.py"), str(directory), str(seed)],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(TESTS)},
    )
    assert process.stdout is not None
    with process.stdout as pipe:
        for _ in range(dice.randrange(1, 60)):
            pipe.readline()
        time.sleep(dice.uniform(0, 0.02))
        process.send_signal(signal.SIGTERM if dice.random() < 0.2 else signal.SIGKILL)
        pipe.read()
    process.wait()
