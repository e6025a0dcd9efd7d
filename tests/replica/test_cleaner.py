"""The loop of compaction over partitions, on a disk in memory."""

from __future__ import annotations

import asyncio
import errno
import logging
from dataclasses import replace
from typing import Any

import pytest

from bascule.host.real import RealRandom
from bascule.model import Cleanup, PartitionState, StreamConfig, StreamDefinition
from bascule.publish.headers import HashKey
from bascule.record.batch import Record
from bascule.record.builder import build_batch
from bascule.replica.maintenance import cleaner
from bascule.replica.maintenance.cleaner import RETRY_NS, Cleaner, CleanerLimits
from bascule.replica.partition import Partition
from bascule.replica.partitions import Partitions
from bascule.replica.roles.commitment import LogFlags, ReplicatedEnd
from bascule.replica.syncing.checkpointing import write_checkpoint
from bascule.sim.disk import SimClock, SimFiles
from bascule.storage.compaction.plan import plan_compaction
from bascule.storage.compaction.run import Compaction
from bascule.storage.partition_log import PartitionLog
from bascule.storage.retention import limits_of, log_config, plan_retention, segments_of
from support.keyed_logs import Model, append_keyed, held
from support.replicas import lead_alone

CONFIG = StreamConfig(
    subject="s", segment_bytes_max=2_000, cleanup=(Cleanup.COMPACT,), dedupe_window_ms=0
)


class CleanerUnderTest:
    """Some partitions, and a cleaner that is asked to look at them."""

    def __init__(
        self, *configs: StreamConfig, bytes_per_second_max: int = 0, map_bytes_max: int = 1 << 20
    ) -> None:
        self.files = SimFiles(RealRandom(1))
        self.clock = SimClock(100_000)
        self.partitions = Partitions()
        self.every: list[Partition] = []
        self.models: list[Model] = []
        for number, config in enumerate(configs):
            self.add(f"s{number}", config)
        self.cleaner = Cleaner(
            self.partitions,
            files=self.files,
            clock=self.clock,
            random=RealRandom(2),
            limits=CleanerLimits(map_bytes_max, bytes_per_second_max),
            roll=lambda partition: self.store(partition).roll(),
            checkpoint=self.checkpoint,
        )

    def add(self, name: str, config: StreamConfig) -> None:
        log = PartitionLog.open(
            self.files, f"/data/streams/{name}/0", log_config(config), self.clock
        )
        partition = Partition(
            StreamDefinition(name, name.encode().ljust(16), 0, config),
            0,
            log=log,
            failure=None,
            clock=self.clock,
            on_changed=lambda _: None,
            hash_key=HashKey(bytes(16)),
        )
        self.partitions.add((lead_alone(partition),))
        self.every.append(partition)
        self.models.append(Model())

    def store(self, partition: Partition) -> PartitionLog:
        assert partition.log is not None
        return partition.log

    def checkpoint(self, partition: Partition) -> None:
        partition.sync()
        write_checkpoint(partition)

    def write(self, number: int, batches: int, *, keys: int = 5) -> None:
        log = self.store(self.every[number])
        for n in range(batches):
            pairs: list[tuple[bytes | None, bytes | None]] = [
                (b"%d" % ((3 * n + m) % keys), b"value" * 9) for m in range(3)
            ]
            append_keyed(log, self.models[number], pairs, timestamp=self.clock.ms)
        self.checkpoint(self.every[number])

    def remove_keys(self) -> int:
        """Write tombstones of five keys to the first log and close the segment; their end."""
        log, model = self.store(self.every[0]), self.models[0]
        append_keyed(log, model, [(b"%d" % n, None) for n in range(5)])
        end = log.end.offset
        append_keyed(log, model, [(None, b"what comes after")])
        log.roll()
        self.checkpoint(self.every[0])
        return end

    def held(self, number: int) -> int:
        return len(held(self.store(self.every[number])))

    def tick(self) -> bool:
        return asyncio.run(self.cleaner.tick())


