"""A log under random operations against a model, a plain list."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from bascule.errors import FencedEpoch, OffsetOutOfRange
from bascule.host.real import RealRandom
from bascule.record.batch import Record, RecordBatch
from bascule.record.header import BatchHeader, read_header
from bascule.sim.disk import SimFiles
from bascule.storage.partition_log import LogConfig, LogPosition, PartitionLog
from support.keyed_logs import held_batches
from support.stored_batches import make_batch, open_log

COUNT = st.integers(1, 5)
SIZE = st.sampled_from((0, 30, 500, 5_000))
LATER = st.integers(0, 3)
NEW_EPOCH = st.sampled_from((0, 0, 0, 1, 2))
GAP = st.sampled_from((0, 0, 0, 1, 7))


class LogMachine(RuleBasedStateMachine):
    """The log of a replica, which is leader and follower in turn."""

    files: SimFiles
    config: LogConfig
    log: PartitionLog

    def __init__(self) -> None:
        super().__init__()
        self.batches: list[bytes] = []
        self.ends: list[LogPosition] = []
        """Former ends of the log that a reader may still use."""
        self.epochs: list[tuple[int, int]] = []
        """(epoch, first offset) of each epoch that the log knows."""
        self.start = 0
        self.end = 0
        self.confirmed = 0
        self.high_watermark = 0
        self.fence = 0
        self.timestamp = 1_000

    @initialize(
        segment_bytes_max=st.integers(200, 20_000), index_interval_bytes=st.integers(1, 5_000)
    )
    def begin(self, segment_bytes_max: int, index_interval_bytes: int) -> None:
        self.files = SimFiles(RealRandom(1))
        self.config = LogConfig(
            segment_bytes_max=segment_bytes_max, index_interval_bytes=index_interval_bytes
        )
        self.log = open_log(self.files, self.config)
        self.ends.append(self.log.end)

    @property
    def headers(self) -> list[BatchHeader]:
        return [read_header(batch) for batch in self.batches]

    @property
    def records(self) -> list[Record]:
        return [record for batch in self.batches for record in RecordBatch(batch)]

    @property
    def latest(self) -> int:
        return self.epochs[-1][0] if self.epochs else 0

    def make(
        self, offset: int, epoch: int, *, count: int, size: int, later: int, append_time: bool
    ) -> bytes:
        self.timestamp += later
        batch = make_batch(
            offset, count, timestamp=self.timestamp, size=size, leader_epoch=epoch,
            log_append_time=append_time,
        )  # fmt: skip
        self.timestamp = read_header(batch).max_timestamp
        return batch

    def on_appended(self, batch: bytes) -> None:
        header = read_header(batch)
        self.batches.append(batch)
        if not self.epochs or header.leader_epoch > self.latest:
            # A gap before it counts as records of the later epoch.
            self.epochs = [e for e in self.epochs if e[1] < self.end]
            self.epochs.append((header.leader_epoch, self.end))
        self.end = header.end_offset

    @rule(count=COUNT, size=SIZE, later=LATER, append_time=st.booleans(), new_epoch=NEW_EPOCH)
    def append(self, count: int, size: int, later: int, append_time: bool, new_epoch: int) -> None:
        epoch = max(self.latest, self.fence) + new_epoch
        batch = self.make(
            self.end, epoch, count=count, size=size, later=later, append_time=append_time
        )
        self.log.append(batch)
        self.on_appended(batch)
        self.ends.append(self.log.end)

    @rule(
        data=st.lists(
            st.tuples(COUNT, SIZE, LATER, st.booleans(), NEW_EPOCH, GAP), min_size=1, max_size=6
        )
    )
    def append_as_follower(self, data: list[tuple[int, int, int, bool, int, int]]) -> None:
        offset, epoch, made = self.end, self.latest, []
        for count, size, later, append_time, new_epoch, gap in data:
            epoch += new_epoch
            made.append(
                self.make(
                    offset + gap, epoch,
                    count=count, size=size, later=later, append_time=append_time,
                )
            )  # fmt: skip
            offset = read_header(made[-1]).end_offset
        self.log.append_as_follower(b"".join(made))
        for batch in made:
            self.on_appended(batch)
        self.ends.append(self.log.end)

    @rule(data=st.data(), newer=st.integers(0, 2))
    def truncate(self, data: st.DataObject, newer: int) -> None:
        """To a boundary, into a batch, into a gap, or beyond the end, which changes nothing."""
        offset = data.draw(st.integers(max(self.high_watermark, self.start), self.end + 2))
        epoch = max(self.latest, self.fence) + newer
        inside = next((h for h in self.headers if h.base_offset < offset < h.end_offset), None)
        end = min(offset if inside is None else inside.base_offset, self.end)
        self.fence = epoch
        if end < max(self.high_watermark, self.start):
            with pytest.raises(OffsetOutOfRange):
                self.log.truncate_to(offset, epoch, high_watermark=self.high_watermark)
            self.confirmed = self.end
            return
        found = self.log.truncate_to(offset, epoch, high_watermark=self.high_watermark)
        assert found.offset == end
        self.batches = [
            b for b, h in zip(self.batches, self.headers, strict=True) if h.end_offset <= end
        ]
        self.epochs = [e for e in self.epochs if e[1] < end]
        if end < self.end:
            times = [header.max_timestamp for header in self.headers]
            assert self.log.timestamp_max == max(times, default=-1)
        self.end = self.confirmed = end
        self.timestamp = max([1_000, *(h.max_timestamp for h in self.headers)])
        self.ends = [e for e in self.ends if e.offset <= end] + [found]
        if epoch:
            with pytest.raises(FencedEpoch):
                self.log.truncate_to(0, epoch - 1, high_watermark=0)
            with pytest.raises(FencedEpoch):
                self.log.append(make_batch(end, leader_epoch=epoch - 1))

    @rule(offset=st.integers(0, 300))
    def start_at(self, offset: int) -> None:
        epoch = max(self.latest, self.fence)
        assert self.log.start_at(offset, epoch) == (offset, offset, 0)
        self.batches, self.epochs, self.fence = [], [], epoch
        self.start = self.end = self.confirmed = self.high_watermark = offset
        self.timestamp = 1_000
        self.ends = [self.log.end]

    @rule()
    def sync(self) -> None:
        assert self.log.sync() == self.log.end
        self.confirmed = self.end

    @rule(data=st.data())
    def checkpoint(self, data: st.DataObject) -> None:
        self.high_watermark = data.draw(st.integers(self.high_watermark, self.confirmed))
        self.log.checkpoint(high_watermark=self.high_watermark)
        assert self.log.checkpointed_high_watermark == self.high_watermark

    @rule()
    def advance_start(self) -> None:
        self.log.advance_start(self.high_watermark, high_watermark=self.high_watermark)
        self.start = max(self.start, min(self.high_watermark, self.confirmed))
        bases = [info.base_offset for info in self.log.segments_info()]
        self.batches = [
            b for b, h in zip(self.batches, self.headers, strict=True) if h.base_offset >= bases[0]
        ]
        self.ends = [end for end in self.ends if end.offset >= self.start]

    @rule()
    def reopen(self) -> None:
        self.log.close()
        self.open_again()

    @rule()
    def kill(self) -> None:
        """The process dies and the machine does not, so all written bytes are there."""
        self.open_again()

    def open_again(self) -> None:
        self.log = open_log(self.files, self.config)
        self.confirmed = self.end
        self.fence = 0

    @precondition(lambda self: self.batches)
    @rule(data=st.data(), bytes_max=st.sampled_from((1, 100, 3_000, 1 << 20)))
    def read(self, data: st.DataObject, bytes_max: int) -> None:
        end = data.draw(st.sampled_from(self.ends))
        offset = data.draw(st.integers(self.start, end.offset))
        piece = self.log.plan_read(offset, bytes_max=bytes_max, end=end)
        assert piece is not None
        read = piece.file.read_at(piece.position, piece.length)
        assert len(read) == piece.length
        expected = next(
            (
                b
                for b, h in zip(self.batches, self.headers, strict=True)
                if offset < h.end_offset <= end.offset
            ),
            b"",
        )
        if offset == end.offset or not expected:
            assert piece.length == 0
            return
        assert read[: len(expected)] == expected[: len(read)]
        assert len(expected) <= piece.length <= max(bytes_max, len(expected))

    @rule(data=st.data())
    def find_time(self, data: st.DataObject) -> None:
        end = data.draw(st.sampled_from(self.ends))
        timestamp = data.draw(st.integers(999, self.timestamp + 1))
        below = [r for r in self.records if self.start <= r.offset < end.offset]
        expected = next(((r.offset, r.timestamp) for r in below if r.timestamp >= timestamp), None)
        assert self.log.find_timestamp(timestamp, end=end) == expected
        latest = max(((r.timestamp, -r.offset) for r in below), default=None)
        found = self.log.find_timestamp_max(end=end)
        assert found == (None if latest is None else (-latest[1], latest[0]))

    @rule(data=st.data())
    def find_epoch(self, data: st.DataObject) -> None:
        end = data.draw(st.sampled_from(self.ends))
        asked = data.draw(st.integers(0, self.latest + 1))
        known = [row for row, epoch in enumerate(self.epochs) if epoch[0] <= asked]
        expected = (-1, -1)
        if known:
            after = self.epochs[known[-1] + 1 :]
            expected = (
                self.epochs[known[-1]][0],
                min(after[0][1] if after else end.offset, end.offset),
            )
        assert self.log.epoch_end(asked, end=end) == expected

    @invariant()
    def ends_agree(self) -> None:
        if self.ends:
            assert self.log.end.offset == self.end
            assert self.log.start_offset == self.start
            assert self.log.synced.offset == self.confirmed
            assert self.log.checkpointed_high_watermark <= self.end
            assert [tuple(e) for e in self.log.epochs.entries] == self.epochs

    def teardown(self) -> None:
        if self.ends:
            held = [
                b
                for b, h in zip(self.batches, self.headers, strict=True)
                if h.end_offset > self.start
            ]
            assert held_batches(self.log) == held
            assert sum(map(len, self.batches)) == self.log.size_bytes()
            at = self.log.verify()
            while at is not None:
                at = self.log.verify(at)


LogMachine.TestCase.settings = settings(max_examples=100, stateful_step_count=40)
TestLog = LogMachine.TestCase
