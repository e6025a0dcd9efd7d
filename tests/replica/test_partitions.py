"""One partition between the log writer, the sync threads and its readers, on a simulated disk."""

from __future__ import annotations

import asyncio
import errno
import struct
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bascule.errors import OffsetOutOfRange
from bascule.host.api import Files
from bascule.host.real import RealFiles, RealRandom
from bascule.model import StreamConfig, StreamDefinition, SyncPolicy
from bascule.peer.replica_session import ReplicaSession
from bascule.publish.headers import HashKey, read_publish_headers
from bascule.publish.pending_acks import PendingAcks
from bascule.publish.unstamped_batch import UnstampedBatch
from bascule.record.batch import Record
from bascule.record.builder import build_batch
from bascule.replica.maintenance.purging import purge
from bascule.replica.opening import close_partition
from bascule.replica.partition import Partition
from bascule.replica.partitions import Partitions
from bascule.replica.syncing.checkpointing import write_checkpoint
from bascule.replication.high_watermark import HighWatermark
from bascule.sim.disk import SimClock, SimFiles
from bascule.storage.partition_log import LogConfig, PartitionLog
from bascule.storage.segment import LogPosition
from bascule.wire.messages.peer.replica_fetch import ReplicaFetchPartition
from support.replicas import decode_acks, lead_alone
from support.stored_batches import DIRECTORY, read_records

HASH_KEY = HashKey(bytes(16))


def batch(count: int = 1, inbox: bytes = b"", **headers: str) -> UnstampedBatch:
    """A batch of records that all have these headers; with `inbox` the first one needs an ack."""
    encoded = tuple((name.replace("_", "-"), text.encode()) for name, text in headers.items())
    records = [Record(n, 1_000, None, b"value", encoded) for n in range(count)]
    data = bytearray(build_batch(records, base_offset=0, log_append_time=True))
    made = UnstampedBatch(data=memoryview(data), record_count=count)
    if inbox:
        made.ack_entries = struct.pack("<BIH", 0, 0, len(inbox)) + inbox
    made.headers = read_publish_headers(made.data, count, HASH_KEY) if headers else None
    return made


class PartitionFactory:
    """A disk and a clock; partitions opened on them one after the other."""

    def __init__(self, files: Files | None = None, directory: str = DIRECTORY) -> None:
        self.files = files or SimFiles(RealRandom(1))
        self.directory = directory
        self.clock = SimClock(1_000)
        self.moves = 0

    def open(
        self,
        sync: SyncPolicy = SyncPolicy.ALWAYS,
        *,
        read_only: bool = False,
        persist_id_marker: Callable[[], None] | None = None,
    ) -> Partition:
        config = StreamConfig(subject="s", sync=sync, read_only=read_only)
        log = PartitionLog.open(self.files, self.directory, LogConfig(), self.clock)
        partition = lead_alone(
            Partition(
                StreamDefinition("s", b"i" * 16, 0, config),
                0,
                log=log,
                failure=None,
                clock=self.clock,
                on_changed=self.on_changed,
                hash_key=HASH_KEY,
                persist_id_marker=persist_id_marker,
            )
        )
        self.moves = 0
        return partition

    def on_changed(self, partition: Partition) -> None:
        self.moves += 1


@pytest.fixture
def factory() -> PartitionFactory:
    return PartitionFactory()


def timestamps(partition: Partition) -> list[int]:
    assert partition.log is not None
    return [record.timestamp for record in read_records(partition.log)]


def test_time_does_not_run_backwards(factory: PartitionFactory) -> None:
    partition = factory.open()
    for now in (1_000, 5_000, 2_000, 4_999, 5_001, 0):
        factory.clock.ms = now
        partition.append(batch(2))
    expected = [1_000, 5_000, 5_000, 5_000, 5_001, 5_001]
    assert timestamps(partition) == [moment for moment in expected for _ in range(2)]


def test_time_does_not_run_backwards_across_a_restart(factory: PartitionFactory) -> None:
    partition = factory.open()
    factory.clock.ms = 9_000
    partition.append(batch())
    partition.sync()
    assert partition.log is not None
    partition.log.close()
    factory.clock.ms = 3_000
    again = factory.open()
    again.append(batch())
    assert timestamps(again) == [9_000, 9_000]