def test_the_dirtiest_log_comes_first_and_others_are_left_alone() -> None:
    under_test = CleanerUnderTest(CONFIG, CONFIG, replace(CONFIG, cleanup=(Cleanup.DELETE,)))
    under_test.write(0, 40)
    assert under_test.tick()
    under_test.write(0, 60)
    for number in (1, 2):
        under_test.write(number, 100)
    before = under_test.held(0)
    assert under_test.tick()
    assert (under_test.held(0), under_test.held(2)) == (before, 300)
    assert under_test.held(1) < 100, "all of this one was dirty"
    assert under_test.tick()
    assert under_test.held(0) < before
    assert not under_test.tick()
    counts = under_test.cleaner.counts
    assert (counts.runs, counts.failures, counts.runs_cut_short) == (3, 0, 0)
    assert counts.records > 0
    assert counts.bytes_read > counts.bytes_written > 0
    assert counts.bytes_removed > 0


def test_a_log_is_left_alone_until_enough_of_it_is_dirty() -> None:
    under_test = CleanerUnderTest(replace(CONFIG, dirty_percent_min=60))
    under_test.write(0, 100, keys=1_000)
    assert under_test.tick()
    under_test.write(0, 80, keys=1_000)
    assert not under_test.tick()
    under_test.write(0, 80, keys=1_000)
    assert under_test.tick()


@pytest.mark.parametrize("lag", [{"min_compaction_lag_ms": 500}, {"dedupe_window_ms": 500}])
def test_young_records_wait(lag: dict[str, int]) -> None:
    under_test = CleanerUnderTest(replace(CONFIG, **lag))
    under_test.write(0, 100)
    under_test.clock.ms += 499
    assert not under_test.tick()
    under_test.clock.ms += 1
    assert under_test.tick()
    assert under_test.held(0) < 100


def test_old_records_do_not_wait_not_even_in_the_active_segment() -> None:
    under_test = CleanerUnderTest(
        replace(CONFIG, dirty_percent_min=100, max_compaction_lag_ms=1_000)
    )
    under_test.write(0, 100, keys=7)
    assert under_test.tick()
    under_test.write(0, 2, keys=7)
    end = under_test.store(under_test.every[0]).end.offset
    assert not under_test.tick()
    under_test.clock.ms += 1_000
    assert not under_test.tick(), "this look ends the segment"
    assert under_test.tick()
    assert under_test.held(0) == 7
    assert under_test.store(under_test.every[0]).end.offset == end


def test_tombstones_go_when_their_time_has_come() -> None:
    under_test = CleanerUnderTest(replace(CONFIG, tombstone_retention_ms=700, dirty_percent_min=90))
    under_test.write(0, 60)
    under_test.remove_keys()
    assert under_test.tick()
    assert under_test.held(0) == 6
    under_test.clock.ms += 699
    assert not under_test.tick()
    under_test.clock.ms += 1
    assert under_test.tick()
    assert under_test.held(0) == 1
    assert not under_test.tick()


LIMITS = [{"retention_ms_max": 60_000}, {"retention_messages_max": 60}]


@pytest.mark.parametrize("limit", LIMITS)
def test_compaction_keeps_no_record_beyond_the_limits_of_retention(limit: dict[str, int]) -> None:
    """Joined by bytes alone, the oldest segment grew with each run: it ended with young records at
    all times, and none expired."""
    both = (Cleanup.COMPACT, Cleanup.DELETE)
    config = replace(CONFIG, cleanup=both, segment_bytes_max=1 << 20, **limit)
    under_test = CleanerUnderTest(config)
    log, held_max = under_test.store(under_test.every[0]), 0
    for n in range(300):
        under_test.clock.ms += 1_000
        pairs: list[tuple[bytes | None, bytes | None]] = [(b"%d" % (n % 100), b"value")]
        append_keyed(log, under_test.models[0], pairs, timestamp=under_test.clock.ms)
        if n % 5 < 4:
            continue
        under_test.checkpoint(under_test.every[0])
        under_test.tick()
        log.load_timestamps(under_test.clock.ms)
        plan = plan_retention(
            segments_of(log), limits_of(config), start_offset=log.start_offset,
            now_ms=under_test.clock.ms, end_offset=log.end.offset,
        )  # fmt: skip
        log.advance_start(plan.start_offset, high_watermark=log.end.offset)
        held_max = max(held_max, log.end.offset - log.start_offset)
    assert under_test.cleaner.counts.runs > 2
    assert 60 <= held_max <= 60 + 60 // 8 + 5, "and what came since the last look"


