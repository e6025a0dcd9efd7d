"""Health checks of the parts of a node: state and reason of each."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from bascule.model import PartHealth
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


def nats_health(*, connected: bool, server: str, refusals: Mapping[str, str]) -> PartHealth:
    """`refusals`: stream -> why the NATS server does not deliver to it."""
    if connected and refusals:
        shown = "; ".join(
            f"{name}: {why}" for name, why in [*refusals.items()][:LISTED_FAILURES_MAX]
        )
        return PartHealth(
            "nats", "degraded", f"{server} does not deliver to {len(refusals)} streams: {shown}"
        )
    if connected:
        return PartHealth("nats", "ok", f"connected to {server}")
    return PartHealth(
        "nats", "down", f"not connected to {server}; messages published meanwhile are not stored"
    )


def partitions_health(partitions: Iterable[Partition]) -> PartHealth:
    """A stopped partition degrades the node: the other partitions are served."""
    every = list(partitions)
    failed = [partition for partition in every if partition.failure is not None]
    if not failed:
        return PartHealth("partitions", "ok", f"{len(every)} open")
    shown = "; ".join(str(partition.failure) for partition in failed[:LISTED_FAILURES_MAX])
    more = (
        f"; and {len(failed) - LISTED_FAILURES_MAX} more"
        if len(failed) > LISTED_FAILURES_MAX
        else ""
    )
    return PartHealth(
        "partitions", "degraded", f"{len(failed)} of {len(every)} are stopped: {shown}{more}"
    )


def controller_health(pending: Sequence[str]) -> PartHealth:
    """Pending steps are retried; until they succeed the node differs from the metadata image."""
    if not pending:
        return PartHealth("controller", "ok", "the node agrees with the metadata image")
    return PartHealth(
        "controller", "degraded", f"{len(pending)} steps to retry, the first: {pending[0]}"
    )


def disk_health(*, free_bytes: int, total_bytes: int) -> PartHealth:
    """A full disk stops only ingest, which resumes by itself when space is free again."""
    percent = 100 * free_bytes // max(total_bytes, 1)
    reason = f"{free_bytes} of {total_bytes} bytes are free"
    if percent >= FREE_PERCENT_MIN:
        return PartHealth("disk", "ok", reason)
    return PartHealth("disk", "degraded", f"{reason}: free space, or lower the retention limits")