def test_only_what_is_synced_is_committed(factory: PartitionFactory) -> None:
    partition = factory.open()
    partition.append(batch(3))
    assert (partition.high_watermark.offset, factory.moves) == (0, 0)
    partition.sync()
    assert (partition.high_watermark.offset, factory.moves) == (3, 1)


@pytest.mark.parametrize("sync", [SyncPolicy.INTERVAL, SyncPolicy.NEVER])
def test_other_sync_policies_commit_at_once(factory: PartitionFactory, sync: SyncPolicy) -> None:
    partition = factory.open(sync)
    partition.append(batch(3))
    assert partition.high_watermark.offset == 3
    assert partition.is_dirty


def test_the_high_watermark_leaves_a_segment_that_ended(factory: PartitionFactory) -> None:
    partition = factory.open()
    partition.append(batch(3))
    partition.sync()
    assert partition.log is not None
    partition.log.roll()
    partition.sync()
    # Where it was is compaction's to rewrite from now on.
    assert partition.high_watermark == partition.log.end
    assert partition.high_watermark.segment_base == 3


def test_each_run_of_a_node_has_an_epoch_of_its_own(factory: PartitionFactory) -> None:
    first = factory.open()
    first.append(batch())
    assert first.log is not None
    first.log.close()
    assert factory.open().leader_epoch == first.leader_epoch + 1


def test_a_batch_whose_id_marker_failed_is_stored_when_published_again(
    factory: PartitionFactory,
) -> None:
    refusals = [OSError(errno.ENOSPC, "no space left on device")]
    noted: list[int] = []

    def note() -> None:
        if refusals:
            raise refusals.pop()
        assert partition.log is not None
        noted.append(partition.log.end.offset)

    partition = factory.open(persist_id_marker=note)
    assert partition.log is not None
    for _ in range(2):
        partition.append(batch(Nats_Msg_Id="a"))
    # Once, and before the log holds the id.
    assert noted == [0]
    assert partition.log.end.offset == 1
    assert partition.counts.records_not_stored == 1
    assert partition.preconditions.counts.duplicates == 0
    partition.append(batch(Nats_Msg_Id="a"))
    assert partition.preconditions.counts.duplicates == 1
    partition.append(batch(Nats_Expected_Last_Msg_Id="a"))
    assert partition.log.end.offset == 2


def test_refused_ids_write_no_marker(factory: PartitionFactory) -> None:
    noted: list[None] = []
    partition = factory.open(read_only=True, persist_id_marker=lambda: noted.append(None))
    partition.append(batch(Nats_Msg_Id="a"))
    assert partition.preconditions.counts.closed_refused == 1
    assert not noted


def test_a_log_writer_and_a_sync_thread_commit_beside_each_other(tmp_path: Path) -> None:
    """Without `sync = always` both advance the high watermark and release acks.

    On a real disk: the simulated one is not safe for threads.
    """
    factory = PartitionFactory(RealFiles(), str(tmp_path))
    partition = factory.open(SyncPolicy.INTERVAL)
    count = 3_000
    committed: list[int] = []
    done = threading.Event()

    def sync_on() -> None:
        while not done.is_set():
            partition.sync()

    syncing = threading.Thread(target=sync_on)
    switch_interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        syncing.start()
        last = 0
        for _ in range(count):
            unstamped = batch(1)
            unstamped.on_committed = lambda offset, error: committed.append(offset)
            partition.append(unstamped)
            assert partition.high_watermark.offset >= last
            last = partition.high_watermark.offset
    finally:
        done.set()
        syncing.join()
        sys.setswitchinterval(switch_interval)
    assert partition.failure is None
    assert committed == list(range(count))


@pytest.mark.parametrize("sync", [SyncPolicy.ALWAYS, SyncPolicy.INTERVAL])
def test_acks_are_released_under_the_commit_lock(
    factory: PartitionFactory, sync: SyncPolicy, monkeypatch: pytest.MonkeyPatch
) -> None:
    partition = factory.open(sync)
    release, locked = PendingAcks.release, []

    def record(self: PendingAcks, end_offset: int, stored_end: int, **others: Any) -> bytes:
        locked.append(partition.commitment._lock.locked())
        return release(self, end_offset, stored_end, **others)

    monkeypatch.setattr(PendingAcks, "release", record)
    partition.append(batch(inbox=b"in.0"))
    partition.append(batch(inbox=b"in.1"))
    partition.sync()
    assert locked
    assert all(locked)


