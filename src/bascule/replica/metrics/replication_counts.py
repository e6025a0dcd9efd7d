"""Counters of replication: what followers fetch here, and what this node fetches."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class ReplicaFetchCounts:
    """For metrics. Counts only grow."""

    requests: int = 0
    reports: int = 0
    """Partitions named in requests."""
    bytes: int = 0
    """Bytes of record batches sent to followers."""
    truncations: int = 0
    """Followers that were told to truncate a diverging log."""
    stale: int = 0
    """Reports of an older incarnation of a node, or of a node that is no replica."""


@dataclass(slots=True)
class FetcherCounts:
    """For metrics. Counts only grow."""

    requests: int = 0
    bytes: int = 0
    """Bytes of responses."""
    connects: int = 0
    failures: int = 0
    """Connections that failed or could not be made."""
