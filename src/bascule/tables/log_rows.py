"""Read the rows of a table from its log."""

from __future__ import annotations

from bascule.errors import CorruptData
from bascule.replica.partition import Partition
from bascule.storage.partition_log import LogPosition, PartitionLog
from bascule.tables.rows import Rows, read_rows
from bascule.tables.table_file import TablePosition
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


def is_beyond(position: TablePosition, store: PartitionLog) -> bool:
    """Whether a table has records that the log has lost, as after an unclean election."""
    offset, epoch = position
    if offset <= store.start_offset:
        return False
    return offset > store.end.offset or store.epochs.at(offset - 1) != epoch


def has_lost(partition: Partition, since: int, epoch: int) -> bool:
    """Whether the log has lost records that a reader at `since` has seen."""
    store = partition.log
    assert store is not None
    if since > store.end.offset:
        return partition.is_leader
    known = store.epochs.at(since - 1) if since > store.start_offset else -1
    return epoch != -1 and known not in (-1, epoch)
