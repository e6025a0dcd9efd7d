"""`Completeness`: up to where a table has every record of a log from which some were removed.

A log that was compacted has only the last record of a key. A replica that catches up with it gets
the records of some keys, and for a while lacks those of others that were removed for the sake of
later ones, which it does not have yet. Then it is at no position of the log: a client that has
written such a record would read what was before it.
"""

from __future__ import annotations

from math import inf


class Completeness:
    """Of the table of one replica. Belongs to the event loop."""

    __slots__ = ("_gap_end", "position")

    def __init__(self, *, may_have_gaps: bool = False) -> None:
        """`may_have_gaps`: whether the log may lack records that an earlier process has applied."""
        self.position = 0
        """Every record below it, or a later one of its key, is in the table."""
        self._gap_end = inf if may_have_gaps else -1
        """The records in the place of those removed are below it; infinity: how far they may go is
        not known yet; -1: there are none."""

    def on_applied(self, position: int, *, missing: int, committed_end: int) -> None:
        """The table has applied the log up to `position`, of which `missing` records were removed.

        `committed_end` is that of the leader; -1: not known. A log removes a record only if a
        committed one is in its place.
        """
        end = inf if committed_end < 0 else committed_end
        if self._gap_end == inf:
            self._gap_end = end
        elif missing:
            self._gap_end = max(self._gap_end, end)
        # The leader's end alone: an unclean election may have lost what was to come.
        if position >= min(self._gap_end, end):
            self._gap_end = -1
        if self._gap_end < 0:
            self.position = position
