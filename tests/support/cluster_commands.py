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


def is_smooth(cluster: RunningCluster, *, restarts: int) -> bool:
    """Whether no node was taken for lost but those that were restarted, no replica was late, and
    all handovers were within their time limits."""
    lines = [line for node in cluster.nodes.values() for line in node.log.read_text().splitlines()]
    late = [line for line in lines if any(each in line for each in (*FALLBACKS, "been behind for"))]
    return not late and sum("node lost" in line for line in lines) <= restarts


def servers_of(cluster: RunningCluster) -> str:
    return ",".join(node.addresses["http"] for node in cluster.nodes.values())


def node_of(cluster: RunningCluster, number: int) -> dict[str, Any]:
    found = next(each for each in cluster.info()["nodes"] if each["node_id"] == number)
    return dict(found)
