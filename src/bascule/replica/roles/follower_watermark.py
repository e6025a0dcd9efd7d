"""The high watermark of a follower: the leader's, as far as the follower's log goes."""

from __future__ import annotations

from bascule.errors import BasculeError
from bascule.model import SyncPolicy
from bascule.replica.roles.batch_positions import position_of
from bascule.storage.partition_log import LogPosition, PartitionLog


class FollowerWatermark:
    """Moves when the leader says so, and back only after an unclean election, or when the log is
    copied from its beginning.

    Used under the partition's commit lock.
    """

    def __init__(self, log: PartitionLog, offset: int) -> None:
        self._log = log
        self._position = LogPosition(0, 0, 0)
        self.offset = offset

    @property
    def position(self) -> LogPosition:
        """Where readers of this follower stop; an earlier position while the disk would be read."""
        if self._position.offset != self.offset:
            try:
                found = position_of(self._log, self.offset, nowait=True)
            except (BasculeError, OSError):
                return self._position
            if found is not None:
                self._position = found
        return self._position

    def on_leader(self, offset: int) -> bool:
        """The leader's high watermark is `offset`; the logs are equal. Whether this one moved."""
        offset = min(offset, self._log.end.offset)
        if offset <= self.offset:
            return False
        self.offset = offset
        return True

    def on_replaced(self, offset: int) -> None:
        """The log was replaced by an empty one that starts at `offset`, which is committed."""
        self.offset = offset
        self._position = LogPosition(0, 0, 0)

    def on_truncated(self, offset: int) -> None:
        """The log ends at `offset` now. Committed records were removed after an unclean election
        only."""
        if offset < self.offset:
            self.offset = offset
            self._position = LogPosition(0, 0, 0)

    def on_appended(self, end: LogPosition) -> bool:
        return False

    def on_synced(self, end: LogPosition) -> bool:
        return False

    def configure(self, policy: SyncPolicy) -> None:
        """The policy does not matter to a follower's watermark."""
