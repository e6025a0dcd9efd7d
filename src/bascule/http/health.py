"""Health checks of the parts of a node: state and reason of each."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from bascule.errors import PartitionFailed
from bascule.model import ClusterInfo, DuplicateStream, PartHealth
from bascule.replica.partition import Partition

THREADS: Final = ("log-writer", "sync-0", "nats-reader")
"""Names of the threads that run as long as a node serves."""

FREE_PERCENT_MIN: Final = 5
"""With less free space a disk counts as nearly full; ext4 reserves this share for root."""
LISTED_FAILURES_MAX: Final = 3


def threads_health() -> PartHealth:
    """Whether the threads between NATS and the disk run. An ended thread requires a restart."""
    running = {thread.name for thread in threading.enumerate()}
    ended = [name for name in THREADS if name not in running]
    if ended:
        return PartHealth("threads", "down", f"ended: {', '.join(ended)}; restart the node")
    return PartHealth("threads", "ok", f"{', '.join(THREADS)} run")


def node_health(*, opened: bool, closing: bool) -> PartHealth:
    if closing:
        return PartHealth("node", "down", "the node is draining and will stop")
    if not opened:
        return PartHealth("node", "down", "the node is opening its logs and listeners")
    return PartHealth("node", "ok", "every listener is open")


def nats_health(
    *, connected: bool, server: str, refusals: Mapping[str, str], unheard: Sequence[int]
) -> PartHealth:
    """`refusals`: stream -> why the NATS server does not deliver to it; `unheard`: nodes of the
    cluster that live and are not heard on this NATS."""
    if connected and refusals:
        shown = "; ".join(
            f"{name}: {why}" for name, why in [*refusals.items()][:LISTED_FAILURES_MAX]
        )
        return PartHealth(
            "nats", "degraded", f"{server} does not deliver to {len(refusals)} streams: {shown}"
        )
    if connected and unheard:
        return PartHealth(
            "nats",
            "degraded",
            f"connected to {server}, where nodes {', '.join(map(str, unheard))} of this cluster "
            "are not heard: messages published here may not reach leaders there; expected one "
            "NATS, and one account, for all nodes",
        )
    if connected:
        return PartHealth("nats", "ok", f"connected to {server}")
    return PartHealth(
        "nats", "down", f"not connected to {server}; messages published meanwhile are not stored"
    )


def nats_server_health(*, failure: str, has_given_up: bool, trouble: str) -> PartHealth:
    """Of the embedded server; `failure`: why it is away, empty while it runs; `trouble`: what is
    wrong with one that runs, or empty."""
    if has_given_up:
        return PartHealth(
            "nats-server", "down", f"failed too often and is not restarted: {failure}"
        )
    if failure:
        return PartHealth("nats-server", "degraded", f"being restarted: {failure}")
    if trouble:
        return PartHealth("nats-server", "degraded", trouble)
    return PartHealth("nats-server", "ok", "the embedded server runs")


def partitions_health(partitions: Iterable[Partition]) -> PartHealth:
    """A stopped partition degrades the node: the other partitions are served."""
    every = list(partitions)
    failed = [partition for partition in every if partition.failure is not None]
    if not failed:
        return PartHealth("partitions", "ok", f"{len(every)} open")
    shown = _first(str(partition.failure) for partition in failed)
    return PartHealth(
        "partitions", "degraded", f"{len(failed)} of {len(every)} are stopped: {shown}"
    )


def tables_health(failures: Sequence[PartitionFailed]) -> PartHealth:
    """`failures` of tables that have not followed their logs for a while: they are read at other
    nodes, if there are any with a replica."""
    if not failures:
        return PartHealth("tables", "ok", "all follow their logs")
    return PartHealth("tables", "degraded", f"{len(failures)} do not follow: {_first(failures)}")


def _first(failures: Iterable[object]) -> str:
    every = [str(each) for each in failures]
    more = len(every) - LISTED_FAILURES_MAX
    return "; ".join(every[:LISTED_FAILURES_MAX]) + (f"; and {more} more" if more > 0 else "")


def streams_health(
    conflicts: Mapping[str, Sequence[DuplicateStream]], *, cluster_id: str, refusal: str | None
) -> PartHealth:
    """`conflicts`: stream -> the same stream in other clusters on this NATS; `cluster_id` is this
    one's. `refusal`: why the NATS server does not permit announcements, or None.

    With a conflict the node is down: publishers are answered twice, or get half of what they read.
    """
    if conflicts:
        shown = "; ".join(
            f"{name}: {duplicate_text(others[0], cluster_id=cluster_id)}"
            for name, others in [*conflicts.items()][:LISTED_FAILURES_MAX]
        )
        more = len(conflicts) - LISTED_FAILURES_MAX
        return PartHealth(
            "streams",
            "down",
            f"{len(conflicts)} streams are in conflict with other clusters on this NATS: {shown}"
            f"{f'; and {more} more' if more > 0 else ''}; delete one of each, or use --no-acks or "
            "--shared",
        )
    if refusal is not None:
        return PartHealth("streams", "ok", f"conflicts may not be noticed: {refusal}")
    return PartHealth("streams", "ok", "no conflict with another cluster on this NATS")


def duplicate_text(other: DuplicateStream, *, cluster_id: str) -> str:
    """A stream of another cluster, in words; `cluster_id` is this node's."""
    nodes = ", ".join(map(str, other.nodes))
    what = "node" if len(other.nodes) == 1 else "nodes"
    if other.cluster_id == cluster_id:
        return f"a copy of this node's data directory runs, with {what} {nodes}"
    return f"on {other.subject} in cluster {other.cluster_id}, {what} {nodes}"


