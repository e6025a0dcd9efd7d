"""The loop of retention over partitions, on a disk in memory."""

from __future__ import annotations

import asyncio
import errno
import logging
from dataclasses import replace

import pytest

from bascule.host.real import RealRandom
from bascule.model import Cleanup, Discard, StreamConfig, StreamDefinition, SyncPolicy
from bascule.publish.headers import HashKey
from bascule.replica.maintenance.retention import Retention
from bascule.replica.partition import Partition
from bascule.replica.partitions import Partitions
from bascule.sim.disk import SimClock, SimFiles
from bascule.storage.partition_log import PartitionLog
from bascule.storage.retention import log_config
from support.stored_batches import DIRECTORY, append

CONFIG = StreamConfig(subject="s", sync=SyncPolicy.ALWAYS, segment_bytes_max=600)


class World:
    """One partition whose batches of two records lie three to a segment."""

    def __init__(self, config: StreamConfig) -> None:
        self.files = SimFiles(RealRandom(1))
        self.clock = SimClock(10_000)
        self.log = PartitionLog.open(self.files, DIRECTORY, log_config(config), self.clock)
        self.partitions = Partitions()
        self.partition = Partition(
            StreamDefinition("s", b"i" * 16, 0, config),
            0,
            log=self.log,
            failure=None,
            clock=self.clock,
            on_moved=lambda _: None,
            hash_key=HashKey(bytes(16)),
        )
        self.partitions.add((self.partition,))
        self.rolls = 0
        self.archived: int | None = None
        self.asked: list[tuple[str, str, int]] = []
        self.retention = Retention(
            self.partitions, clock=self.clock, archived=self.committed, roll=self.roll
        )

    def committed(self, archive: str, stream: str, partition: int) -> int | None:
        self.asked.append((archive, stream, partition))
        return self.archived

    def roll(self, partition: Partition) -> None:
        self.rolls += 1
        self.log.roll()
        partition.sync()

    def write(self, batches: int) -> None:
        for _ in range(batches):
            append(self.log, 2, timestamp=self.clock.ms, size=60)
        self.partition.sync()

    def tick(self) -> int:
        asyncio.run(self.retention.tick())
        return self.log.start_offset


def test_bytes() -> None:
    world = World(replace(CONFIG, retention_bytes_max=8_000))
    world.write(100)
    assert world.tick() > 0
    assert 8_000 <= world.log.size_bytes() <= 9_000
    counts = world.retention.counts
    assert counts.records == world.log.start_offset
    assert counts.segments > 0
    assert counts.bytes > 0
    assert world.tick() == counts.records, "a second look finds nothing to do"


def test_messages() -> None:
    world = World(replace(CONFIG, retention_messages_max=100))
    world.write(100)
    start = world.tick()
    assert 100 <= 200 - start <= 112


def test_age_and_an_active_segment_that_expires() -> None:
    world = World(replace(CONFIG, retention_ms_max=8_000))
    world.write(10)
    world.clock.ms += 4_000
    world.write(10)
    assert world.tick() == 0
    world.clock.ms += 4_001
    assert world.tick() == 20, "a segment holds an eighth of the time allowed"
    world.clock.ms += 4_000
    world.tick()
    assert world.rolls == 1
    world.clock.ms += 1_000
    assert world.tick() == world.log.end.offset == 40
    assert world.log.size_bytes() == 0
    world.clock.ms += 100_000
    world.tick()
    assert world.rolls == 1, "an empty segment stays"


def test_a_shorter_age_holds_at_once() -> None:
    world = World(replace(CONFIG, retention_ms_max=1_000_000))
    world.write(10)
    world.clock.ms += 60_000
    world.write(10)
    assert world.tick() == 0
    shorter = replace(world.partition.definition.config, retention_ms_max=30_000)
    world.partition.configure(replace(world.partition.definition, config=shorter))
    assert world.tick() == 18


def test_nothing_goes_that_an_archive_has_not_stored() -> None:
    world = World(replace(CONFIG, retention_bytes_max=1_000, retention_after="lake"))
    world.write(20)
    assert world.tick() == 0
    world.archived = 13
    assert world.tick() == 12
    assert world.asked[-1] == ("lake", "s", 0)
    world.archived = 40
    assert world.tick() == 24


@pytest.mark.parametrize(
    "config",
    [
        replace(CONFIG, retention_bytes_max=10, cleanup=(Cleanup.COMPACT,)),
        replace(CONFIG, retention_bytes_max=10, discard=Discard.NEW),
        CONFIG,
    ],
)
def test_what_is_not_subject_to_retention(config: StreamConfig) -> None:
    world = World(config)
    world.write(20)
    assert world.tick() == 0
    assert world.rolls == 0


def test_what_was_purged_to_its_end_gives_its_room_back() -> None:
    world = World(CONFIG)
    world.write(20)
    world.log.advance_start(40, high_watermark=40)
    assert world.log.size_bytes() > 0
    world.tick()
    assert world.rolls == 1
    world.tick()
    assert world.log.size_bytes() == 0


def test_a_failure_is_logged_once_and_tried_again(caplog: pytest.LogCaptureFixture) -> None:
    world = World(replace(CONFIG, retention_messages_max=10))
    world.write(20)
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            world.files.fail(1, errno.EIO)
            assert world.tick() == 0
    assert [record.message for record in caplog.records] == ["retention failed"]
    assert world.retention.counts.failures == 3
    assert world.tick() > 0


def test_a_deleted_or_closed_partition_is_left_alone() -> None:
    world = World(replace(CONFIG, retention_messages_max=10))
    world.write(20)
    world.log.close()
    assert world.tick() == 0
    assert world.retention.counts.failures == 0
    world.partitions.remove(world.partitions.stream("s")[0].definition)
    assert world.tick() == 0
