"""Counters and metrics of one partition's batches, syncs and reads."""

from __future__ import annotations

from dataclasses import dataclass

from bascule.replica.metrics.histogram import BYTES, COUNTS, SECONDS, Histogram


@dataclass(slots=True)
class PartitionCounts:
    """For metrics. Counts only grow."""

    records: int = 0
    bytes: int = 0
    batches: int = 0
    syncs: int = 0
    messages_refused: int = 0
    records_not_stored: int = 0
    """Messages the log could not store; those that asked for an ack got an error ack."""
    records_indeterminate: int = 0
    """Messages that were appended when the log failed: they may or may not be stored."""
    records_dropped: int = 0
    """Messages that came, or waited for their ack, while this node does not lead: unanswered."""
    handover_duplicates: int = 0
    """Messages received as a new leader that its log had already, and that have no known id."""
    records_lost: int = 0
    """Records that this node removed, since the leader of an unclean election lacks them."""
    replicated_bytes: int = 0
    """Bytes of record batches appended as a follower."""
    disk_errors: int = 0
    """Appends and syncs that failed with an OSError."""


class PartitionMetrics:
    """Updated by the log writer per batch, a sync thread per sync, the event loop per fetch."""

    __slots__ = (
        "batch_bytes",
        "batch_records",
        "fetched_bytes",
        "fetches",
        "sync_ns",
        "synced_bytes",
        "unsynced_since_ns",
    )

    def __init__(self) -> None:
        self.batch_bytes = Histogram(BYTES)
        self.batch_records = Histogram(COUNTS)
        self.sync_ns = Histogram(SECONDS)
        self.fetches = 0
        """Fetch responses with records of the partition."""
        self.fetched_bytes = 0
        self.synced_bytes = 0
        """Bytes appended since the start that a finished sync covers."""
        self.unsynced_since_ns = 0
        """Monotonic time of the first append that no finished sync covers; 0 while all is synced.
        """

    def on_appended(self, *, records: int, bytes: int, now_ns: int) -> None:
        self.batch_records.observe(records)
        self.batch_bytes.observe(bytes)
        if not self.unsynced_since_ns:
            self.unsynced_since_ns = now_ns

    def on_synced(self, *, synced_bytes: int, began_ns: int, now_ns: int, is_dirty: bool) -> None:
        """A sync that began at `began_ns` is done; `is_dirty`: more was appended meanwhile.

        `synced_bytes` is what had been appended since start when the sync began.
        """
        if synced_bytes > self.synced_bytes:  # skip a sync that had nothing to do
            self.sync_ns.observe(now_ns - began_ns)
            self.synced_bytes = synced_bytes
        self.unsynced_since_ns = began_ns if is_dirty else 0

    def on_fetched(self, bytes: int) -> None:
        self.fetches += 1
        self.fetched_bytes += bytes

    def sync_lag_ns(self, now_ns: int) -> int:
        """How long the oldest record without a finished sync has waited for one."""
        since = self.unsynced_since_ns
        return max(now_ns - since, 0) if since else 0
