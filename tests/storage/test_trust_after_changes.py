"""The trust in segments, and the checks without it, in logs that were truncated and compacted."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from bascule.errors import CorruptData
from bascule.record.batch import Record
from bascule.storage.compaction.run import Compaction, CompactionConfig
from bascule.storage.partition_log import LogConfig, LogPosition, PartitionLog
from bascule.storage.segment import segment_path
from support.keyed_logs import SECRET, Stored
from support.paged_files import PagedFiles
from support.stored_batches import DIRECTORY, append, make_batch, open_log


@pytest.fixture
def files() -> PagedFiles:
    return PagedFiles()


def truncate(log: PartitionLog) -> LogPosition:
    return log.truncate_to(6, 1, high_watermark=0)


def reset(log: PartitionLog) -> LogPosition:
    return log.start_at(100, 1)


@pytest.mark.parametrize("change", [truncate, reset])
def test_the_new_segment_is_trusted_no_longer_than_others(
    files: PagedFiles, change: Callable[[PartitionLog], LogPosition]
) -> None:
    """Its file is opened again, by its final name."""
    log = open_log(files)
    for _ in range(6):
        append(log, 2)
    start = change(log).offset
    append(log, 2, leader_epoch=1)
    second = log.end.position
    append(log, 2, leader_epoch=1)
    log.sync()
    files.evict(segment_path(DIRECTORY, start))
    files.flip(segment_path(DIRECTORY, start), second + 6, 4)
    log.plan_read(start + 1, bytes_max=1, end=log.end)  # brings the page from the disk
    with pytest.raises(CorruptData):
        log.plan_read(start, bytes_max=1 << 20, end=log.end)


def test_compaction_begins_in_a_gap_at_the_end_of_a_segment(files: PagedFiles) -> None:
    """A run ended after it had replaced the segment, and the log start is in the gap."""
    log = open_log(files, LogConfig(gaps_allowed=True))
    for offset, key in enumerate((b"a", b"b", b"b")):
        log.append(keyed(offset, key))
    log.roll()
    log.append(keyed(3, b"b"))
    log.roll()
    log.append(keyed(4, b"c"))
    log.sync()
    log.checkpoint(high_watermark=5)
    first = compaction(files, log)
    for _ in first.steps():
        if first.done.bytes_removed:
            break
    assert log.segments_info()[0].bytes == len(keyed(0, b"a"))
    log.advance_start(2, high_watermark=5)
    files.evict(segment_path(DIRECTORY, 0))
    second = compaction(files, log)
    for _ in second.steps():
        pass
    assert second.done.clean_offset == 4


def compaction(files: PagedFiles, log: PartitionLog) -> Compaction:
    config = CompactionConfig(1, 0)
    return Compaction(files, log, config, end_offset=4, now_ms=10_000, secret=SECRET)


def keyed(offset: int, key: bytes) -> bytes:
    return Stored((Record(offset, 1_000, key, b"x"),), offset + 1).encode()


def test_verify_gets_beyond_a_large_batch_before_a_gap(files: PagedFiles) -> None:
    """The step that begins in the gap begins at the entry of the index before the large batch."""
    log = open_log(files, LogConfig(gaps_allowed=True))
    log.append_as_follower(make_batch(0))
    log.append_as_follower(make_batch(1, size=9 << 20))
    log.append_as_follower(make_batch(5))
    log.sync()
    reached = log.verify()
    assert reached is not None
    assert reached.offset == 2
    assert log.verify(reached) is None
