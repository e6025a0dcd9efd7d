"""The high watermark: the first offset not yet committed. Exclusive, and it never goes back."""

from __future__ import annotations

from bascule.model import SyncPolicy
from bascule.storage.segment import LogPosition


class HighWatermark:
    """Follows the only replica: its synced end, or its appended end, as the sync policy says."""

    def __init__(self, policy: SyncPolicy, position: LogPosition) -> None:
        self._on_sync = policy is SyncPolicy.ALWAYS
        self.position = position

    @property
    def offset(self) -> int:
        return self.position.offset

    def on_appended(self, end: LogPosition) -> bool:
        """The log ends at `end` now. Returns whether the high watermark moved."""
        return not self._on_sync and self._advance(end)

    def on_synced(self, end: LogPosition) -> bool:
        """Everything before `end` is synced. Returns whether the high watermark moved."""
        return self._advance(end)

    def configure(self, policy: SyncPolicy) -> None:
        """Follow another policy from the next batch on."""
        self._on_sync = policy is SyncPolicy.ALWAYS

    def _advance(self, end: LogPosition) -> bool:
        # Positions and not offsets: a roll moves the same offset to the next segment, and
        # compaction may rewrite the segment before.
        if end <= self.position:
            return False
        self.position = end
        return True
