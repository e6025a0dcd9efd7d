"""Sessions whose sender has begun another payload without the end of theirs."""

from __future__ import annotations

from bascule.datastream.limits import DataStreamCounts
from bascule.datastream.session import Session


class LeftSessions:
    """Those of one sender, in the order in which they were left. Belongs to the reactor's thread.

    A session is there once, however often it was left, and not while somebody sends it again.
    """

    def __init__(self, counts: DataStreamCounts) -> None:
        self._counts = counts
        self._sessions: dict[Session, None] = {}

    def add(self, session: Session, *, count_max: int) -> None:
        """A session was left just now. What was received of the oldest is removed if there are more
        than `count_max`."""
        self._sessions.pop(session, None)
        for each in tuple(self._sessions):
            if each.has_ended or not each.is_detached:
                del self._sessions[each]
        if not session.has_ended:
            self._sessions[session] = None
        if len(self._sessions) > count_max:
            oldest = next(iter(self._sessions))
            del self._sessions[oldest]
            if oldest.closing is None:
                self._counts.abandoned += 1
                oldest.abandon()
