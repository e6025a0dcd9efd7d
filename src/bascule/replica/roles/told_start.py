"""Where the log of another replica starts."""

from __future__ import annotations

import threading


class ToldStart:
    """The start of another replica's log; retention has the log of this one start there, too.

    Any thread may raise it. The log writer begins leader epochs, and lowers it.
    """

    def __init__(self) -> None:
        self.offset = 0
        self._leader_epoch = -1
        self._lock = threading.Lock()
        """Else a thread that has looked before an unclean election could raise it afterwards."""

    def begin(self, leader_epoch: int) -> None:
        """From now on only what is said in this leader epoch counts."""
        with self._lock:
            self._leader_epoch = leader_epoch

    def hear(self, offset: int, leader_epoch: int) -> None:
        """A replica said in `leader_epoch` that its log starts at `offset`."""
        with self._lock:
            if leader_epoch == self._leader_epoch:
                self.offset = max(self.offset, offset)

    def lower(self, end: int) -> None:
        """Behind `end` other records follow than those that a leader has removed."""
        with self._lock:
            self.offset = min(self.offset, end)
