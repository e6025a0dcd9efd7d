"""The real operating system: the only module that uses `os`, `time` and `random`.

Python itself repeats system calls that a signal interrupts (PEP 475).
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import random
import shutil
import stat
import time
from typing import Final

from bascule.errors import DataDirectoryInUse
from bascule.host import page_cache
from bascule.host.api import NO_SPACE, Buffer

IOV_MAX: Final = 1024
"""Most buffers of one `pwritev` on Linux (UIO_MAXIOV)."""
READ_BYTES_MAX: Final = 0x7FFF_F000
"""Most bytes that one read returns on Linux (MAX_RW_COUNT)."""
COPY_BYTES: Final = 1 << 20
LOCK_NAME: Final = "lock"
NOT_CACHED: Final = frozenset({errno.EAGAIN})
NO_NOWAIT: Final = frozenset({errno.EOPNOTSUPP, errno.ENOTSUP, errno.EINVAL, errno.ENOSYS})


class RealFile:
    """A descriptor and the size of its file, so that an append is one `pwrite`.

    The descriptor is closed when the last reference is gone, never earlier. Otherwise its number
    could be given to another file while a response is still sent from it.
    """

    __slots__ = ("_fd", "_path", "_size")

    def __init__(self, fd: int, path: str) -> None:
        self._fd = fd
        self._path = path
        self._size = os.fstat(fd).st_size

    @property
    def path(self) -> str:
        return self._path

    def __repr__(self) -> str:
        return f"RealFile({self._path!r}, fd={self._fd})"

    def fileno(self) -> int:
        return self._fd

    def append(self, *data: Buffer) -> None:
        position = self._size
        if len(data) == 1:
            (single,) = data
            written = os.pwrite(self._fd, single, position)
            self._size = position + written
            if written == len(single):
                return
            self._append_rest(memoryview(single)[written:])
            return
        for first in range(0, len(data), IOV_MAX):
            self._append_vector(data[first : first + IOV_MAX])

    def _append_vector(self, buffers: tuple[Buffer, ...]) -> None:
        written = os.pwritev(self._fd, buffers, self._size)
        self._size += written
        for buffer in buffers:
            if written >= len(buffer):
                written -= len(buffer)
            else:
                self._append_rest(memoryview(buffer)[written:])
                written = 0

    def _append_rest(self, view: memoryview) -> None:
        """Write the rest after a short write. The next write reports the error, if any."""
        while view:
            written = os.pwrite(self._fd, view, self._size)
            if written == 0:
                raise OSError(errno.EIO, "the kernel wrote nothing", self._path)
            self._size += written
            view = view[written:]

    def read_at(self, position: int, length: int) -> bytes:
        data = os.pread(self._fd, min(length, READ_BYTES_MAX), position)
        if len(data) == length or not data:
            return data
        parts = [data]
        got = len(data)
        while got < length:
            data = os.pread(self._fd, min(length - got, READ_BYTES_MAX), position + got)
            if not data:
                break
            parts.append(data)
            got += len(data)
        return b"".join(parts)

    def read_at_nowait(self, position: int, length: int) -> bytes | None:
        if position < 0:
            raise OSError(errno.EINVAL, "negative position", self._path)
        buffer = bytearray(length)
        try:
            got = os.preadv(self._fd, [buffer], position, os.RWF_NOWAIT)
        except OSError as error:
            # A file system without RWF_NOWAIT: the read might wait for the disk.
            if error.errno in NOT_CACHED or error.errno in NO_NOWAIT:
                return None
            raise
        if got < length and position + got < os.fstat(self._fd).st_size:
            return None  # only the beginning is in the cache
        return bytes(memoryview(buffer)[:got])

    def is_cached(self, start: int, end: int) -> bool:
        return page_cache.is_cached(self._fd, start, end)

    def load(self, start: int, end: int) -> None:
        page_cache.load(self._fd, start, end)

    def size(self) -> int:
        return os.fstat(self._fd).st_size

    def truncate(self, size: int) -> None:
        os.ftruncate(self._fd, size)
        self._size = size

    def sync(self) -> None:
        os.fdatasync(self._fd)

    def write_back(self, start: int, end: int) -> None:
        page_cache.write_back(self._fd, start, end)

    def write_at(self, position: int, data: Buffer) -> None:
        view = memoryview(data)
        while view:
            written = os.pwrite(self._fd, view, position)
            if written == 0:
                raise OSError(errno.EIO, "the kernel wrote nothing", self._path)
            position += written
            view = view[written:]

    def write_again(self, position: int, length: int) -> None:
        end = position + length
        while position < end:
            data = self.read_at(position, min(COPY_BYTES, end - position))
            if not data:
                return
            view = memoryview(data)
            while view:
                written = os.pwrite(self._fd, view, position)
                position += written
                view = view[written:]

    def close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def __del__(self) -> None:
        # Missing if the constructor failed; the caller closes the descriptor then.
        fd = getattr(self, "_fd", -1)
        if fd >= 0:
            self._fd = -1
            os.close(fd)


class RealFiles:
    """The host's file system."""

    def open(self, path: str, *, create: bool = False, write: bool = True) -> RealFile:
        flags = (os.O_RDWR if write else os.O_RDONLY) | os.O_CLOEXEC
        if create:
            flags |= os.O_CREAT
        fd = os.open(path, flags, 0o640)
        try:
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                raise OSError(errno.EINVAL, "not a regular file", path)
            return RealFile(fd, path)
        except OSError:
            os.close(fd)
            raise

    def read_bytes(self, path: str) -> bytes:
        with open(path, "rb") as file:
            return file.read()

    def size(self, path: str) -> int:
        return os.stat(path).st_size

    def exists(self, path: str) -> bool:
        try:
            os.lstat(path)
        except (FileNotFoundError, NotADirectoryError):
            return False
        return True

    def list_dir(self, path: str) -> list[str]:
        return sorted(os.listdir(path))

    def make_dirs(self, path: str) -> None:
        if os.path.isdir(path):
            return
        parent = os.path.dirname(path)
        if parent and parent != path:
            self.make_dirs(parent)
        try:
            os.mkdir(path, 0o750)
        except FileExistsError:
            if not os.path.isdir(path):
                raise
        self.sync_dir(parent or ".")

    def remove(self, path: str) -> None:
        os.unlink(path)

    def remove_tree(self, path: str) -> None:
        shutil.rmtree(path)

    def rename(self, source: str, target: str) -> None:
        os.rename(source, target)

    def room(self, path: str) -> tuple[int, int]:
        found = os.statvfs(path)
        return found.f_bavail * found.f_frsize, found.f_blocks * found.f_frsize

    def sync_dir(self, path: str) -> None:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)


