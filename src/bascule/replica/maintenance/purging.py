"""Moves the start of a log forward on request."""

from __future__ import annotations

from bascule.errors import Broken, NotLeader, OffsetOutOfRange, PartitionFailed
from bascule.replica.partition import Partition
from bascule.storage.partition_log import PartitionLog


def purge(partition: Partition, *, to_offset: int | None, before_ms: int | None) -> None:
    """Move the start of the log forward: see `Controller.purge_stream`. Blocks on the disk.

    Followers move theirs when they hear of it, or with `follow_start`.

    Raises: NotLeader, OffsetOutOfRange, PartitionFailed, CorruptData, LogFailed, Closed, OSError.
    """
    store, leader_epoch = _usable_log(partition), partition.leader_epoch
    if not partition.is_leader:
        raise NotLeader.of_partition(partition.state, leader_epoch)
    committed = partition.high_watermark
    offset = committed.offset if to_offset is None else to_offset
    if offset > committed.offset:
        raise OffsetOutOfRange(offset, partition.start_offset, committed.offset)
    if before_ms is not None:
        found = store.find_timestamp(before_ms, end=committed)
        offset = min(offset, committed.offset if found is None else found[0])
    sync_to(partition, store, offset)
    with partition.maintenance_lock:
        # Looked at here, where the log is not truncated: others may have come in the place of the
        # records that were to be removed.
        if partition.leader_epoch != leader_epoch:
            raise NotLeader.of_partition(partition.state, partition.leader_epoch)
        store.advance_start(offset, high_watermark=committed.offset)
        partition.commitment.on_purged(offset)
    partition.notify()


def follow_start(partition: Partition, offset: int, leader_epoch: int) -> None:
    """Move the start of this log to that of the log of that epoch's leader, which is committed
    here. Blocks on the disk; return once the new start is durable.

    Raises: Broken where the log does not reach so far, or a later leader epoch has begun;
    PartitionFailed, LogFailed, Closed, OSError.
    """
    store = _usable_log(partition)
    sync_to(partition, store, offset)
    with partition.maintenance_lock:
        # Before the look at the epoch: what a later one commits may have come in the place of what
        # is purged.
        committed = partition.committed_offset
        check_epoch(partition, leader_epoch)
        store.advance_start(offset, high_watermark=committed)
    if store.start_offset < offset:
        raise Broken(f"the log ends at offset {store.synced.offset}, before {offset}")
    partition.notify()


def check_epoch(partition: Partition, leader_epoch: int) -> None:
    """Raises: Broken if a later leader epoch has begun: that leader may have taken replicas in sync
    that start earlier, and records that came in the place of others."""
    if (later := partition.leader_epoch) > leader_epoch:
        raise Broken(f"this node follows leader epoch {later}, not {leader_epoch}")


def sync_to(partition: Partition, store: PartitionLog, offset: int) -> None:
    """Sync the log up to `offset`: only what is synced can be removed. Blocks on the disk."""
    if store.synced.offset < offset and (acks := partition.sync()):
        partition.commitment.send_kept(acks)


def _usable_log(partition: Partition) -> PartitionLog:
    store = partition.log
    if partition.failure is not None or store is None:
        name, index = partition.definition.name, partition.index
        raise partition.failure or PartitionFailed(name, index, "not open")
    return store
