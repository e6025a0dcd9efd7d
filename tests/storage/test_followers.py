"""A follower's log: append the leader's batches, truncate, reset to another offset."""

from __future__ import annotations

import errno
from itertools import count

import pytest

from bascule.errors import (
    CorruptData,
    FencedEpoch,
    OffsetOutOfRange,
    UnexpectedEpoch,
    UnexpectedOffset,
)
from bascule.host.real import RealRandom
from bascule.sim.disk import SimFiles
from bascule.storage.compaction.clean_offset import (
    CleanOffset,
    read_clean_offset,
    write_clean_offset,
)
from bascule.storage.epochs import Epoch, LeaderEpochs
from bascule.storage.partition_log import LogConfig, PartitionLog
from support.keyed_logs import (
    Model,
    append_keyed,
    close_segment,
    closed_end,
    compaction,
    held,
    held_batches,
    open_keyed,
    verify_all,
)
from support.stored_batches import DIRECTORY, append, make_batch, open_log, read_batches

SMALL = LogConfig(segment_bytes_max=500, index_interval_bytes=200)


@pytest.fixture
def files() -> SimFiles:
    return SimFiles(RealRandom(1))


def damaged(batch: bytes, at: int) -> bytes:
    return batch[:at] + bytes([batch[at] ^ 1]) + batch[at + 1 :]


def test_a_follower_appends_batches_unchanged(files: SimFiles) -> None:
    log = open_log(files)
    batches = [
        make_batch(0, 3, timestamp=500, leader_epoch=1),
        make_batch(3, 1, timestamp=900, leader_epoch=1),
        make_batch(4, 2, timestamp=700, leader_epoch=4),
    ]
    before = len(files.operations)
    end = log.append_as_follower(memoryview(b"".join(batches)))
    assert end == log.end == (6, 0, sum(map(len, batches)))
    assert [o for o in files.operations[before:] if o.startswith("append")][1:] == [
        f"append 00000000000000000000.log {end.position} at 0"
    ], "one write to the segment, after the one to the epoch file"
    assert read_batches(log) == batches
    assert log.epochs.entries == (Epoch(1, 0), Epoch(4, 4))
    assert log.timestamp_max == 900
    assert log.find_timestamp(600, end=end) == (3, 900)
    assert log.append_as_follower(b"") == end


