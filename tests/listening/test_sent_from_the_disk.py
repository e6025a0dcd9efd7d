"""What leaves the page cache between the look-up and the sending is checked again."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from bascule.errors import BasculeError, CorruptData
from bascule.host import page_cache
from bascule.host.api import File
from bascule.host.real import RealClock, RealFiles
from bascule.storage.partition_log import FileSlice, LogConfig, PartitionLog
from support.page_cache import drop_from_page_cache
from support.sent_pieces import sent
from support.stored_batches import append


def changed_on_disk(file: File, byte: int) -> None:
    """As if the disk had changed a bit: the page cache has nothing of the file any more."""
    fd = file.fileno()
    (was,) = os.pread(fd, 1, byte)
    os.pwrite(fd, bytes([was ^ 4]), byte)
    drop_from_page_cache(fd)
    assert not page_cache.is_cached(fd, 0, 4096), "needs a file system that drops pages"


def received(piece: FileSlice) -> bytes:
    found, _ = sent([piece])
    return found


def verified_log(path: Path) -> tuple[PartitionLog, int]:
    log = PartitionLog.open(RealFiles(), str(path / "0"), LogConfig(), RealClock())
    append(log, 2, size=10_000)
    at = log.end.position
    append(log, 2, size=10_000)
    log.sync()
    assert log.verify() is None
    return log, at


def test_what_is_sent_from_the_disk_was_checked(tmp_path: Path) -> None:
    log, at = verified_log(tmp_path)
    piece = log.plan_read(0, bytes_max=1 << 20, end=log.end)
    assert piece is not None
    good = piece.file.read_at(piece.position, piece.length)
    changed_on_disk(piece.file, at + 6)
    try:
        found = received(piece)
    except (BasculeError, OSError):
        return
    assert found == good


def test_what_was_sent_from_the_disk_is_not_trusted_afterwards(tmp_path: Path) -> None:
    log, at = verified_log(tmp_path)
    piece = log.plan_read(0, bytes_max=1 << 20, end=log.end)
    assert piece is not None
    changed_on_disk(piece.file, at + 6)
    try:
        received(piece)
    except (BasculeError, OSError):
        pass
    with pytest.raises(CorruptData):
        log.plan_read(0, bytes_max=1 << 20, end=log.end)


def test_an_append_reads_the_rest_of_its_page_from_the_disk(tmp_path: Path) -> None:
    log = PartitionLog.open(RealFiles(), str(tmp_path / "0"), LogConfig(), RealClock())
    append(log, 2)
    at = log.end.position
    append(log, 2)
    log.sync()
    assert log.verify() is None
    file = log._active.file
    changed_on_disk(file, at + 6)
    append(log, 2)
    with pytest.raises(CorruptData):
        log.plan_read(0, bytes_max=1 << 20, end=log.end)


def test_a_kernel_without_cachestat_sees_each_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before Linux 6.5 one byte of 64 KiB is probed, but pages leave one by one."""
    monkeypatch.setattr(page_cache, "_LIBC", None)
    path = tmp_path / "file"
    with path.open("wb+") as file:
        for at in range(0, 256 << 10, 4_096):  # as appends of small batches; no large folios
            os.pwrite(file.fileno(), bytes(4_096), at)
        os.fsync(file.fileno())
        if not page_cache.is_cached(file.fileno(), 0, 256 << 10):
            pytest.skip("no RWF_NOWAIT here")
        os.posix_fadvise(file.fileno(), 8_192, 32_768, os.POSIX_FADV_DONTNEED)
        monkeypatch.undo()
        if page_cache.is_cached(file.fileno(), 8_192, 12_288):
            pytest.skip("the kernel keeps the pages")
        monkeypatch.setattr(page_cache, "_LIBC", None)
        assert not page_cache.is_cached(file.fileno(), 0, 256 << 10)
