"""One partition between the appender, the syncer and its readers, on a disk in memory."""

from __future__ import annotations

import pytest

from bascule.broker.partition import Partition
from bascule.host.real import RealRandom
from bascule.ingest.sequencer import Draft
from bascule.ingest.terms import Seed
from bascule.model import StreamConfig, StreamDefinition, SyncPolicy
from bascule.sim.disk import SimClock, SimFiles
from bascule.storage.partition_log import LogConfig, PartitionLog
from stored_batches import DIRECTORY, make_batch, read_records


class Room:
    """What the batch of a draft lies in."""

    def __init__(self, data: bytes) -> None:
        self.view = memoryview(bytearray(data))


def draft(count: int = 1) -> Draft:
    room = Room(make_batch(0, count))
    return Draft(
        lane=1, batch=room.view, record_count=count, answers=b"", refused=b"", refused_count=0,
        slab=room,
    )  # fmt: skip


class World:
    """A disk and a clock; partitions opened on them one after the other."""

    def __init__(self) -> None:
        self.files = SimFiles(RealRandom(1))
        self.clock = SimClock(1_000)
        self.moves = 0

    def open(self, sync: SyncPolicy = SyncPolicy.ALWAYS) -> Partition:
        config = StreamConfig(subject="s", sync=sync)
        log = PartitionLog.open(self.files, DIRECTORY, LogConfig(), self.clock)
        return Partition(
            StreamDefinition("s", b"i" * 16, 0, config),
            0,
            log=log,
            failure=None,
            clock=self.clock,
            moved=self.on_moved,
            seed=Seed(bytes(16)),
        )

    def on_moved(self, partition: Partition) -> None:
        self.moves += 1


@pytest.fixture
def world() -> World:
    return World()


def timestamps(partition: Partition) -> list[int]:
    assert partition.log is not None
    return [record.timestamp for record in read_records(partition.log)]


def test_time_does_not_run_backwards(world: World) -> None:
    partition = world.open()
    for now in (1_000, 5_000, 2_000, 4_999, 5_001, 0):
        world.clock.ms = now
        partition.append(draft(2))
    expected = [1_000, 5_000, 5_000, 5_000, 5_001, 5_001]
    assert timestamps(partition) == [moment for moment in expected for _ in range(2)]


def test_time_does_not_run_backwards_across_a_restart(world: World) -> None:
    partition = world.open()
    world.clock.ms = 9_000
    partition.append(draft())
    partition.sync()
    assert partition.log is not None
    partition.log.close()
    world.clock.ms = 3_000
    again = world.open()
    again.append(draft())
    assert timestamps(again) == [9_000, 9_000]


def test_only_what_is_synced_is_committed(world: World) -> None:
    partition = world.open()
    partition.append(draft(3))
    assert (partition.high_watermark.offset, world.moves) == (0, 0)
    partition.sync()
    assert (partition.high_watermark.offset, world.moves) == (3, 1)


@pytest.mark.parametrize("sync", [SyncPolicy.INTERVAL, SyncPolicy.NEVER])
def test_who_asks_for_less_is_committed_at_once(world: World, sync: SyncPolicy) -> None:
    partition = world.open(sync)
    partition.append(draft(3))
    assert partition.high_watermark.offset == 3
    assert partition.is_dirty


def test_the_high_watermark_leaves_a_segment_that_ended(world: World) -> None:
    partition = world.open()
    partition.append(draft(3))
    partition.sync()
    assert partition.log is not None
    partition.log.roll()
    partition.sync()
    # Where it was is compaction's to rewrite from now on.
    assert partition.high_watermark == partition.log.end
    assert partition.high_watermark.segment_base == 3


def test_each_run_of_a_node_has_an_epoch_of_its_own(world: World) -> None:
    first = world.open()
    first.append(draft())
    assert first.log is not None
    first.log.close()
    assert world.open().leader_epoch == first.leader_epoch + 1
