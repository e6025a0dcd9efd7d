"""What the state machine of a node does next: apply entries, restore or take a snapshot."""

from __future__ import annotations

from bascule.raft.config import RaftConfig
from bascule.raft.effects import Apply
from bascule.raft.log import RaftLog
from bascule.raft.messages import RaftSnapshot


class Applying:
    """Hands out one `Apply` at a time, and one request for a snapshot at a time."""

    __slots__ = ("_applying_until", "_config", "_log", "restore_next", "snapshot_due")

    def __init__(self, config: RaftConfig, log: RaftLog) -> None:
        self._config = config
        self._log = log
        self._applying_until = 0
        """`last` of the `Apply` that is out, or 0. At most one is out."""
        self.restore_next: RaftSnapshot | None = log.snapshot
        """The snapshot that the state machine has to restore before the next entries."""
        self.snapshot_due = 0
        """The index of the snapshot that was requested and is not taken yet, or 0."""

    def take(self) -> Apply | None:
        """The next work for the state machine; None while some is out."""
        if self._applying_until:
            return None
        log = self._log
        if (snapshot := self.restore_next) is not None:
            self.restore_next = None
            if snapshot.index > log.applied:
                self._applying_until = snapshot.index
                return Apply(last=snapshot.index, restore=snapshot)
        if log.applied >= log.commit:
            return None
        interval = self._config.commit_count_to_take_snapshot
        snapshot_at = (log.applied // interval + 1) * interval
        last = min(log.commit, snapshot_at, log.applied + self._config.apply_entries_max)
        if last == snapshot_at and self.snapshot_due:
            last -= 1  # the previous snapshot is still being made
            if last == log.applied:
                return None
        if last == snapshot_at:
            self.snapshot_due = last
        self._applying_until = last
        return Apply(
            last=last,
            entries=log.slice(log.applied + 1, last + 1),
            take_snapshot=last == snapshot_at,
        )

    def on_applied(self, index: int) -> None:
        assert index == self._applying_until, (index, self._applying_until)
        self._applying_until = 0
        self._log.applied = index

    def on_snapshot_taken(self, index: int) -> None:
        assert index == self.snapshot_due, (index, self.snapshot_due)
        self.snapshot_due = 0
