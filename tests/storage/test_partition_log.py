"""The calls of PartitionLog on the simulated disk."""

from __future__ import annotations

import errno
from collections.abc import Callable

import pytest

from bascule.errors import (
    Closed,
    CorruptData,
    FencedEpoch,
    LogFailed,
    OffsetOutOfRange,
    UnexpectedOffset,
)
from bascule.host.real import RealRandom
from bascule.sim.disk import SHORT, SimFiles
from bascule.storage.partition_log import LogConfig, LogPosition, PartitionLog
from bascule.storage.segment import INDEX_INTERVAL_BYTES, FileSlice
from support.stored_batches import (
    DIRECTORY,
    append,
    make_batch,
    open_log,
    put,
    read_batches,
    read_records,
)

SMALL = LogConfig(segment_bytes_max=1_000)


@pytest.fixture
def files() -> SimFiles:
    return SimFiles(RealRandom(1))


def test_a_new_log_is_empty(files: SimFiles) -> None:
    log = open_log(files)
    assert log.end == log.synced == LogPosition(0, 0, 0)
    assert log.start_offset == 0
    assert log.timestamp_max == -1
    assert log.size_bytes() == 0
    assert read_batches(log) == []
    assert log.find_timestamp(0, end=log.end) is None
    assert log.find_timestamp_max(end=log.end) is None
    assert log.epoch_end(5, end=log.end) == (-1, -1)
    assert log.verify() is None


def test_appended_batches_read_back(files: SimFiles) -> None:
    log = open_log(files)
    batches = [append(log, count) for count in (1, 5, 2)]
    assert log.end.offset == 8
    assert log.end.position == log.size_bytes() == sum(map(len, batches))
    assert read_batches(log) == batches
    assert [record.offset for record in read_records(log, 3)] == list(range(1, 8))


def test_append_returns_the_new_end(files: SimFiles) -> None:
    log = open_log(files)
    batch = make_batch(0, 3)
    assert put(log, batch) == log.end == LogPosition(3, 0, len(batch))


def test_append_refuses_batches_that_do_not_continue_the_log(files: SimFiles) -> None:
    log = open_log(files)
    append(log, 3, leader_epoch=2)
    before, operations = log.end, len(files.operations)
    batch = make_batch(3, 2, leader_epoch=2)
    wrong_offsets = [make_batch(offset, 2, leader_epoch=2) for offset in (0, 2, 4)]
    for other in wrong_offsets:
        with pytest.raises(UnexpectedOffset, match="the log ends at offset 3"):
            put(log, other)
    with pytest.raises(FencedEpoch, match="epoch 1 is fenced: the current epoch is 2"):
        put(log, make_batch(3, 2, leader_epoch=1))
    broken = [
        batch[:60], batch[:-1], batch + b"\0", batch + batch, b"",
        batch[:16] + b"\1" + batch[17:], batch[:23] + b"\xff" + batch[24:],
    ]  # fmt: skip
    for data in broken:
        with pytest.raises(CorruptData, match=f"a batch for {DIRECTORY}"):
            put(log, data)
    assert log.end == before
    assert len(files.operations) == operations, "nothing reached the disk"
    assert put(log, batch).offset == 5


def test_sync_returns_the_end_of_earlier_appends(files: SimFiles) -> None:
    log = open_log(files)
    append(log)
    assert log.synced.offset == 0
    assert log.sync() == log.synced == log.end
    done = len(files.operations)
    assert log.sync() == log.end
    assert len(files.operations) == done, "nothing to sync costs no call"


def test_a_full_segment_is_rolled(files: SimFiles) -> None:
    log = open_log(files, SMALL)
    batches = [append(log, 1, size=400) for _ in range(5)]
    assert read_batches(log) == batches
    names = [n for n in files.list_dir(DIRECTORY) if n.endswith(".log")]
    assert names == [f"{base:020d}.log" for base in (0, 2, 4)]
    assert log.size_bytes() == sum(map(len, batches))
    assert log.sync() == log.end


def test_a_batch_larger_than_a_segment_has_its_own_segment(files: SimFiles) -> None:
    log = open_log(files, SMALL)
    batches = [append(log, 1, size=size) for size in (50, 5_000, 5_000, 50)]
    assert read_batches(log, bytes_max=10) == batches
    assert sum(n.endswith(".log") for n in files.list_dir(DIRECTORY)) == 4


