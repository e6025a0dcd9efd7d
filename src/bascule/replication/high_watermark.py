"""The high watermark: the first offset not yet committed. Exclusive, and it never goes back."""

from __future__ import annotations

from bascule.model import SyncPolicy
from bascule.storage.segment import LogPosition


class HighWatermark:
    """Follows the only replica: what it has synced, or has appended, as the stream asks."""

    def __init__(self, policy: SyncPolicy, position: LogPosition) -> None:
        self._on_sync = policy is SyncPolicy.ALWAYS
        self.position = position

    def on_appended(self, end: LogPosition) -> bool:
        """The log ends at `end` now. Whether the high watermark moved."""
        return not self._on_sync and self._advance(end)

    def on_synced(self, end: LogPosition) -> bool:
        """Everything before `end` is on the disk. Whether the high watermark moved."""
        return self._advance(end)

    def configure(self, policy: SyncPolicy) -> None:
        """Follow another policy from the next batch on."""
        self._on_sync = policy is SyncPolicy.ALWAYS

    def _advance(self, end: LogPosition) -> bool:
        # Not offsets alone: a roll moves the same offset to the next segment, and where it was
        # before is compaction's to rewrite.
        if end <= self.position:
            return False
        self.position = end
        return True
