"""The processes below this one, so that no test leaves one behind."""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path


def child_pids(parent: int | None = None) -> frozenset[int]:
    """Processes that `parent`, or this process, has started and that have not been waited for."""
    found: set[int] = set()
    for task in Path(f"/proc/{parent or os.getpid()}/task").glob("*/children"):
        with contextlib.suppress(OSError):  # the thread or the process has ended meanwhile
            found.update(map(int, task.read_text().split()))
    return frozenset(found)


def kill_trees(pids: frozenset[int]) -> list[int]:
    """Kill -9 each of `pids`, children of this process, and all below them; returns who was left.

    The pids themselves stay to be waited for by whoever started them.
    """
    tree = list(pids)
    for pid in tree:
        tree.extend(child_pids(pid))
    running = [pid for pid in tree if not _is_dead(pid)]
    for pid in running:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return running


def _is_dead(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return True
    return stat.rpartition(")")[2].split()[0] in "ZX"
