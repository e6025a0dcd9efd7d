"""What comes from the disk again is checked again, whichever way it came into the page cache."""

from __future__ import annotations

import pytest

from bascule.errors import BasculeError, CorruptData
from bascule.record.batch import scan_batches
from bascule.record.header import read_header
from bascule.sim.disk import PAGE_BYTES
from bascule.storage import partition_log as partition_log_module
from bascule.storage import segment as segment_module
from bascule.storage.compaction.run import Compaction, CompactionConfig
from bascule.storage.partition_log import LogConfig, LogPosition, PartitionLog
from bascule.storage.segment import segment_path
from support.keyed_logs import SECRET
from support.paged_files import PagedFiles
from support.stored_batches import DIRECTORY, append, make_batch, open_log

Headers = list[tuple[int, int, int]]


PATH = segment_path(DIRECTORY, 0)


def consume(log: PartitionLog, offset: int, *, bytes_max: int = 1 << 20) -> Headers:
    """(base offset, end offset, epoch) of the batches that a consumer gets from `offset` on."""
    found: Headers = []
    while offset < log.end.offset:
        piece = log.plan_read(offset, bytes_max=bytes_max, end=log.end)
        assert piece is not None
        if not piece.length:
            break
        piece.file.load(piece.position, piece.position + piece.length)
        data = piece.file.read_at(piece.position, piece.length)
        for batch in scan_batches(data, origin="", origin_position=0):
            header = batch.header
            if header.end_offset > offset:
                found.append((header.base_offset, header.end_offset, header.leader_epoch))
                offset = header.end_offset
    return found


def check(log: PartitionLog, offset: int, good: Headers) -> None:
    """A consumer gets what is right, or an error."""
    try:
        found = consume(log, offset)
    except CorruptData:
        return
    assert found == good


@pytest.fixture
def files() -> PagedFiles:
    return PagedFiles()


def log_of_batches(
    files: PagedFiles, count: int, size: int, *, verifies: bool = True
) -> tuple[PartitionLog, list[int]]:
    """A log of batches of one record, which is checked; and their positions."""
    log, positions = open_log(files), []
    for _ in range(count):
        positions.append(log.end.position)
        append(log, 1, size=size)
    log.sync()
    if verifies:
        assert log.verify() is None
    return log, positions


def log_of_two(files: PagedFiles, count: int = 2) -> tuple[PartitionLog, int]:
    """A log of two batches, which is checked: of 2 records, and of `count`; where that begins."""
    log = open_log(files)
    append(log, 2)
    second = log.end.position
    append(log, count)
    log.sync()
    assert log.verify() is None
    return log, second


def damage(files: PagedFiles, byte: int, mask: int) -> None:
    """The whole log leaves the page cache, and the disk changes bits of one byte."""
    files.evict(PATH)
    files.flip(PATH, byte, mask)


