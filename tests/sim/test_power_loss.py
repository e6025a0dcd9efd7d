"""Power failures at any moment: seeded rounds of the operations of a partition on a disk that
drops, tears and reorders unsynced data.

`make power` runs 10,000 rounds. `BASCULE_POWER_ROUNDS` is the number of rounds,
`BASCULE_POWER_SEED` the first seed. A failing round names its seed.
"""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass, field

import pytest

from bascule.errors import BasculeError
from bascule.host.real import RealRandom
from bascule.model import StreamConfig, StreamDefinition, SyncPolicy
from bascule.publish.acks import AckError
from bascule.publish.headers import HashKey
from bascule.publish.unstamped_batch import UnstampedBatch
from bascule.record.batch import Record, RecordBatch
from bascule.record.builder import build_batch
from bascule.replica.partition import Partition
from bascule.replica.syncing.checkpointing import write_checkpoint
from bascule.sim.disk import SHORT, RandomChoices, SimClock, SimFiles
from bascule.storage.partition_log import PartitionLog
from bascule.storage.retention import limits_of, log_config, plan_retention
from support.replicas import lead_alone
from support.stored_batches import DIRECTORY, read_batches

ROUNDS = int(os.environ.get("BASCULE_POWER_ROUNDS", "400"))
SEED = int(os.environ.get("BASCULE_POWER_SEED", "0"))
PARTS = 8
LIVES_MAX = 5
ACTIONS_MAX = 30
SIZES = (0, 10, 60, 400, 3_000, 9_000)
ERRORS = (errno.EIO, errno.ENOSPC, SHORT)


@dataclass
class Ledger:
    """The records that were appended, and the guarantees given for them."""

    given: list[bytes] = field(default_factory=list)
    """Offset -> value of each record that may be in the log."""
    acked: int = 0
    """Records below this offset were acknowledged."""
    synced: int = 0
    """Records below this offset were confirmed to be on the disk."""
    start: int = 0
    """The confirmed start of the log."""
    start_asked: int = 0
    """The start of the log that a failed call may have set."""


