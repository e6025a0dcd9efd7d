"""Advance of the log start: readable records, removed files, and the state after a crash."""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable

import pytest

from bascule.errors import OffsetOutOfRange
from bascule.host.real import RealRandom
from bascule.sim.disk import SimClock, SimFile, SimFiles
from bascule.storage.checkpoint import decode_checkpoint, encode_checkpoint, replace_file
from bascule.storage.maintenance import RemovedSegments
from bascule.storage.partition_log import LogConfig, PartitionLog
from support.stored_batches import DIRECTORY, append, open_log, read_batches, read_records

CONFIG = LogConfig(segment_bytes_max=600, index_interval_bytes=100)
"""A segment holds three batches of `filled`."""


def filled(files: SimFiles, batches: int = 10, *, config: LogConfig = CONFIG) -> PartitionLog:
    """A synced log of batches of two records; each batch has the next timestamp."""
    log = open_log(files, config)
    for n in range(batches):
        append(log, 2, timestamp=1_000 + n, size=60)
    log.sync()
    return log


def logs(files: SimFiles) -> list[int]:
    return [int(name[:20]) for name in files.list_dir(DIRECTORY) if name.endswith(".log")]


@pytest.fixture
def files() -> SimFiles:
    return SimFiles(RealRandom(1))


def test_whole_segments_below_the_start_are_removed(files: SimFiles) -> None:
    log = filled(files)
    log.checkpoint(high_watermark=20)
    assert logs(files) == [0, 6, 12, 18]
    bytes_before = log.size_bytes()
    removed = log.advance_start(13, high_watermark=20)
    assert log.start_offset == 13
    assert logs(files) == [12, 18]
    assert removed == RemovedSegments(13, 2, bytes_before - log.size_bytes())
    indexes = [name for name in files.list_dir(DIRECTORY) if name.endswith("index")]
    assert min(int(name[:20]) for name in indexes) == 12
    with pytest.raises(OffsetOutOfRange) as caught:
        log.plan_read(12, bytes_max=100, end=log.end)
    assert (caught.value.start, caught.value.end) == (13, 20)
    # The slice begins with the batch that contains the start. Consumers skip records below it.
    assert [record.offset for record in read_records(log)] == list(range(12, 20))
    again = open_log(files, CONFIG)
    assert again.start_offset == 13
    assert again.size_bytes() == log.size_bytes()
    assert [i[:3] for i in again.segments_info()] == [i[:3] for i in log.segments_info()]


def test_the_start_stays_within_what_is_synced_and_committed(files: SimFiles) -> None:
    log = filled(files)
    append(log, 2, size=60)
    assert log.advance_start(100, high_watermark=8).records == 8
    assert log.start_offset == 8
    log.advance_start(100, high_watermark=22)
    assert log.start_offset == log.synced.offset == 20
    assert log.advance_start(3, high_watermark=22) == RemovedSegments(0, 0, 0)
    assert log.start_offset == 20


@pytest.mark.parametrize(("written", "counts"), [(3, 8), (12, 12), (100, 20)])
def test_the_high_watermark_of_a_checkpoint_counts_within_the_log(
    files: SimFiles, written: int, counts: int
) -> None:
    """Who writes it may know of less than the start; earlier releases wrote more than the end."""
    log = filled(files)
    log.advance_start(8, high_watermark=20)
    log.checkpoint(high_watermark=written)
    assert log.checkpointed_high_watermark == counts
    path = f"{DIRECTORY}/checkpoint"
    saved = decode_checkpoint(files.read_bytes(path), path=path)
    replace_file(files, path, encode_checkpoint(saved._replace(high_watermark=written)))
    assert open_log(files, CONFIG).checkpointed_high_watermark == counts


