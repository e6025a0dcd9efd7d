"""What a leader knows about one member, and what it may send to that member.

```
PROBE      one append at a time, to find the last index at which the logs match
REPLICATE  appends are pipelined, within a window of requests and of bytes
SNAPSHOT   the log no longer has the member's next entry; the member fetches a snapshot
```
"""

from __future__ import annotations

from collections import deque
from enum import Enum


class ProgressState(Enum):
    """How entries are sent to a member."""

    PROBE = "probe"
    REPLICATE = "replicate"
    SNAPSHOT = "snapshot"


class FollowerProgress:
    """One member as its leader sees it. Always: `match < next`."""

    __slots__ = (
        "acked_round", "commit_sent", "inflight", "inflight_bytes", "match",
        "match_at_heartbeat", "next", "paused", "probe_last", "recently_active",
        "removal_round", "removed_until",
        "snapshot_index", "state",
    )  # fmt: skip

    def __init__(self, next_index: int, *, recently_active: bool) -> None:
        self.match = 0
        """The member has this node's log up to here on disk. It never falls."""
        self.next = next_index
        """The next entry to send."""
        self.state = ProgressState.PROBE
        self.paused = False
        """In PROBE: an append is out; the next one waits for its reply or a heartbeat reply."""
        self.probe_last = 0
        """In PROBE: the last entry of the append that is out."""
        self.inflight: deque[tuple[int, int]] = deque()
        """In REPLICATE: (last index, bytes) of appends without a reply, oldest first."""
        self.inflight_bytes = 0
        self.snapshot_index = 0
        """In SNAPSHOT: index of the offered snapshot."""
        self.recently_active = recently_active
        """Whether a message from it arrived since the leader's last quorum check."""
        self.acked_round = 0
        """The highest heartbeat round it replied to."""
        self.commit_sent = 0
        """The highest commit index it was sent."""
        self.match_at_heartbeat = 0
        """`match` at its last heartbeat reply: no progress since then causes a probe."""
        self.removed_until = 0
        """Its removal is committed, and the leader tells it so until this tick; 0: a member."""
        self.removal_round = 0
        """The heartbeat round that told it of its removal; 0: none yet."""

    def become_probe(self) -> None:
        """Send one append at a time, from the match index on."""
        self.state = ProgressState.PROBE
        self.next = self.match + 1
        self.paused = False
        self._drop_inflight()

    def become_replicate(self) -> None:
        """Pipeline appends, from the match index on."""
        self.state = ProgressState.REPLICATE
        self.next = self.match + 1
        self.paused = False
        self._drop_inflight()

    def become_snapshot(self, index: int) -> None:
        """Send no entries until it has the snapshot at `index`."""
        self.state = ProgressState.SNAPSHOT
        self.snapshot_index = index
        self._drop_inflight()

    def on_sent(self, last: int, size: int) -> None:
        """An append up to `last`, of `size` bytes, was sent in REPLICATE."""
        self.next = last + 1
        self.inflight.append((last, size))
        self.inflight_bytes += size

    def on_matched(self, index: int) -> bool:
        """The member has the log up to `index` on disk. Returns whether `match` rose."""
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