def test_gaps_of_a_compacted_leader_are_kept(files: SimFiles) -> None:
    """Before the first batch, between batches and between calls. A kill loses no batch."""
    log = open_log(files, SMALL)
    batches = [make_batch(offset, 2, leader_epoch=offset // 20) for offset in (7, 9, 30, 47)]
    log.append_as_follower(b"".join(batches[:3]))
    log.append_as_follower(batches[3])
    for again in (log, open_log(files, SMALL)):
        assert held_batches(again) == batches
        assert again.end.offset == 49
        piece = again.plan_read(12, bytes_max=1, end=again.end)
        assert piece is not None
        assert piece.file.read_at(piece.position, piece.length) == batches[2]
        verify_all(again)


def test_told_epochs_from_below_the_start_of_a_copy_begin_where_it_does(files: SimFiles) -> None:
    log = open_log(files)
    log.start_at(50, 4)
    told = LeaderEpochs((Epoch(1, 0), Epoch(2, 30), Epoch(3, 55)))
    log.append_as_follower(make_batch(60, leader_epoch=3), told=told)
    assert log.epochs.entries == (Epoch(2, 50), Epoch(3, 55))
    assert log.epochs.end_of(1, end_offset=61) == (-1, -1)
    log.sync()
    assert open_log(files).epochs == log.epochs


def test_an_epoch_that_is_told_to_begin_behind_its_first_batch_does_not(files: SimFiles) -> None:
    """No CRC covers the epoch of a batch. The file must never say that an earlier one wrote it."""
    log = open_log(files)
    append(log, 10, leader_epoch=1)
    told = LeaderEpochs((Epoch(1, 0), Epoch(2, 30)))
    log.append_as_follower(make_batch(20, leader_epoch=2), told=told)
    assert log.epochs.entries == (Epoch(1, 0), Epoch(2, 10))
    log.sync()
    assert read_batches(open_log(files))[1:] == [make_batch(20, leader_epoch=2)]


def test_the_gaps_file_is_created_at_the_first_gap(files: SimFiles) -> None:
    log = open_log(files)
    log.append_as_follower(make_batch(0, 3) + make_batch(3, 1))
    assert not files.exists(f"{DIRECTORY}/gaps")
    log.append_as_follower(make_batch(5, 3))
    assert files.exists(f"{DIRECTORY}/gaps")


@pytest.mark.parametrize("last_is_empty", [False, True])
@pytest.mark.parametrize("has_checkpoint", [False, True])
@pytest.mark.parametrize("kept", [0, 1])
def test_the_lost_end_of_an_unsynced_segment_is_no_gap(
    files: SimFiles, kept: int, has_checkpoint: bool, last_is_empty: bool
) -> None:
    """A power loss may drop it, and keep segments after it."""
    config = LogConfig(segment_bytes_max=500, index_interval_bytes=200, gaps_allowed=True)
    log = open_log(files, config)
    batches = [make_batch(offset, 2, size=60) for offset in (5, 7, 20, 22, 24, 40)]
    log.append_as_follower(b"".join(batches[:2]))
    log.sync()
    if has_checkpoint:
        log.checkpoint(high_watermark=9)
    log.append_as_follower(b"".join(batches[2:4]))
    log.append_as_follower(b"".join(batches[4:]))
    assert [info.base_offset for info in log.segments_info()] == [0, 9, 24]
    files.open(f"{DIRECTORY}/{9:020d}.log").truncate(kept * len(batches[2]))
    if last_is_empty:
        files.open(f"{DIRECTORY}/{24:020d}.log").truncate(0)
    log = open_log(files, config)
    assert log.end.offset == (22 if kept else 9)
    assert held_batches(log) == batches[: 2 + kept]
    assert not files.exists(f"{DIRECTORY}/{24:020d}.log")
    for batch in batches[2 + kept :]:
        log.append_as_follower(batch)
    assert held_batches(open_log(files, config)) == batches


@pytest.mark.parametrize("gap", [0, 4])
def test_an_increased_base_offset_is_refused_at_the_next_start(files: SimFiles, gap: int) -> None:
    """No CRC covers it, and with gaps a larger one is valid. The synced mark detects it."""
    log = open_log(files)
    log.append_as_follower(make_batch(0, 3) + make_batch(3 + gap, 1))
    log.sync()
    position = len(make_batch(0, 3))
    files._inode(f"{DIRECTORY}/{0:020d}.log").data[position + 7] += 8
    with pytest.raises(CorruptData):
        open_log(files)


def test_a_follower_refuses_all_batches_if_one_does_not_continue_the_log(files: SimFiles) -> None:
    log = open_log(files)
    append(log, 3, leader_epoch=2)
    good, following = make_batch(3, 2, leader_epoch=2), make_batch(5, 2, leader_epoch=3)
    before, operations = (log.end, log.epochs), len(files.operations)
    for data, kind, text in [
        (make_batch(2, 2, leader_epoch=2), UnexpectedOffset, "begins at offset 2, the log ends at"),
        (good + make_batch(4, 2, leader_epoch=2), UnexpectedOffset, "offset 4, the log ends at"),
        (make_batch(3, leader_epoch=1), UnexpectedEpoch, "epoch 1, the batch before it 2"),
        (good + make_batch(5, leader_epoch=1), UnexpectedEpoch, "before it 2"),
        (make_batch(3, leader_epoch=-1), UnexpectedEpoch, "epoch -1"),
        (good + following[:-1], CorruptData, f"byte {len(good)}"),
        (good + following[:40], CorruptData, f"byte {len(good)}"),
        (good[:60], CorruptData, "byte 60"),
        (damaged(good, len(good) - 1), CorruptData, "byte 17: expected the CRC"),
        (good + damaged(following, 70), CorruptData, f"byte {len(good) + 17}"),
        (good + damaged(following, 16), CorruptData, "magic"),
        (good + b"\0" * 80, CorruptData, "magic 2, found 0"),
    ]:  # fmt: skip
        with pytest.raises(kind, match=text):
            log.append_as_follower(data)
        assert (log.end, log.epochs) == before
        assert len(files.operations) == operations, "nothing reached the disk"
    log.append_as_follower(good + following)
    assert log.end.offset == 7


def test_the_epoch_of_a_failed_append_is_reverted(files: SimFiles) -> None:
    log = open_log(files)
    append(log, 3, leader_epoch=2)
    operations = len(files.operations)
    assert log.append_as_follower(make_batch(3, leader_epoch=3)).offset == 4
    last = len(files.operations) - operations
    files.fail(last, errno.EIO)
    with pytest.raises(OSError, match="EIO"):
        log.append_as_follower(make_batch(4, leader_epoch=5) + make_batch(5, leader_epoch=6))
    assert log.epochs.latest == 3
    log.append_as_follower(make_batch(4, leader_epoch=3) + make_batch(5, leader_epoch=5))
    log.sync()
    again = open_log(files)
    assert again.epochs.entries == (Epoch(2, 0), Epoch(3, 3), Epoch(5, 5))
    assert again.end.offset == 6


def test_an_epoch_file_of_unknown_content_is_written_again(files: SimFiles) -> None:
    """The append failed, but its epoch is in the file. The log continues without that epoch."""
    log = open_log(files)
    append(log, 3, leader_epoch=2)
    files.fail(6, errno.EIO)
    with pytest.raises(OSError, match="EIO"):
        log.append_as_follower(make_batch(3, leader_epoch=3))
    assert files.operations[-1] == "sync-dir 0 -> EIO"
    log.append_as_follower(make_batch(3, leader_epoch=2))
    log.sync()
    again = open_log(files)
    assert again.end.offset == 4
    assert again.epochs.entries == (Epoch(2, 0),)


def test_truncation_ends_at_batch_boundaries(files: SimFiles) -> None:
    log = open_log(files, SMALL)
    batches = [append(log, 5, size=30, leader_epoch=n) for n in range(8)]
    assert log.truncate_to(1_000, 7, high_watermark=0).offset == 40, "nothing to cut"
    assert log.truncate_to(35, 7, high_watermark=0) == (35, 35, 0)
    assert log.truncate_to(33, 7, high_watermark=0) == (30, 30, 0), "batches go as a whole"
    assert log.epochs.entries == tuple(Epoch(n, 5 * n) for n in range(6))
    assert read_batches(log) == batches[:6]
    assert log.synced == log.end
    assert sum(map(len, batches[:6])) == log.size_bytes()
    again = open_log(files, SMALL)
    assert again.end == (30, 30, 0)
    assert read_batches(again) == batches[:6]


def test_truncation_removes_an_epoch_that_begins_at_the_end(files: SimFiles) -> None:
    log = open_log(files)
    append(log, 3, leader_epoch=1)
    operations = len(files.operations)
    append(log, 1, leader_epoch=2)
    files.fail(len(files.operations) - operations, errno.EIO)
    with pytest.raises(OSError, match="EIO"):
        append(log, 3, leader_epoch=3)
    assert log.epochs.latest == 3
    log.truncate_to(4, 4, high_watermark=0)
    assert log.epochs.latest == 2
    assert open_log(files).epochs.latest == 2
    log.truncate_to(3, 4, high_watermark=0)
    assert log.epochs.latest == 1
    assert open_log(files).epochs.latest == 1


def test_truncation_below_the_high_watermark_or_the_log_start_is_refused(files: SimFiles) -> None:
    log = open_log(files, SMALL)
    batches = [append(log, 5, size=30) for _ in range(8)]
    log.sync()
    with pytest.raises(OffsetOutOfRange, match=r"offset 15 is outside \[20, 40\)"):
        log.truncate_to(15, 1, high_watermark=20)
    with pytest.raises(OffsetOutOfRange):
        log.truncate_to(22, 1, high_watermark=21)
    log.advance_start(12, high_watermark=20)
    with pytest.raises(OffsetOutOfRange, match=r"offset 11 is outside \[12, 40\)"):
        log.truncate_to(11, 1, high_watermark=0)
    assert log.end.offset == 40
    log.truncate_to(20, 1, high_watermark=20)
    assert read_batches(log) == batches[2:4]


def test_a_fence_stops_leaders_of_lower_epochs(files: SimFiles) -> None:
    log = open_log(files)
    append(log, 5, leader_epoch=3)
    with pytest.raises(FencedEpoch, match="epoch 2 is fenced: the current epoch is 3"):
        log.truncate_to(0, 2, high_watermark=0)
    log.truncate_to(5, 6, high_watermark=0)
    for call in (
        lambda: log.truncate_to(0, 5, high_watermark=0),
        lambda: log.start_at(0, 5),
        lambda: append(log, leader_epoch=3),
        lambda: append(log, leader_epoch=5),
    ):
        with pytest.raises(FencedEpoch, match="the current epoch is 6"):
            call()
    log.append_as_follower(make_batch(5, leader_epoch=3)), "an older leader's, from the new one"
    append(log, leader_epoch=6)
    assert log.epochs.entries == (Epoch(3, 0), Epoch(6, 6))


def test_readers_of_truncated_batches_get_the_old_bytes_or_none(files: SimFiles) -> None:
    """The files they hold are truncated or removed. No byte that they may read is overwritten."""
    log = open_log(files, SMALL)
    for _ in range(8):
        append(log, 5, size=30)
    former = log.end
    slices = [log.plan_read(offset, bytes_max=1 << 20, end=former) for offset in range(0, 40, 5)]
    before = [s.file.read_at(s.position, s.length) for s in slices if s is not None]
    for offset in (32, 10, 0):
        log.truncate_to(offset, 9, high_watermark=0)
        log.append_as_follower(make_batch(log.end.offset, 9, size=333, leader_epoch=9))
        for old, data in zip(slices, before, strict=True):
            assert old is not None
            assert data.startswith(old.file.read_at(old.position, old.length))
        with pytest.raises(OffsetOutOfRange):
            log.plan_read(log.end.offset + 1, bytes_max=100, end=former)
        piece = log.plan_read(offset // 5 * 5, bytes_max=1 << 20, end=former)
        assert piece is not None
        assert piece.length > 0


def test_a_truncation_to_an_offset_in_a_gap_ends_there(files: SimFiles) -> None:
    """Offsets below may be committed, though compaction removed their records."""
    for offset in range(11, 29):
        log = open_log(files, SMALL)
        log.start_at(0, 1)
        batches = [make_batch(base, 2, size=120) for base in (5, 9, 27, 29)]
        log.append_as_follower(b"".join(batches[:2]))
        log.append_as_follower(b"".join(batches[2:]))
        log.sync()
        log.checkpoint(high_watermark=11)
        expected = 27 if offset == 28 else offset
        assert log.truncate_to(offset, 1, high_watermark=11).offset == expected
        log = open_log(files, SMALL)
        assert log.end.offset == expected
        assert held_batches(log) == batches[:2]
        append(log, 1, leader_epoch=1)
        log.checkpoint(high_watermark=11)
        log = open_log(files, SMALL)
        assert log.end.offset == expected + 1
        verify_all(log)
        assert held_batches(log)[:2] == batches[:2]


def test_truncation_lowers_the_clean_offset(files: SimFiles) -> None:
    log = open_log(files, SMALL)
    for _ in range(8):
        append(log, 5, size=30)
    write_clean_offset(files, DIRECTORY, CleanOffset(30, 77))
    log.truncate_to(20, 1, high_watermark=0)
    assert read_clean_offset(files, DIRECTORY) == CleanOffset(20, 77)
    log.truncate_to(20, 1, high_watermark=0)
    assert read_clean_offset(files, DIRECTORY) == CleanOffset(20, 77)


CUT = 14
"""An offset in the second of the compacted segments."""


def dirty_log(files: SimFiles, model: Model) -> PartitionLog:
    log = open_keyed(files)
    for n in range(12):
        append_keyed(log, model, [(b"k%d" % (n % 3), b"v%d" % n), (b"own%d" % n, b"x" * 300)])
    close_segment(log)
    return log


@pytest.mark.parametrize("reset", [False, True], ids=["truncated", "reset"])
def test_a_compaction_with_a_concurrent_truncation_keeps_the_latest_remaining_records(
    reset: bool,
) -> None:
    """Its key map has later records that were truncated, so the earlier ones must be kept."""
    for steps in range(1, 40):
        files, model = SimFiles(RealRandom(1)), Model()
        log = dirty_log(files, model)
        run = compaction(files, log, now_ms=5_000).steps()
        going = all(next(run, None) is not None for _ in range(steps))
        kept = [r for r in held(log) if r.offset < CUT]
        if reset:
            log.start_at(CUT, 0)
            kept = []
        else:
            log.truncate_to(CUT, 0, high_watermark=0)
        for n in range(12, 16):
            append_keyed(log, model, [(b"other", b"v%d" % n), (b"more%d" % n, b"x" * 300)])
        if not going:
            break
        for _ in run:
            pass
        assert [r for r in held(log) if r.offset < CUT] == kept
        assert closed_end(log) <= CUT
        assert held_batches(open_keyed(files)) == held_batches(log)
    assert steps > 4


def test_a_truncation_after_a_compaction_that_failed() -> None:
    """A failed segment replacement must not be completed after the truncation."""
    for operation in count(1):
        files = SimFiles(RealRandom(1))
        log = dirty_log(files, Model())
        files.fail(operation, errno.EIO)
        try:
            for _ in compaction(files, log, now_ms=5_000).steps():
                pass
        except OSError:
            pass
        if files.fault_pending():
            break
        kept = [r for r in held(log) if r.offset < CUT]
        log.truncate_to(CUT, 0, high_watermark=0)
        assert held(log) == kept
        again = open_keyed(files)
        assert held(again) == kept
        verify_all(again)
    assert operation > 50


def test_start_at_resets_the_log_to_the_leaders_start(files: SimFiles) -> None:
    log = open_log(files, SMALL)
    for n in range(8):
        append(log, 5, size=30, leader_epoch=n)
    log.checkpoint(high_watermark=0)
    former = log.plan_read(20, bytes_max=100, end=log.end)
    assert former is not None
    data = former.file.read_at(former.position, former.length)
    assert log.start_at(1_000, 8) == log.end == log.synced == (1_000, 1_000, 0)
    assert log.start_offset == log.checkpointed_high_watermark == 1_000
    assert log.timestamp_max == -1
    assert log.size_bytes() == 0
    assert former.file.read_at(former.position, former.length) == data
    with pytest.raises(OffsetOutOfRange):
        log.plan_read(20, bytes_max=100, end=log.end)
    again = open_log(files, SMALL)
    assert again.end == (1_000, 1_000, 0)
    assert again.start_offset == 1_000
    batch = make_batch(1_000, 4, leader_epoch=3)
    again.append_as_follower(batch)
    again.close()
    assert read_batches(open_log(files, SMALL)) == [batch]


def test_bytes_are_counted_from_an_offset_to_the_end(files: SimFiles) -> None:
    """Records of very unequal sizes: a mean of them would be wrong by far."""
    interval = 200
    log = open_log(files, LogConfig(segment_bytes_max=4_000, index_interval_bytes=interval))
    batches = [make_batch(n, 1, size=3_000 if n % 10 == 0 else 60) for n in range(40)]
    for batch in batches:
        log.append_as_follower(batch)
    assert len(log.segments_info()) > 2
    for offset in range(41):
        exact = sum(map(len, batches[offset:]))
        slack = 0 if offset in (0, 40) else interval + len(make_batch(0, 1, size=3_000))
        assert exact <= log.bytes_from(offset) <= exact + slack, offset
    assert log.bytes_from(35) < 1_000 < log.bytes_from(30)
    log.sync()
    log.checkpoint(high_watermark=40)
    log.checkpoint(high_watermark=40)  # now the closed segments are not loaded
    assert log.bytes_from(0) == log.size_bytes()
    assert log.bytes_from(35) < 1_000
    assert 0 < log.bytes_from(5) < log.size_bytes()
