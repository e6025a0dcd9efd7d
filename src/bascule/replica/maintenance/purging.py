"""Moves the start of a log forward on request."""

from __future__ import annotations

from bascule.errors import NotLeader, OffsetOutOfRange, PartitionFailed
from bascule.replica.partition import Partition


def purge(partition: Partition, *, to_offset: int | None, before_ms: int | None) -> None:
    """Move the start of the log forward: see `Controller.purge_stream`. Blocks on the disk.

    Followers move theirs when they hear of it.

    Raises: NotLeader, OffsetOutOfRange, PartitionFailed, CorruptData, LogFailed, Closed, OSError.
    """
    name, index, store = partition.definition.name, partition.index, partition.log
    if partition.failure is not None or store is None:
        raise partition.failure or PartitionFailed(name, index, "not open")
    if not partition.is_leader:
        raise NotLeader.of_partition(partition.state, partition.leader_epoch)
    committed = partition.high_watermark
    offset = committed.offset if to_offset is None else to_offset
    if offset > committed.offset:
        raise OffsetOutOfRange(offset, partition.start_offset, committed.offset)
    if before_ms is not None:
        found = store.find_timestamp(before_ms, end=committed)
        offset = min(offset, committed.offset if found is None else found[0])
    with partition.maintenance_lock:
        store.advance_start(offset, high_watermark=committed.offset)
    partition.notify()
