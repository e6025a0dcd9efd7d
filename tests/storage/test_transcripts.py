"""Transcripts of the file operations of each call, so that the order of syncs is reviewed."""

from __future__ import annotations

import errno
from collections.abc import Callable

import pytest

from bascule.errors import BasculeError
from bascule.host.real import RealRandom
from bascule.sim.disk import SHORT, SimFiles
from bascule.storage.partition_log import LogConfig, PartitionLog
from support.stored_batches import DIRECTORY, append, make_batch, open_log

Check = Callable[[str, str], None]
CONFIG = LogConfig(segment_bytes_max=500)


class Recorder:
    """Records calls, their file operations and their results."""

    def __init__(self) -> None:
        self.files = SimFiles(RealRandom(1))
        self.lines: list[str] = []

    def __call__(self, title: str, call: Callable[[], object]) -> object:
        before = len(self.files.operations)
        try:
            result = call()
        except (OSError, BasculeError) as error:
            result = f"{type(error).__name__}: {error}"
        self.lines.append(title)
        self.lines += [f"  {line}" for line in self.files.operations[before:]]
        if isinstance(result, (str, tuple)):
            self.lines.append(f"= {result}")
        self.lines.append("")
        return result

    @property
    def text(self) -> str:
        return "\n".join(self.lines)


@pytest.fixture
def recorder() -> Recorder:
    return Recorder()


def test_life_of_a_log(recorder: Recorder, transcript: Check) -> None:
    log = open_log(recorder.files, CONFIG)
    recorder.lines += ["open a new log", *(f"  {line}" for line in recorder.files.operations), ""]
    recorder("append, first batch of epoch 0", lambda: append(log, 3) and log.end)
    recorder("append", lambda: append(log, 3) and log.end)
    recorder("sync", log.sync)
    recorder("sync with nothing new", log.sync)
    recorder("checkpoint", lambda: log.checkpoint(high_watermark=6))
    recorder("append, rolls", lambda: append(log, 5, size=60) and log.end)
    recorder("append, rolls", lambda: append(log, 5, size=60, leader_epoch=1) and log.end)
    recorder("sync", log.sync)
    recorder("append", lambda: append(log, 1, leader_epoch=1) and log.end)
    recorder("checkpoint", lambda: log.checkpoint(high_watermark=16))
    recorder("checkpoint with nothing new", lambda: log.checkpoint(high_watermark=16))
    recorder("close", log.close)
    again = open_log(recorder.files, CONFIG)
    recorder("open again", lambda: open_log(recorder.files, CONFIG).end)
    recorder(
        "read an unloaded segment",
        lambda: f"{again.plan_read(1, bytes_max=100, end=again.end)!r}".partition(",")[2],
    )
    transcript("storage_life", recorder.text)


def test_follower(recorder: Recorder, transcript: Check) -> None:
    files = recorder.files
    log = open_log(files, CONFIG)
    two = make_batch(0, 3) + make_batch(3, 3, leader_epoch=1)
    recorder("append as follower, two epochs", lambda: log.append_as_follower(two))
    gap = make_batch(9, 3, leader_epoch=1)
    recorder("append as follower, a gap", lambda: log.append_as_follower(gap))
    recorder("append as follower, another gap", lambda: append_at(log, 14, size=90))
    recorder("sync", log.sync)
    recorder("checkpoint", lambda: log.checkpoint(high_watermark=6))
    for offset, size in ((17, 60), (20, 90), (23, 50)):
        append_at(log, offset, size=size, leader_epoch=3)
    recorder("truncate into a batch", lambda: log.truncate_to(22, 4, high_watermark=6))
    recorder("append as follower", lambda: append_at(log, 20, leader_epoch=4))
    recorder("truncate to the base of a segment", lambda: log.truncate_to(14, 5, high_watermark=6))
    recorder(
        "truncate to the end, which changes nothing",
        lambda: log.truncate_to(14, 5, high_watermark=6),
    )
    recorder("truncate below the watermark", lambda: log.truncate_to(5, 5, high_watermark=6))
    recorder("truncate for an older leader", lambda: log.truncate_to(14, 4, high_watermark=6))
    recorder("append as follower", lambda: append_at(log, 14, leader_epoch=5))
    recorder("sync", log.sync)
    recorder("reset to another offset", lambda: log.start_at(1_000, 5))
    recorder("append as follower", lambda: append_at(log, 1_000, leader_epoch=5))
    recorder("sync", log.sync)
    files.fail(9, errno.EIO)
    recorder("reset to another offset, interrupted", lambda: log.start_at(2_000, 5))
    recorder("open after that", lambda: open_log(files, CONFIG).end)
    transcript("storage_follower", recorder.text)


def append_at(log: PartitionLog, offset: int, *, size: int = 20, leader_epoch: int = 1) -> object:
    batch = make_batch(offset, 3, size=size, leader_epoch=leader_epoch)
    return log.append_as_follower(batch)


def test_failures(recorder: Recorder, transcript: Check) -> None:
    files = recorder.files
    log = open_log(files, CONFIG)
    append(log, 3)
    files.fail(1, SHORT)
    recorder("append on a full disk", lambda: append(log, 3))
    recorder("append", lambda: append(log, 3) and log.end)
    files.fail(1, errno.ENOSPC)
    recorder("append, cannot roll", lambda: append(log, 3, size=100))
    recorder("append, rolls", lambda: append(log, 3, size=100) and log.end)
    recorder("sync", log.sync)
    files.fail(3, errno.ENOSPC)
    recorder("checkpoint on a full disk", lambda: log.checkpoint(high_watermark=9))
    recorder("checkpoint", lambda: log.checkpoint(high_watermark=9))
    append(log)
    files.fail(1, errno.EIO)
    recorder("sync fails", log.sync)
    recorder("append after the failed sync", lambda: append(log))
    recorder("close after the failed sync", log.close)
    recorder("open after that", lambda: open_log(files, CONFIG).end)
    transcript("storage_failures", recorder.text)


def test_recovery(recorder: Recorder, transcript: Check) -> None:
    files = recorder.files
    log = open_log(files, CONFIG)
    for _ in range(4):
        append(log, 3, size=50)
        log.sync()
    recorder("open after a kill, no checkpoint", lambda: open_log(files, CONFIG).end)
    log = open_log(files, CONFIG)
    log.checkpoint(high_watermark=12)
    files.open(log._active.file.path).append(make_batch(12, 3)[:70])
    recorder("open after a kill in the middle of an append", lambda: open_log(files, CONFIG).end)
    log = open_log(files, CONFIG)
    append(log, 3, size=150)
    append(log, 3, size=150)
    files._inode(f"{DIRECTORY}/{12:020d}.log").data[-1:] = b""
    files._inode(f"{DIRECTORY}/{15:020d}.log").data[:] = bytes(100)
    recorder(
        "open after a power loss, zeros in the last segment", lambda: open_log(files, CONFIG).end
    )
    log = open_log(files, CONFIG)
    append(log, 1)
    append(log, 1)
    files._inode(log._active.file.path).data[40] ^= 1
    recorder(
        "open after a power loss that lost a page before a valid batch",
        lambda: open_log(files, CONFIG).end,
    )
    log = open_log(files, CONFIG)
    append(log, 1)
    log.sync()
    files._inode(log._active.file.path).data[40] ^= 1
    recorder("open with a damaged batch that was synced", lambda: open_log(files, CONFIG).end)
    transcript("storage_recovery", recorder.text)