def test_an_old_segment_is_rolled_by_the_timestamps_of_its_records(files: SimFiles) -> None:
    config = LogConfig(segment_age_ms_max=100)
    log = open_log(files, config)
    for timestamp in (1_000, 1_050, 1_099):
        append(log, timestamp=timestamp)
    assert log.end.segment_base == 0
    log.close()
    log = open_log(files, config)
    append(log, timestamp=1_100)
    assert log.end.segment_base == 3
    append(log, timestamp=1_150)
    assert log.end.segment_base == 3


def test_reads_begin_at_the_batch_that_holds_the_offset(files: SimFiles) -> None:
    log = open_log(files)
    first, second = append(log, 10), append(log, 10)
    piece = log.plan_read(15, bytes_max=1_000_000, end=log.end)
    assert piece is not None
    assert (piece.position, piece.length) == (len(first), len(second))


def test_a_read_contains_its_first_batch_as_a_whole(files: SimFiles) -> None:
    log = open_log(files)
    first = append(log, 10)
    append(log, 10)
    for bytes_max in (1, 61, len(first) - 1):
        piece = log.plan_read(0, bytes_max=bytes_max, end=log.end)
        assert piece is not None
        assert piece.length == len(first)
    piece = log.plan_read(0, bytes_max=len(first) + 7, end=log.end)
    assert piece is not None
    assert piece.length == len(first) + 7


def test_a_read_ends_with_a_batch_that_the_index_knows(files: SimFiles) -> None:
    log = open_log(files)
    sizes = [len(append(log, 10, size=1_000)) for _ in range(5)]
    assert sizes[0] > LogConfig(1).index_interval_bytes
    for batches in (1, 2, 4):
        for bytes_max in (sum(sizes[:batches]), sum(sizes[: batches + 1]) - 1):
            piece = log.plan_read(0, bytes_max=bytes_max, end=log.end)
            assert piece is not None
            assert piece.length == sum(sizes[:batches])
    rest = log.plan_read(25, bytes_max=sum(sizes[2:4]) + 5, end=log.end)
    assert rest is not None
    assert (rest.position, rest.length) == (sum(sizes[:2]), sum(sizes[2:4]))


def test_a_read_of_small_batches_ends_at_most_an_index_interval_early(files: SimFiles) -> None:
    log = open_log(files)
    for _ in range(500):
        append(log, 3)
    for bytes_max in range(10_000, 20_000, 333):
        piece = log.plan_read(0, bytes_max=bytes_max, end=log.end)
        assert piece is not None
        assert bytes_max - 2 * LogConfig(1).index_interval_bytes < piece.length <= bytes_max


def test_reads_stop_at_the_end_they_are_given(files: SimFiles) -> None:
    log = open_log(files, SMALL)
    append(log, 2, size=100)
    watermark = log.end
    append(log, 2, size=100)
    append(log, 2, size=400)
    piece = log.plan_read(0, bytes_max=1_000_000, end=watermark)
    assert piece is not None
    assert piece.length == watermark.position
    at_end = log.plan_read(watermark.offset, bytes_max=1_000_000, end=watermark)
    assert at_end is not None
    assert at_end.length == 0
    with pytest.raises(OffsetOutOfRange) as caught:
        log.plan_read(watermark.offset + 1, bytes_max=1, end=watermark)
    assert (caught.value.start, caught.value.end) == (0, watermark.offset)
    with pytest.raises(OffsetOutOfRange):
        log.plan_read(-1, bytes_max=1, end=watermark)


def test_an_end_in_an_earlier_segment(files: SimFiles) -> None:
    log = open_log(files, SMALL)
    append(log, 2, size=400)
    watermark = log.end
    append(log, 2, size=400)
    at_end = log.plan_read(watermark.offset, bytes_max=100, end=watermark)
    assert at_end is not None
    assert at_end.length == 0


def test_one_small_read_finds_an_offset(files: SimFiles) -> None:
    log = open_log(files)
    for _ in range(500):
        append(log, 3)
    for offset in range(0, 1_500, 7):
        before = len(files.operations)
        piece = log.plan_read(offset, bytes_max=1 << 20, end=log.end)
        assert piece is not None
        reads = files.operations[before:]
        assert len(reads) <= 1, reads
        assert piece.file.read_at(piece.position, 8) == (offset - offset % 3).to_bytes(8, "big")


def test_nowait_returns_none_instead_of_waiting_for_the_disk(files: SimFiles) -> None:
    log = open_log(files)
    for _ in range(100):
        append(log, 3)
    files.cold = True
    assert log.plan_read(7, bytes_max=1 << 20, end=log.end, nowait=True) is None
    assert log.plan_read(7, bytes_max=1 << 20, end=log.end) is not None
    assert log.plan_read(0, bytes_max=1, end=log.end, nowait=True) is None
    whole = log.plan_read(0, bytes_max=1 << 20, end=log.end, nowait=True)
    assert whole is None, "the headers of what comes from the disk are checked"
    files.cold = False
    log.sync()
    assert log.verify() is None
    before = len(files.operations)
    assert log.plan_read(0, bytes_max=1 << 20, end=log.end, nowait=True) is not None
    assert len(files.operations) == before, "an index entry and room for the batch need no read"