def test_times_below_the_start_are_not_found(files: SimFiles) -> None:
    log = open_log(files, CONFIG)
    for timestamp in (9_000, 1_000, 2_000, 8_000, 3_000, 4_000):
        append(log, 2, timestamp=timestamp, size=60)
    log.sync()
    assert log.find_timestamp_max(end=log.end) == (0, 9_000)
    log.advance_start(2, high_watermark=12)
    assert log.find_timestamp_max(end=log.end) == (6, 8_000)
    assert log.find_timestamp(0, end=log.end) == (2, 1_000)
    assert log.find_timestamp(8_500, end=log.end) is None
    log.advance_start(9, high_watermark=12)
    assert log.find_timestamp_max(end=log.end) == (10, 4_000)
    assert log.find_timestamp(0, end=log.end) == (9, 3_000)
    log.advance_start(12, high_watermark=12)
    assert log.find_timestamp_max(end=log.end) is None
    assert log.find_timestamp(0, end=log.end) is None


def test_all_records_are_removed_after_the_active_segment_is_rolled(files: SimFiles) -> None:
    log = filled(files)
    assert log.roll().offset == 20
    assert log.roll() == log.end, "an empty segment is not rolled"
    log.sync()
    log.advance_start(20, high_watermark=20)
    assert logs(files) == [20]
    assert log.size_bytes() == 0
    assert read_batches(log) == []
    append(log, 1, timestamp=5_000)
    log.sync()
    log = open_log(files, CONFIG)
    assert [record.offset for record in read_records(log)] == [20]


def test_a_rolled_but_unsynced_segment_keeps_the_segment_before_it(files: SimFiles) -> None:
    """Recovery begins in the segment that was synced last, so that segment is kept."""
    log = filled(files, 3)
    log.roll()
    log.advance_start(6, high_watermark=6)
    assert logs(files) == [0, 6]
    log.sync()
    assert log.advance_start(6, high_watermark=6).segments == 1
    assert logs(files) == [6]


def test_readers_keep_what_they_hold(files: SimFiles) -> None:
    log = filled(files)
    piece = log.plan_read(0, bytes_max=1_000, end=log.end)
    assert piece is not None
    before = piece.file.read_at(piece.position, piece.length)
    log.advance_start(20, high_watermark=20)
    assert piece.file.read_at(piece.position, piece.length) == before


def test_a_start_survives_a_close_and_more_appends(files: SimFiles) -> None:
    log = filled(files)
    log.advance_start(7, high_watermark=20)
    append(log, 2, size=60)
    log.close()
    log = open_log(files, CONFIG)
    assert log.start_offset == 7
    assert log.advance_start(15, high_watermark=22).records == 8
    assert logs(files)[0] == 12


def test_sizes_and_infos_follow_every_change(files: SimFiles) -> None:
    log = filled(files)
    for offset in (0, 5, 6, 11, 18, 20):
        log.advance_start(offset, high_watermark=20)
        infos = log.segments_info()
        assert sum(info.bytes for info in infos) == log.size_bytes()
        assert [info.is_active for info in infos] == [False] * (len(infos) - 1) + [True]
        assert infos[-1].end_offset == log.end.offset
        assert [i.end_offset for i in infos[:-1]] == [i.base_offset for i in infos[1:]]


def test_timestamps_of_unloaded_segments_are_loaded_on_request(files: SimFiles) -> None:
    filled(files).close()
    log = open_log(files, CONFIG)
    assert [info.timestamp_max for info in log.segments_info()] == [None, None, None, 1_009]
    log.load_timestamps(1_004)
    assert [info.timestamp_max for info in log.segments_info()] == [1_002, 1_005, None, 1_009]
    log.load_timestamps(9_999)
    assert [info.timestamp_max for info in log.segments_info()] == [1_002, 1_005, 1_008, 1_009]


def test_an_open_log_can_be_reconfigured(files: SimFiles) -> None:
    log = filled(files, 2)
    log.configure(LogConfig(segment_bytes_max=1 << 20, segment_age_ms_max=10))
    for n in range(8):
        append(log, 2, timestamp=1_002 + n, size=60)
    assert [info.base_offset for info in log.segments_info()] == [0]
    append(log, 1, timestamp=1_010)
    assert [info.base_offset for info in log.segments_info()] == [0, 20]


def test_the_start_advances_on_a_full_disk(files: SimFiles) -> None:
    """If there is no space for the new checkpoint, the indexes of removed segments go first."""
    log = filled(files)
    log.checkpoint(high_watermark=20)
    files.fail(2, errno.ENOSPC)
    log.advance_start(12, high_watermark=20)
    assert logs(files) == [12, 18]
    assert open_log(files, CONFIG).start_offset == 12


