"""The loop of retention over partitions, on a disk in memory."""

from __future__ import annotations

import asyncio
import errno
import logging
from dataclasses import replace
from functools import partial

import pytest

from bascule.host.real import RealRandom
from bascule.model import (
    Cleanup,
    Discard,
    PartitionState,
    StreamConfig,
    StreamDefinition,
    SyncPolicy,
)
from bascule.publish.headers import HashKey
from bascule.replica.maintenance import retention as retention_module
from bascule.replica.maintenance.purging import purge
from bascule.replica.maintenance.retention import Retention
from bascule.replica.partition import Partition
from bascule.replica.partitions import Partitions
from bascule.sim.disk import SimClock, SimFiles
from bascule.storage.partition_log import PartitionLog
from bascule.storage.retention import log_config
from support.overtaken_lock import overtaken_lock
from support.replicas import awaited_batch, lead_alone, no_reserve
from support.stored_batches import DIRECTORY, append

CONFIG = StreamConfig(subject="s", sync=SyncPolicy.ALWAYS, segment_bytes_max=600)


class RetentionUnderTest:
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
            on_changed=lambda _: None,
            hash_key=HashKey(bytes(16)),
        )
        self.partitions.add((lead_alone(self.partition),))
        self.rolls = 0
        self.archived: int | None = None
        self.asked: list[tuple[str, str, int]] = []
        self.retention = Retention(
            self.partitions,
            clock=self.clock,
            archived=self.committed,
            roll=self.roll,
            reserve=no_reserve(),
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
    under_test = RetentionUnderTest(replace(CONFIG, retention_bytes_max=8_000))
    under_test.write(100)
    assert under_test.tick() > 0
    assert 8_000 <= under_test.log.size_bytes() <= 9_000
    counts = under_test.retention.counts
    assert counts.records == under_test.log.start_offset
    assert counts.segments > 0
    assert counts.bytes > 0
    assert under_test.tick() == counts.records, "a second look finds nothing to do"


def test_messages() -> None:
    under_test = RetentionUnderTest(replace(CONFIG, retention_messages_max=100))
    under_test.write(100)
    start = under_test.tick()
    assert 100 <= 200 - start <= 112


def test_age_and_an_active_segment_that_expires() -> None:
    under_test = RetentionUnderTest(replace(CONFIG, retention_ms_max=8_000))
    under_test.write(10)
    under_test.clock.ms += 4_000
    under_test.write(10)
    assert under_test.tick() == 0
    under_test.clock.ms += 4_001
    assert under_test.tick() == 20, "a segment holds an eighth of the time allowed"
    under_test.clock.ms += 4_000
    under_test.tick()
    assert under_test.rolls == 1
    under_test.clock.ms += 1_000
    assert under_test.tick() == under_test.log.end.offset == 40
    assert under_test.log.size_bytes() == 0
    under_test.clock.ms += 100_000
    under_test.tick()
    assert under_test.rolls == 1, "an empty segment stays"


def test_age_goes_on_once_a_clock_that_was_ahead_is_set_back() -> None:
    class JumpingClock(SimClock):
        """A wall clock that jumps by `ahead_ms`, and a monotonic one that does not."""

        ahead_ms = 0

        def now_ms(self) -> int:
            return self.ms + self.ahead_ms

    under_test = RetentionUnderTest(replace(CONFIG, retention_ms_max=8_000))
    clock = under_test.clock = under_test.retention._clock = JumpingClock(10_000)
    clock.ahead_ms = 1_000_000
    under_test.tick()
    clock.ahead_ms = 0
    for _ in range(10):
        under_test.write(2)
        clock.ms += 2_000
        under_test.tick()
    assert under_test.log.start_offset > 0


def test_a_shorter_age_holds_at_once() -> None:
    under_test = RetentionUnderTest(replace(CONFIG, retention_ms_max=1_000_000))
    under_test.write(10)
    under_test.clock.ms += 60_000
    under_test.write(10)
    assert under_test.tick() == 0
    shorter = replace(under_test.partition.definition.config, retention_ms_max=30_000)
    under_test.partition.configure(replace(under_test.partition.definition, config=shorter))
    assert under_test.tick() == 18


def test_nothing_goes_that_an_archive_has_not_stored() -> None:
    under_test = RetentionUnderTest(
        replace(CONFIG, retention_bytes_max=1_000, retention_after="lake")
    )
    under_test.write(20)
    assert under_test.tick() == 0
    under_test.archived = 13
    assert under_test.tick() == 12
    assert under_test.asked[-1] == ("lake", "s", 0)
    under_test.archived = 40
    assert under_test.tick() == 24


@pytest.mark.parametrize(
    "config",
    [
        replace(CONFIG, retention_bytes_max=10, cleanup=(Cleanup.COMPACT,)),
        replace(CONFIG, retention_bytes_max=10, discard=Discard.NEW),
        CONFIG,
    ],
)
def test_what_is_not_subject_to_retention(config: StreamConfig) -> None:
    under_test = RetentionUnderTest(config)
    under_test.write(20)
    assert under_test.tick() == 0
    assert under_test.rolls == 0


def test_what_was_purged_to_its_end_gives_its_room_back() -> None:
    under_test = RetentionUnderTest(CONFIG)
    under_test.write(20)
    under_test.log.advance_start(40, high_watermark=40)
    assert under_test.log.size_bytes() > 0
    under_test.tick()
    assert under_test.rolls == 1
    under_test.tick()
    assert under_test.log.size_bytes() == 0


def test_a_failure_is_logged_once_and_tried_again(caplog: pytest.LogCaptureFixture) -> None:
    under_test = RetentionUnderTest(replace(CONFIG, retention_messages_max=10))
    under_test.write(20)
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            under_test.files.fail(1, errno.EIO)
            assert under_test.tick() == 0
    assert [record.message for record in caplog.records] == ["retention failed"]
    assert under_test.retention.counts.failures == 3
    assert under_test.tick() > 0


def test_a_deleted_or_closed_partition_is_left_alone() -> None:
    under_test = RetentionUnderTest(replace(CONFIG, retention_messages_max=10))
    under_test.write(20)
    under_test.log.close()
    assert under_test.tick() == 0
    assert under_test.retention.counts.failures == 0
    under_test.partitions.remove(under_test.partitions.stream("s")[0].definition)
    assert under_test.tick() == 0


def test_records_that_are_not_synced_stay() -> None:
    config = replace(CONFIG, sync=SyncPolicy.INTERVAL, retention_messages_max=2)
    under_test = RetentionUnderTest(config)
    for _ in range(30):
        append(under_test.log, 2, timestamp=under_test.clock.ms, size=60)
    under_test.partition.append(awaited_batch(b"in.0"))
    assert under_test.partition.high_watermark == under_test.log.end
    assert under_test.tick() <= under_test.log.synced.offset
    under_test.partition.sync()
    assert under_test.tick() > 50


def test_records_that_are_not_committed_stay() -> None:
    under_test = RetentionUnderTest(replace(CONFIG, retention_messages_max=2))
    for _ in range(30):
        append(under_test.log, 2, timestamp=under_test.clock.ms, size=60)
    under_test.log.sync()
    assert under_test.tick() == 0
    under_test.partition.sync()
    assert under_test.tick() > 50


def test_a_follower_has_no_limits_of_its_own() -> None:
    """It moves the start of its log where its leader has, as far as its own log is committed."""
    under_test = RetentionUnderTest(replace(CONFIG, retention_messages_max=10))
    under_test.write(40)
    partition = under_test.partition
    epoch = under_test.log.epochs.latest + 1
    state = PartitionState((1, 2), (1, 2), 2, epoch, 1)
    partition.set_role(state, 1, lag_ns_max=1 << 60)
    assert under_test.tick() == 0
    partition.told_start.hear(24, partition.leader_epoch)
    assert under_test.tick() == 24
    assert under_test.tick() == 24
    # It leads before it has moved: what its leader has removed is not served again.
    partition.told_start.hear(36, partition.leader_epoch)
    again = replace(state, leader=1, leader_epoch=epoch + 1, version=2, isr=(1,))
    partition.set_role(again, 1, lag_ns_max=1 << 60)
    partition.configure(replace(partition.definition, config=CONFIG))
    assert under_test.tick() == 36


def test_a_leader_removes_nothing_that_came_instead_of_what_its_predecessor_has_removed() -> None:
    """Which had more records than this node, before an unclean election."""
    under_test = RetentionUnderTest(CONFIG)
    under_test.write(10)
    partition, epoch = under_test.partition, under_test.log.epochs.latest + 1
    state = PartitionState((1, 2), (1, 2), 2, epoch, 1)
    partition.set_role(state, 1, lag_ns_max=1 << 60)
    partition.told_start.hear(30, partition.leader_epoch)
    alone = PartitionState((1,), (1,), 1, epoch + 1, 2)
    partition.set_role(alone, 1, lag_ns_max=1 << 60)
    end = under_test.log.end.offset
    under_test.write(20)
    assert under_test.log.end.offset > 30
    assert under_test.tick() == end


@pytest.mark.parametrize("sync", [SyncPolicy.INTERVAL, SyncPolicy.NEVER])
def test_a_purge_syncs_what_it_removes(sync: SyncPolicy) -> None:
    under_test = RetentionUnderTest(replace(CONFIG, sync=sync))
    for _ in range(5):
        under_test.partition.append(awaited_batch(b"in"))
    assert under_test.log.synced.offset < under_test.partition.committed_offset == 5
    purge(under_test.partition, to_offset=4, before_ms=None)
    assert under_test.log.start_offset == 4


def test_segments_are_removed_under_the_maintenance_lock(monkeypatch: pytest.MonkeyPatch) -> None:
    under_test = RetentionUnderTest(replace(CONFIG, retention_messages_max=2))
    under_test.write(30)
    advance_start, locked = under_test.log.advance_start, []

    def record(offset: int, *, high_watermark: int) -> object:
        locked.append(under_test.partition.maintenance_lock.locked())
        return advance_start(offset, high_watermark=high_watermark)

    monkeypatch.setattr(under_test.log, "advance_start", record)
    under_test.tick()
    assert locked == [True]


def test_a_tick_looks_at_the_next_partitions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention_module, "PARTITIONS_PER_TICK", 2)
    config = replace(CONFIG, retention_messages_max=100)
    logs = [RetentionUnderTest(config) for _ in range(5)]
    first = logs[0]
    for number, each in enumerate(logs[1:], start=1):
        definition = StreamDefinition(f"s{number}", b"%016d" % number, 0, config)
        each.partition.definition = definition
        first.partitions.add((each.partition,))
    for each in logs:
        each.write(100)
    cut = []
    for _ in range(6):
        first.tick()
        cut.append(sum(each.log.start_offset > 0 for each in logs))
    assert cut == [2, 4, 5, 5, 5, 5], "another round begins when all were looked at"


def test_who_leads_no_more_applies_no_limits() -> None:
    """Leaders decide where a log starts. This one has waited for a checkpoint meanwhile."""
    under_test = RetentionUnderTest(replace(CONFIG, retention_messages_max=10))
    under_test.write(40)
    partition = under_test.partition
    state = PartitionState((1, 2), (1, 2), 2, under_test.log.epochs.latest + 1, 1)
    resign = partial(partition.set_role, state, 1, lag_ns_max=1 << 60)
    partition.maintenance_lock = overtaken_lock(resign)
    assert under_test.tick() == 0