class World:
    """One partition on one disk, opened and closed several times."""

    def __init__(self, seed: int) -> None:
        self.choices = RandomChoices(RealRandom(seed))
        self.files = SimFiles(RealRandom(seed + (1 << 32)))
        self.clock = SimClock(10_000)
        self.ledger = Ledger()
        self.made = 0
        limit = self.choices.pick((0, 0, 2_000, 20_000))
        self.config = StreamConfig(
            subject="s",
            sync=(SyncPolicy.ALWAYS, SyncPolicy.INTERVAL, SyncPolicy.NEVER)[self.choices.below(3)],
            segment_bytes_max=1 << (9 + self.choices.below(6)),
            retention_bytes_max=limit,
            retention_messages_max=self.choices.pick((0, 0, 30)),
            retention_ms_max=self.choices.pick((0, 0, 400)),
        )

    def run(self) -> None:
        for _ in range(1 + self.choices.below(LIVES_MAX)):
            partition = self.open()
            if self.choices.below(6) == 0:
                self.files.fail(1 + self.choices.below(60), ERRORS[self.choices.below(len(ERRORS))])
            for _ in range(self.choices.below(ACTIONS_MAX)):
                self.act(partition)
            self.files.forget_faults()
            self.end(partition)
        self.open()

    def open(self) -> Partition:
        """Open the log, which must succeed, and compare it with the ledger."""
        log = PartitionLog.open(self.files, DIRECTORY, log_config(self.config), self.clock)
        ledger = self.ledger
        assert log.start_offset in (ledger.start, ledger.start_asked)
        assert log.start_offset <= log.end.offset
        assert log.end.offset >= ledger.synced, "what was confirmed is there"
        assert log.synced == log.end
        held = [r for batch in read_batches(log) for r in RecordBatch(batch)]
        held = [record for record in held if record.offset >= log.start_offset]
        assert [r.offset for r in held] == list(range(log.start_offset, log.end.offset))
        assert [r.value for r in held] == ledger.given[log.start_offset : log.end.offset]
        at = log.verify()
        while at is not None:
            at = log.verify(at)
        self.check_files(log)
        del ledger.given[log.end.offset :]
        ledger.synced = log.end.offset
        ledger.acked = min(ledger.acked, log.end.offset)
        ledger.start = ledger.start_asked = log.start_offset
        return lead_alone(
            Partition(
                StreamDefinition("s", b"i" * 16, 0, self.config),
                0,
                log=log,
                failure=None,
                clock=self.clock,
                on_changed=lambda _: None,
                hash_key=HashKey(bytes(16)),
            )
        )

    def check_files(self, log: PartitionLog) -> None:
        """Check that no files of removed segments are left."""
        first = log.segments_info()[0].base_offset
        named = [name for name in self.files.list_dir(DIRECTORY) if name[:20].isdigit()]
        assert min(int(name[:20]) for name in named) == first

    def act(self, partition: Partition) -> None:
        assert partition.log is not None
        kind = self.choices.below(16)
        if kind < 8:
            self.append(partition)
            if self.config.sync is SyncPolicy.ALWAYS and self.choices.below(4):
                self.sync(partition)
        elif kind < 11:
            self.sync(partition)
        elif kind == 11:
            write_checkpoint(partition)
        elif kind == 12:
            try:
                partition.log.roll()
            except (OSError, BasculeError):
                pass
        elif kind == 13:
            self.advance(partition, self.choices.below(partition.high_watermark.offset + 2))
        else:
            self.retain(partition)
        self.clock.ms += self.choices.below(60)

    def append(self, partition: Partition) -> None:
        assert partition.log is not None
        count = 1 + self.choices.below(4)
        size = SIZES[self.choices.below(len(SIZES))]
        values = [f"{self.made + n} ".encode().ljust(size, b".") for n in range(count)]
        self.made += count
        batch = build_batch(
            [Record(n, 0, None, value) for n, value in enumerate(values)],
            base_offset=0, leader_epoch=0, log_append_time=True,
        )  # fmt: skip
        base = partition.log.end.offset
        del self.ledger.given[base:]  # records that a failed append may have left
        # Noted before the append: after a failure the log may have it or not.
        self.ledger.given += values

        def stored(base_offset: int, error: AckError | None) -> None:
            if error is None:
                assert base_offset == base
                self.ledger.acked = max(self.ledger.acked, base + count)

        partition.append(
            UnstampedBatch(
                data=memoryview(batch), record_count=count, on_committed=stored,
            )
        )  # fmt: skip

    def sync(self, partition: Partition) -> None:
        assert partition.log is not None
        partition.sync()
        if partition.failure is None:
            self.ledger.synced = max(self.ledger.synced, partition.log.synced.offset)
        if self.config.sync is SyncPolicy.ALWAYS:
            assert self.ledger.acked <= self.ledger.synced, "an ack follows its sync"

    def advance(self, partition: Partition, offset: int) -> None:
        log = partition.log
        assert log is not None
        asked = min(offset, log.synced.offset, partition.high_watermark.offset)
        self.ledger.start_asked = max(asked, self.ledger.start)
        try:
            log.advance_start(offset, high_watermark=partition.high_watermark.offset)
        except (OSError, BasculeError):
            if log.start_offset == self.ledger.start_asked:
                self.ledger.start = log.start_offset
            return
        assert log.start_offset == self.ledger.start_asked
        self.ledger.start = log.start_offset

    def retain(self, partition: Partition) -> None:
        log = partition.log
        assert log is not None
        limits = limits_of(self.config)
        try:
            log.load_timestamps(self.clock.ms)
        except (OSError, BasculeError):
            return
        end = min(log.synced.offset, partition.high_watermark.offset)
        plan = plan_retention(
            log.segments_info(), limits,
            start_offset=log.start_offset, now_ms=self.clock.ms, end_offset=end,
        )  # fmt: skip
        assert log.start_offset <= plan.start_offset <= max(end, log.start_offset)
        if plan.start_offset > log.start_offset or plan.has_obsolete_segment:
            self.advance(partition, plan.start_offset)

    def end(self, partition: Partition) -> None:
        """Close, kill the process, or lose power, once or twice, also while the log is opened
        again."""
        log = partition.log
        assert log is not None
        how = self.choices.below(8)
        if how == 0 and log.failure is None:
            log.close()
            self.ledger.synced = log.end.offset
        elif how == 1 and log.failure is None:
            # Killed: the kernel keeps all written data.
            self.ledger.synced = log.end.offset
            return
        self.files.crash()
        while self.choices.below(3) == 0:
            self.files.fail(1 + self.choices.below(40), errno.EIO)
            try:
                PartitionLog.open(self.files, DIRECTORY, log_config(self.config), self.clock)
            except OSError:
                pass
            self.files.crash()


@pytest.mark.parametrize("part", range(PARTS))
def test_acknowledged_records_survive(part: int) -> None:
    for seed in range(SEED + part * ROUNDS // PARTS, SEED + (part + 1) * ROUNDS // PARTS):
        try:
            World(seed).run()
        except BaseException as error:
            error.add_note(f"seed {seed}")
            raise
