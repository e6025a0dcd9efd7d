"""The sync threads: which requests share a sync, the order of sync and checkpoint, and the stop."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from bascule.host.real import RealRandom
from bascule.replica.partition import Partition
from bascule.replica.syncing.log_syncer import LogSyncer
from bascule.replica.syncing.sync_state import CHECKPOINT_FILES_MIN
from bascule.replica.syncing.work_queue import WorkQueue
from bascule.sim.disk import SimClock, SimFile, SimFiles
from bascule.storage.partition_log import LogConfig
from bascule.storage.segment import Contents
from support.replicas import awaited_batch, open_partition


class BlockedSync:
    """Blocks the first sync of a partition, and records its syncs and checkpoints."""

    def __init__(self, partition: Partition, monkeypatch: pytest.MonkeyPatch) -> None:
        self.began = threading.Event()
        self.go_on = threading.Event()
        self.calls: list[str] = []
        sync, checkpoint = partition.sync, partition.checkpoint

        def blocked() -> bytes:
            self.calls.append("sync")
            self.began.set()
            assert self.go_on.wait(20)
            return sync()

        def recorded() -> bool:
            self.calls.append("checkpoint")
            return checkpoint()

        monkeypatch.setattr(partition, "sync", blocked)
        monkeypatch.setattr(partition, "checkpoint", recorded)


@pytest.fixture
def partition() -> Partition:
    return open_partition(SimFiles(RealRandom(1)))


@pytest.fixture
def blocked(partition: Partition, monkeypatch: pytest.MonkeyPatch) -> BlockedSync:
    return BlockedSync(partition, monkeypatch)


def started(send: Callable[[bytes], None] = lambda _: None) -> LogSyncer:
    syncer = LogSyncer(clock=SimClock(1_000), threads=1)
    syncer.start(send)
    return syncer


def test_requests_during_a_sync_share_one_more_sync(
    partition: Partition, blocked: BlockedSync
) -> None:
    syncer = started()
    partition.append(awaited_batch(b"in.0"))
    syncer.request(partition)
    assert blocked.began.wait(20)
    partition.append(awaited_batch(b"in.1"))
    for _ in range(3):
        syncer.request(partition)
    blocked.go_on.set()
    syncer.stop()
    assert blocked.calls == ["sync", "sync"]
    assert partition.high_watermark.offset == 2


def test_a_checkpoint_follows_its_sync_and_is_written_once(
    partition: Partition, blocked: BlockedSync
) -> None:
    blocked.go_on.set()
    syncer = started()
    for checkpoint in (True, False):
        partition.append(awaited_batch(b"in.0"))
        syncer.request(partition, checkpoint=checkpoint)
        syncer.wait_idle(partition)
    syncer.stop()
    assert blocked.calls == ["sync", "checkpoint", "sync"]


def test_stop_waits_for_the_syncs_that_are_queued(
    partition: Partition, blocked: BlockedSync
) -> None:
    sent: list[bytes] = []
    syncer = started(sent.append)
    other = open_partition(SimFiles(RealRandom(2)))
    for each, inbox in ((partition, b"in.0"), (other, b"in.1")):
        each.append(awaited_batch(inbox))
        syncer.request(each)
    assert blocked.began.wait(20)
    stopping = threading.Thread(target=syncer.stop)
    stopping.start()
    while not syncer._stopping:
        stopping.join(0.001)
    blocked.go_on.set()
    stopping.join(20)
    assert not stopping.is_alive()
    assert [partition.high_watermark.offset, other.high_watermark.offset] == [1, 1]
    assert len(sent) == 2


def test_wait_idle_returns_after_the_sync(partition: Partition, blocked: BlockedSync) -> None:
    syncer = started()
    partition.append(awaited_batch(b"in.0"))
    syncer.request(partition)
    assert blocked.began.wait(20)
    idle: list[int] = []

    def wait() -> None:
        syncer.wait_idle(partition)
        idle.append(partition.high_watermark.offset)

    waiting = threading.Thread(target=wait, daemon=True)
    waiting.start()
    blocked.go_on.set()
    waiting.join(20)
    assert idle == [1]
    syncer.stop()


def test_each_item_of_the_queue_is_for_one_thread() -> None:
    queue: WorkQueue[int | None] = WorkQueue()
    found: list[list[int]] = [[] for _ in range(4)]

    def work(mine: list[int]) -> None:
        while (item := queue.get()) is not None:
            mine.append(item)

    def fill(first: int) -> None:
        for item in range(first, first + 5_000):
            queue.put(item)

    workers = [threading.Thread(target=work, args=(mine,)) for mine in found]
    fillers = [threading.Thread(target=fill, args=(first,)) for first in (0, 5_000)]
    for thread in (*workers, *fillers):
        thread.start()
    for thread in fillers:
        thread.join()
    for _ in workers:
        queue.put(None)
    for thread in workers:
        thread.join()
    assert sorted(item for mine in found for item in mine) == list(range(10_000))
    assert queue.empty()


def test_what_no_thread_waits_for_is_kept_in_order() -> None:
    queue: WorkQueue[str] = WorkQueue()
    queue.put("a")
    queue.put("b")
    assert not queue.empty()
    assert [queue.get(), queue.get()] == ["a", "b"]
    assert queue.empty()


def test_nobody_waits_for_a_sync_that_was_requested_after_the_stop(partition: Partition) -> None:
    """A log that is closed while the node stops is synced by whoever closes it."""
    syncer = started()
    syncer.stop()
    syncer.request(partition)
    waiting = threading.Thread(target=syncer.wait_idle, args=(partition,), daemon=True)
    waiting.start()
    waiting.join(20)
    assert not waiting.is_alive()


def test_syncs_that_had_something_to_write_are_told(partition: Partition) -> None:
    syncer = started()
    told: list[tuple[int, int]] = []
    syncer.on_synced = lambda began_ns, ended_ns: told.append((began_ns, ended_ns))
    partition.append(awaited_batch(b"in.0"))
    syncer.request(partition)
    syncer.wait_idle(partition)
    syncer.request(partition)
    syncer.stop()
    assert len(told) == 1
    assert told[0][0] <= told[0][1]


def test_a_sync_that_fails_is_not_told(
    partition: Partition, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its end would be that of the sync before: it would have taken less than no time."""
    syncer = started()
    told: list[tuple[int, int]] = []
    syncer.on_synced = lambda began_ns, ended_ns: told.append((began_ns, ended_ns))

    def fail(on_file: Callable[[], object]) -> None:
        raise OSError(5, "input/output error")

    partition.append(awaited_batch(b"in.0"))
    monkeypatch.setattr(partition.log, "sync", fail)
    syncer.request(partition)
    syncer.stop()
    assert partition.failure is not None
    assert not told


