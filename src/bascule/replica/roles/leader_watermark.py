"""The high watermark of a leader with followers, as a position that readers can stop at."""

from __future__ import annotations

from collections import deque

from bascule.errors import BasculeError
from bascule.host.api import Clock
from bascule.model import SyncPolicy
from bascule.replica.roles.batch_positions import position_of
from bascule.replication.leader import LeaderReplication
from bascule.storage.partition_log import LogPosition, PartitionLog


class LeaderWatermark:
    """Follows `LeaderReplication`. Used under the partition's commit lock.

    Followers are at ends of batches. Those that this leader has appended are in memory until the
    watermark passes them; the position of an older one is looked up.
    """

    def __init__(
        self,
        log: PartitionLog,
        replication: LeaderReplication,
        position: LogPosition,
        clock: Clock,
    ) -> None:
        """`position` is that of a batch boundary at or below the known high watermark."""
        self.replication = replication
        self.position = position
        self._log = log
        self._clock = clock
        self._ends: deque[LogPosition] = deque([log.end])
        """Ends of batches above `position`, in order."""
        self._last_end = log.end
        self._advance()

    @property
    def offset(self) -> int:
        return self.replication.high_watermark

    @property
    def replicated_offset(self) -> int:
        """The committed offset below which all replicas have synced their logs."""
        return min(self.replication.replicated_offset, self._log.synced.offset)

    def on_appended(self, end: LogPosition) -> bool:
        """The log ends at `end` now. Whether the high watermark moved."""
        self._note_end(end)
        self.replication.on_appended(end.offset, self._clock.monotonic_ns())
        return self._advance()

    def on_synced(self, end: LogPosition) -> bool:
        """This node has synced its log up to `end`. Whether the high watermark moved."""
        if end.segment_base > self._last_end.segment_base:
            self._note_end(end)
        self.replication.on_synced(end.offset)
        return self._advance()

    def on_replication(self) -> bool:
        """`replication` has changed. Whether the high watermark moved."""
        return self._advance()

    def configure(self, policy: SyncPolicy) -> None:
        """Count synced or appended records from now on."""
        self.replication.count(
            synced=policy is SyncPolicy.ALWAYS,
            own_synced=self._log.synced.offset,
            now_ns=self._clock.monotonic_ns(),
        )

    def _note_end(self, end: LogPosition) -> None:
        if end <= self._last_end:
            return
        if end.segment_base > self._last_end.segment_base:
            # The offset before the roll is at the beginning of the new segment, too.
            self._ends.append(LogPosition(end.segment_base, end.segment_base, 0))
        if end.position > 0:
            self._ends.append(end)
        self._last_end = end

    def _advance(self) -> bool:
        offset, found = self.replication.high_watermark, self.position
        while self._ends and self._ends[0].offset <= offset:
            found = max(found, self._ends.popleft())
        if found.offset < offset:
            found = max(found, self._look_up(offset) or found)
        if found <= self.position:
            return False
        self.position = found
        return True

    def _look_up(self, offset: int) -> LogPosition | None:
        try:
            return position_of(self._log, offset, nowait=True)
        except (BasculeError, OSError):
            return None  # whoever reads there is told what is wrong
