"""What is requested of the sync threads for one partition, and how far they are."""

from __future__ import annotations

import threading
from typing import Final, NamedTuple

from bascule.errors import BasculeError
from bascule.host.api import Clock
from bascule.replica.failure_run import FailureRun

CHECKPOINT_FILES_MIN: Final = 16
"""Segments whose indexes a checkpoint saves at least before it lets another sync go first."""


class Turn(NamedTuple):
    """What a sync thread is to do for a partition now."""

    sync: bool
    checkpoint: bool


class SyncState:
    """Any thread may request; the sync thread whose turn it is does all else."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        """Guards the next three."""
        self.is_queued = False
        """Whether a sync or a checkpoint runs or waits for a thread."""
        self._sync_requested = self._checkpoint_requested = False
        """Whether the next turn is to sync, and to write a checkpoint."""
        self.stop_cause: BasculeError | None = None
        """The reason for which a sync thread must stop the partition; None: none."""
        self.synced_at_ns = 0
        """When the last sync ended, on the monotonic clock."""
        self.progressed_ns = 0
        """When a file was last synced or saved, on the monotonic clock: the disk works."""
        self._synced = self._saved = 0
        """Segments synced and saved in this turn."""
        self.failed_checkpoints = FailureRun()

    def request(self, *, checkpoint: bool) -> bool:
        """Request a sync, and a checkpoint after it; whether one runs or waits already."""
        with self._lock:
            self._checkpoint_requested |= checkpoint
            self._sync_requested = True
            was_queued, self.is_queued = self.is_queued, True
        return was_queued

    def begin_turn(self) -> Turn:
        """What is requested up to now is about to be done."""
        self._synced = self._saved = 0
        with self._lock:
            turn = Turn(self._sync_requested, self._checkpoint_requested)
            self._sync_requested = self._checkpoint_requested = False
        return turn

    def put_off_checkpoint(self) -> None:
        """The checkpoint of this turn is not done: the next one goes on with it."""
        with self._lock:
            self._checkpoint_requested = True

    def end_turn(self) -> bool:
        """Whether there is to be another turn: one was requested since this one began, or the
        checkpoint is not done."""
        with self._lock:
            self.is_queued = self._sync_requested or self._checkpoint_requested
            return self.is_queued

    def on_synced(self) -> None:
        """The file of a segment is synced."""
        self._synced += 1
        self.progressed_ns = self._clock.monotonic_ns()

    def on_saved(self) -> bool:
        """The indexes of a segment are saved; whether a sync that is waited for goes first.

        A turn saves twice as many segments as it has synced, so the checkpoint gets done soon.
        """
        self._saved += 1
        self.progressed_ns = self._clock.monotonic_ns()
        return self._sync_requested and self._saved >= 2 * self._synced + CHECKPOINT_FILES_MIN
