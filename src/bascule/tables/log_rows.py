"""Read the rows of a table from its log."""

from __future__ import annotations

import asyncio

from bascule.errors import CorruptData, OffsetOutOfRange, PartitionFailed
from bascule.replica.partition import Partition
from bascule.storage.partition_log import LogPosition, PartitionLog
from bascule.tables.rows import Rows, TablePosition, read_rows
from bascule.tables.table_file import TableFile
from bascule.wire.tables.keys import TableKeys


def read_log_rows(
    store: PartitionLog, keys: TableKeys, start: int, end: LogPosition, *, bytes_max: int
) -> Rows:
    """The rows of about `bytes_max` of the log from `start` on, and below `end`.

    Blocks on the disk. Raises: BasculeError, OSError.
    """
    start = max(start, store.start_offset)
    piece = store.plan_read(start, bytes_max=bytes_max, end=end)
    if piece is None or not piece.length:
        return Rows([], end.offset, 0, end.offset - start)  # all removed by compaction
    data = memoryview(piece.file.read_at(piece.position, piece.length))
    origin = piece.file.path
    rows = read_rows(data, keys, start=start, origin=origin, position=piece.position)
    if rows.end <= start:
        raise CorruptData(origin, piece.position, f"a batch at offset {start}", "none")
    return rows


def apply_log_rows(
    file: TableFile,
    store: PartitionLog,
    keys: TableKeys,
    end: LogPosition,
    version: int,
    *,
    bytes_max: int,
) -> Rows | None:
    """Put the next rows into a table. As `read_log_rows`.

    `version` is the log's `truncation_version` from before `end` was looked up. None: the log was
    truncated since, and what was read may be of other records, lack some, or look damaged. The
    epoch is that of the records: the log may lose them as soon as they are read.
    """
    epochs = store.epochs

    def was_truncated() -> bool:
        return version % 2 != 0 or store.truncation_version != version

    try:
        rows = read_log_rows(store, keys, file.position.offset, end, bytes_max=bytes_max)
    except (CorruptData, OffsetOutOfRange, OSError):
        if was_truncated():
            return None
        raise
    if was_truncated():
        return None
    file.apply(rows, rows.epochs[-1].number if rows.epochs else epochs.at(rows.end - 1))
    return rows


def why_ended(partition: Partition | None) -> PartitionFailed | None:
    """Why nothing more comes to a replica: it has stopped, or was removed from this node."""
    if partition is None or (partition.failure is None and partition.log is not None):
        return None
    name, index = partition.definition.name, partition.index
    return partition.failure or PartitionFailed(name, index, "its replica was removed")


def is_beyond(position: TablePosition, store: PartitionLog) -> bool:
    """Whether a table has records that the log has lost, as after an unclean election."""
    offset, epoch = position
    if offset <= store.start_offset:
        return False
    return offset > store.end.offset or store.epochs.at(offset - 1) != epoch


async def is_other_copy(
    position: TablePosition,
    followed: tuple[PartitionLog, int],
    before: tuple[PartitionLog | None, int],
) -> bool:
    """Whether a log was copied anew since a table had records of it. `followed` are the log and how
    many times it has begun again with nothing, `before` what they were for the table.

    Tombstones that the table lacks may be removed from a copy. A table that was behind these when
    the log went, and the log beyond it when it looks again, would keep the keys.
    """
    store, begun = followed
    if position.offset == 0:
        return False
    if before[0] is store:
        return begun != before[1]
    return begun > 0 or await asyncio.to_thread(store.partial_copy.is_marked)


def has_lost(partition: Partition | None, *seen: TablePosition) -> bool:
    """Whether the log has lost records that a reader at any of these has seen, as far as is known:
    a follower whose log ends before them may have them to come, or others in their place."""
    return any(_has_lost(partition, *each) for each in seen)


def _has_lost(partition: Partition | None, since: int, epoch: int) -> bool:
    if partition is None or (store := partition.log) is None:
        return False
    if since > store.end.offset:
        return partition.is_leader or -1 < epoch < store.epochs.latest
    known = store.epochs.at(since - 1) if since > store.start_offset else -1
    return epoch != -1 and known not in (-1, epoch)


def may_have(partition: Partition | None, since: int, epoch: int) -> bool:
    """False if the log has other records below `since`, or lost some of them. A follower may be
    behind, the leader is not."""
    if partition is None or (store := partition.log) is None or not since:
        return True
    if since > store.end.offset and partition.is_leader:
        return False
    if epoch > store.epochs.latest:
        return True  # it is behind
    return store.epochs.at(since - 1) == epoch