def test_segments_of_any_age_are_joined_without_a_limit() -> None:
    under_test = CleanerUnderTest(replace(CONFIG, segment_bytes_max=1 << 20))
    log = under_test.store(under_test.every[0])
    for _ in range(6):
        under_test.write(0, 10)
        under_test.clock.ms += under_test.every[0].definition.config.segment_age_ms_max
    assert len(log.segments_info()) == 6
    assert under_test.tick()
    assert len(log.segments_info()) == 2


class Table:
    """A reader of a log that has it for good below `synced`, or would have below `reached`."""

    def __init__(self, reached: int = 0) -> None:
        self.synced, self.reached = 0, reached
        self.begins_again = False

    def sync_to(self, end: int) -> int:
        if self.synced < end:
            self.synced = self.reached
        return self.synced

    def has_synced(self, end: int) -> bool:
        return self.synced >= end and not self.begins_again


def test_a_tombstone_waits_for_the_table_of_the_log() -> None:
    """A table that a loss of power takes back would keep what the tombstone removes."""
    under_test = CleanerUnderTest(replace(CONFIG, tombstone_retention_ms=700, dirty_percent_min=90))
    table = under_test.every[0].commitment.tombstone_reader = Table()
    under_test.write(0, 60)
    end = under_test.remove_keys()
    assert under_test.tick()
    under_test.clock.ms += 700
    assert under_test.tick()
    assert under_test.held(0) == 6
    assert not under_test.tick(), "it would look again and again"
    table.reached = end + 1
    under_test.clock.ms += 10_000
    assert under_test.tick()
    assert under_test.held(0) == 1
    assert not under_test.every[0].commitment.replacing.locked()


def test_tombstones_stay_for_a_table_that_begins_again() -> None:
    under_test = CleanerUnderTest(replace(CONFIG, tombstone_retention_ms=0, dirty_percent_min=90))
    table = under_test.every[0].commitment.tombstone_reader = Table(reached=1 << 40)
    under_test.write(0, 60)
    under_test.remove_keys()
    assert under_test.tick()
    table.begins_again = True
    under_test.clock.ms += 1
    assert under_test.tick()
    assert under_test.held(0) == 6
    table.begins_again = False
    assert under_test.tick()
    assert under_test.held(0) == 1
    assert not under_test.every[0].commitment.replacing.locked()


def test_a_log_is_compacted_while_its_table_is_not_open() -> None:
    """Only tombstones stay. A run that may replace nothing would be repeated for ever, before
    those of all other logs."""
    under_test = CleanerUnderTest(CONFIG, CONFIG)
    table = under_test.every[0].commitment.tombstone_reader = Table()
    table.begins_again = True
    under_test.write(0, 60)
    under_test.write(1, 30)
    ticks = sum(under_test.tick() for _ in range(10))
    assert ticks == 2
    assert under_test.cleaner.counts.records > 0
    assert under_test.held(0) < 60
    assert not under_test.every[0].commitment.replacing.locked()


