"""The sync threads where more partitions need them than there are."""

from __future__ import annotations

import threading

import pytest

from bascule.host.real import RealRandom
from bascule.model import PartitionState
from bascule.replica.partition import Partition
from bascule.replica.syncing import log_syncer
from bascule.replica.syncing.checkpointing import write_checkpoint
from bascule.replica.syncing.log_syncer import LogSyncer
from bascule.sim.disk import SimClock, SimFile, SimFiles
from bascule.storage.partition_log import LogConfig
from support.replicas import awaited_batch, open_partition


@pytest.fixture
def partition() -> Partition:
    return open_partition(SimFiles(RealRandom(1)))


def started(threads: int = 1) -> LogSyncer:
    syncer = LogSyncer(clock=SimClock(1_000), threads=threads)
    syncer.start(lambda _: None)
    return syncer


def wait_idle(syncer: LogSyncer, partition: Partition) -> bool:
    """Whether nothing runs or waits for the partition within 20 s."""
    waiting = threading.Thread(target=syncer.wait_idle, args=(partition,), daemon=True)
    waiting.start()
    waiting.join(20)
    return not waiting.is_alive()


def counted_checkpoints(syncer: LogSyncer, monkeypatch: pytest.MonkeyPatch) -> threading.Semaphore:
    """Is released by each attempt at a checkpoint."""
    clock, attempts = SimClock(1_000), threading.Semaphore(0)
    monkeypatch.setattr(syncer, "clock", clock)

    def tried(partition: Partition) -> bool:
        clock.ms += 10  # no turn waits for that
        done = write_checkpoint(partition)
        attempts.release()
        return done

    monkeypatch.setattr(log_syncer, "write_checkpoint", tried)
    return attempts


def test_a_checkpoint_that_waits_for_a_lock_keeps_the_thread_from_nobody(
    partition: Partition, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A purge holds the lock while it removes many segments."""
    syncer = started()
    checkpoints = counted_checkpoints(syncer, monkeypatch)
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
    checkpoints = counted_checkpoints(syncer, monkeypatch)
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


def followed(partition: Partition) -> Partition:
    """Node 2 leads it from now on, and not this one."""
    state = PartitionState((1, 2), (1, 2), 2, partition.leader_epoch + 1, 1)
    partition.set_role(state, 1, lag_ns_max=0)
    return partition


def clock_of(syncer: LogSyncer, partition: Partition, monkeypatch: pytest.MonkeyPatch) -> SimClock:
    """One that both look at."""
    clock = SimClock(1_000)
    monkeypatch.setattr(syncer, "clock", clock)
    monkeypatch.setattr(partition.syncing, "_clock", clock)
    return clock


def with_waiting_publisher() -> Partition:
    """Another partition, with a message that nothing has synced."""
    waiting = open_partition(SimFiles(RealRandom(2)))
    waiting.append(awaited_batch(b"in.1"))
    return waiting


@pytest.mark.parametrize("is_led", [True, False])
def test_a_hanging_disk_is_noticed_where_threads_sync_what_others_lead(
    is_led: bool, partition: Partition, monkeypatch: pytest.MonkeyPatch
) -> None:
    partition.append(awaited_batch(b"in.0"))
    followed(partition)
    syncer, sync = started(), SimFile.sync
    clock, waiting = clock_of(syncer, partition, monkeypatch), with_waiting_publisher()
    if not is_led:
        followed(waiting)
    stuck_ns: list[int] = []

    def hanging(file: SimFile) -> None:
        if not stuck_ns:
            stuck_ns.append(syncer.stuck_ns())
            syncer.request(waiting)
            clock.ms += 50_000
            stuck_ns.append(syncer.stuck_ns())
        sync(file)

    monkeypatch.setattr(SimFile, "sync", hanging)
    syncer.request(partition)
    assert wait_idle(syncer, partition)
    syncer.stop()
    assert stuck_ns == [0, 50_000_000_000 if is_led else 0]
    assert not waiting.is_dirty


def test_a_long_sync_of_what_another_node_leads_is_no_hanging_disk(
    partition: Partition, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert partition.log is not None
    partition.log.configure(LogConfig(segment_messages_max=1))
    for n in range(60):
        partition.append(awaited_batch(b"in.%d" % n))
    followed(partition)
    syncer, sync = started(), SimFile.sync
    clock, waiting = clock_of(syncer, partition, monkeypatch), with_waiting_publisher()
    stuck_ns: list[int] = []

    def slow(file: SimFile) -> None:
        if not stuck_ns:
            syncer.request(waiting)
        clock.ms += 1_000
        stuck_ns.append(syncer.stuck_ns())
        sync(file)

    monkeypatch.setattr(SimFile, "sync", slow)
    syncer.request(partition)
    assert wait_idle(syncer, partition)
    syncer.stop()
    assert len(stuck_ns) >= 60
    assert set(stuck_ns) == {1_000_000_000}


def test_a_thread_that_is_free_soon_is_no_hanging_disk(
    partition: Partition, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only one of two hangs, at what another node leads."""
    partition.append(awaited_batch(b"in.0"))
    followed(partition)
    syncer = started(threads=2)
    clock, waiting = clock_of(syncer, partition, monkeypatch), with_waiting_publisher()
    sync, stuck_ns = partition.sync, list[int]()

    def hanging() -> bytes:
        clock.ms += 50_000
        syncer.request(waiting)
        assert wait_idle(syncer, waiting)
        stuck_ns.append(syncer.stuck_ns())
        return sync()

    monkeypatch.setattr(partition, "sync", hanging)
    syncer.request(partition)
    assert wait_idle(syncer, partition)
    syncer.stop()
    assert stuck_ns == [0]
