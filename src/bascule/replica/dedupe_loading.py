"""Load the dedupe window of a partition: from its log, and from what a follower appends."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from bascule.errors import BasculeError
from bascule.publish.headers import read_publish_headers
from bascule.publish.preconditions import Preconditions
from bascule.record.batch import scan_batches
from bascule.record.compression import decompress_batch
from bascule.storage.partition_log import PartitionLog

READ_BYTES: Final = 4 << 20


class LoadedIds:
    """Which message ids of a log its dedupe window knows. Only the log writer thread changes it."""

    def __init__(
        self, preconditions: Preconditions, persist_marker: Callable[[], None] | None
    ) -> None:
        """`persist_marker` persists a marker that the log contains message ids (may raise OSError).
        None: the marker exists already."""
        self._preconditions = preconditions
        self._persist_marker = persist_marker
        self.are_complete = True
        """Whether no records were appended or removed that the window does not know of."""

    @property
    def may_exist(self) -> bool:
        """Whether records of the log may have message ids."""
        return self._persist_marker is None

    def persist_marker(self) -> None:
        """Persist, before the first message id is appended, that the log contains ids.

        Raises: OSError.
        """
        if self._persist_marker is not None:
            self._persist_marker()
            self._persist_marker = None

    def add(self, batches: memoryview, *, may_have_ids: bool) -> None:
        """Take over the ids of whole batches that a follower has appended to a complete log; see
        `load_appended_ids`."""
        self.are_complete = load_appended_ids(
            self._preconditions, batches, may_have_ids=may_have_ids
        )

    def load(self, log: PartitionLog, *, since_ms: int) -> None:
        """Load the window from the log, which was written by other leaders.

        Raises: as `load_dedupe_window`.
        """
        self._preconditions.reset()
        if self.may_exist:
            load_dedupe_window(self._preconditions, log, since_ms=since_ms)
        self.are_complete = True


def load_dedupe_window(preconditions: Preconditions, log: PartitionLog, *, since_ms: int) -> int:
    """Read the records since `since_ms` (Unix milliseconds), and at least the last one.

    Returns the bytes read. Raises: CorruptData, LogFailed, Closed, OSError.
    """
    end = log.end
    if end.offset == log.start_offset:
        return 0
    offset = end.offset - 1
    if log.timestamp_max >= since_ms:
        found = log.find_timestamp(since_ms, end=end)
        offset = offset if found is None else found[0]
    read = 0
    while offset < end.offset:
        part = log.plan_read(offset, bytes_max=READ_BYTES, end=end)
        assert part is not None, "reads from the disk are allowed here"
        if part.length == 0:
            break
        data = memoryview(part.file.read_at(part.position, part.length))
        origin, position = part.file.path, part.position
        offset = _load(preconditions, data, origin=origin, origin_position=position)
        read += part.length
    return read


def load_appended_ids(
    preconditions: Preconditions, batches: memoryview, *, may_have_ids: bool
) -> bool:
    """Take over the ids of whole batches that a follower has appended, so that it can lead at once.

    Without `may_have_ids` no record has one. False if the batches cannot be read: the window must
    be loaded again then.
    """
    if not may_have_ids:
        preconditions.accept_without_headers()
        return True
    try:
        _load(preconditions, batches, origin="batches of the leader", origin_position=0)
    except BasculeError:
        return False
    return True


def _load(
    preconditions: Preconditions, data: memoryview, *, origin: str, origin_position: int
) -> int:
    """Add the ids of whole batches; return their end offset. Raises: CorruptData."""
    end_offset = -1
    for header, start, stop in scan_batches(data, origin=origin, origin_position=origin_position):
        batch, end_offset = data[start:stop], header.end_offset
        if header.is_control:
            continue
        if header.codec:
            batch = memoryview(decompress_batch(batch, origin=origin))
        preconditions.load_batch(
            read_publish_headers(batch, header.record_count, preconditions.hash_key),
            base_offset=header.base_offset,
            end_offset=header.end_offset,
            timestamp=header.max_timestamp,
        )
    return end_offset