def test_tombstones_stay_for_a_table_that_begins_in_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may have read what was before the tombstones already."""
    under_test = CleanerUnderTest(replace(CONFIG, tombstone_retention_ms=0, dirty_percent_min=90))
    commitment = under_test.every[0].commitment
    under_test.write(0, 60)
    under_test.remove_keys()
    assert under_test.tick()
    under_test.clock.ms += 1
    began: list[Table] = []

    def compaction(*args: Any, **settings: Any) -> Compaction:
        if not began:
            began.append(Table())
            commitment.tombstone_reader = began[0]
        return Compaction(*args, **settings)

    monkeypatch.setattr(cleaner, "Compaction", compaction)
    assert under_test.tick()
    assert under_test.held(0) == 6
    assert under_test.tick()
    assert not under_test.tick(), "the table is behind"
    assert under_test.held(0) == 6
    began[0].reached = 1 << 40
    under_test.clock.ms += 10_000
    assert under_test.tick()
    assert under_test.held(0) == 1


def test_a_tombstone_waits_for_a_replica_that_is_away() -> None:
    config = replace(CONFIG, tombstone_retention_ms=700, dirty_percent_min=90, replicas=3)
    under_test = CleanerUnderTest(config)
    under_test.write(0, 60)
    partition = under_test.every[0]
    log = under_test.store(partition)
    removed_by = under_test.remove_keys()
    epoch = log.epochs.latest + 1
    partition.set_role(PartitionState((1, 2, 3), (1, 2), 1, epoch, 1), 1, lag_ns_max=1 << 60)
    end = log.end.offset

    def fetch(node: int, end: int) -> None:
        partition.on_fetch(
            node, 1, leader_epoch=partition.leader_epoch, log_start=0, log_end=end, synced_end=end
        )

    fetch(2, end)
    assert partition.committed_offset == end
    assert under_test.tick()
    under_test.clock.ms += 700
    assert not under_test.tick(), "node 3 may have what the tombstones remove"
    fetch(3, removed_by)
    assert not under_test.tick(), "a run for each record that it fetches would be too many"
    assert under_test.held(0) == 6
    fetch(3, end)
    assert under_test.tick()
    assert under_test.held(0) == 1
    assert not under_test.tick()


def test_tombstones_stay_for_a_replica_that_begins_again_after_the_plan(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    config = replace(CONFIG, tombstone_retention_ms=700, dirty_percent_min=90, replicas=3)
    under_test = CleanerUnderTest(config)
    under_test.write(0, 60)
    partition = under_test.every[0]
    log = under_test.store(partition)
    under_test.remove_keys()
    epoch, end = log.epochs.latest + 1, log.end.offset
    partition.set_role(PartitionState((1, 2, 3), (1, 2), 1, epoch, 1), 1, lag_ns_max=1 << 60)
    for node in (2, 3):
        partition.on_fetch(
            node, 1, leader_epoch=partition.leader_epoch, log_start=0, log_end=end, synced_end=end
        )
    assert under_test.tick()
    under_test.clock.ms += 700

    def plan_and_begin(*arguments: Any, **options: Any) -> Any:
        found = plan_compaction(*arguments, **options)
        partition.on_fetch(
            3, 2, leader_epoch=partition.leader_epoch, log_start=0, log_end=0, synced_end=0
        )
        return found

    monkeypatch.setattr(cleaner, "plan_compaction", plan_and_begin)
    under_test.tick()
    assert under_test.held(0) == 6, "the run ends without effect"
    monkeypatch.undo()
    assert not under_test.tick()
    partition.on_fetch(
        3, 2, leader_epoch=partition.leader_epoch, log_start=0, log_end=end, synced_end=end
    )
    assert under_test.tick()
    assert under_test.held(0) == 1


def test_a_log_that_has_begun_again_is_not_compacted_by_the_plan_of_the_former_one() -> None:
    """A table's disk is awaited between the plan and the run; an election falls into it."""
    under_test = CleanerUnderTest(replace(CONFIG, replicas=3, min_isr=1))
    under_test.write(0, 40)
    partition = under_test.every[0]
    log = under_test.store(partition)
    assert partition.committed_offset == log.end.offset > 60

    class SlowTable(Table):
        def sync_to(self, end: int) -> int:
            if partition.leader_epoch < 5:
                begin_again()
            self.synced = end
            return end

    def begin_again() -> None:
        """The new leader has a committed value of one key, and later ones that are not."""
        partition.set_role(
            PartitionState((1, 2, 3), (2,), 2, 5, 1, unclean_epoch=5), 1, lag_ns_max=1 << 60
        )
        partition.restart_replicated(0)
        for offset in range(60):
            record = Record(offset, 1_000, b"k", b"value %d" % offset * 9, ())
            batch = build_batch([record], base_offset=offset, log_append_time=True, leader_epoch=5)
            partition.append_replicated(memoryview(batch), LogFlags(False, False))
        partition.on_leader_watermark(1, partition.leader_epoch)
        under_test.checkpoint(partition)

    partition.commitment.tombstone_reader = SlowTable()
    assert under_test.tick()
    assert (partition.committed_offset, log.end.offset) == (1, 60)
    assert log.replacement.closed_segments(), "there is what a run might compact"
    partition.set_role(
        PartitionState((1, 2, 3), (3,), 3, 6, 2, unclean_epoch=5), 1, lag_ns_max=1 << 60
    )
    partition.truncate_replicated(1)
    assert [record.offset for record in held(log)] == [0], "what is committed"


