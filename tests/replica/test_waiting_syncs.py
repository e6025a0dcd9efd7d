"""The sync threads where more partitions need them than there are."""

from __future__ import annotations

import threading

import pytest

from bascule.host.real import RealRandom
from bascule.replica.partition import Partition
from bascule.replica.syncing.log_syncer import LogSyncer
from bascule.sim.disk import SimClock, SimFiles
from support.replicas import awaited_batch, open_partition


@pytest.fixture
def partition() -> Partition:
    return open_partition(SimFiles(RealRandom(1)))


def started() -> LogSyncer:
    syncer = LogSyncer(clock=SimClock(1_000), threads=1)
    syncer.start(lambda _: None)
    return syncer


def wait_idle(syncer: LogSyncer, partition: Partition) -> bool:
    """Whether nothing runs or waits for the partition within 20 s."""
    waiting = threading.Thread(target=syncer.wait_idle, args=(partition,), daemon=True)
    waiting.start()
    waiting.join(20)
    return not waiting.is_alive()


def counted_checkpoints(
    partition: Partition, syncer: LogSyncer, monkeypatch: pytest.MonkeyPatch
) -> threading.Semaphore:
    """Is released by each attempt at a checkpoint."""
    clock, checkpoint, attempts = SimClock(1_000), partition.checkpoint, threading.Semaphore(0)
    monkeypatch.setattr(syncer, "clock", clock)

    def tried() -> bool:
        clock.ms += 10  # no turn waits for that
        done = checkpoint()
        attempts.release()
        return done

    monkeypatch.setattr(partition, "checkpoint", tried)
    return attempts


def test_a_checkpoint_that_waits_for_a_lock_keeps_the_thread_from_nobody(
    partition: Partition, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A purge holds the lock while it removes many segments."""
    syncer = started()
    checkpoints = counted_checkpoints(partition, syncer, monkeypatch)
    other = open_partition(SimFiles(RealRandom(2)))
    with partition.maintenance_lock:
        partition.append(awaited_batch(b"in.0"))
        syncer.request(partition, checkpoint=True)
        assert checkpoints.acquire(timeout=20)
        other.append(awaited_batch(b"in.1"))
        syncer.request(other)
        assert wait_idle(syncer, other)
        assert other.high_watermark.offset == 1
        for _ in range(3):
            assert checkpoints.acquire(timeout=20), "it is tried again"
        assert partition.counts.syncs == 1, "there was nothing to sync any more"
    assert wait_idle(syncer, partition)
    assert partition.checkpointed_bytes == partition.counts.bytes
    syncer.stop()


def test_a_stop_waits_for_a_checkpoint_that_waits_for_a_lock(
    partition: Partition, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is not queued behind what ends the threads."""
    syncer = started()
    checkpoints = counted_checkpoints(partition, syncer, monkeypatch)
    stopping = threading.Thread(target=syncer.stop)
    with partition.maintenance_lock:
        partition.append(awaited_batch(b"in.0"))
        syncer.request(partition, checkpoint=True)
        assert checkpoints.acquire(timeout=20)
        stopping.start()
        while syncer._queue.empty():
            stopping.join(0.001)
        for _ in range(3):
            assert checkpoints.acquire(timeout=20)
    stopping.join(20)
    assert not stopping.is_alive()
    assert partition.checkpointed_bytes == partition.counts.bytes


def test_a_partition_with_ever_more_to_sync_keeps_the_thread_from_nobody(
    partition: Partition, monkeypatch: pytest.MonkeyPatch
) -> None:
    syncer, sync, ends = started(), partition.sync, threading.Event()

    def synced() -> bytes:
        if not ends.is_set():
            partition.append(awaited_batch(b"in.0"))
            syncer.request(partition)
        return sync()

    monkeypatch.setattr(partition, "sync", synced)
    syncer.request(partition)
    other = open_partition(SimFiles(RealRandom(2)))
    other.append(awaited_batch(b"in.1"))
    syncer.request(other)
    try:
        assert wait_idle(syncer, other)
        assert other.high_watermark.offset == 1
    finally:
        ends.set()
        syncer.stop()
    assert not partition.is_dirty
