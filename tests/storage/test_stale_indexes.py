"""Index files that outlive the batches they describe: other batches take their place, and power is
lost before the files are written anew."""

from __future__ import annotations

import errno
from collections.abc import Callable

import pytest

from bascule.errors import BasculeError
from bascule.host.real import RealRandom
from bascule.record.header import read_header
from bascule.sim.disk import SimClock, SimFiles
from bascule.storage.index.offset_index import OffsetIndex
from bascule.storage.index.sparse_index import SparseIndex
from bascule.storage.index.time_index import TimeIndex
from bascule.storage.partition_log import LogConfig, PartitionLog
from bascule.storage.segment import INDEX_SUFFIXES, segment_path
from bascule.storage.truncation.salvage import salvage
from support.stored_batches import DIRECTORY, append, open_log, read_batches

CONFIG = LogConfig(segment_bytes_max=4_000, index_interval_bytes=200)
SEEDS = 12
CUT = 12
"""Within the first segment."""

Begin = Callable[[SimFiles], tuple[PartitionLog, list[bytes]]]
"""Opens a log behind whose end other batches were; also returns the batches that it has."""


def fill(log: PartitionLog, count: int, *, size: int) -> list[bytes]:
    epoch = log.epochs.latest + 1
    batches = []
    for n in range(count):
        batches.append(append(log, 1 + n % 3, size=size, timestamp=n, leader_epoch=epoch))
        log.sync()
    return batches


def salvaged(files: SimFiles) -> tuple[PartitionLog, list[bytes]]:
    """After damage in the first segment."""
    log = open_log(files, CONFIG)
    batches = fill(log, 40, size=60)
    log.close()
    damaged = files._inode(segment_path(DIRECTORY, 0))
    damaged.data[len(batches[0]) + len(batches[1]) + 70] ^= 1
    end = salvage(
        files, DIRECTORY, index_interval_bytes=200, gaps_allowed=False, clock=SimClock(1_000)
    )
    assert end is not None
    return open_log(files, CONFIG), batches[:2]


def truncated(files: SimFiles) -> tuple[PartitionLog, list[bytes]]:
    """After a truncation that failed somewhere, and a loss of power."""
    log = open_log(files, CONFIG)
    fill(log, 40, size=60)
    log.close()
    log = open_log(files, CONFIG)
    assert log.end.segment_base > CUT
    files.fail(1 + files.choices.below(30), errno.EIO)
    try:
        log.truncate_to(CUT, log.epochs.latest + 1, high_watermark=0)
    except (OSError, BasculeError):
        pass
    files.forget_faults()
    files.crash()
    log = open_log(files, CONFIG)
    return log, read_batches(log)


def cut_off(files: SimFiles) -> tuple[PartitionLog, list[bytes]]:
    """After the removal of the last segment, of which power loss has kept the indexes."""
    log = open_log(files, CONFIG)
    kept = fill(log, 40, size=60)
    base = log.end.segment_base
    assert base > 0
    first = [each for each in kept if read_header(each).end_offset <= base]
    fill(log, 4, size=60)
    log.close()
    indexes = {
        path: bytes(files.read_bytes(path))
        for suffix in INDEX_SUFFIXES
        if files.exists(path := segment_path(DIRECTORY, base, suffix))
    }
    assert indexes
    log = open_log(files, CONFIG)
    log.truncate_to(base - 1, log.epochs.latest + 1, high_watermark=0)
    log.close()
    for path, data in indexes.items():
        file = files.open(path, create=True)
        file.truncate(0)
        file.append(data)
        file.sync()
    files.sync_dir(DIRECTORY)
    log = open_log(files, CONFIG)
    held = read_batches(log)
    assert held == first[:-1]
    # The next segment gets the name of the one that is gone.
    added = append(log, base - log.end.offset, size=47, leader_epoch=log.epochs.latest + 1)
    log.sync()
    log.roll()
    assert log.end.segment_base == base
    return log, [*held, added]


@pytest.mark.parametrize("rest", [0, 30])
@pytest.mark.parametrize("begin", [salvaged, truncated, cut_off])
def test_indexes_of_what_was_removed_do_not_come_back(begin: Begin, rest: int) -> None:
    for seed in range(SEEDS):
        files = SimFiles(RealRandom(seed))
        log, kept = begin(files)
        kept += fill(log, 10, size=47)
        log.checkpoint(high_watermark=log.end.offset)
        kept += fill(log, rest, size=47)
        files.crash()
        again = open_log(files, CONFIG)
        assert read_batches(again) == kept
        for offset in range(again.end.offset):
            header = read_header(read_batches(again, offset, bytes_max=1)[0])
            assert header.base_offset <= offset < header.end_offset


def test_indexes_that_match_the_log_stay() -> None:
    """Also after a crash: they save reading the segment."""
    files = SimFiles(RealRandom(1))
    log = open_log(files, CONFIG)
    fill(log, 10, size=60)
    log.checkpoint(high_watermark=log.end.offset)
    for suffix in INDEX_SUFFIXES:
        files.open(segment_path(DIRECTORY, 0, suffix)).sync()
    append(log, leader_epoch=log.epochs.latest)
    files.crash()
    open_log(files, CONFIG)
    for suffix in INDEX_SUFFIXES:
        assert files.exists(segment_path(DIRECTORY, 0, suffix))


@pytest.mark.parametrize("kind", [OffsetIndex, TimeIndex])
def test_indexes_are_whole_after_a_checkpoint_of_an_empty_log(kind: type[SparseIndex]) -> None:
    """Nothing is written for an empty segment, so the next checkpoint begins the files."""
    files = SimFiles(RealRandom(1))
    log = open_log(files, CONFIG)
    for _ in range(2):
        log.checkpoint(high_watermark=0)
    for end in (3, 6):
        fill(log, 3, size=60)
        log.checkpoint(high_watermark=end)
    path = segment_path(DIRECTORY, 0, kind.SUFFIX)
    found = kind.decode(files.read_bytes(path), path=path, base_offset=0)
    assert found.damage is None
    assert found.covered[:2] == (log.end.position, log.end.offset)
    assert len(found.pairs) > 1