def test_a_follower_removes_tombstones_once_its_leader_says_that_all_have_them() -> None:
    config = replace(CONFIG, tombstone_retention_ms=700, dirty_percent_min=90, replicas=3)
    under_test = CleanerUnderTest(config)
    under_test.write(0, 60)
    partition = under_test.every[0]
    log = under_test.store(partition)
    under_test.remove_keys()
    epoch, end = log.epochs.latest + 1, log.end.offset
    state = PartitionState((1, 2, 3), (1, 2, 3), 2, epoch, 5)
    partition.set_role(state, 1, lag_ns_max=1 << 60)
    partition.on_leader_watermark(end, partition.leader_epoch)
    assert under_test.tick()
    under_test.clock.ms += 700
    for version, offset in ((5, end - 1), (4, end)):
        partition.commitment.on_replicated(ReplicatedEnd(version, offset), partition.leader_epoch)
        assert not under_test.tick(), "an older state may have had fewer replicas"
    partition.commitment.on_replicated(ReplicatedEnd(6, end), partition.leader_epoch)
    assert under_test.tick(), "this node has not heard of the latest state yet"
    assert under_test.held(0) == 1


def test_a_failure_is_logged_once_and_leaves_the_log_as_it_was(
    caplog: pytest.LogCaptureFixture,
) -> None:
    under_test = CleanerUnderTest(CONFIG)
    under_test.write(0, 100)
    under_test.files.fail(40, errno.ENOSPC)
    with caplog.at_level(logging.ERROR):
        assert under_test.tick()
        assert not under_test.tick()
    assert [record.getMessage() for record in caplog.records] == [
        "compaction failed; the log stays as it is"
    ]
    assert under_test.held(0) == 300
    assert under_test.cleaner.counts.failures == 1
    under_test.clock.ms += RETRY_NS // 1_000_000
    assert under_test.tick()
    assert under_test.held(0) < 100


def test_a_map_that_is_too_small_takes_several_runs() -> None:
    under_test = CleanerUnderTest(replace(CONFIG, dirty_percent_min=0), map_bytes_max=1)
    under_test.write(0, 200, keys=150)
    runs = 0
    while under_test.tick():
        runs += 1
    assert runs > 1
    assert under_test.cleaner.counts.runs_cut_short == runs - 1
    log = under_test.store(under_test.every[0])
    closed = [r.key for r in held(log) if r.offset < log.replacement.closed_segments()[-1][1]]
    assert len(closed) == len(set(closed)) == 150


def test_closing_ends_a_run_that_takes_its_time() -> None:
    under_test = CleanerUnderTest(CONFIG, bytes_per_second_max=1)
    under_test.write(0, 100)

    async def close_in_the_middle() -> None:
        loop, running = asyncio.get_running_loop(), asyncio.Event()
        monotonic_ns = under_test.clock.monotonic_ns
        calls: list[None] = []

        def tell() -> int:
            calls.append(None)
            if len(calls) == 3:  # for the choice, for the start, and now to keep the pace
                loop.call_soon_threadsafe(running.set)
            return monotonic_ns()

        under_test.clock.monotonic_ns = tell  # type: ignore[method-assign]
        ticking = asyncio.create_task(under_test.cleaner.tick())
        await running.wait()
        await under_test.cleaner.close()
        await ticking
        assert not await under_test.cleaner.tick(), "no run begins after that"

    asyncio.run(close_in_the_middle())
    assert under_test.cleaner.counts.runs == 0
    assert under_test.held(0) == 300