def test_a_failed_removal_is_repeated_by_the_next_call(files: SimFiles) -> None:
    log = filled(files)
    log.checkpoint(high_watermark=20)
    before = len(files.operations)
    log.advance_start(6, high_watermark=20)
    first_removal = next(
        n for n, line in enumerate(files.operations[before:], 1) if line.startswith("remove ")
    )
    files.fail(first_removal, errno.EIO)
    with pytest.raises(OSError, match="EIO"):
        log.advance_start(12, high_watermark=20)
    assert log.start_offset == 12
    assert logs(files) == [6, 12, 18]
    assert log.advance_start(12, high_watermark=20) == RemovedSegments(0, 0, 0)
    assert logs(files) == [12, 18]


@pytest.mark.parametrize("seed", range(25))
def test_a_crash_leaves_the_old_start_or_the_new_one(seed: int) -> None:
    """Power loss after each file operation of the removal; random writes reach the disk."""
    operation = 1
    while True:
        files = SimFiles(RealRandom(seed))
        log = filled(files)
        log.checkpoint(high_watermark=20)
        files.fail(operation, errno.EIO)
        try:
            log.advance_start(13, high_watermark=20)
        except OSError:
            pass
        done = log.start_offset == 13
        files.crash()
        log = open_log(files, CONFIG)
        assert log.start_offset in ((13,) if done else (0, 13))
        held = [record.offset for record in read_records(log)]
        assert held == list(range(0 if log.start_offset == 0 else 12, 20))
        assert logs(files)[0] == (0 if log.start_offset == 0 else 12)
        if not _failed(files):
            return
        operation += 1


def _failed(files: SimFiles) -> bool:
    return any(line.endswith("-> EIO") for line in files.operations)


class PassingFiles(SimFiles):
    """Calls `on_next_open` between a reader's lookup of a segment and the opening of its file."""

    on_next_open: Callable[[], object] | None = None

    def open(self, path: str, *, create: bool = False, write: bool = True) -> SimFile:
        if self.on_next_open is not None:
            on_next_open, self.on_next_open = self.on_next_open, None
            on_next_open()
        return super().open(path, create=create, write=write)


def test_a_reader_below_an_advanced_start_gets_offset_out_of_range() -> None:
    files = PassingFiles(RealRandom(1))
    filled(files).close()
    log = open_log(files, CONFIG)
    files.on_next_open = lambda: log.advance_start(13, high_watermark=20)
    with pytest.raises(OffsetOutOfRange):
        log.plan_read(1, bytes_max=100, end=log.end)
    assert files.on_next_open is None


def test_timestamp_lookups_are_repeated_after_an_advance_of_the_start() -> None:
    files = PassingFiles(RealRandom(1))
    filled(files).close()
    log = open_log(files, CONFIG)
    files.on_next_open = lambda: log.advance_start(13, high_watermark=20)
    assert log.find_timestamp(0, end=log.end) == (13, 1_006)
    log = open_log(files, CONFIG)
    files.on_next_open = lambda: log.advance_start(18, high_watermark=20)
    assert log.verify() is None
    assert files.on_next_open is None


def test_concurrent_rolls_and_removals_with_a_lock() -> None:
    files = SimFiles(RealRandom(1))
    log = PartitionLog.open(files, DIRECTORY, CONFIG, SimClock(1), make_lock=threading.Lock)
    for n in range(3_000):
        append(log, 2, timestamp=1_000 + n, size=60)
        if n % 7 == 0:
            log.sync()
    done = threading.Event()

    def write() -> None:
        for n in range(1_500):
            append(log, 2, timestamp=9_000 + n, size=60)
        done.set()

    writer = threading.Thread(target=write)
    writer.start()
    offset = 0
    while not done.is_set():
        offset += 60
        log.advance_start(offset, high_watermark=log.synced.offset)
    writer.join()
    infos = log.segments_info()
    assert sum(info.bytes for info in infos) == log.size_bytes()
    assert [i.end_offset for i in infos[:-1]] == [i.base_offset for i in infos[1:]]
    assert infos[-1].end_offset == 9_000
    log.sync()
    assert read_records(log)[-1].offset == 8_999
