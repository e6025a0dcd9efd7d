"""The sync threads: which requests share a sync, the order of sync and checkpoint, and the stop."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from bascule.host.real import RealRandom
from bascule.replica.maintenance.purging import purge
from bascule.replica.partition import Partition
from bascule.replica.syncing import log_syncer
from bascule.replica.syncing.checkpointing import write_checkpoint
from bascule.replica.syncing.log_syncer import LogSyncer
from bascule.replica.syncing.sync_state import CHECKPOINT_FILES_MIN, SyncState
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
        sync = partition.sync

        def blocked() -> bytes:
            self.calls.append("sync")
            self.began.set()
            assert self.go_on.wait(20)
            return sync()

        def recorded(partition: Partition) -> bool:
            self.calls.append("checkpoint")
            return write_checkpoint(partition)

        monkeypatch.setattr(partition, "sync", blocked)
        monkeypatch.setattr(log_syncer, "write_checkpoint", recorded)


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


def test_stop_waits_for_what_is_requested_while_its_partition_is_synced(
    partition: Partition, blocked: BlockedSync
) -> None:
    """Nobody takes it from behind the ends of the threads."""
    syncer = started()
    partition.append(awaited_batch(b"in.0"))
    syncer.request(partition)
    assert blocked.began.wait(20)
    partition.append(awaited_batch(b"in.1"))
    syncer.request(partition)
    stopping = threading.Thread(target=syncer.stop)
    stopping.start()
    while syncer._queue.empty():
        stopping.join(0.001)
    blocked.go_on.set()
    stopping.join(20)
    assert not stopping.is_alive()
    assert blocked.calls == ["sync", "sync"]
    assert partition.high_watermark.offset == 2


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


def with_a_clock(
    partition: Partition, syncer: LogSyncer, monkeypatch: pytest.MonkeyPatch
) -> SimClock:
    """The clock of both, which stands still by itself."""
    clock = SimClock(1_000)
    monkeypatch.setattr(syncer, "clock", clock)
    monkeypatch.setattr(partition.syncing, "_clock", clock)
    return clock


def on_save(monkeypatch: pytest.MonkeyPatch, before: Callable[[], object]) -> None:
    """Call `before` each time the indexes of a segment are saved."""
    save_indexes = Contents.save_indexes

    def saved(*args: object, **kwargs: object) -> object:
        before()
        return save_indexes(*args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(Contents, "save_indexes", saved)


def test_a_file_whose_sync_hangs_is_noticed(
    partition: Partition, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also among many that are synced fast."""
    with_a_segment_for_each_message(partition, 60)
    syncer, sync = started(), SimFile.sync
    clock = with_a_clock(partition, syncer, monkeypatch)
    stuck_ns: list[int] = []

    def hanging(file: SimFile) -> None:
        clock.ms += 50_000 if len(stuck_ns) == 30 else 10
        stuck_ns.append(syncer.stuck_ns())
        sync(file)

    monkeypatch.setattr(SimFile, "sync", hanging)
    syncer.request(partition)
    syncer.stop()
    assert stuck_ns[30] == 50_000_000_000
    assert max(stuck_ns[:30] + stuck_ns[31:]) == 10_000_000


