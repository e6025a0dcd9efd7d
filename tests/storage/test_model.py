"""A log under random work against a list that cannot be wrong."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from bascule.host.real import RealRandom
from bascule.record.batch import Record, RecordBatch
from bascule.sim.disk import SimFiles
from bascule.storage.partition_log import LogConfig, LogPosition, PartitionLog
from support.stored_batches import append, open_log, read_batches, read_records


class LogMachine(RuleBasedStateMachine):
    files: SimFiles
    config: LogConfig
    log: PartitionLog

    def __init__(self) -> None:
        super().__init__()
        self.records: list[Record] = []
        self.ends: list[LogPosition] = []
        self.epochs: list[int] = []
        """Of each record."""
        self.confirmed = 0
        self.timestamp = 1_000

    @initialize(
        segment_bytes_max=st.integers(200, 20_000), index_interval_bytes=st.integers(1, 5_000)
    )
    def start(self, segment_bytes_max: int, index_interval_bytes: int) -> None:
        self.files = SimFiles(RealRandom(1))
        self.config = LogConfig(
            segment_bytes_max=segment_bytes_max, index_interval_bytes=index_interval_bytes
        )
        self.log = open_log(self.files, self.config)
        self.ends.append(self.log.end)

    @rule(
        count=st.integers(1, 5),
        size=st.sampled_from((0, 30, 500, 5_000)),
        later=st.integers(0, 3),
        log_append_time=st.booleans(),
        new_epoch=st.sampled_from((0, 0, 0, 1, 2)),
    )
    def append(
        self, count: int, size: int, later: int, log_append_time: bool, new_epoch: int
    ) -> None:
        self.timestamp += later
        epoch = max(self.log.epochs.latest, 0) + new_epoch
        batch = append(
            self.log, count, timestamp=self.timestamp, size=size, leader_epoch=epoch,
            log_append_time=log_append_time,
        )  # fmt: skip
        records = list(RecordBatch(batch))
        self.timestamp = records[-1].timestamp
        self.records += records
        self.epochs += [epoch] * count
        self.ends.append(self.log.end)

    @rule()
    def sync(self) -> None:
        assert self.log.sync() == self.log.end
        self.confirmed = len(self.records)

    @rule()
    def checkpoint(self) -> None:
        self.log.checkpoint(high_watermark=self.confirmed)

    @rule()
    def reopen(self) -> None:
        self.log.close()
        self.log = open_log(self.files, self.config)
        self.confirmed = len(self.records)

    @rule()
    def kill(self) -> None:
        """The process dies, the machine does not: what the kernel was given is there."""
        self.log = open_log(self.files, self.config)
        self.confirmed = len(self.records)

    @precondition(lambda self: self.records)
    @rule(data=st.data(), bytes_max=st.sampled_from((1, 100, 3_000, 1 << 20)))
    def read(self, data: st.DataObject, bytes_max: int) -> None:
        end = data.draw(st.sampled_from(self.ends))
        offset = data.draw(st.integers(0, end.offset))
        piece = self.log.plan_read(offset, bytes_max=bytes_max, end=end)
        assert piece is not None
        read = piece.file.read_at(piece.position, piece.length)
        assert len(read) == piece.length
        if offset == end.offset:
            assert piece.length == 0
            return
        first = RecordBatch(read)
        assert first.header.base_offset <= offset < first.header.end_offset
        assert piece.length <= max(bytes_max, first.header.total_bytes)
        assert list(first) == self.records[first.header.base_offset : first.header.end_offset]

    @rule(data=st.data())
    def find_time(self, data: st.DataObject) -> None:
        end = data.draw(st.sampled_from(self.ends))
        timestamp = data.draw(st.integers(999, self.timestamp + 1))
        below = self.records[: end.offset]
        expected = next(((r.offset, r.timestamp) for r in below if r.timestamp >= timestamp), None)
        assert self.log.find_timestamp(timestamp, end=end) == expected
        latest = max(((r.timestamp, -r.offset) for r in below), default=None)
        found = self.log.find_timestamp_max(end=end)
        assert found == (None if latest is None else (-latest[1], latest[0]))

    @rule(data=st.data())
    def find_epoch(self, data: st.DataObject) -> None:
        end = data.draw(st.sampled_from(self.ends))
        asked = data.draw(st.integers(0, max(self.log.epochs.latest, 0) + 1))
        below = [epoch for epoch in self.epochs if epoch <= asked]
        expected = (-1, -1)
        if below:
            expected = (below[-1], min(len(below), end.offset))
        assert self.log.epoch_end(asked, end=end) == expected

    @invariant()
    def ends_agree(self) -> None:
        if self.ends:
            assert self.log.end == self.ends[-1]
            assert self.log.synced.offset == self.confirmed
            assert self.log.timestamp_max == (self.timestamp if self.records else -1)

    def teardown(self) -> None:
        if self.ends:
            assert read_records(self.log) == self.records
            assert sum(map(len, read_batches(self.log))) == self.log.size_bytes()


LogMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=40)
TestLog = LogMachine.TestCase
