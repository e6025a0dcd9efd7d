"""What a leader knows of one member, and what it may send to it.

```
PROBE      one append at a time, to find where the logs agree
REPLICATE  appends are sent ahead of their answers, within a window of requests and of bytes
SNAPSHOT   the log no longer reaches back; the member fetches chunks and says when it is done
```
"""

from __future__ import annotations

from collections import deque
from enum import Enum


class Pace(Enum):
    """How a member is sent to."""

    PROBE = "probe"
    REPLICATE = "replicate"
    SNAPSHOT = "snapshot"


class Progress:
    """One member as its leader sees it. `match < next` always."""

    __slots__ = (
        "acked_round", "active", "commit_sent", "inflight", "inflight_bytes", "match",
        "match_at_beat", "next", "pace", "paused", "probe_last", "snapshot_index",
    )  # fmt: skip

    def __init__(self, next_index: int, *, active: bool) -> None:
        self.match = 0
        """The member has the log up to here, on disk."""
        self.next = next_index
        """The next entry to send."""
        self.pace = Pace.PROBE
        self.paused = False
        """In PROBE: an append is out, and only an answer or a heartbeat lets the next one go."""
        self.probe_last = 0
        """In PROBE: the last entry of the append that is out."""
        self.inflight: deque[tuple[int, int]] = deque()
        """In REPLICATE: (last index, bytes) of appends not answered, oldest first."""
        self.inflight_bytes = 0
        self.snapshot_index = 0
        """In SNAPSHOT: which one it was offered."""
        self.active = active
        """Whether it was heard since the leader last counted its quorum."""
        self.acked_round = 0
        self.commit_sent = 0
        """The highest commit index it was sent."""
        self.match_at_beat = 0
        """`match` at its last answer to a heartbeat: no progress since then asks for a probe."""

    def probe(self) -> None:
        """Go back to what is known to match, one append at a time."""
        self.pace = Pace.PROBE
        self.next = self.match + 1
        self.paused = False
        self._drop_inflight()

    def replicate(self) -> None:
        """Send ahead of the answers."""
        self.pace = Pace.REPLICATE
        self.next = self.match + 1
        self.paused = False
        self._drop_inflight()

    def fetch_snapshot(self, index: int) -> None:
        """Wait until it has the snapshot at `index`."""
        self.pace = Pace.SNAPSHOT
        self.snapshot_index = index
        self._drop_inflight()

    def sent(self, last: int, size: int) -> None:
        """An append up to `last`, of `size` bytes, is under way in REPLICATE."""
        self.next = last + 1
        self.inflight.append((last, size))
        self.inflight_bytes += size

    def matched(self, index: int) -> bool:
        """It has the log up to `index`; whether that is news."""
        if index <= self.match:
            return False
        self.match = index
        self.next = max(self.next, index + 1)
        inflight = self.inflight
        while inflight and inflight[0][0] <= index:
            self.inflight_bytes -= inflight.popleft()[1]
        return True

    def _drop_inflight(self) -> None:
        self.inflight.clear()
        self.inflight_bytes = 0
