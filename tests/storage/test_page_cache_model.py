"""Reads of a log whose pages leave the page cache and come back damaged, against a plain list."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
    run_state_machine_as_test,
)

from bascule.errors import BasculeError, CorruptData
from bascule.record.batch import scan_batches
from bascule.record.header import read_header
from bascule.sim.disk import PAGE_BYTES
from bascule.storage import partition_log as partition_log_module
from bascule.storage import segment as segment_module
from bascule.storage.index.trusted_file import Trust, TrustedFile, unchecked
from bascule.storage.partition_log import LogConfig, LogPosition, PartitionLog
from bascule.storage.segment import Contents
from support.paged_files import PagedFiles
from support.stored_batches import DIRECTORY, make_batch, open_log

HEADER_BYTES_UNCHECKED = (4, 5, 6, 6, 7, 7, 7, 12, 15)
"""Of base offset and leader epoch."""


class ReadMachine(RuleBasedStateMachine):
    """Reads, look-ups by time, appends, and passes of the scrubber, whose findings nobody heeds."""

    looks = True
    """Whether look-ups by time, loads of segments without indexes, and appends to a page that is
    not in the page cache happen."""
    gaps: tuple[int, ...] = (0,)

    def __init__(self) -> None:
        super().__init__()
        self.files = PagedFiles()
        self.batches: list[bytes] = []
        self.where: list[tuple[str, int]] = []
        """File and position of each batch."""
        self.log: PartitionLog
        self.at: LogPosition | None = None

    @initialize(segment_bytes_max=st.sampled_from((6_000, 20_000, 1 << 20)))
    def begin(self, segment_bytes_max: int) -> None:
        self.log = open_log(
            self.files,
            LogConfig(segment_bytes_max=segment_bytes_max, gaps_allowed=len(self.gaps) > 1),
        )

    @rule(
        data=st.data(),
        made=st.lists(
            st.tuples(st.integers(1, 8), st.sampled_from((20, 300, 1_200, 5_000))),
            min_size=1, max_size=12,
        ),
    )  # fmt: skip
    def append(self, data: st.DataObject, made: list[tuple[int, int]]) -> None:
        if not self.looks:
            self.files.away.clear()
            self.damage_is_gone()
        for count, size in made:
            gap = data.draw(st.sampled_from(self.gaps))
            batch = make_batch(self.log.end.offset + gap, count, size=size // count)
            self.log.append_as_follower(batch)
            end = self.log.end
            self.batches.append(batch)
            path = f"{DIRECTORY}/{end.segment_base:020d}.log"
            self.where.append((path, end.position - len(batch)))
        self.log.sync()

    def damage_is_gone(self) -> None:
        """The page cache has everything, as it was written."""
        for batch, (path, position) in zip(self.batches, self.where, strict=True):
            self.files._inode(path).data[position : position + 16] = batch[:16]
        for segment in self.log._segments.all:
            segment.trust = Trust(segment.base_offset, is_whole=True)
            if isinstance(segment.contents, Contents):
                segment.contents.file = TrustedFile(unchecked(segment.contents.file), segment.trust)

    @precondition(lambda self: self.batches)
    @rule(data=st.data(), count=st.integers(1, 3))
    def evict(self, data: st.DataObject, count: int) -> None:
        for _ in range(count):
            path, position = data.draw(st.sampled_from(self.where))
            self.files.evict(path, position // PAGE_BYTES)

    @precondition(lambda self: self.batches)
    @rule(data=st.data(), bit=st.integers(0, 7))
    def flip(self, data: st.DataObject, bit: int) -> None:
        row = data.draw(st.integers(0, len(self.where) - 1))
        path, position = self.where[row]
        byte = position + data.draw(st.sampled_from(HEADER_BYTES_UNCHECKED))
        self.files.evict(path, byte // PAGE_BYTES)
        self.files.flip(path, byte, 1 << bit)

    @precondition(lambda self: self.batches)
    @rule(steps=st.integers(1, 4), whole=st.booleans())
    def verify(self, steps: int, whole: bool) -> None:
        for _ in range(1_000 if whole else steps):
            try:
                self.at = self.log.verify(self.at)
            except CorruptData:
                self.at = None
                return
            if self.at is None:
                return

    @precondition(lambda self: self.batches)
    @rule(data=st.data(), bytes_max=st.sampled_from((1, 3_000, 1 << 20)), nowait=st.booleans())
    def read(self, data: st.DataObject, bytes_max: int, nowait: bool) -> None:
        headers = [read_header(batch) for batch in self.batches]
        offset = data.draw(st.integers(self.log.start_offset, max(self.log.end.offset - 1, 3)))
        if offset >= self.log.end.offset:
            return
        try:
            piece = self.log.plan_read(offset, bytes_max=bytes_max, end=self.log.end, nowait=nowait)
        except CorruptData:
            return
        if piece is None:
            assert nowait
            return
        if not piece.file.is_cached(piece.position, piece.position + piece.length):
            piece.load(piece.position, piece.position + piece.length)  # as the sender does
        got = piece.file.read_at(piece.position, piece.length)
        rest = [b for b, h in zip(self.batches, headers, strict=True) if h.end_offset > offset]
        found = [
            got[batch.start : batch.end]
            for batch in scan_batches(got, origin="", origin_position=0)
        ]
        assert found, "whole batches"
        assert found == rest[: len(found)]

    @precondition(lambda self: self.batches and self.looks)
    @rule(timestamp=st.sampled_from((0, 1_000, 2_000)), start=st.integers(0, 400))
    def look(self, timestamp: int, start: int) -> None:
        end = self.log.end
        try:
            self.log.advance_start(start, high_watermark=3)
            self.log.find_timestamp(timestamp, end=end)
            self.log.find_timestamp_max(end=end)
        except BasculeError:
            pass

    @precondition(lambda self: self.batches)
    @rule()
    def checkpoint(self) -> None:
        for _ in range(2):
            self.log.checkpoint(high_watermark=0)


class GapMachine(ReadMachine):
    """A scan of a segment without its indexes takes a damaged offset for a gap."""

    looks = False
    gaps = (0, 0, 0, 1, 8, 64)


@pytest.fixture(autouse=True)
def short_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partition_log_module, "VERIFY_BYTES", 5_000)
    monkeypatch.setattr(segment_module, "SCAN_BYTES", 7_000)


CHOSEN = settings(
    max_examples=60, stateful_step_count=30, deadline=None,
    suppress_health_check=list(HealthCheck),
)  # fmt: skip


@pytest.mark.parametrize("machine", [ReadMachine, GapMachine])
def test_reads_give_what_was_written_or_an_error(machine: type[ReadMachine]) -> None:

    run_state_machine_as_test(machine, settings=CHOSEN)