def controller_health(pending: Sequence[str]) -> PartHealth:
    """Pending steps are retried; until they succeed the node differs from the metadata image."""
    if not pending:
        return PartHealth("controller", "ok", "the node agrees with the metadata image")
    return PartHealth(
        "controller", "degraded", f"{len(pending)} steps to retry, the first: {pending[0]}"
    )


def cluster_health(info: ClusterInfo, *, node_id: int, is_suspended: bool) -> PartHealth:
    """A node that leads nothing, since no controller reaches it, is down."""
    if is_suspended:
        return PartHealth("cluster", "down", "no controller reaches the node, which leads nothing")
    if not info.controller:
        return PartHealth("cluster", "degraded", "no controller is known: nothing can be changed")
    mine = [ref for ref in info.leaderless if node_id in ref.replicas]
    short = [ref for ref in info.under_min_isr if node_id in ref.replicas]
    if mine or short:
        shown = ", ".join(
            f"{r.stream} {r.partition}" for r in (mine or short)[:LISTED_FAILURES_MAX]
        )
        what = (
            f"{len(mine)} partitions of this node have no leader"
            if mine
            else f"{len(short)} partitions of this node have too few replicas in sync"
        )
        why = f"; the first {mine[0].waits}" if mine else ""
        return PartHealth("cluster", "degraded", f"{what}: {shown}{why}")
    return PartHealth("cluster", "ok", f"node {info.controller} is the controller")


def disk_health(*, free_bytes: int, total_bytes: int, is_hanging: bool = False) -> PartHealth:
    """A full disk stops only ingest, which resumes by itself when space is free again.

    `is_hanging`: the disk does not say how much is free; what it said last may be true no more.
    """
    if is_hanging:
        return PartHealth(
            "disk",
            "degraded",
            f"the disk does not answer; at last {free_bytes} of {total_bytes} bytes were free",
        )
    percent = 100 * free_bytes // max(total_bytes, 1)
    reason = f"{free_bytes} of {total_bytes} bytes are free"
    if percent >= FREE_PERCENT_MIN:
        return PartHealth("disk", "ok", reason)
    return PartHealth("disk", "degraded", f"{reason}: free space, or lower the retention limits")