def test_a_duplicate_is_acked_when_its_original_is_committed(factory: PartitionFactory) -> None:
    partition = factory.open()
    assert partition.append(batch(inbox=b"in.0", Nats_Msg_Id="a")) == b""
    assert partition.append(batch(inbox=b"in.1", Nats_Msg_Id="a")) == b""
    acks = decode_acks(partition.sync())
    assert [(inbox, ack["offset"], ack.get("duplicate")) for inbox, ack in acks.items()] == [
        ("in.0", 0, None),
        ("in.1", 0, True),
    ]
    committed = decode_acks(partition.append(batch(inbox=b"in.2", Nats_Msg_Id="a")))
    assert committed["in.2"]["offset"] == 0


def test_a_duplicate_requests_the_sync_that_releases_its_ack(
    factory: PartitionFactory,
) -> None:
    """The log is synced, but the high watermark has not moved yet: no other sync is due."""
    partition = factory.open()
    partition.append(batch(Nats_Msg_Id="a"))
    assert partition.log is not None
    partition.log.sync()
    assert partition.append(batch(inbox=b"in.1", Nats_Msg_Id="a")) == b""
    assert not partition.is_dirty
    assert partition.needs_sync
    assert decode_acks(partition.sync()).keys() == {"in.1"}


def test_a_log_that_fails_in_an_append_stops_its_partition(factory: PartitionFactory) -> None:
    """The append fails, and so does the truncation of what it may have written."""
    partition = factory.open()
    partition.append(batch(inbox=b"in.0"))
    for operation in range(1, 5):
        factory.files.fail(operation, errno.EIO)
    replies = decode_acks(partition.append(batch(inbox=b"in.1")))
    assert partition.log is not None
    assert partition.log.failure is not None
    assert partition.failure is not None
    assert replies.keys() == {"in.0", "in.1"}
    assert all("error" in ack for ack in replies.values())


