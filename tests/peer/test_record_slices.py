"""What one response to a follower has of several segments, whatever changes between look-ups."""

from __future__ import annotations

from typing import Any

import pytest

from bascule.host.real import RealRandom
from bascule.peer.record_slices import plan_records
from bascule.record.batch import scan_batches
from bascule.sim.disk import SimFiles
from bascule.storage.appended_batches import split_for_segments
from bascule.storage.compaction.run import Compaction, CompactionConfig
from bascule.storage.partition_log import FileSlice, LogConfig, PartitionLog
from bascule.storage.segment import FileSlices
from bascule.storage.segments import Segments
from support.keyed_logs import SECRET
from support.stored_batches import append, open_log

SMALL = LogConfig(segment_bytes_max=150)


def spans(piece: FileSlice | FileSlices | None) -> list[tuple[int, int, int]]:
    """(base offset, end offset, epoch) of all whole batches."""
    assert piece is not None
    slices = piece.slices if isinstance(piece, FileSlices) else (piece,)
    data = b"".join(each.file.read_at(each.position, each.length) for each in slices)
    found = [batch.header for batch in scan_batches(data, origin="", origin_position=0)]
    return [(h.base_offset, h.end_offset, h.leader_epoch) for h in found]


def offsets_of(piece: FileSlice | FileSlices | None) -> list[int]:
    return [base for base, _, _ in spans(piece)]


@pytest.fixture
def files() -> SimFiles:
    return SimFiles(RealRandom(1))


def small_segments(files: SimFiles, count: int = 12) -> PartitionLog:
    log = open_log(files, SMALL)
    for _ in range(count):
        append(log, 1, size=80)
    assert len(log.segments_info()) == count
    log.sync()
    log.checkpoint(high_watermark=count)
    return log


def merge(files: SimFiles, log: PartitionLog, end_offset: int) -> None:
    """A compaction that removes nothing, as no record has a key, and merges small segments."""
    config = CompactionConfig(segment_bytes_max=700, tombstone_retention_ms=0)
    run = Compaction(files, log, config, end_offset=end_offset, now_ms=10_000, secret=SECRET)
    for _ in run.steps():
        pass


@pytest.mark.parametrize(("nowait", "end"), [(True, 4), (False, 11)])
def test_segments_that_are_merged_during_a_look_up(
    files: SimFiles, monkeypatch: pytest.MonkeyPatch, nowait: bool, end: int
) -> None:
    """The slice is of the old segment, and what follows is behind the merged one."""
    log = small_segments(files)
    find = Segments._find
    at_least = [log]
    for info in log.segments_info():  # as after other reads
        log.plan_read(info.base_offset, bytes_max=1, end=log.end)

    def found(self: Segments, offset: int, **more: Any) -> Any:
        result = find(self, offset, **more)
        if at_least:
            at_least.clear()
            merge(files, log, end)
        return result

    monkeypatch.setattr(Segments, "_find", found)
    piece = plan_records(log, 0, bytes_max=1 << 20, end=log.end, nowait=nowait)
    assert not at_least
    offsets = offsets_of(piece)
    assert offsets == list(range(len(offsets)))


def test_a_truncation_between_two_slices(files: SimFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was truncated, and what was appended behind it, must not make one response."""
    log = small_segments(files)
    plan, calls = log.plan_read, 0

    def planned(offset: int, **more: Any) -> FileSlice | None:
        nonlocal calls
        calls += 1
        if calls == 3:
            log.truncate_to(1, 3, high_watermark=0)
            for _ in range(12):
                append(log, 1, size=80, leader_epoch=3)
        return plan(offset, **more)

    monkeypatch.setattr(log, "plan_read", planned)
    piece = plan_records(log, 0, bytes_max=1 << 20, end=log.end)
    now = [(n, n + 1, 0 if n < 1 else 3) for n in range(13)]
    old = [(n, n + 1, 0) for n in range(12)]
    found = spans(piece)
    assert found in (now[: len(found)], old[: len(found)])


def test_what_a_follower_appends_is_within_the_limits_of_a_segment(files: SimFiles) -> None:
    """A response is one write to one segment."""
    config = LogConfig(segment_bytes_max=1_000, segment_messages_max=10)
    log = open_log(files, config)
    for _ in range(60):
        append(log, 1, size=80)
    other = SimFiles(RealRandom(2))
    copy = open_log(other, config)
    while copy.end.offset < log.end.offset:
        piece = plan_records(log, copy.end.offset, bytes_max=1 << 20, end=log.end)
        assert piece is not None
        slices = piece.slices if isinstance(piece, FileSlices) else (piece,)
        data = b"".join(each.file.read_at(each.position, each.length) for each in slices)
        for part in split_for_segments(memoryview(data), config):
            copy.append_as_follower(part)
    assert max(info.bytes for info in copy.segments_info()) <= 1_000
    assert max(info.end_offset - info.base_offset for info in copy.segments_info()) <= 10


def test_nothing_is_sent_beyond_the_end(files: SimFiles) -> None:
    """The segment of `end` was merged into an earlier one."""
    log = small_segments(files, 6)
    end = log.end  # in the last segment, which is closed and merged before the read
    for _ in range(6):
        append(log, 1, size=80)
    log.sync()
    log.checkpoint(high_watermark=12)
    merge(files, log, 11)
    assert all(
        stop <= end.offset for _, stop, _ in spans(plan_records(log, 0, bytes_max=1 << 20, end=end))
    )