def test_look_by_time_from_a_start_within_a_segment(files: PagedFiles) -> None:
    """`find_timestamp` walks from the beginning of the segment to the log start."""
    log, positions = log_of_batches(files, 40, 500)
    log.advance_start(30, high_watermark=40)
    good = [(n, n + 1, 0) for n in range(30, 40)]
    page = positions[30] // PAGE_BYTES
    at = next(p for p in positions[31:] if p // PAGE_BYTES == page)
    files.evict(PATH, page)
    files.flip(PATH, at + 6, 4)
    log.find_timestamp(1_000, end=log.end)
    check(log, 30, good)


def test_look_for_the_largest_time(files: PagedFiles) -> None:
    log, positions = log_of_batches(files, 40, 500)
    log.advance_start(5, high_watermark=40)
    at = positions[30]
    files.evict(PATH, at // PAGE_BYTES)
    files.flip(PATH, at + 6, 4)
    log.find_timestamp_max(end=log.end)
    check(log, 10, [(n, n + 1, 0) for n in range(10, 40)])


def test_look_by_time_reads_a_large_batch(files: PagedFiles) -> None:
    """`first_record` reads all of the batch, and the page where the next one begins."""
    log = open_log(files)
    append(log, 20, size=1_000, log_append_time=False)
    second = log.end.position
    append(log, 1, size=100)
    log.sync()
    assert log.verify() is None
    files.evict(PATH, second // PAGE_BYTES)
    files.flip(PATH, second + 6, 4)
    log.find_timestamp(1_019, end=log.end)
    check(log, 0, [(0, 20, 0), (20, 21, 0)])


def test_loading_a_segment_without_its_indexes(files: PagedFiles) -> None:
    """`Segment.load` scans the file without epochs."""
    log = open_log(files, LogConfig(segment_bytes_max=2_000))
    for _ in range(12):
        append(log, 1, size=400)
    log.sync()
    at = log.verify()
    while at is not None:
        at = log.verify(at)
    log.checkpoint(high_watermark=12)
    log.checkpoint(high_watermark=12)
    assert log._segments.all[0].contents is None
    assert log._segments.all[0].verified
    files.remove(PATH.replace(".log", ".index"))
    damage(files, 15, 4)
    check(log, 0, [(n, n + 1, 0) for n in range(12)])


def gappy(files: PagedFiles) -> tuple[PartitionLog, int]:
    """A large batch, a gap, a small one; and the position of that."""
    log = open_log(files, LogConfig(gaps_allowed=True))
    log.append_as_follower(make_batch(0, 8, size=1_500))
    at = log.end.position
    log.append_as_follower(make_batch(16, 2, size=100))
    log.append_as_follower(make_batch(64, 2, size=100))
    log.sync()
    assert log.verify() is None
    return log, at


def test_read_within_a_gap_behind_a_large_batch(files: PagedFiles) -> None:
    """The look-up walks from the index entry of the large batch, beyond `WALK_BYTES`."""
    log, at = gappy(files)
    files.evict(PATH, at // PAGE_BYTES)
    files.flip(PATH, at + 7, 8)  # 16 becomes 24
    check(log, 10, [(16, 18, 0), (64, 66, 0)])


def test_compaction_reads_a_segment_from_the_disk(files: PagedFiles) -> None:
    log, at = gappy(files)
    log.roll()
    log.append_as_follower(make_batch(70, 1))
    log.sync()
    log.checkpoint(high_watermark=71)
    damage(files, at + 7, 8)
    run = Compaction(
        files, log, CompactionConfig(1 << 20, 0), end_offset=70, now_ms=10_000, secret=SECRET
    )
    try:
        for _ in run.steps():
            pass
    except CorruptData:
        return
    check(log, 10, [(16, 18, 0), (64, 66, 0), (70, 71, 0)])


def test_truncation_by_a_header_from_the_disk(files: PagedFiles) -> None:
    """A base offset that became larger makes the look-up stop at an earlier batch."""
    log, positions = log_of_batches(files, 20, 100)
    damage(files, positions[12] + 6, 4)
    try:
        end = log.truncate_to(18, 1, high_watermark=15)
    except BasculeError:
        return
    assert end.offset == 18
    append(log, 2, leader_epoch=1)
    log.sync()
    check(log, 10, [*((n, n + 1, 0) for n in range(10, 18)), (18, 20, 1)])


def test_the_first_batch_of_a_read_may_begin_lower(files: PagedFiles) -> None:
    """`check_batch_headers` takes any base offset of the first batch with which it holds the
    offset of the read."""
    log, at = log_of_two(files, 6)  # the second has 2 to 7
    damage(files, at + 7, 2)  # 0 to 5
    check(log, 2, [(2, 8, 0)])


def test_the_first_batch_of_a_read_may_begin_lower_in_the_middle(files: PagedFiles) -> None:
    log = open_log(files)
    append(log, 2)
    at = log.end.position
    append(log, 6, size=2_000)
    append(log, 1, size=2_000)
    log.sync()
    assert log.verify() is None
    damage(files, at + 7, 2)
    try:
        piece = log.plan_read(4, bytes_max=100, end=log.end)
    except CorruptData:
        return
    assert piece is not None
    header = read_header(piece.file.read_at(piece.position, 61))
    assert header.base_offset == 2


def test_verify_ends_while_something_comes_from_the_disk(
    files: PagedFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last step of a pass gives back the trust that a read took away meanwhile."""
    monkeypatch.setattr(partition_log_module, "VERIFY_BYTES", 10_000)
    monkeypatch.setattr(segment_module, "SCAN_BYTES", 7_000)
    log, positions = log_of_batches(files, 12, 3_000, verifies=False)
    good = [(n, n + 1, 0) for n in range(12)]
    assert log.verify() is not None
    refused = 0

    def observe(data: memoryview) -> None:
        nonlocal refused
        if read_header(data).end_offset < 5 or refused:
            return
        page = positions[1] // PAGE_BYTES
        files.evict(PATH, page)
        files.flip(PATH, positions[1] + 6, 4)
        with pytest.raises(CorruptData):  # a consumer is told
            consume(log, 0)
        refused += 1

    at = log.verify()
    while at is not None:
        at = log.verify(at, observe)
    assert refused == 1
    check(log, 0, good)  # it asks again


def test_an_append_to_a_page_that_is_not_in_the_page_cache(files: PagedFiles) -> None:
    """The kernel reads the page to write a part of it."""
    log, at = log_of_two(files)
    damage(files, at + 6, 4)
    append(log, 2)
    check(log, 0, [(0, 2, 0), (2, 4, 0), (4, 6, 0)])


def test_verify_skips_a_batch_where_it_goes_on(
    files: PagedFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a log with gaps the look-up for the position does not check the headers that it skips."""
    monkeypatch.setattr(partition_log_module, "VERIFY_BYTES", 1)
    monkeypatch.setattr(segment_module, "SCAN_BYTES", 1_000)
    log = open_log(files, LogConfig(gaps_allowed=True))
    offset, where = 0, {}
    for count in (8, 8, 8, 8, 8, 8):
        where[offset] = log.end.position
        log.append_as_follower(make_batch(offset, count, size=100))
        offset += count + (64 if offset == 24 else 0)
    log.sync()
    log.close()
    log = open_log(files, LogConfig(gaps_allowed=True))
    at = log.verify()
    while at is not None and at.offset < 24:
        at = log.verify(at)
    at = LogPosition(24, 0, where[24])
    files.evict(PATH, 0)
    files.flip(PATH, where[24] + 7, 16)  # 24 becomes 8
    try:
        while at is not None:
            at = log.verify(at)
    except CorruptData:
        return
    check(log, 24, [(24, 32, 0), (96, 104, 0), (104, 112, 0)])


def test_damage_that_the_scrubber_finds_is_not_trusted(files: PagedFiles) -> None:
    """It has brought the page into the page cache."""
    log, at = log_of_two(files)
    damage(files, at + 6, 4)
    with pytest.raises(CorruptData):
        log.verify()
    check(log, 0, [(0, 2, 0), (2, 4, 0)])


def test_compaction_reads_what_it_leaves_as_it_is(files: PagedFiles) -> None:
    """The leader epochs of a segment, none of whose records it removes, where it has no gap."""
    log = open_log(files)
    append(log, 2)
    at = log.end.position
    append(log, 1)
    log.roll()
    append(log, 1)
    log.sync()
    log.checkpoint(high_watermark=4)
    damage(files, at + 6, 4)
    config = CompactionConfig(1, 0)
    run = Compaction(files, log, config, end_offset=3, now_ms=10_000, secret=SECRET)
    with pytest.raises(CorruptData):
        for _ in run.steps():
            pass
    check(log, 0, [(0, 2, 0), (2, 3, 0), (3, 4, 0)])
