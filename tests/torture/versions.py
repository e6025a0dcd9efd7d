"""The releases of a run: it may begin with the one before, and ends with this one on all nodes.

In between the fault `versions` moves nodes forth and back. Some always keep the release before, so
the cluster version stays the one that both support.
"""

from __future__ import annotations

import signal
from functools import partial
from pathlib import Path
from typing import Final

from bascule.cluster_version import NEWEST
from support.earlier_release import MISSING, unpack_release_before
from torture.machines import Machines

SYNC_SECONDS_MAX: Final = 120.0


def begin_with_earlier(machines: Machines, place: Path) -> None:
    """Have all nodes begin with the release before. Raises: RuntimeError where git lacks it."""
    machines.earlier = unpack_release_before(place)
    if machines.earlier is None:
        raise RuntimeError(MISSING)


def upgrade_all(machines: Machines) -> list[str]:
    """Give the nodes this release, one after the other; the findings."""
    if machines.earlier is None:
        return []

    def is_in_force() -> bool:
        versions = [machines.call("GET", "/v1/cluster", at=n) for n in machines.nodes]
        return all(each["cluster_version"] == NEWEST for each in versions)

    before = machines.call("GET", "/v1/cluster")["cluster_version"]
    if before != NEWEST - 1:
        return [f"cluster version {before} in force while nodes support {NEWEST - 1} only"]
    for number in machines.with_earlier():
        machines.end(number, signal.SIGTERM)
        machines.choose_release(number, is_earlier=False)
        machines.begin(number)
        what, is_back = f"in sync after the upgrade of {number}", partial(machines.is_back, number)
        if not machines.wait(what, is_back, SYNC_SECONDS_MAX):
            return [f"not in sync after the upgrade of node {number}"]
    if not machines.wait("the newest cluster version", is_in_force, SYNC_SECONDS_MAX):
        return [f"cluster version {NEWEST} is not in force after the upgrade of all nodes"]
    return []
