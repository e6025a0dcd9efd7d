"""The dedupe window: recent message ids, so that publishers can safely retry."""

from __future__ import annotations

from array import array
from collections import deque
from typing import Final

from bascule.publish.headers import PublishHeaders
from bascule.publish.preconditions import _hot

CAPACITY_MIN: Final = 1 << 10
"""Ids in the first allocation of 32 KiB. Each doubling costs 32 bytes for each id."""
_NOTHING_BELOW: Final = -1
_NOTHING_FROM: Final = (1 << 63) - 1
RING_FIELDS: Final = 3


class DedupeWindow:
    """The ids of one partition, limited by time and number. Allocates nothing before the first id.

    One thread at a time uses it. An id takes 32 bytes: 24 for hash and offset, 8 in the hash table.
    """

    def __init__(self, *, ms_max: int, messages_max: int) -> None:
        """Forget ids after `ms_max` milliseconds, or when there are more than `messages_max`."""
        self.ms_max = ms_max
        self.messages_max = messages_max
        self.ring = array("q")
        self.table = array("i")
        self.state = array("q", bytes(8 * 5))
        """See `_hot`: numbers of the oldest and the next id; the id of the log's last record."""
        self._batches: deque[tuple[int, int]] = deque()
        """(end offset, timestamp) of batches with ids, oldest first."""
        self.dropped_early = 0
        """Ids dropped before the end of the window to make space for others."""

    def __len__(self) -> int:
        """With the last batch there may be more than `messages_max`; see `limit`."""
        return self.state[1] - self.state[0]

    @property
    def oldest(self) -> int:
        """The offset of the oldest id; the window must not be empty."""
        places = len(self.ring) // RING_FIELDS
        return self.ring[RING_FIELDS * (self.state[0] & (places - 1)) + 2]

    def limit(self) -> None:
        """Drop the oldest ids beyond `messages_max`. Called before a batch is evaluated or added.

        Only then is the last one stored, and known how many ids it has: repetitions, messages
        without ids, and those that are refused need no room.
        """
        self._forget_oldest(len(self) - self.messages_max)

    def reserve(self, count: int) -> None:
        """Make space for `count` more ids."""
        wanted = len(self) + count
        places = len(self.ring) // RING_FIELDS
        if wanted <= places:
            return
        places = max(CAPACITY_MIN, 1 << (wanted - 1).bit_length())
        ring, table = array("q", bytes(8 * RING_FIELDS * places)), array("i", bytes(8 * places))
        if len(self):
            _hot.window_copy(self.ring, self.state, ring, table)
        else:
            self.state[0] = self.state[1] = 0
        self.ring, self.table = ring, table

    def add(
        self, headers: PublishHeaders, *, base_offset: int, end_offset: int, timestamp: int
    ) -> None:
        """Add the ids of a batch that is in the log."""
        self.limit()
        self.reserve(headers.count)
        _hot.window_add(self.ring, self.table, self.state, headers.rows, headers.count, base_offset)
        self.note_batch(end_offset, timestamp)

    def note_batch(self, end_offset: int, timestamp: int) -> None:
        """Set the time of the ids added last, below `end_offset`, in Unix milliseconds."""
        self._batches.append((end_offset, timestamp))

    def expire(self, now_ms: int) -> None:
        """Drop the ids older than the window."""
        batches, below = self._batches, _NOTHING_BELOW
        while batches and batches[0][1] < now_ms - self.ms_max:
            below = batches.popleft()[0]
        if below > _NOTHING_BELOW and len(self):
            _hot.window_drop(self.ring, self.table, self.state, below, _NOTHING_FROM)
        if not len(self) and len(self.ring) > RING_FIELDS * CAPACITY_MIN and not batches:
            self.ring, self.table = array("q"), array("i")

    def rollback(self, offset: int) -> None:
        """Drop the ids from `offset` on: the log did not store them."""
        # Otherwise the next ids at these offsets would get their time.
        while self._batches and self._batches[-1][0] > offset:
            self._batches.pop()
        if len(self):
            _hot.window_drop(self.ring, self.table, self.state, _NOTHING_BELOW, offset)

    def _forget_oldest(self, count: int) -> None:
        if count <= 0:
            return
        places = len(self.ring) // RING_FIELDS
        if count >= len(self):
            below = _NOTHING_FROM
        else:
            oldest = self.state[0] + count
            below = self.ring[RING_FIELDS * (oldest & (places - 1)) + 2]
        self.dropped_early += count
        _hot.window_drop(self.ring, self.table, self.state, below, _NOTHING_FROM)