def with_a_segment_for_each_message(partition: Partition, count: int) -> None:
    assert partition.log is not None
    partition.log.configure(LogConfig(segment_messages_max=1))
    for n in range(count):
        partition.append(awaited_batch(b"in.%d" % n))


def test_a_sync_of_many_segments_is_no_hanging_disk(
    partition: Partition, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_a_segment_for_each_message(partition, 60)
    clock, syncer, sync = SimClock(1_000), started(), SimFile.sync
    monkeypatch.setattr(syncer, "clock", clock)
    monkeypatch.setattr(partition.syncing, "_clock", clock)
    stuck_ns = []

    def slow(file: SimFile) -> None:
        clock.ms += 1_000
        stuck_ns.append(syncer.stuck_ns())
        sync(file)

    monkeypatch.setattr(SimFile, "sync", slow)
    syncer.request(partition, checkpoint=True)
    syncer.stop()
    assert partition.high_watermark.offset == 60
    assert len(stuck_ns) > 60
    assert max(stuck_ns) == 1_000_000_000


def test_a_sync_goes_before_the_rest_of_a_long_checkpoint(
    partition: Partition, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_a_segment_for_each_message(partition, 60)
    partition.sync()
    syncer, sync, save_indexes = started(), partition.sync, Contents.save_indexes
    calls: list[str] = []

    def synced() -> bytes:
        calls.append("sync")
        return sync()

    def saved(*args: object, **kwargs: object) -> object:
        calls.append("save")
        if len(calls) == 2:
            partition.append(awaited_batch(b"in.60"))
            syncer.request(partition)
        return save_indexes(*args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(partition, "sync", synced)
    monkeypatch.setattr(Contents, "save_indexes", saved)
    syncer.request(partition, checkpoint=True)
    syncer.stop()
    assert calls[:18] == ["sync", *["save"] * CHECKPOINT_FILES_MIN, "sync"]
    assert calls.count("save") == 61, "each segment once"
    assert partition.checkpointed_bytes == partition.counts.bytes