def test_a_bug_after_the_write_is_answered_with_one_error_ack(
    factory: PartitionFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    partition = factory.open()

    def observe(**_: int) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr(type(partition.metrics), "on_appended", staticmethod(observe))
    replies = partition.append(batch(inbox=b"in.0"))
    assert replies.count(b"in.0") == 1
    assert "error" in decode_acks(replies)["in.0"]
    assert partition.failure is not None


def test_files_change_under_the_maintenance_lock(
    factory: PartitionFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    partition = factory.open()
    partition.append(batch(3))
    partition.sync()
    locked = {}

    def recording(name: str, call: Callable[..., object]) -> Callable[..., object]:
        def run(*args: object, **kwargs: object) -> object:
            locked[name] = partition.maintenance_lock.locked()
            return call(*args, **kwargs)

        return run

    for name in ("advance_start", "checkpoint", "close"):
        monkeypatch.setattr(partition.log, name, recording(name, getattr(partition.log, name)))
    purge(partition, to_offset=2, before_ms=None)
    write_checkpoint(partition)
    close_partition(partition)
    assert locked == {"advance_start": True, "checkpoint": True, "close": True}


def test_a_purge_ends_at_the_high_watermark(factory: PartitionFactory) -> None:
    partition = factory.open()
    partition.append(batch(2))
    partition.sync()
    partition.append(batch(2))
    with pytest.raises(OffsetOutOfRange):
        purge(partition, to_offset=3, before_ms=None)
    factory.clock.ms = 9_000
    partition.append(batch(2))
    partition.sync()
    purge(partition, to_offset=1, before_ms=5_000)
    assert partition.start_offset == 1, "both limits hold"
    purge(partition, to_offset=None, before_ms=5_000)
    assert partition.start_offset == 4


def test_a_failure_is_announced_and_ends_appends_and_syncs(factory: PartitionFactory) -> None:
    partition = factory.open()
    partition.append(batch())
    partition.fail("a bug")
    assert factory.moves == 1
    operations = len(factory.files.operations)
    assert "error" in decode_acks(partition.append(batch(inbox=b"in.1")))["in.1"]
    assert partition.sync() == b""
    assert len(factory.files.operations) == operations


def test_a_failed_append_fails_only_its_own_acks(factory: PartitionFactory) -> None:
    partition = factory.open()
    partition.append(batch(inbox=b"in.0"))
    factory.files.fail(1, errno.ENOSPC)
    assert decode_acks(partition.append(batch(inbox=b"in.1"))).keys() == {"in.1"}
    partition.append(batch(inbox=b"in.2"))
    acks = decode_acks(partition.sync())
    assert {inbox: ack["offset"] for inbox, ack in acks.items()} == {"in.0": 0, "in.2": 1}


def test_a_sync_that_failed_during_an_append_fails_the_append(
    factory: PartitionFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    partition = factory.open(SyncPolicy.INTERVAL)
    assert partition.log is not None
    append = partition.log.append

    def append_while_a_sync_fails(data: bytearray) -> object:
        appended = append(data)
        partition.fail("the sync failed")
        return appended

    monkeypatch.setattr(partition.log, "append", append_while_a_sync_fails)
    partition.append(batch(inbox=b"in.0"))
    assert partition.high_watermark.offset == 0


def test_a_removed_partition_refuses_messages_and_wakes_its_readers(
    factory: PartitionFactory,
) -> None:
    async def run() -> None:
        partitions = Partitions()
        partitions.bind(asyncio.get_running_loop())
        partition = factory.open()
        partitions.add((partition,))
        woken = asyncio.Event()
        partition.watchers.add(woken.set)
        partitions.remove(partition.definition)
        await woken.wait()
        operations = len(factory.files.operations)
        acks = decode_acks(partition.append(batch(inbox=b"in.0")))
        assert "deleted" in str(acks["in.0"]["error"])
        assert partition.sync() == b""
        assert len(factory.files.operations) == operations

    asyncio.run(asyncio.wait_for(run(), 20))


def test_the_high_watermark_never_goes_back() -> None:
    watermark = HighWatermark(SyncPolicy.NEVER, LogPosition(0, 0, 0))
    assert watermark.on_appended(LogPosition(5, 0, 500))
    assert not watermark.on_synced(LogPosition(3, 0, 300))
    assert watermark.position == LogPosition(5, 0, 500)


def test_who_stops_watching_a_partition_does_not_watch_the_one_in_its_place() -> None:
    """A follower's session knows the partition that it began with: its watcher would be called for
    ever, and fail, and those behind it would hear of nothing."""

    async def scene() -> None:
        called: list[str] = []
        partitions = Partitions()
        partitions.bind(asyncio.get_running_loop())
        first, second = PartitionFactory().open(), PartitionFactory().open()
        partitions.add((first,))
        leaves, stays = lambda: called.append("leaves"), lambda: called.append("stays")
        for watchers in (first.watchers, first.replica_watchers):
            watchers |= {leaves, stays}
        partitions.add((second,))
        for watchers in (first.watchers, first.replica_watchers):
            watchers.discard(leaves)
        partitions.notify_watchers(second)
        told = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().call_soon(told.set_result, None)
        await told
        assert called == ["stays"] * 2

    asyncio.run(scene())


def test_a_session_that_has_forgotten_a_partition_is_not_told_of_it() -> None:
    told: list[Partition] = []
    session = ReplicaSession(told.append)
    partition = PartitionFactory().open()
    key = partition.definition.id, partition.index
    session.begin(key, partition, ReplicaFetchPartition(*key))
    (wake,) = partition.replica_watchers
    wake()
    assert told == [partition]
    session.forget(key)
    wake()
    assert told == [partition]
    assert not session.changed


def test_watchers_are_called_in_a_later_turn_of_the_loop(factory: PartitionFactory) -> None:
    """Also where the loop itself, or another thread, has changed the partition."""

    async def run() -> list[str]:
        loop, partition, order = asyncio.get_running_loop(), factory.open(), []
        partitions = Partitions()
        partitions.bind(loop)
        called = asyncio.Event()
        partition.watchers.add(lambda: order.append("watcher"))
        partition.watchers.add(called.set)
        for notify in (
            lambda: partitions.notify_watchers(partition),
            lambda: asyncio.to_thread(partitions.notify_watchers, partition),
        ):
            called.clear()
            if (coming := notify()) is not None:
                await coming
            else:
                order.append("notified")
            await called.wait()
        return order

    assert asyncio.run(run()) == ["notified", "watcher", "watcher"]
