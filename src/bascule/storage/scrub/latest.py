"""The latest values of a log's keys, as one digest that compaction does not change.

Replicas of a compacted stream have removed different records. But below an offset up to which, at
most, each of them was compacted, the last record of each key is on all of them, unless it is a
tombstone. So the sum of the hashes of these records is the same, with tombstones left out.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from struct import Struct
from typing import Final, NamedTuple

from bascule.errors import CorruptData
from bascule.record.compression import decompress_batch
from bascule.record.header import LENGTH_PREFIX_BYTES, read_header
from bascule.storage.compaction.batch_filter import BATCHES_MAX
from bascule.storage.compaction.keys import _hot as key_hot
from bascule.storage.compaction.keys.key_map import KeyMap
from bascule.storage.compaction.windows import READ_BYTES, Window
from bascule.storage.partition_log import LogPosition, PartitionLog
from bascule.storage.scrub import _hot

MAP_BYTES_MAX: Final = 64 << 20
"""Of the table of keys, while one log is digested: some 1.7 million keys."""
_BATCH: Final = Struct(">qi11xi")
"""Base offset, length, offset of the last record from the base."""
_RECORD_BYTES_MIN: Final = 7
Step = Callable[[LogPosition | None, Callable[[memoryview], None]], LogPosition | None]


class LatestValues(NamedTuple):
    """What is compared of two logs with equal start and limit."""

    start: int
    """The first offset of the log."""
    limit: int
    """Records up to this offset are in the digest."""
    records: int
    total: int
    """64 bits."""


class LatestDigest:
    """Reads a log twice: `map`, then `add`, each with all batches in order."""

    def __init__(self, store: PartitionLog, limit: int, secret: bytes) -> None:
        """`secret` is 16 random bytes."""
        self._store = store
        self._start, self._limit = store.start_offset, limit
        self._keys = KeyMap(
            bytes_max=MAP_BYTES_MAX, secret=secret, records_max=max(limit - self._start, 0)
        )
        self._next = 0
        self._is_whole = limit <= store.synced.offset
        self._sums = array("Q", bytes(8 * _hot.LATEST_FIELDS))
        self._actions = bytearray(READ_BYTES // _RECORD_BYTES_MIN)
        self._plans = array("q", bytes(8 * key_hot.PLAN_FIELDS * BATCHES_MAX))

    def read(self, step: Step) -> LatestValues | None:
        """Read the log by `step`, as `PartitionLog.verify`, and digest it.

        None where it cannot be compared: it ends below the limit, was compacted beyond it, has too
        many keys, or a batch of more than 1 MiB. Raises: as `step`.
        """
        for observe in (self._map, self._add):
            self._next, at = self._start, None
            while self._is_whole:
                at = step(at, observe)
                if at is None or at.offset >= self._limit:
                    break
        replacement, end = self._store.replacement, self._store.end.offset
        cleaned = max(replacement.cleaning_end, replacement.cleaned_part(log_end=end).clean_offset)
        if not self._is_whole or cleaned > self._limit or self._store.start_offset != self._start:
            return None
        return LatestValues(self._start, self._limit, self._sums[1], self._sums[0])

    def _window(self, data: memoryview) -> Window | None:
        """The batches that are next, up to the limit; None: there are none."""
        begin = at = 0
        while at < len(data):
            base, length, delta = _BATCH.unpack_from(data, at)
            end = base + delta + 1
            if end > self._limit:
                break
            at += LENGTH_PREFIX_BYTES + length
            if at > len(data):
                self._is_whole = False  # only the header of a large batch is here
                return None
            if end <= self._next:
                begin = at  # it was observed before: the segment was read once more
            else:
                self._next = end
        return Window(data[begin:at], 0, at - begin, self._next) if at > begin else None

    def _map(self, data: memoryview) -> None:
        window = self._window(data)
        if window is not None and self._is_whole:
            self._is_whole = self._keys.add(window, origin=self._store.directory) == window.end

    def _add(self, data: memoryview) -> None:
        window = self._window(data)
        if window is not None:
            self._digest(window.data)

    def _digest(self, data: memoryview) -> None:
        """Raises: CorruptData."""
        at, keys, origin = 0, self._keys, self._store.directory
        while True:
            span = array("q", (at, 0))
            status = key_hot.plan_batches(
                data, len(data), keys.table, keys.seed, keys.hashes, keys.rows,
                self._limit, self._start, self._actions, self._plans, span,
            )  # fmt: skip
            reached, count = span
            if status == key_hot.MALFORMED or not _hot.digest_latest(
                data, self._plans, count, self._actions, self._sums
            ):
                raise CorruptData(origin, reached, "a batch of well-formed records", "other bytes")
            if status == key_hot.DONE:
                return
            size = read_header(data, reached).total_bytes
            if status == key_hot.COMPRESSED:
                batch = data[reached : reached + size]
                self._digest(memoryview(decompress_batch(batch, origin=origin)))
                reached += size
            elif reached == at:
                self._actions = bytearray(max(size // _RECORD_BYTES_MIN, 2 * len(self._actions)))
            at = reached
