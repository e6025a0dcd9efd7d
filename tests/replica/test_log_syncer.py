"""The sync threads: which requests share a sync, the order of sync and checkpoint, and the stop."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from bascule.host.real import RealRandom
from bascule.replica.log_syncer import LogSyncer, WorkQueue
from bascule.replica.partition import Partition
from bascule.sim.disk import SimClock, SimFiles
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

        def recorded() -> None:
            self.calls.append("checkpoint")
            checkpoint()

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

    def fail() -> None:
        raise OSError(5, "input/output error")

    partition.append(awaited_batch(b"in.0"))
    monkeypatch.setattr(partition.log, "sync", fail)
    syncer.request(partition)
    syncer.stop()
    assert partition.failure is not None
    assert not told
