"""Both file systems keep to the same port; the real one's own corners."""

from __future__ import annotations

import errno
import gc
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from bascule.errors import DataDirectoryInUse
from bascule.host import real
from bascule.host.api import Files
from bascule.host.real import DirectoryLock, RealClock, RealFiles, RealRandom
from bascule.sim.disk import SimFiles
from conformance.check_files import CHECKS, Check


def real_files(tmp_path: Path) -> tuple[Files, str]:
    return RealFiles(), str(tmp_path)


def sim_files(_: Path) -> tuple[Files, str]:
    files = SimFiles(RealRandom(1))
    files.make_dirs("/root")
    return files, "/root"


@pytest.mark.parametrize("make", [real_files, sim_files])
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_conforms(check: Check, make: Callable[[Path], tuple[Files, str]], tmp_path: Path) -> None:
    check(*make(tmp_path))


def test_last_reference_closes_the_descriptor(tmp_path: Path) -> None:
    file = RealFiles().open(str(tmp_path / "a"), create=True)
    fd = file.fileno()
    os.fstat(fd)
    del file
    gc.collect()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)


def test_a_short_write_is_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written = []

    def at_most_five(fd: int, data: bytes, position: int) -> int:
        written.append(position)
        return os_pwrite(fd, data[:5], position)

    def vector_of_five(fd: int, buffers: list[bytes], position: int) -> int:
        return os_pwrite(fd, b"".join(buffers)[:5], position)

    os_pwrite = os.pwrite
    monkeypatch.setattr(real.os, "pwrite", at_most_five)
    monkeypatch.setattr(real.os, "pwritev", vector_of_five)
    files = RealFiles()
    file = files.open(str(tmp_path / "a"), create=True)
    file.append(b"0123456789abc")
    assert written == [0, 5, 10]
    file.append(b"de", b"fgh", b"", b"ijklmnop", b"q")
    assert files.read_bytes(file.path) == b"0123456789abcdefghijklmnopq"
    file.write_at(3, b"THREETO11")
    assert files.read_bytes(file.path) == b"012THREETO11cdefghijklmnopq"


def test_a_write_of_nothing_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = RealFiles().open(str(tmp_path / "a"), create=True)
    monkeypatch.setattr(real.os, "pwrite", lambda *_: 0)
    for write in (lambda: file.append(b"data"), lambda: file.write_at(0, b"data")):
        with pytest.raises(OSError, match="the kernel wrote nothing"):
            write()


@pytest.mark.parametrize("code", [errno.EAGAIN, errno.EOPNOTSUPP])
def test_what_the_page_cache_cannot_answer(
    code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> int:
        raise OSError(code, os.strerror(code))

    file = RealFiles().open(str(tmp_path / "a"), create=True)
    file.append(b"data")
    monkeypatch.setattr(real.os, "preadv", refuse)
    assert file.read_at_nowait(0, 4) is None


def test_half_cached_counts_as_not_cached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = RealFiles().open(str(tmp_path / "a"), create=True)
    file.append(b"0123456789")
    monkeypatch.setattr(real.os, "preadv", lambda *_: 4)
    assert file.read_at_nowait(0, 10) is None


def test_cached_bytes_come_without_waiting(tmp_path: Path) -> None:
    file = RealFiles().open(str(tmp_path / "a"), create=True)
    file.append(b"0123456789")
    assert file.read_at_nowait(2, 4) in (b"2345", None)


def test_a_loaded_range_is_cached(tmp_path: Path) -> None:
    file = RealFiles().open(str(tmp_path / "a"), create=True)
    size = 3 << 20
    file.append(bytes(size))
    file.sync()
    os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    if file.is_cached(1 << 20, 2 << 20):
        pytest.skip(f"the file system of {tmp_path} keeps its pages")
    file.load(1 << 20, 2 << 20)
    assert file.is_cached(1 << 20, 2 << 20)
    file.load(2 << 20, size + 1)  # what lies beyond the end is left out
    assert file.is_cached(1 << 20, size)


def test_loading_fails_with_the_system_s_error(tmp_path: Path) -> None:
    file = RealFiles().open(str(tmp_path / "a"), create=True)
    file.append(b"0123456789")
    file.close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        file.load(0, 10)


def test_a_held_directory_names_its_holder(tmp_path: Path) -> None:
    with DirectoryLock(str(tmp_path)):
        with pytest.raises(DataDirectoryInUse) as caught:
            DirectoryLock(str(tmp_path))
        assert caught.value.pid == os.getpid()
        assert str(os.getpid()) in str(caught.value)
    with DirectoryLock(str(tmp_path)):
        pass


def test_a_lock_ends_with_its_process(tmp_path: Path) -> None:
    script = (
        "import os, sys; from bascule.host.real import DirectoryLock;"
        f"lock = DirectoryLock({str(tmp_path)!r}); os.kill(os.getpid(), 9)"
    )
    killed = subprocess.run([sys.executable, "-c", script], check=False)
    assert killed.returncode == -9
    DirectoryLock(str(tmp_path)).release()


def test_seeded_randomness_repeats() -> None:
    assert RealRandom(7).bytes(16) == RealRandom(7).bytes(16)
    assert RealRandom().bytes(16) != RealRandom().bytes(16)
    assert 2 <= RealRandom().uniform(2, 3) <= 3


def test_clocks_move_forward() -> None:
    clock = RealClock()
    assert clock.now_ms() > 1_700_000_000_000
    assert clock.monotonic_ns() <= clock.monotonic_ns()
