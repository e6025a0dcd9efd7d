"""What is requested of the sync threads for one partition, and how far they are."""

from __future__ import annotations

import threading
from typing import Final

from bascule.errors import BasculeError
from bascule.host.api import Clock

CHECKPOINT_FILES_MIN: Final = 16
"""Segments whose indexes a checkpoint saves at least before it lets another sync go first."""

CHECKPOINT_WAIT_SECONDS: Final = 0.01
"""For the lock of a log whose segments are changed: no longer, since acks wait for the thread."""


class SyncState:
    """Any thread may request; the sync thread whose turn it is does all else."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        """Guards the next three."""
        self.is_queued = False
        """Whether a sync runs or waits for a thread."""
        self._is_requested_again = self._checkpoint_requested = False
        self.stop_cause: BasculeError | None = None
        """The reason for which a sync thread must stop the partition; None: none."""
        self.synced_at_ns = 0
        """When the last sync ended, on the monotonic clock."""
        self.progressed_ns = 0
        """When a file was last synced or saved, on the monotonic clock: the disk works."""
        self._synced = self._saved = 0
        """Segments synced and saved in this turn."""

    def request(self, *, checkpoint: bool) -> bool:
        """Request a sync, and a checkpoint after it; whether one runs or waits already."""
        with self._lock:
            self._checkpoint_requested |= checkpoint
            was_queued = self.is_queued
            self._is_requested_again |= was_queued
            self.is_queued = True
        return was_queued

    def begin_turn(self) -> bool:
        """What is requested up to now is about to be done; whether a checkpoint is."""
        self._synced = self._saved = 0
        with self._lock:
            self._is_requested_again = False
            checkpoint, self._checkpoint_requested = self._checkpoint_requested, False
        return checkpoint

    def end_turn(self) -> bool:
        """Whether another sync was requested since the turn began."""
        with self._lock:
            self.is_queued = self._is_requested_again
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
        return self._is_requested_again and self._saved >= 2 * self._synced + CHECKPOINT_FILES_MIN
