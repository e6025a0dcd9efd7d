"""Fail the n-th file operation, for n = 1, 2, 3, ... until a run has no failure."""

from __future__ import annotations

import errno
from itertools import count

import pytest

from bascule.errors import LogFailed
from bascule.host.real import RealRandom
from bascule.sim.disk import SHORT, SimFiles
from bascule.storage.partition_log import LogConfig, PartitionLog
from support.stored_batches import Witness, make_batch, open_log

CONFIG = LogConfig(segment_bytes_max=3_000, index_interval_bytes=200)


def run(files: SimFiles, witness: Witness) -> None:
    """Open, append with rolls and new epochs, sync, checkpoint, close, open, append, close.

    Raises: OSError, LogFailed where a fault hit.
    """
    log = open_log(files, CONFIG)
    for step in range(12):
        write(log, witness, leader_epoch=step // 5)
        if step % 2:
            witness.sync(log)
        if step % 4 == 3:
            log.checkpoint(high_watermark=witness.confirmed)
    log.close()
    witness.confirmed = log.end.offset
    log = open_log(files, CONFIG)
    witness.check(log)
    write(log, witness, leader_epoch=7)
    witness.sync(log)
    log.close()


def write(log: PartitionLog, witness: Witness, *, leader_epoch: int) -> None:
    batch = make_batch(log.end.offset, 3, size=150, leader_epoch=leader_epoch)
    witness.append(log, batch)


def continue_log(files: SimFiles, witness: Witness) -> None:
    """After a fault: all confirmed batches are there, and appends work again."""
    log = open_log(files, CONFIG)
    witness.check(log)
    write(log, witness, leader_epoch=log.epochs.latest + 1)
    witness.sync(log)
    log.checkpoint(high_watermark=witness.confirmed)
    log.close()
    witness.check(open_log(files, CONFIG))


@pytest.mark.parametrize("crash", [False, True], ids=["restart", "power loss"])
@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC, SHORT], ids=["EIO", "ENOSPC", "short"])
def test_every_operation_may_fail(error: int, crash: bool) -> None:
    for n in count(1):
        files = SimFiles(RealRandom(n))
        witness = Witness(files, CONFIG)
        files.fail(n, error)
        try:
            run(files, witness)
        except (OSError, LogFailed):
            pass
        else:
            if files.fault_pending():
                break
        files.forget_faults()
        if crash:
            files.crash()
        continue_log(files, witness)
    assert n > 100, "the run has too few operations for this test"


@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC, SHORT], ids=["EIO", "ENOSPC", "short"])
def test_a_log_continues_after_a_failure_that_did_not_stop_it(error: int) -> None:
    """As above, but the process continues and repeats the failed call, as a broker does."""
    for n in count(1):
        files = SimFiles(RealRandom(n))
        witness = Witness(files, CONFIG)
        log = open_log(files, CONFIG)
        done = len(files.operations)
        files.fail(n, error)
        stopped = False
        for step in range(12):
            try:
                retry_once(lambda: write(log, witness, leader_epoch=step // 5))  # noqa: B023
                retry_once(lambda: witness.sync(log))  # noqa: B023
                retry_once(lambda: log.checkpoint(high_watermark=witness.confirmed))  # noqa: B023
            except LogFailed:
                stopped = True
                break
        assert stopped or witness.confirmed == 36
        if files.fault_pending():
            break
        assert len(files.operations) > done
        files.crash()
        continue_log(files, witness)


def retry_once(call: object) -> None:
    """Call, and call again after an OSError."""
    assert callable(call)
    try:
        call()
    except OSError:
        call()


def test_opening_may_fail_anywhere() -> None:
    """Faults while a log with a torn tail is opened: the next opening finds all batches."""
    for n in count(1):
        files = SimFiles(RealRandom(n))
        witness = Witness(files, CONFIG)
        log = open_log(files, CONFIG)
        for step in range(6):
            write(log, witness, leader_epoch=step // 2)
        witness.sync(log)
        log.checkpoint(high_watermark=9)
        for step in range(6):
            write(log, witness, leader_epoch=3 + step // 2)
        witness.sync(log)
        files.open(log._active.file.path).append(make_batch(log.end.offset, 1, size=500)[:300])
        files.crash()
        files.fail(n, errno.EIO)
        try:
            log = open_log(files, CONFIG)
        except OSError:
            if n % 2:
                files.crash()
        else:
            if files.fault_pending():
                break
        files.forget_faults()
        continue_log(files, witness)
    assert n > 10
