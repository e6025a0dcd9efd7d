"""The processes below this one, so that no test leaves one behind: a plugin of pytest.

A process whose parent has ended belongs to its next ancestor that asked for that (`prctl(2)`,
PR_SET_CHILD_SUBREAPER). The process of the tests asks, so it sees also what a process that it
started has left behind: the node of a demo that was killed, for example.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from support.processes import FIRST_PIDS, FORK_SERVERS

END_SECONDS_MAX = 10.0
"""For a process to end by itself after its parent was killed."""

_PR_SET_CHILD_SUBREAPER = 36
_at_start = pytest.StashKey[frozenset[int]]()


def pytest_configure(config: pytest.Config) -> None:
    # A shell starts background jobs with SIGINT ignored, and children inherit that: tests that stop
    # a process by SIGINT would wait for ever.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)
    config.stash[_at_start] = child_pids()


def pytest_unconfigure(config: pytest.Config) -> None:
    """Kill what fixtures left because they failed, and a worker of pytest-xdist that crashed."""
    while FORK_SERVERS:
        FORK_SERVERS.popitem()[1].close()
    left = child_pids() - config.stash[_at_start]
    kill_trees(left)
    _wait_for(left)


@pytest.fixture(autouse=True)
def no_process_stays(request: pytest.FixtureRequest) -> Iterator[None]:
    """Kill what a test of tier 3 left running, and fail it.

    Servers of fixtures that outlive the test stay, also those that the test started again.
    """
    if request.node.get_closest_marker("tier3") is None:
        yield
        return
    before = child_pids()
    yield
    deadline = time.monotonic() + END_SECONDS_MAX
    while _commands(new_children(before)) and time.monotonic() < deadline:
        threading.Event().wait(0.02)
    left = kill_trees(new_children(before))
    _wait_for(new_children(before))
    assert not left, f"the test left processes running: {left}"


def new_children(before: frozenset[int]) -> frozenset[int]:
    """The children that are not of `before`, nor a server of `before` that was started again."""
    servers = {FIRST_PIDS.get(pid, pid) for pid in before} | {
        each.pid for each in FORK_SERVERS.values()
    }
    return frozenset(
        pid for pid in child_pids() - before if FIRST_PIDS.get(pid, pid) not in servers
    )


def child_pids(parent: int | None = None) -> frozenset[int]:
    """The children of `parent`, or of this process, that have not been waited for."""
    found: set[int] = set()
    for task in Path(f"/proc/{parent or os.getpid()}/task").glob("*/children"):
        with contextlib.suppress(OSError):  # the thread or the process has ended
            found.update(map(int, task.read_text().split()))
    return frozenset(found)


def kill_trees(pids: frozenset[int]) -> dict[int, str]:
    """Kill -9 each of `pids`, children of this process, and all below them.

    Returns who was running, with the command lines.
    """
    tree = list(pids)
    for pid in tree:
        tree.extend(child_pids(pid))
    running = _commands(tree)
    for pid in running:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return running


def _commands(pids: Iterable[int]) -> dict[int, str]:
    """Those of `pids` that have not ended -> their command lines."""
    found = {}
    for pid in pids:
        with contextlib.suppress(OSError):
            stat = Path(f"/proc/{pid}/stat").read_text()
            if stat.rpartition(")")[2].split()[0] not in "ZX":
                command = Path(f"/proc/{pid}/cmdline").read_bytes()
                found[pid] = command.replace(b"\0", b" ").decode(errors="replace").strip()
    return found


def _wait_for(pids: frozenset[int]) -> None:
    """Wait for children that have ended or have been killed.

    Those that Python knows are waited for by their `Popen`, and its pipes closed: it would warn
    otherwise when it is collected, perhaps in the next test.
    """
    if not pids:
        return
    for process in [each for each in gc.get_objects() if isinstance(each, subprocess.Popen)]:
        if process.pid in pids:
            process.wait()
            for pipe in (process.stdin, process.stdout, process.stderr):
                if pipe is not None:
                    with contextlib.suppress(OSError):  # what was not written finds nobody
                        pipe.close()
    for pid in pids:
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, 0)
