"""One partition between the log writer, the sync threads and its readers, on a simulated disk."""

from __future__ import annotations

import errno
import sys
import threading
from collections.abc import Callable

import pytest

from bascule.host.real import RealRandom
from bascule.model import StreamConfig, StreamDefinition, SyncPolicy
from bascule.publish.headers import HashKey, read_publish_headers
from bascule.publish.unstamped_batch import UnstampedBatch
from bascule.record.batch import Record
from bascule.record.builder import build_batch
from bascule.replica.partition import Partition
from bascule.sim.disk import SimClock, SimFiles
from bascule.storage.partition_log import LogConfig, PartitionLog
from support.stored_batches import DIRECTORY, read_records

HASH_KEY = HashKey(bytes(16))


class Room:
    """What the batch of a batch lies in."""

    def __init__(self, data: bytes) -> None:
        self.view = memoryview(bytearray(data))


def batch(count: int = 1, **headers: str) -> UnstampedBatch:
    """A batch of records that all have these headers."""
    encoded = tuple((name.replace("_", "-"), text.encode()) for name, text in headers.items())
    records = [Record(n, 1_000, None, b"value", encoded) for n in range(count)]
    room = Room(bytes(build_batch(records, base_offset=0, log_append_time=True)))
    made = UnstampedBatch(data=room.view, record_count=count)
    made.headers = read_publish_headers(made.data, count, HASH_KEY) if headers else None
    return made


class PartitionFactory:
    """A disk and a clock; partitions opened on them one after the other."""

    def __init__(self) -> None:
        self.files = SimFiles(RealRandom(1))
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
        log = PartitionLog.open(self.files, DIRECTORY, LogConfig(), self.clock)
        return Partition(
            StreamDefinition("s", b"i" * 16, 0, config),
            0,
            log=log,
            failure=None,
            clock=self.clock,
            on_changed=self.on_changed,
            hash_key=HASH_KEY,
            persist_id_marker=persist_id_marker,
        )

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


def test_a_log_writer_and_a_sync_thread_commit_beside_each_other(
    factory: PartitionFactory,
) -> None:
    """Without `sync = always` both advance the high watermark and release acks."""
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
