"""What one partition's batches, syncs and reads were like."""

from __future__ import annotations

from bascule.replica.metrics.histogram import BYTES, COUNTS, SECONDS, Histogram


class PartitionMetrics:
    """Written per batch by the appender, per sync by a syncer, per fetch by the event loop."""

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
        """Answers to readers that carried records of it."""
        self.fetched_bytes = 0
        self.synced_bytes = 0
        """Of the bytes appended since start, those that are known to be on the disk."""
        self.unsynced_since_ns = 0
        """Monotonic time of the first append that no finished sync covers; 0 while all is synced.
        """

    def on_appended(self, *, records: int, bytes: int, now_ns: int) -> None:
        self.batch_records.observe(records)
        self.batch_bytes.observe(bytes)
        if not self.unsynced_since_ns:
            self.unsynced_since_ns = now_ns

    def on_synced(self, *, synced_bytes: int, began_ns: int, now_ns: int, is_dirty: bool) -> None:
        """A sync that ran from `began_ns` is done; `is_dirty` says that more came meanwhile.

        `synced_bytes` is what had been appended since start when the sync began.
        """
        if synced_bytes > self.synced_bytes:  # one that found nothing to do says nothing
            self.sync_ns.observe(now_ns - began_ns)
            self.synced_bytes = synced_bytes
        self.unsynced_since_ns = began_ns if is_dirty else 0

    def on_fetched(self, bytes: int) -> None:
        self.fetches += 1
        self.fetched_bytes += bytes

    def sync_lag_ns(self, now_ns: int) -> int:
        """How long the oldest record that is not known to be on the disk has waited for it."""
        since = self.unsynced_since_ns
        return max(now_ns - since, 0) if since else 0
