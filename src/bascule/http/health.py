"""Which part of a node lives, which serves, and why not."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from bascule.model import PartHealth
from bascule.replica.partition import Partition

THREADS: Final = ("log-writer", "sync-0", "nats-reader")
"""Threads that a serving node has, by name; the others come and go."""

ROOM_LOW_PERCENT: Final = 5
"""Below so much free room a disk is about to be full; ext4 keeps that much for root."""
NAMED_FAILURES: Final = 3


def threads_health() -> PartHealth:
    """Whether the threads between the wire and the disk run; only a restart mends it."""
    running = {thread.name for thread in threading.enumerate()}
    ended = [name for name in THREADS if name not in running]
    if ended:
        return PartHealth("threads", "down", f"ended: {', '.join(ended)}; restart the node")
    return PartHealth("threads", "ok", f"{', '.join(THREADS)} run")


def node_health(*, opened: bool, closing: bool) -> PartHealth:
    if closing:
        return PartHealth("node", "down", "it drains and stops")
    if not opened:
        return PartHealth("node", "down", "it opens its logs and listeners")
    return PartHealth("node", "ok", "every listener is open")


def nats_health(*, connected: bool, server: str, refusals: Mapping[str, str]) -> PartHealth:
    """`refusals` are the streams that the server does not deliver to, and its words."""
    if connected and refusals:
        shown = "; ".join(f"{name}: {why}" for name, why in [*refusals.items()][:NAMED_FAILURES])
        return PartHealth(
            "nats", "degraded", f"{server} does not deliver to {len(refusals)} streams: {shown}"
        )
    if connected:
        return PartHealth("nats", "ok", f"connected to {server}")
    return PartHealth(
        "nats", "down", f"not connected to {server}; what is published is not stored meanwhile"
    )


def partitions_health(partitions: Iterable[Partition]) -> PartHealth:
    """A stopped partition is its own trouble: the node serves the others."""
    every = list(partitions)
    failed = [partition for partition in every if partition.failure is not None]
    if not failed:
        return PartHealth("partitions", "ok", f"{len(every)} open")
    shown = "; ".join(str(partition.failure) for partition in failed[:NAMED_FAILURES])
    more = f"; and {len(failed) - NAMED_FAILURES} more" if len(failed) > NAMED_FAILURES else ""
    return PartHealth(
        "partitions", "degraded", f"{len(failed)} of {len(every)} have stopped: {shown}{more}"
    )


def controller_health(pending: Sequence[str]) -> PartHealth:
    """A step that failed is repeated; meanwhile the node is not as the metadata image says."""
    if not pending:
        return PartHealth("controller", "ok", "the node is as the metadata image says")
    return PartHealth(
        "controller", "degraded", f"{len(pending)} steps to repeat, the first: {pending[0]}"
    )


def disk_health(*, free_bytes: int, total_bytes: int) -> PartHealth:
    """A full disk stops ingest alone, and that goes on by itself when there is room."""
    percent = 100 * free_bytes // max(total_bytes, 1)
    reason = f"{free_bytes} of {total_bytes} bytes are free"
    if percent >= ROOM_LOW_PERCENT:
        return PartHealth("disk", "ok", reason)
    return PartHealth("disk", "degraded", f"{reason}: make room, or lower what is retained")
