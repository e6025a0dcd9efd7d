"""The tests' own net: a run of pytest with tests that hang, or leave processes behind."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parents[1]

SETTINGS = """
[pytest]
timeout = 1
timeout_method = signal
filterwarnings = error
markers = tier3
"""

HANGING = """
import asyncio, threading
from hypothesis import given, strategies
import pytest
from support import timeouts

timeouts.CLEAN_UP_SECONDS_MAX = 1

@given(strategies.integers())
def test_in_hypothesis(number):
    threading.Event().wait()

def test_that_catches_everything():
    try:
        threading.Event().wait()
    except BaseException:
        threading.Event().wait()

def test_in_asyncio():
    asyncio.run(asyncio.Event().wait())

@pytest.fixture
def endless():
    yield
    threading.Event().wait()

def test_with_endless_clean_up(endless):
    assert False

def test_a_thread_that_stays():
    thread = threading.Thread(target=threading.Event().wait)
    thread.start()
    thread.join()

def test_after_them():
    pass
"""

NEVER_INTERRUPTED = """
import itertools
from support import timeouts

timeouts.DEAD_SECONDS_MAX = 1

def test_in_c():
    sum(itertools.repeat(0))

def test_after_it():
    pass
"""

LEAVING = """
import signal, subprocess, sys
import pytest
from support import children

children.END_SECONDS_MAX = 1
pytestmark = pytest.mark.tier3
SLEEP = "import time; print(flush=True); time.sleep(1000)"

def test_a_child():
    child = subprocess.Popen([sys.executable, "-c", SLEEP], stdout=subprocess.PIPE)
    assert False

def test_an_orphan():
    subprocess.run(["sh", "-c", "sleep 1000 & sleep 1000 &"])

def test_after_them():
    pass

def test_ctrl_c():
    sleeper = subprocess.Popen([sys.executable, "-c", SLEEP], stdout=subprocess.PIPE)
    sleeper.stdout.readline()
    sleeper.send_signal(signal.SIGINT)
    sleeper.communicate()
    assert sleeper.returncode == -signal.SIGINT
"""


def ignore_interrupts() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def outcomes(folder: Path, text: str, *options: str) -> tuple[dict[str, str], str]:
    """Run `text` as tests of their own, with SIGINT ignored as in a script's background job.

    Returns the outcome of each test, and the output.
    """
    (folder / "pytest.ini").write_text(SETTINGS)
    (folder / "test_it.py").write_text(text)
    run = subprocess.run(
        [
            sys.executable, "-m", "pytest", "-rA", "--tb=short", "-c", "pytest.ini",
            "-p", "support.timeouts", "-p", "support.children", *options,
        ],
        cwd=folder, env={**os.environ, "PYTHONPATH": str(TESTS)}, preexec_fn=ignore_interrupts,
        capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip
    told = re.findall(r"^(PASSED|FAILED|ERROR) test_it.py::(\w+)", run.stdout, re.MULTILINE)
    found: dict[str, str] = {}
    for outcome, name in told:
        found[name] = f"{found[name]} {outcome}" if name in found else outcome
    return found, run.stdout + run.stderr


def test_a_test_that_hangs_fails_alone(tmp_path: Path) -> None:
    found, output = outcomes(tmp_path, HANGING)
    assert found == {
        "test_in_hypothesis": "FAILED",
        "test_that_catches_everything": "FAILED",
        "test_in_asyncio": "FAILED",
        "test_with_endless_clean_up": "ERROR FAILED",
        "test_a_thread_that_stays": "FAILED",
        "test_after_them": "PASSED",
    }, output
    assert "the test took longer than 1 s" in output
    assert "the clean-up after the test took longer than 1 s" in output


def test_a_process_that_cannot_be_interrupted_is_replaced(tmp_path: Path) -> None:
    found, output = outcomes(tmp_path, NEVER_INTERRUPTED, "-n", "1")
    assert found == {"test_in_c": "FAILED", "test_after_it": "PASSED"}, output
    assert 'test_it.py", line 8 in test_in_c' in output, "the stack says where"


def test_no_process_stays_and_ctrl_c_works(tmp_path: Path) -> None:
    found, output = outcomes(tmp_path, LEAVING)
    assert found == {
        "test_a_child": "ERROR FAILED",
        "test_an_orphan": "PASSED ERROR",
        "test_after_them": "PASSED",
        "test_ctrl_c": "PASSED",
    }, output
    assert output.count("the test left processes running") >= 2
    assert "sleep 1000" in output


ONCE = """
from pathlib import Path
import os
import pytest

@pytest.mark.parametrize("number", range({once}))
def test_fails_beside_others(number):
    assert "PYTEST_XDIST_WORKER" not in os.environ

def test_passes():
    with Path("passed").open("a") as runs:
        runs.write("x")

@pytest.mark.parametrize("number", range({always}))
def test_fails(number):
    assert False
"""


@pytest.mark.parametrize(
    ("once", "always", "code", "told"),
    [
        (0, 0, 0, "1 passed"),
        (2, 0, 0, "and passed alone:\ntest_it.py::test_fails_beside_others[0]"),
        (1, 1, 1, "1 failed, 1 passed"),
        (4, 0, 1, "4 tests failed; no more than 3 run again"),
    ],
)
def test_what_fails_beside_others_runs_once_more_alone(
    tmp_path: Path, once: int, always: int, code: int, told: str
) -> None:
    (tmp_path / "test_it.py").write_text(ONCE.format(once=once, always=always))
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    script = TESTS.parent / "tools" / "test_servers.sh"
    # These tests may run beside others themselves.
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST_XDIST")}
    run = subprocess.run(
        [script, Path(sys.executable).with_name("pytest"), "-c", "pytest.ini", "-n", "2"],
        cwd=tmp_path, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        timeout=100, check=False,
    )  # fmt: skip
    assert run.returncode == code, run.stdout
    assert told in run.stdout
    assert (tmp_path / "passed").read_text() == "x", "what passed does not run again"
