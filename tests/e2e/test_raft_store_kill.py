"""The SQLite store under kill -9 and failing system calls: flushed data survives."""

from __future__ import annotations

import os
import random
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from bascule.raft.store import PersistentState
from bascule.raft.testing.store_model import StoreModel
from bascule.raft_driver.sqlite_store import SqliteDatabase
from support.raft_store_process import NODE, loaded

TESTS = Path(__file__).resolve().parents[1]
NAME = "raft.sqlite"
ROUNDS_USUAL = 10
FOREVER = 1_000_000


class Life:
    """A process that writes to the log until it is killed, or has made so many calls."""

    def __init__(
        self, directory: Path, seed: int, *, calls_max: int = FOREVER, under: tuple[str, ...] = ()
    ) -> None:
        self._heard = b""
        program = [sys.executable, str(TESTS / "support" / "raft_store_process.py")]
        self.process = subprocess.Popen(
            [*under, *program, str(directory / NAME), str(seed), str(calls_max)],
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": str(TESTS)},
        )

    def listen(self, lines: int) -> None:
        """Wait until it has said so many lines."""
        assert self.process.stdout is not None
        for _ in range(lines):
            self._heard += self.process.stdout.readline()

    def said(self) -> list[str]:
        """All it says until it ends, or said until it was killed."""
        assert self.process.stdout is not None
        with self.process.stdout as pipe:
            self._heard += pipe.read()
        self.process.wait()
        return self._heard.decode().split("\n")[:-1]  # what a kill cut short was not said


def state_of(directory: Path) -> PersistentState:
    database = SqliteDatabase.open(str(directory / NAME), node_id=NODE)
    try:
        return database.store(1).load()
    finally:
        database.close()


def flushed_of(said: list[str]) -> int:
    return max((int(line) for line in said if line.isdigit()), default=0)


def test_kill_9_at_any_moment(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """One log, killed again and again: each life goes on from what the last one left."""
    rounds = request.config.getoption("--rounds") or ROUNDS_USUAL
    first_seed = request.config.getoption("--seed") or 7
    print(f"seed {first_seed}")
    dice, expected, flushes = random.Random(first_seed), StoreModel(), 0
    for seed in range(first_seed, first_seed + rounds):
        life = Life(tmp_path, seed)
        if dice.random() < 0.8:
            life.listen(dice.randrange(60))
            time.sleep(dice.uniform(0, 0.02))
        else:
            time.sleep(dice.uniform(0, 0.4))  # while it opens the log, maybe
        life.process.kill()
        said = life.said()
        flushes += len(said)
        loaded(state_of(tmp_path), seed, expected, flushed_of(said))
    assert flushes > 10 * rounds


# What the kernel is asked for, and what if it refuses.


def strace() -> str:
    found = shutil.which("strace")
    if found is None:
        pytest.skip("strace is not installed (Debian package strace)")
    probe = subprocess.run([found, "-f", "true"], capture_output=True, check=False)
    if probe.returncode:
        pytest.skip("strace may not trace here (ptrace is not allowed)")
    return found


def test_every_flush_is_synced_before_it_is_confirmed(tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    calls = "trace=openat,close,pwrite64,fdatasync,write"
    life = Life(tmp_path, 3, calls_max=150, under=(strace(), "-f", "-e", calls, "-o", str(trace)))
    said = life.said()
    assert flushed_of(said) >= 150
    names: dict[str, str] = {}
    unsynced: set[str] = set()
    confirmed = syncs = 0
    for line in trace.read_text().splitlines():
        if opened := re.search(r'openat\(.*"([^"]*)".*\) = (\d+)$', line):
            names[opened[2]] = opened[1]
        elif written := re.search(r"pwrite64\((\d+),", line):
            unsynced.add(names.get(written[1], ""))
        elif synced := re.search(r"fdatasync\((\d+)\) += 0$", line):
            unsynced.discard(names[synced[1]])
            syncs += 1
        elif re.search(r'write\(1, "o\\n"', line):
            syncs = 0
        elif re.search(r'write\(1, "syncs ', line):
            break
        elif re.search(r'write\(1, "\d+\\n"', line):
            # Pages of the database may wait: the write-ahead log still has them.
            assert str(tmp_path / f"{NAME}-wal") not in unsynced, line
            confirmed += 1
    assert confirmed == len([line for line in said if line.isdigit()])
    # The last checkpoint's third sync comes with the next commit.
    assert int(said[-1].removeprefix("syncs ")) - syncs in (0, 1)


@pytest.mark.parametrize(
    ("call", "error", "step"),
    [("fdatasync", "EIO", 2), ("pwrite64", "EIO", 37),
     pytest.param("pwrite64", "ENOSPC", 83, marks=pytest.mark.long),
     pytest.param("pread64", "EIO", 127, marks=pytest.mark.long), ("ftruncate", "EIO", 1)],
)  # fmt: skip
def test_every_call_to_the_kernel_may_fail(
    tmp_path: Path, call: str, error: str, step: int
) -> None:
    """The n-th fails, for n = 1, 1 + step, ... until a run has no failure: nothing flushed is lost,
    and nothing is confirmed that is not there."""
    program = strace()
    before = tmp_path / "before"
    before.mkdir()
    Life(before, 99, calls_max=40).process.communicate()
    start = state_of(before)
    for n in range(1, 3_000, step):
        place = tmp_path / f"{n}"
        shutil.copytree(before, place)
        inject = f"inject={call}:error={error}:when={n}"
        trace = ("-f", "-e", f"trace={call}", "-e", inject, "-o", str(place / "trace"))
        said = Life(place, n, calls_max=15, under=(program, *trace)).said()
        expected = StoreModel()
        expected.reset_to(start)
        loaded(state_of(place), n, expected, flushed_of(said))
        if "(INJECTED)" not in (place / "trace").read_text():
            assert n > step, "no call was made to fail"
            assert not said[-1].startswith("failed")
            return
        shutil.rmtree(place)
    raise AssertionError("no run without a failure")
