"""Limits and counters of data streaming."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class DataStreamLimits:
    """Bounds on what senders of payloads may cost the node."""

    connections_max: int = 8_192
    """A further one takes the place of the longest silent or the slowest one; see `admission`."""
    sessions_max: int = 4_096
    """Payloads that are received at once; each has a file and, while it is sent, a connection. A
    further one takes a place in the same way."""
    requests_bytes_max: int = 64 << 20
    """Memory for the keys and headers of payloads that are received, and for requests that have
    come in part, together; small ones, of at most 4 KiB each, count for nothing."""
    window_bytes: int = 16 << 20
    """What a sender may be ahead of the tree. It is in files, not in memory."""
    unlinked_ms_max: int = 600_000
    """A payload that nobody goes on with, and that no record names, is removed after this time."""

    bytes_per_second_min: int = 8 << 20
    """What payloads may write to the disk however long the syncs of logs take; 0: they are never
    slowed down for them."""


@dataclass(slots=True)
class DataStreamCounts:
    """Since the node started; the thread of the reactor writes them, but `nats_chunks_dropped`,
    which the reading thread of NATS does."""

    connections: int = 0
    disk_limit: int = 0
    """Bytes of payloads a second that are written to the disk at most now; 0: no limit."""
    disk_waited_ns: int = 0
    """How long they have waited for that."""
    sessions: int = 0
    """OpenPayload now."""
    opened: int = 0
    bytes_received: int = 0
    bytes_forwarded: int = 0
    bytes_read: int = 0
    bytes_fetched: int = 0
    linked: int = 0
    fetched: int = 0
    fetches_failed: int = 0
    lost: int = 0
    damaged: int = 0
    repaired: int = 0
    repairs_failed: int = 0
    successors_lost: int = 0
    refused: int = 0
    gave_way: int = 0
    """Connections and payloads that have lost their places to others."""
    abandoned: int = 0
    nats_payloads: int = 0
    """Now."""
    nats_chunks: int = 0
    nats_chunks_refused: int = 0
    nats_chunks_dropped: int = 0
    nats_expired: int = 0
    unlinked_removed: int = 0
    unlinked_bytes_removed: int = 0
