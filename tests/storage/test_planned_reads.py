"""What a planned read returns, and which headers it checks again since they come from the disk."""

from __future__ import annotations

import pytest

from bascule.errors import CorruptData
from bascule.host.real import RealRandom
from bascule.sim.disk import SimFile, SimFiles
from bascule.storage.partition_log import LogConfig, PartitionLog
from support.stored_batches import DIRECTORY, append, open_log

SMALL = LogConfig(segment_bytes_max=1_000)


@pytest.fixture
def files() -> SimFiles:
    return SimFiles(RealRandom(1))


def test_a_segment_that_is_read_again_and_again_stays_open(files: SimFiles) -> None:
    log = open_log(files, SMALL)
    for _ in range(10):
        append(log, 1, size=300)
    log.sync()

    def opened() -> list[str]:
        """What a read opens."""
        before = len(files.operations)
        assert log.plan_read(0, bytes_max=1, end=log.end) is not None
        return [each for each in files.operations[before:] if each.startswith("open")]

    for _ in range(2):
        log.checkpoint(high_watermark=0)
    assert opened(), "nobody has read it for some time"
    for _ in range(3):
        log.checkpoint(high_watermark=0)
        assert not opened()
    for _ in range(2):
        log.checkpoint(high_watermark=0)
    assert opened()


def test_a_read_with_room_for_a_whole_segment_is_not_cut(files: SimFiles) -> None:
    log = open_log(files, LogConfig(index_interval_bytes=200))
    for _ in range(10):
        append(log, 1, size=150)
    for room in (log.end.position, 1 << 20):
        piece = log.plan_read(0, bytes_max=room, end=log.end)
        assert piece is not None
        assert piece.length == log.end.position
    cut = log.plan_read(0, bytes_max=log.end.position - 1, end=log.end)
    assert cut is not None
    assert cut.length < log.end.position - 1, "at a boundary that the index knows"


def test_no_records_follow_the_last_segment_with_records(files: SimFiles) -> None:
    """Behind it is an empty one once the log was truncated to its end."""
    log = open_log(files, SMALL)
    for _ in range(10):
        append(log, 1, size=300)
    second, third = (info.base_offset for info in log.segments_info()[1:3])

    def following() -> int:
        piece = log.plan_read(second, bytes_max=1 << 20, end=log.end)
        assert piece is not None
        return piece.following

    assert following() == third
    log.truncate_to(third, 0, high_watermark=0)
    assert [info.base_offset for info in log.segments_info()] == [0, second, third]
    assert following() == -1


def test_what_follows_a_cached_header_comes_from_the_disk(
    files: SimFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, second = log_with_a_damaged_header(files)
    PageCache(second).install(monkeypatch)
    assert log.plan_read(0, bytes_max=1 << 20, end=log.end, nowait=True) is None
    with pytest.raises(CorruptData):
        log.plan_read(0, bytes_max=1 << 20, end=log.end)


def test_a_look_up_that_reads_ahead_has_brought_headers_from_the_disk(
    files: SimFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All is in the page cache when the bytes that it was for are looked at."""
    log, _ = log_with_a_damaged_header(files)
    cache = PageCache(0)
    cache.install(monkeypatch)
    assert log.plan_read(1, bytes_max=1, end=log.end) is not None
    assert cache.end > log.end.position
    with pytest.raises(CorruptData):
        log.plan_read(0, bytes_max=1 << 20, end=log.end)


def test_a_read_of_nothing_brings_nothing_from_the_disk(files: SimFiles) -> None:
    log, _ = log_with_a_damaged_header(files)
    files.cold = True
    piece = log.plan_read(log.end.offset, bytes_max=1 << 20, end=log.end)
    files.cold = False
    assert piece is not None
    assert piece.length == 0
    read = log.plan_read(0, bytes_max=1 << 20, end=log.end)
    assert read is not None, "no header is checked again"


def log_with_a_damaged_header(files: SimFiles) -> tuple[PartitionLog, int]:
    """A verified log whose second batch got another base offset since; and where that batch is."""
    log = open_log(files)
    append(log, 2)
    second = log.end.position
    append(log, 2)
    log.sync()
    assert log.verify() is None
    files._inode(f"{DIRECTORY}/{0:020d}.log").data[second + 6] ^= 4
    return log, second


class PageCache:
    """The first `end` bytes of each file are cached; a read that waits reads ahead all others."""

    def __init__(self, end: int) -> None:
        self.end = end

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        read_at = SimFile.read_at

        def wait(file: SimFile, position: int, length: int) -> bytes:
            self.end = 1 << 30
            return read_at(file, position, length)

        def nowait(file: SimFile, position: int, length: int) -> bytes | None:
            return None if position + length > self.end else read_at(file, position, length)

        monkeypatch.setattr(SimFile, "read_at", wait)
        monkeypatch.setattr(SimFile, "read_at_nowait", nowait)
        monkeypatch.setattr(SimFile, "is_cached", lambda _, start, end: end <= self.end)