def test_nowait_does_not_load_segments(files: SimFiles) -> None:
    log = open_log(files, SMALL)
    for _ in range(5):
        append(log, 1, size=400)
    log.close()
    log = open_log(files, SMALL)
    assert log.plan_read(0, bytes_max=100, end=log.end, nowait=True) is None
    assert log.plan_read(0, bytes_max=100, end=log.end) is not None
    assert log.plan_read(0, bytes_max=100, end=log.end, nowait=True) is not None


def test_timestamps_are_found(files: SimFiles) -> None:
    log = open_log(files, LogConfig(segment_bytes_max=20_000))
    for n in range(500):
        append(log, 3, timestamp=1_000 + n // 2)
    assert log.find_timestamp(0, end=log.end) == (0, 1_000)
    assert log.find_timestamp(1_000, end=log.end) == (0, 1_000)
    for timestamp in range(1_001, 1_250):
        assert log.find_timestamp(timestamp, end=log.end) == ((timestamp - 1_000) * 6, timestamp)
    assert log.find_timestamp(1_250, end=log.end) is None
    assert log.find_timestamp_max(end=log.end) == (498 * 3, 1_249)


def test_a_segment_with_known_timestamps_is_not_opened(files: SimFiles) -> None:
    log = open_log(files, SMALL)
    for n in range(30):
        append(log, 1, size=700, timestamp=1_000 + n)
    log.close()
    log = open_log(files, SMALL)
    assert log.find_timestamp(1_029, end=log.end) == (29, 1_029)
    before = len(files.operations)
    assert log.find_timestamp(1_029, end=log.end) == (29, 1_029)
    assert log.find_timestamp_max(end=log.end) == (29, 1_029)
    assert not [line for line in files.operations[before:] if line.startswith("open")]


def test_timestamps_below_an_end(files: SimFiles) -> None:
    log = open_log(files, LogConfig(segment_bytes_max=20_000))
    ends = []
    for n in range(300):
        append(log, 3, timestamp=1_000 + n)
        ends.append(log.end)
    for n in (0, 1, 2, 50, 137, 138, 139, 140, 141, 142, 200, 298):
        assert log.find_timestamp_max(end=ends[n]) == (n * 3, 1_000 + n)
        assert log.find_timestamp(1_000 + n + 1, end=ends[n]) is None
        assert log.find_timestamp(1_000 + n, end=ends[n]) == (n * 3, 1_000 + n)


def test_timestamps_of_single_records(files: SimFiles) -> None:
    log = open_log(files)
    append(log, 5, timestamp=100, log_append_time=False)
    append(log, 5, timestamp=200, log_append_time=False)
    assert log.find_timestamp(102, end=log.end) == (2, 102)
    assert log.find_timestamp(105, end=log.end) == (5, 200)
    assert log.find_timestamp_max(end=log.end) == (9, 204)


def test_timestamps_out_of_order_between_segments(files: SimFiles) -> None:
    log = open_log(files, SMALL)
    for timestamp in (500, 900, 300, 100, 700):
        append(log, 1, timestamp=timestamp, size=900)
    assert log.find_timestamp(600, end=log.end) == (1, 900)
    assert log.find_timestamp(901, end=log.end) is None
    assert log.find_timestamp_max(end=log.end) == (1, 900)
    assert log.timestamp_max == 900


def test_leader_epochs_are_kept(files: SimFiles) -> None:
    log = open_log(files)
    for epoch in (0, 0, 3, 4, 4):
        append(log, 10, leader_epoch=epoch)
    for log_again in (log, None):
        if log_again is None:
            log.close()
            log = open_log(files)
        assert log.epoch_end(0, end=log.end) == (0, 20)
        assert log.epoch_end(2, end=log.end) == (0, 20)
        assert log.epoch_end(3, end=log.end) == (3, 30)
        assert log.epoch_end(9, end=log.end) == (4, 50)
        assert log.epoch_end(-1, end=log.end) == (-1, -1)
        assert log.epochs.latest == 4


def test_a_closed_log_opens_without_a_scan(files: SimFiles) -> None:
    log = open_log(files, SMALL)
    for n in range(20):
        append(log, 1, size=300, timestamp=n)
    log.sync()
    log.checkpoint(high_watermark=17)
    log.close()
    before = len(files.operations)
    again = open_log(files, SMALL)
    assert again.end == again.synced == log.end
    assert again.timestamp_max == 19
    assert again.checkpointed_high_watermark == 17
    reads = [o for o in files.operations[before:] if o.startswith("read ") and " at " in o]
    assert len(reads) <= 1, "the first header of the last segment, for its age"
    assert read_batches(again) == [make_batch(n, 1, size=300, timestamp=n) for n in range(20)]


def test_an_idle_log_opens_with_few_calls(files: SimFiles) -> None:
    open_log(files).close()
    before = len(files.operations)
    open_log(files)
    assert len(files.operations) - before <= 10


def test_an_unchanged_checkpoint_is_not_written(files: SimFiles) -> None:
    log = open_log(files)
    append(log)
    log.sync()
    log.checkpoint(high_watermark=1)
    before = len(files.operations)
    log.checkpoint(high_watermark=1)
    assert len(files.operations) == before


def test_few_segments_stay_open(files: SimFiles) -> None:
    log = open_log(files, SMALL)
    for _ in range(40):
        append(log, 1, size=700)
    log.sync()
    for _ in range(2):
        log.checkpoint(high_watermark=40)
    segments = log._segments.all
    assert [s.base_offset for s in segments if s.contents] == [39]
    read_batches(log)
    assert sum(s.contents is not None for s in segments) <= 5
    log.checkpoint(high_watermark=40)
    log.checkpoint(high_watermark=40)
    assert [s.base_offset for s in segments if s.contents] == [39]
    assert len(read_batches(log)) == 40


def test_a_failed_append_leaves_the_log_unchanged(files: SimFiles) -> None:
    log = open_log(files)
    first = append(log)
    for error in (errno.EIO, errno.ENOSPC, SHORT):
        files.fail(1, error)
        with pytest.raises(OSError):
            append(log, 3, size=10_000)
        assert log.failure is None
        assert log.end == LogPosition(1, 0, len(first))
        assert files.size(f"{DIRECTORY}/{0:020d}.log") == len(first)
    second = append(log)
    assert read_batches(log) == [first, second]


def test_an_append_that_cannot_be_undone_stops_the_log(files: SimFiles) -> None:
    log = open_log(files)
    first = append(log)
    log.sync()
    files.fail(1, SHORT)
    files.fail(2, errno.EIO)
    with pytest.raises(LogFailed, match="undoing it failed"):
        append(log, 3, size=10_000)
    assert log.failure is not None
    with pytest.raises(LogFailed):
        append(log)
    log.close()
    assert read_batches(open_log(files)) == [first]


def test_a_failed_sync_stops_the_log_for_good(files: SimFiles) -> None:
    log = open_log(files)
    append(log)
    files.fail(1, errno.EIO)
    with pytest.raises(LogFailed, match="sync failed"):
        log.sync()
    for call in (
        log.sync,
        lambda: append(log),
        lambda: log.checkpoint(high_watermark=0),
        lambda: log.plan_read(0, bytes_max=1, end=log.end),
        lambda: log.find_timestamp(0, end=log.end),
        lambda: log.find_timestamp_max(end=log.end),
        log.verify,
    ):
        with pytest.raises(LogFailed):
            call()
    assert log.synced.offset == 0
    before = len(files.operations)
    log.close()
    assert len(files.operations) == before, "a stopped log is let go of as it is"


def test_reopening_after_a_failed_sync_writes_the_bytes_again() -> None:
    """After a failed sync the kernel treats lost pages as written, so opening writes them again."""
    for seed in range(50):
        files = SimFiles(RealRandom(seed))
        log = open_log(files)
        batch = append(log, 5, size=9_000)
        files.fail(1, errno.EIO)
        with pytest.raises(LogFailed):
            log.sync()
        log = open_log(files)
        assert log.synced.offset == 5
        files.crash()
        assert read_batches(open_log(files)) == [batch]


def test_a_closed_log_refuses(files: SimFiles) -> None:
    log = open_log(files)
    append(log)
    log.close()
    log.close()
    with pytest.raises(Closed):
        append(log)
    with pytest.raises(Closed):
        log.sync()
    with pytest.raises(Closed):
        log.plan_read(0, bytes_max=1, end=log.end)
    assert log.failure is None


def test_a_roll_does_not_overwrite_an_existing_file(files: SimFiles) -> None:
    log = open_log(files, SMALL)
    append(log, 1, size=900)
    stranger = files.open(f"{DIRECTORY}/{1:020d}.log", create=True)
    stranger.append(b"somebody's")
    with pytest.raises(CorruptData, match="no such file"):
        append(log, 1, size=900)
    assert log.end.offset == 1


def test_verify_walks_the_whole_log(files: SimFiles) -> None:
    log = open_log(files, SMALL)
    for _ in range(10):
        append(log, 1, size=300)
    log.sync()
    append(log, 1, size=300)
    steps, at = 0, log.verify()
    while at is not None:
        at, steps = log.verify(at), steps + 1
    assert steps == 4, "a step for each segment; the sixth has no synced batch"


def test_verify_names_the_bad_byte(files: SimFiles) -> None:
    log = open_log(files, SMALL)
    for _ in range(10):
        append(log, 1, size=300)
    log.close()
    files._inode(f"{DIRECTORY}/{2:020d}.log").data[150] ^= 1
    log = open_log(files, SMALL)
    at = log.verify()
    with pytest.raises(CorruptData) as caught:
        while at is not None:
            at = log.verify(at)
    assert caught.value.file.endswith(f"{2:020d}.log")
    assert caught.value.at == 17


def test_verify_goes_on_in_a_log_that_was_replaced(files: SimFiles) -> None:
    """A position that the scrubber has noted may be of the log that a copy has replaced."""
    log = open_log(files)
    for _ in range(4):
        append(log, 3, size=100)
    at = LogPosition(9, 0, log.end.position - 1)
    for counts in ((2, 2, 4, 2), (2, 2)):
        log.start_at(0, 1)
        for count in counts:
            append(log, count, size=70, leader_epoch=1)
        log.sync()
        assert log.verify(at) is None
        files._inode(f"{DIRECTORY}/{0:020d}.log").data[-1] ^= 1
        if log.end.offset > 9:
            with pytest.raises(CorruptData):
                log.verify(at)


LOOKS: dict[str, Callable[[PartitionLog], object]] = {
    "one batch": lambda log: log.plan_read(0, bytes_max=1, end=log.end),
    "within a batch": lambda log: log.plan_read(1, bytes_max=1, end=log.end),
    "by time": lambda log: log.find_timestamp(0, end=log.end),
    "not waiting": lambda log: log.plan_read(1, bytes_max=1, end=log.end, nowait=True) is None,
}


@pytest.mark.parametrize("find", LOOKS.values(), ids=LOOKS)
@pytest.mark.parametrize("byte", [6, 14], ids=["base offset", "leader epoch"])
def test_headers_that_come_from_the_disk_again_are_checked_again(
    files: SimFiles, byte: int, find: Callable[[PartitionLog], object]
) -> None:
    """No CRC covers them, and the disk may have damaged them since they were checked."""
    log = open_log(files)
    append(log, 2)
    second = log.end.position
    append(log, 2)
    log.sync()
    assert log.verify() is None

    def read() -> FileSlice | None:
        return log.plan_read(0, bytes_max=1 << 20, end=log.end)

    data = files._inode(f"{DIRECTORY}/{0:020d}.log").data
    data[second + byte] ^= 4
    assert read() is not None, "it is in the page cache, so nobody can have damaged it"
    files.cold = True
    assert find(log) is not None, "the first batch is good"
    files.cold = False
    with pytest.raises(CorruptData):
        read()
    data[second + byte] ^= 4
    assert log.verify() is None
    data[second + byte] ^= 4
    assert read() is not None, "trusted again"


def test_headers_are_checked_by_reads_until_all_of_a_segment_was_verified(files: SimFiles) -> None:
    """A pass that goes on where the process before was has not seen the first part."""
    log = open_log(files)
    append(log, 2, size=INDEX_INTERVAL_BYTES)
    at = log.end
    append(log, 2)
    log.close()
    files._inode(f"{DIRECTORY}/{0:020d}.log").data[15] ^= 1  # the leader epoch, which no CRC covers
    log = open_log(files)
    assert log.verify(at) is None
    with pytest.raises(CorruptData):
        log.plan_read(0, bytes_max=1 << 20, end=log.end)
    with pytest.raises(CorruptData):
        log.verify()


def test_a_checkpoint_says_nothing_of_what_is_not_synced() -> None:
    """Its high watermark would count for other records, where a loss of power has taken these."""
    files = SimFiles(RealRandom(1))
    log = open_log(files)
    append(log, 3)
    log.sync()
    append(log, 4)
    log.checkpoint(high_watermark=7)
    assert log.checkpointed_high_watermark == 3
    files.crash()
    assert open_log(files).checkpointed_high_watermark == 3