def test_a_long_checkpoint_is_no_hanging_disk_for_those_who_wait(
    partition: Partition, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_a_segment_for_each_message(partition, 60)
    partition.sync()
    syncer = started()
    clock = with_a_clock(partition, syncer, monkeypatch)
    stuck_ns: list[int] = []

    def slow() -> None:
        if not stuck_ns:
            partition.append(awaited_batch(b"in.60"))
        clock.ms += 1_000
        stuck_ns.append(syncer.stuck_ns())

    on_save(monkeypatch, slow)
    syncer.request(partition, checkpoint=True)
    syncer.stop()
    assert len(stuck_ns) == 60
    assert set(stuck_ns) == {1_000_000_000}


def test_a_purge_of_many_unsaved_segments_is_no_hanging_disk(
    partition: Partition, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It saves their indexes with the lock that a checkpoint needs. Acks do not wait for that."""
    with_a_segment_for_each_message(partition, 20)
    partition.sync()
    syncer = started()
    clock = with_a_clock(partition, syncer, monkeypatch)
    purging, turn_ended, stuck_ns = threading.current_thread(), threading.Event(), list[int]()

    def tried(partition: Partition) -> bool:
        done = write_checkpoint(partition)
        turn_ended.set()
        return done

    def slow() -> None:
        if threading.current_thread() is not purging:
            return
        clock.ms += 1_000
        stuck_ns.append(syncer.stuck_ns())
        turn_ended.clear()
        partition.append(awaited_batch(b"in.x"))
        syncer.request(partition, checkpoint=True)
        assert turn_ended.wait(20), "the sync thread waits for the purge"

    monkeypatch.setattr(log_syncer, "write_checkpoint", tried)
    on_save(monkeypatch, slow)
    purge(partition, to_offset=1, before_ms=None)
    syncer.stop()
    assert len(stuck_ns) >= 19
    assert max(stuck_ns) <= 2_000_000_000
    assert partition.high_watermark.offset == 20 + len(stuck_ns)
    assert partition.start_offset == 1


def test_a_checkpoint_gets_done_although_each_sync_has_new_segments(
    partition: Partition, monkeypatch: pytest.MonkeyPatch
) -> None:
    """20 messages come in each turn, each with a segment of its own: it saves more than that."""
    with_a_segment_for_each_message(partition, 200)
    partition.sync()
    syncer, sync, turns = started(), partition.sync, 0

    def synced() -> bytes:
        nonlocal turns
        turns += 1
        acks = sync()
        if turns < 100 and not partition.checkpointed_bytes:
            for _ in range(20):
                partition.append(awaited_batch(b"in.x"))
            syncer.request(partition)
        return acks

    monkeypatch.setattr(partition, "sync", synced)
    syncer.request(partition, checkpoint=True)
    syncer.stop()
    assert partition.checkpointed_bytes > 0
    assert turns < 30


@pytest.mark.parametrize("synced", [0, 1, 20])
def test_a_checkpoint_saves_twice_as_many_segments_as_its_turn_has_synced(synced: int) -> None:
    """Else it would never be done where each sync has as many new segments."""
    state = SyncState(SimClock(1_000))
    for _ in range(2):  # each turn counts its own
        state.request(checkpoint=True)
        state.begin_turn()
        for _ in range(synced):
            state.on_synced()
        state.request(checkpoint=False)
        saved = 1
        while not state.on_saved():
            saved += 1
        assert saved == 2 * synced + CHECKPOINT_FILES_MIN


def test_a_checkpoint_that_is_broken_off_is_not_counted(partition: Partition) -> None:
    with_a_segment_for_each_message(partition, 60)
    partition.sync()
    partition.syncing.begin_turn()
    for _ in range(2):  # the second one is for the next turn
        partition.syncing.request(checkpoint=False)
    assert not write_checkpoint(partition)
    assert partition.checkpointed_bytes == 0
    partition.syncing.begin_turn()
    assert write_checkpoint(partition)
    assert partition.checkpointed_bytes == partition.counts.bytes


def test_a_checkpoint_that_fails_is_not_tried_again_at_once(
    partition: Partition, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A full disk would keep the thread busy."""
    syncer, attempts = started(), 0
    clock = with_a_clock(partition, syncer, monkeypatch)

    def fail() -> None:
        nonlocal attempts
        attempts += 1
        clock.ms += 10  # no other turn waits for that
        if attempts < 5:
            raise OSError(28, "no space left on device")

    on_save(monkeypatch, fail)
    for attempt in (1, 2):
        partition.append(awaited_batch(b"in.0"))
        syncer.request(partition, checkpoint=True)
        syncer.wait_idle(partition)
        assert attempts == attempt
    syncer.stop()
    assert partition.failure is None
    assert partition.checkpointed_bytes == 0
    assert caplog.text.count("checkpoint failed") == 1
