"""Faults and power losses in truncations, resets and a follower's appends."""

from __future__ import annotations

import errno
from collections.abc import Callable
from itertools import count

import pytest

from bascule.errors import LogFailed
from bascule.host.real import RealRandom
from bascule.record.header import read_header
from bascule.sim.disk import SHORT, SimFiles
from bascule.storage.partition_log import LogConfig, PartitionLog
from support.keyed_logs import held_batches, verify_all
from support.stored_batches import append, make_batch, open_log

CONFIG = LogConfig(segment_bytes_max=1_000, index_interval_bytes=200)
ERRORS = pytest.mark.parametrize(
    "error", [errno.EIO, errno.ENOSPC, SHORT], ids=["EIO", "ENOSPC", "short"]
)
OUTCOMES = [("stay", 0), ("restart", 0), *(("power loss", seed) for seed in range(3))]
LATER = 9
"""An epoch above all epochs of the log."""
CUTS = {
    "in the active segment": 54, "at a segment's base": 36, "within a batch": 44,
    "below the recovery point": 16, "everything": 0,
}  # fmt: skip


def prepare(files: SimFiles, *, batches_per_leader: int = 4) -> tuple[PartitionLog, list[bytes]]:
    """Twenty batches of several leaders, four per segment; checkpoint at 30, synced to 57."""
    log, batches = open_log(files, CONFIG), []
    for n in range(20):
        batches.append(
            append(log, 3, size=50, timestamp=1_000 + n, leader_epoch=n // batches_per_leader)
        )
        if n < 19:
            log.sync()
        if n == 9:
            log.checkpoint(high_watermark=0)
    assert len(log.segments_info()) > 4
    assert 36 in [info.base_offset for info in log.segments_info()]
    return log, batches


def below(batches: list[bytes], offset: int) -> list[bytes]:
    return [batch for batch in batches if read_header(batch).end_offset <= offset]


def sweep(
    call: Callable[[PartitionLog], object],
    *,
    error: int,
    check: Callable[[PartitionLog, list[bytes], bool], None],
    least: int,
) -> None:
    """Fail operation n of `call`, then continue, reopen or lose power, and `check` each case."""
    for n in count(1):
        finished = False
        for after, seed in OUTCOMES if error == errno.EIO else OUTCOMES[:3]:
            files = SimFiles(RealRandom(100 * n + seed))
            log, batches = prepare(files)
            files.fail(n, error)
            done = True
            try:
                call(log)
            except LogFailed:
                done = False
                assert log.failure is not None
            except OSError:
                done = False
                assert log.failure is None
                assert held_batches(log) == batches, f"operation {n}: changed though it failed"
                assert log.epochs.latest == 4
            finished = files.fault_pending()
            files.forget_faults()
            if after == "power loss":
                files.crash()
            if after != "stay" or log.failure is not None:
                log = open_log(files, CONFIG)
            check(log, batches, done)
        if finished:
            break
    assert n > least, "the call has too few operations for this test"


def continue_log(log: PartitionLog, kept: list[bytes]) -> None:
    """Append the batches of another leader. All batches survive a power loss."""
    offset = log.end.offset
    batches = [make_batch(offset + n, size=70, leader_epoch=LATER) for n in range(6)]
    log.append_as_follower(b"".join(batches[:4]))
    log.append_as_follower(b"".join(batches[4:]))
    log.sync()
    log.checkpoint(high_watermark=log.end.offset)
    files = log._files
    assert isinstance(files, SimFiles)
    files.crash()
    again = open_log(files, CONFIG)
    assert held_batches(again) == [*kept, *batches]
    verify_all(again)
    assert again.epochs.latest == LATER
    assert again.epochs.at(offset) == LATER
    again.close()
    assert held_batches(open_log(files, CONFIG)) == [*kept, *batches]


@ERRORS
@pytest.mark.parametrize("offset", CUTS.values(), ids=CUTS)
def test_a_truncation_may_fail_anywhere(offset: int, error: int) -> None:
    def truncate(log: PartitionLog) -> None:
        log.truncate_to(offset, LATER, high_watermark=0)

    def check(log: PartitionLog, batches: list[bytes], done: bool) -> None:
        kept = below(batches, offset)
        held = held_batches(log)
        assert held == batches[: len(held)]
        assert len(held) >= len(kept)
        assert log.checkpointed_high_watermark <= log.end.offset
        if done:
            assert held == kept
            assert log.synced == log.end
        truncate(log)
        assert held_batches(log) == kept
        assert all(start < max(log.end.offset, 1) for _, start in log.epochs.entries)
        continue_log(log, kept)

    sweep(truncate, error=error, check=check, least=12)


@ERRORS
@pytest.mark.parametrize("offset", [0, 16, 36, 60, 500])
def test_a_reset_may_fail_anywhere(offset: int, error: int) -> None:
    def start_over(log: PartitionLog) -> None:
        log.start_at(offset, LATER)

    def check(log: PartitionLog, batches: list[bytes], done: bool) -> None:
        held = held_batches(log)
        if done or (log.start_offset == offset and not held):
            assert log.start_offset == log.end.offset == log.checkpointed_high_watermark == offset
            assert held == []
            assert log.epochs.entries == ()
        else:
            # The last batch was not synced.
            assert held in (batches, batches[:-1])
            assert log.start_offset == 0
        start_over(log)
        assert log.end == log.synced == (offset, offset, 0)
        assert log.start_offset == offset
        continue_log(log, [])

    sweep(start_over, error=error, check=check, least=25)


@ERRORS
@pytest.mark.parametrize("rolls", [False, True], ids=["same segment", "rolls"])
def test_a_followers_append_may_fail_anywhere(error: int, rolls: bool) -> None:
    """All batches or none while the log is open; a prefix of them after a power loss."""
    size = 400 if rolls else 20
    new = [
        make_batch(60, 2, size=size, leader_epoch=4),
        make_batch(70, 2, size=size, leader_epoch=6),
        make_batch(72, 1, size=size, leader_epoch=LATER),
    ]

    def follow(log: PartitionLog) -> None:
        log.append_as_follower(b"".join(new))
        log.sync()

    def check(log: PartitionLog, batches: list[bytes], done: bool) -> None:
        held = held_batches(log)
        everything = batches + new
        assert held == everything[: len(held)]
        assert len(held) >= (len(everything) if done else 19)
        end = log.end.offset
        log.truncate_to(min(60, end), LATER, high_watermark=0)
        kept = held[:20]
        if len(held) < 20:
            batch = append(log, 60 - end, leader_epoch=LATER)
            log.truncate_to(end, LATER, high_watermark=0)
            assert batch
        assert held_batches(log) == kept
        if len(kept) == 20:
            follow(log)
            kept = everything
        continue_log(log, kept)

    sweep(follow, error=error, check=check, least=10)


@pytest.mark.parametrize("seed", range(25))
def test_completed_truncations_and_resets_survive_a_power_loss(seed: int) -> None:
    # With four batches per leader each segment begins a leader epoch, so the epochs alone determine
    # what to remove. With five, the segment at offset 36 begins within an epoch.
    for offset, batches_per_leader in ((54, 4), (44, 4), (36, 4), (36, 5), (0, 4)):
        files = SimFiles(RealRandom(seed))
        log, batches = prepare(files, batches_per_leader=batches_per_leader)
        log.truncate_to(offset, LATER, high_watermark=0)
        files.crash()
        log = open_log(files, CONFIG)
        assert held_batches(log) == below(batches, offset)
        log.append_as_follower(make_batch(log.end.offset, 4, leader_epoch=LATER))
        log.append_as_follower(make_batch(log.end.offset + 3, 4, leader_epoch=LATER))
        log.sync()
        files.crash()
        log = open_log(files, CONFIG)
        assert held_batches(log)[:-2] == below(batches, offset)
        assert log.epochs.latest == LATER
        log.start_at(offset, LATER)
        files.crash()
        log = open_log(files, CONFIG)
        assert log.start_offset == log.end.offset == offset
        assert held_batches(log) == []
