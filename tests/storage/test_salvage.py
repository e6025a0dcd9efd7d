"""A damaged log after its loss is accepted: it opens up to the first damage, and takes batches."""

from __future__ import annotations

import errno

import pytest

from bascule.errors import CorruptData
from bascule.host.real import RealRandom
from bascule.sim.disk import RandomChoices, SimClock, SimFiles
from bascule.storage.partition_log import LogConfig, LogPosition
from bascule.storage.truncation.salvage import salvage
from support.keyed_logs import held_batches
from support.stored_batches import (
    DIRECTORY,
    append,
    make_batch,
    open_log,
    read_batches,
    read_records,
)

CONFIG = LogConfig(segment_bytes_max=400, index_interval_bytes=200)


def written(
    *, recovery_at: int, start: int = 0, clean: bool = False
) -> tuple[SimFiles, list[bytes]]:
    """Six batches of three records in three segments, a checkpoint after batch `recovery_at`."""
    files = SimFiles(RealRandom(1))
    log = open_log(files, CONFIG)
    batches = []
    for n in range(6):
        batches.append(append(log, 3, size=20, timestamp=n, leader_epoch=n // 3))
        log.sync()
        if n + 1 == recovery_at:
            log.checkpoint(high_watermark=log.end.offset)
    if start:
        log.advance_start(start, high_watermark=log.end.offset)
    if clean:
        log.close()
    return files, batches


def salvaged(
    files: SimFiles, *, gaps_allowed: bool = False, is_copied: bool = False
) -> LogPosition | None:
    return salvage(
        files,
        DIRECTORY,
        index_interval_bytes=CONFIG.index_interval_bytes,
        gaps_allowed=gaps_allowed,
        clock=SimClock(1_000),
        is_copied=is_copied,
    )


def check(files: SimFiles, kept: list[bytes]) -> None:
    """The log holds `kept`, takes a batch, and opens again with both, before and after a crash."""
    log = open_log(files, CONFIG)
    at = log.verify()
    while at is not None:
        at = log.verify(at)
    assert read_batches(log) == kept
    epoch = log.epochs.latest + 1
    added = append(log, 2, size=20, timestamp=9, leader_epoch=epoch)
    log.sync()
    files.crash()
    again = open_log(files, CONFIG)
    assert read_batches(again) == [*kept, added]


@pytest.mark.parametrize(("clean", "recovery_at"), [(True, 0), (False, 6), (False, 3), (False, 0)])
@pytest.mark.parametrize("flip", [0x01, 0x80])
def test_a_flipped_byte_costs_its_batch_and_those_behind(
    clean: bool, recovery_at: int, flip: int
) -> None:
    _, batches = written(recovery_at=recovery_at, clean=clean)
    ends = [sum(map(len, batches[: n + 1])) for n in range(6)]
    for flat in range(0, ends[-1], 29):
        files, _ = written(recovery_at=recovery_at, clean=clean)
        number = next(n for n, end in enumerate(ends) if flat < end)
        within = flat - (ends[number - 1] if number else 0)
        base = 6 * (number // 2)
        inode = files._inode(f"{DIRECTORY}/{base:020d}.log")
        inode.data[within + (len(batches[number - 1]) if number % 2 else 0)] ^= flip
        end = salvaged(files)
        if number == 0:
            assert end is None, "there is nothing to keep"
            continue
        assert end is not None
        assert end.offset == 3 * number
        check(files, batches[:number])


@pytest.mark.parametrize("recovery_at", [0, 3, 6])
def test_a_missing_segment_ends_the_log_or_moves_its_start(recovery_at: int) -> None:
    files, batches = written(recovery_at=recovery_at)
    files.remove(f"{DIRECTORY}/{6:020d}.log")
    assert salvaged(files) == LogPosition(6, 0, len(batches[0]) + len(batches[1]))
    check(files, batches[:2])
    files, batches = written(recovery_at=recovery_at)
    files.remove(f"{DIRECTORY}/{0:020d}.log")
    with pytest.raises(CorruptData, match=r"expected offset 0, found offset 6|no such file"):
        open_log(files, CONFIG)
    end = salvaged(files)
    assert end is not None
    assert end.offset == 18
    log = open_log(files, CONFIG)
    assert log.start_offset == 6
    assert [record.offset for record in read_records(log)] == list(range(6, 18))


def test_a_damaged_checkpoint_costs_no_record() -> None:
    files, batches = written(recovery_at=6, start=8)
    inode = files._inode(f"{DIRECTORY}/checkpoint")
    inode.data[:] = bytes(len(inode.data))
    with pytest.raises(CorruptData):
        open_log(files, CONFIG)
    assert salvaged(files) is not None
    log = open_log(files, CONFIG)
    # What was purged of the first segment is readable again: only the checkpoint knew of it.
    assert (log.start_offset, log.end.offset) == (6, 18)
    assert read_batches(log) == batches[2:]


@pytest.mark.parametrize("recovery_at", [0, 6])
def test_what_was_not_synced_is_before_it_counts(recovery_at: int) -> None:
    """A process was killed, and another file is damaged: the tail is in the page cache alone."""
    for seed in range(20):
        files, batches = written(recovery_at=recovery_at)
        files.choices = RandomChoices(RealRandom(seed))
        log = open_log(files, CONFIG)
        batches += [append(log, 3, size=20, timestamp=9, leader_epoch=1) for _ in range(3)]
        if recovery_at:
            inode = files._inode(f"{DIRECTORY}/checkpoint")
            inode.data[:] = bytes(len(inode.data))
        assert salvaged(files) is not None
        log = open_log(files, CONFIG)
        assert (log.synced.offset, read_batches(log)) == (27, batches)
        files.crash()
        assert read_batches(open_log(files, CONFIG)) == batches


def test_a_missing_first_segment_is_damage_before_any_checkpoint() -> None:
    """Without a checkpoint no file but the segments says where the log begins: at offset 0."""
    files, _ = written(recovery_at=0)
    for suffix in ("log", "index", "timeindex"):
        path = f"{DIRECTORY}/{0:020d}.{suffix}"
        if files.exists(path):
            files.remove(path)
    assert not files.exists(f"{DIRECTORY}/checkpoint")
    with pytest.raises(CorruptData, match="expected offset 0, found offset 6"):
        open_log(files, CONFIG)


def test_a_log_without_damage_is_kept_whole() -> None:
    for recovery_at in (0, 3, 6):
        files, batches = written(recovery_at=recovery_at)
        assert salvaged(files) is not None
        check(files, batches)
    assert salvaged(SimFiles(RealRandom(1))) is None


@pytest.mark.parametrize("may_be_compacted", [False, True])
def test_power_is_lost_at_each_file_operation_of_a_salvage(may_be_compacted: bool) -> None:
    """The log fails as before, or opens up to the damage; salvage can be repeated. One that may be
    compacted, and is copied from another replica, opens empty."""

    def run(operation: int) -> bool:
        files, batches = written(recovery_at=6)
        damaged = files.open(f"{DIRECTORY}/{6:020d}.log")
        damaged.write_at(10, b"\xff")
        damaged.sync()
        files.fail(operation, errno.EIO)
        try:
            salvaged(files, gaps_allowed=may_be_compacted, is_copied=True)
        except OSError:
            pass
        hit = not files.fault_pending()
        files.crash()
        expected = [] if may_be_compacted else batches[:2]
        try:
            held = read_batches(open_log(files, CONFIG))
        except CorruptData:
            pass
        else:
            assert held in (batches, expected)
        salvaged(files, gaps_allowed=may_be_compacted, is_copied=True)
        check(files, expected)
        return hit

    operation = 1
    while run(operation):
        operation += 1
    assert operation > 5


@pytest.mark.parametrize("is_copied", [False, True])
def test_nothing_is_kept_of_a_compacted_log_that_another_replica_continues(is_copied: bool) -> None:
    """That one may have removed tombstones from behind the damage."""
    files, batches = written(recovery_at=6)
    files.open(f"{DIRECTORY}/{6:020d}.log").write_at(10, b"\xff")
    end = salvaged(files, gaps_allowed=True, is_copied=is_copied)
    assert end is not None
    assert end.offset == (0 if is_copied else 6)
    check(files, [] if is_copied else batches[:2])


def test_the_lost_end_of_a_segment_that_was_not_compacted_is_no_gap() -> None:
    files, batches = written(recovery_at=2)
    files.open(f"{DIRECTORY}/{6:020d}.log").truncate(len(batches[2]))
    end = salvaged(files, gaps_allowed=True)
    assert end is not None
    assert end.offset == 9
    check(files, batches[:3])


@pytest.mark.parametrize("recovery_at", [0, 2])
def test_what_is_not_known_to_be_committed_may_be_truncated(recovery_at: int) -> None:
    """Nothing says so without a checkpoint: a replica that heals goes on from the log of its
    leader, which may end before the damage."""
    files, _ = written(recovery_at=recovery_at)
    inode = files._inode(f"{DIRECTORY}/{0:020d}.log")
    del inode.data[-1:]
    names = [name for name in files.list_dir(DIRECTORY) if name.endswith(".log")]
    for name in names[1:]:
        files.remove(f"{DIRECTORY}/{name}")
    assert salvaged(files) is not None
    log = open_log(files, CONFIG)
    committed = log.checkpointed_high_watermark
    assert committed == min(3 * recovery_at, log.end.offset)
    assert log.truncate_to(committed, 2, high_watermark=committed).offset == committed


@pytest.mark.parametrize("segment_bytes_max", [1 << 20, 300])
@pytest.mark.parametrize("has_mark", [True, False])
@pytest.mark.parametrize("checkpoint_at", [-1, 3])
def test_no_batch_is_kept_whose_offset_cannot_be_right(
    checkpoint_at: int, has_mark: bool, segment_bytes_max: int
) -> None:
    """Where gaps are allowed it passes for the end of one."""
    config = LogConfig(segment_bytes_max=segment_bytes_max)
    offsets = (0, 1, 2, 4, 5, 6, 7)
    size = len(make_batch(0, 1, size=20, leader_epoch=1))
    for row, offset in enumerate(offsets):
        if row == len(offsets) - 1 and (checkpoint_at < 0 or not has_mark):
            continue  # nothing is behind it
        files = SimFiles(RealRandom(1))
        log = open_log(files, config)
        for each in offsets:
            log.append_as_follower(make_batch(each, 1, size=20, leader_epoch=1), gaps_allowed=True)
            log.sync()
            if each + 1 == checkpoint_at:
                log.checkpoint(high_watermark=3)
        bases = [info.base_offset for info in log.segments_info()]
        base = max(each for each in bases if each <= offset)
        data = files._inode(f"{DIRECTORY}/{base:020d}.log").data
        data[size * sum(base <= each < offset for each in offsets) + 2] ^= 2
        if not has_mark:
            files.remove(f"{DIRECTORY}/synced")
        end = salvaged(files)
        assert (0 if end is None else end.offset) == (0 if not row else offsets[row - 1] + 1)
        if end is not None:
            assert len(held_batches(open_log(files, config))) == row


@pytest.mark.parametrize(
    ("offsets", "flip"), [((0, 1, 3, 4, 8, 9), 8), ((0, 3, 4, 5), 1), ((0, 1, 2, 3), 1)]
)
def test_a_batch_whose_offset_is_too_small_costs_none_before_it(
    offsets: tuple[int, ...], flip: int
) -> None:
    """Also if it is that of the batch before, which begins where the one before that ends."""
    files = SimFiles(RealRandom(1))
    log = open_log(files, LogConfig())
    for offset in offsets:
        log.append_as_follower(make_batch(offset, 1, size=20, leader_epoch=1), gaps_allowed=True)
    log.sync()
    size = log.end.position // len(offsets)
    files._inode(f"{DIRECTORY}/{0:020d}.log").data[(len(offsets) - 1) * size + 7] ^= flip
    end = salvaged(files, gaps_allowed=True)
    assert end is not None
    assert end.offset == offsets[-1]


def test_power_is_lost_while_a_batch_is_removed_that_passes_for_the_end_of_a_gap() -> None:
    config = LogConfig(segment_bytes_max=300)
    offsets = (0, 1, 2, 4, 5, 6, 7)
    size = len(make_batch(0, 1, size=20, leader_epoch=1))

    def run(operation: int) -> bool:
        files = SimFiles(RealRandom(1))
        log = open_log(files, config)
        for offset in offsets:
            log.append_as_follower(
                make_batch(offset, 1, size=20, leader_epoch=1), gaps_allowed=True
            )
            log.sync()
            if offset == 1:
                log.checkpoint(high_watermark=2)
        damaged = files.open(f"{DIRECTORY}/{log.segments_info()[1].base_offset:020d}.log")
        row = offsets.index(int.from_bytes(damaged.read_at(0, 8), "big")) + 1
        damaged.write_at(size + 2, b"\2")
        damaged.sync()
        files.open(f"{DIRECTORY}/synced").sync()  # else a crash may leave an older mark
        files.fail(operation, errno.EIO)
        try:
            salvaged(files)
        except OSError:
            pass
        hit = not files.fault_pending()
        files.crash()
        for _ in range(2):
            try:
                held = held_batches(open_log(files, config))
            except CorruptData:
                pass
            else:
                assert len(held) == row
            salvaged(files)
        return hit

    operation = 1
    while run(operation):
        operation += 1
    assert operation > 5