def make_lasting_dirs(path: str, *, mode: int = 0o750) -> None:
    """Create a directory and its missing parents. The names of all that are new are on the disk on
    return; that of `path` also where a process that was killed has made it, as far as this user may
    read its parent.

    Raises: OSError, FileExistsError where `path` is a file.
    """
    missing = []
    above = path
    while above and not os.path.lexists(above):
        missing.append(above)
        above = os.path.dirname(above)
    for each in reversed(missing):
        with contextlib.suppress(FileExistsError):  # another process makes it
            os.mkdir(each, mode)
    if not os.path.isdir(path):
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)
    for each in missing or [path]:
        with contextlib.suppress(PermissionError):
            RealFiles().sync_dir(os.path.dirname(each) or ".")


class DirectoryLock:
    """The lock of a data directory, held until `release` or until the process ends."""

    def __init__(self, path: str) -> None:
        """Lock the existing directory `path`.

        Raises: DataDirectoryInUse naming the process that holds the lock; OSError.
        """
        self._path = path
        fd = os.open(os.path.join(path, LOCK_NAME), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
        try:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise DataDirectoryInUse(path, _read_pid(fd)) from None
            _write_pid(fd)
        except BaseException:
            os.close(fd)
            raise
        self._fd = fd

    def release(self) -> None:
        """Release the lock. The file stays: removing it could release another process's lock."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def __enter__(self) -> DirectoryLock:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


def _write_pid(fd: int) -> None:
    """Say who holds the lock. On a full disk the file stays empty: the lock holds nevertheless."""
    os.ftruncate(fd, 0)
    try:
        os.pwrite(fd, b"%d\n" % os.getpid(), 0)
    except OSError as error:
        if error.errno not in NO_SPACE:
            raise


def _read_pid(fd: int) -> int | None:
    text = os.pread(fd, 32, 0).strip()
    return int(text) if text.isdigit() else None


class RealClock:
    """The host's clocks."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic_ns(self) -> int:
        return time.monotonic_ns()


class RealRandom:
    """Randomness of the host, or reproducible if a seed is given."""

    def __init__(self, seed: int | None = None) -> None:
        self._source = random.SystemRandom() if seed is None else random.Random(seed)

    def bytes(self, count: int) -> bytes:
        return self._source.randbytes(count)

    def uniform(self, low: float, high: float) -> float:
        return self._source.uniform(low, high)
