"""Commands of operators at a running cluster, and how smoothly it has run."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from typing import Any

from support import commands
from support.clusters import RunningCluster
from support.processes import wait_for

FALLBACKS = (
    "old leader has not handed over",
    "log of the old leader not copied to its end",
    "leadership given away unasked",
    "subscriptions of a new leader not confirmed",
    "end of subscriptions not confirmed",
    "stopping before all partitions are handed over",
)
"""What a node logs when a handover takes longer than its limits, as on a machine that stalls."""
SMOOTH_WITHIN = 5
"""A scene is smooth once in so many times, also on a machine that stalls now and then."""


def run(cluster: RunningCluster, *arguments: str) -> subprocess.CompletedProcess[str]:
    """A command, at the nodes that are alive."""
    servers = ",".join(node.addresses["http"] for node in cluster.alive())
    return commands.run(*arguments, "--server", servers, text=True)


def ask(cluster: RunningCluster, *arguments: str) -> Any:
    """What a command that succeeds says in JSON."""
    done = run(cluster, *arguments, "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def wait(cluster: RunningCluster, look: Callable[[], bool]) -> None:
    node = cluster.alive()[0]
    wait_for(lambda: look() or None, node.process, node.log)


def log_sizes(cluster: RunningCluster) -> dict[int, int]:
    """Where the log of each node ends now, for `lines_since`."""
    return {number: node.log.stat().st_size for number, node in cluster.nodes.items()}


def lines_since(cluster: RunningCluster, sizes: dict[int, int]) -> list[str]:
    """What all nodes have logged since `log_sizes`."""
    return [
        line
        for number, node in cluster.nodes.items()
        for line in node.log.read_bytes()[sizes.get(number, 0) :].decode().splitlines()
    ]


def fallbacks_in(lines: list[str]) -> list[str]:
    """Those of handovers that took longer than their time limits."""
    return [line for line in lines if any(event in line for event in FALLBACKS)]


def why_not_smooth(cluster: RunningCluster, sizes: dict[int, int], *, restarts: int) -> list[str]:
    """Nodes that were taken for lost beside those that were restarted, replicas that were late, and
    handovers that took longer than their time limits, since `log_sizes`."""
    lines = lines_since(cluster, sizes)
    lost = [line for line in lines if "node lost" in line]
    late = [line for line in lines if "been behind for" in line]
    return [*fallbacks_in(lines), *late, *(lost if len(lost) > restarts else ())]


def until_smooth(scene: Callable[[], list[str]]) -> None:
    """Call a scene until it says that it was smooth, and so has checked all.

    It returns why it was not. Once is enough: on a machine that stalls a node may be taken for
    lost, or a handover be given up. Handovers that always are fail the test.
    """
    reasons = []
    for _ in range(SMOOTH_WITHIN):
        found = scene()
        if not found:
            return
        reasons.append(found)
    raise AssertionError(f"never smooth in {SMOOTH_WITHIN} times: {reasons}")


def servers_of(cluster: RunningCluster) -> str:
    return ",".join(node.addresses["http"] for node in cluster.nodes.values())


def node_of(cluster: RunningCluster, number: int) -> dict[str, Any]:
    found = next(each for each in cluster.info()["nodes"] if each["node_id"] == number)
    return dict(found)
