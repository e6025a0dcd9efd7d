"""Tells whether a range of a file is in the page cache, reads it into it, and writes it back.

Linux 6.5 added cachestat(2), one system call for a range. Without it the range is probed: one byte
in every `PROBE_BYTES` is read with RWF_NOWAIT, which fails if the read would wait for the disk. And
mincore(2) has to say that each page is there: pages leave the page cache one by one.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final, cast

PROBE_BYTES: Final = 64 << 10
"""Half of the kernel's default read-ahead window, the unit in which pages are read in."""
_CACHESTAT: Final = 451
"""The system call's number, the same on every architecture."""
_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")


class _Range(ctypes.Structure):
    _fields_ = (("off", ctypes.c_uint64), ("len", ctypes.c_uint64))


class _Stat(ctypes.Structure):
    _fields_ = tuple(
        (name, ctypes.c_uint64)
        for name in ("cached", "dirty", "writeback", "evicted", "recently_evicted")
    )


_WRITE_AND_WAIT: Final = 1 | 2 | 4
"""SYNC_FILE_RANGE_WAIT_BEFORE, _WRITE and _WAIT_AFTER."""
_NO_SUCH_CALL: Final = frozenset({errno.ENOSYS, errno.EINVAL, errno.ESPIPE, errno.EOPNOTSUPP})


def _load_libc() -> ctypes.PyDLL | None:
    try:
        # PyDLL keeps the interpreter lock: the call never waits.
        return ctypes.PyDLL(None) if sys.platform == "linux" else None
    except OSError:
        return None


_Call = Callable[..., int]


def _load_sync_file_range() -> Callable[[int, int, int, int], int] | None:
    """It gives the interpreter lock away: it waits for the disk."""
    try:
        found = ctypes.CDLL(None, use_errno=True).sync_file_range
    except (OSError, AttributeError):
        return None
    found.argtypes = (ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint)
    return cast("Callable[[int, int, int, int], int]", found)


def _load_mapping_calls(libc: ctypes.PyDLL | None) -> tuple[_Call, _Call, _Call] | None:
    """mmap, mincore, munmap."""
    try:
        if libc is None:
            return None
        map_, resident, unmap = libc.mmap, libc.mincore, libc.munmap
    except AttributeError:
        return None
    map_.restype = ctypes.c_void_p
    map_.argtypes = (
        ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_int64,
    )  # fmt: skip
    resident.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p)
    unmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
    return map_, resident, unmap


_LIBC = _load_libc()
_MAPPING_CALLS: Final = _load_mapping_calls(_LIBC)
_MAP_FAILED: Final = ctypes.c_void_p(-1).value
_SYNC_FILE_RANGE: Final = _load_sync_file_range()


def is_cached(fd: int, start: int, end: int) -> bool:
    """Whether every page of [start, end) is in memory; never waits for the disk.

    Pages beyond the end of the file count as missing. False if neither method works.
    """
    if start >= end:
        return True
    if _LIBC is not None:
        found = _Stat()
        asked = _Range(start, end - start)
        if not _LIBC.syscall(
            _CACHESTAT, fd, ctypes.byref(asked), ctypes.byref(found), ctypes.c_uint(0)
        ):
            pages = (end - 1) // _PAGE_BYTES - start // _PAGE_BYTES + 1
            return bool(found.cached >= pages)
    return _probe(fd, start, end) and _is_resident(fd, start, end)


def load(fd: int, start: int, end: int) -> None:
    """Read [start, end), as far as the file goes, into the page cache. Waits for the disk.

    The kernel splices the pages to /dev/null, so no byte is copied: 28 us of CPU for 1 MiB where
    reading it takes 160 to 420.

    Raises: OSError.
    """
    with Path(os.devnull).open("wb", buffering=0) as nowhere:
        while start < end:
            loaded = os.sendfile(nowhere.fileno(), fd, start, end - start)
            if loaded == 0:
                return
            start += loaded


def write_back(fd: int, start: int, end: int) -> None:
    """Have the dirty pages of [start, end) written, and wait. Nothing is durable by that: the
    size of the file and the cache of the disk are not written. Raises: OSError."""
    if _SYNC_FILE_RANGE is None or start >= end:
        return
    while _SYNC_FILE_RANGE(fd, start, end - start, _WRITE_AND_WAIT):
        number = ctypes.get_errno()
        if number in _NO_SUCH_CALL:
            return
        if number != errno.EINTR:
            raise OSError(number, os.strerror(number))


def _probe(fd: int, start: int, end: int) -> bool:
    byte = bytearray(1)
    for position in (*range(start, end, PROBE_BYTES), end - 1):
        try:
            if not os.preadv(fd, [byte], position, os.RWF_NOWAIT):
                return False
        except OSError:
            return False
    return True


def _is_resident(fd: int, start: int, end: int) -> bool:
    """Whether the kernel has each page of [start, end), as it says to the file's owner."""
    if _MAPPING_CALLS is None:
        return False
    map_, resident, unmap = _MAPPING_CALLS
    first = start - start % _PAGE_BYTES
    length = end - first
    address = map_(None, length, mmap.PROT_READ, mmap.MAP_SHARED, fd, first)
    if address == _MAP_FAILED:
        return False
    pages = -(-length // _PAGE_BYTES)
    found = ctypes.create_string_buffer(pages)
    try:
        return not resident(address, length, found) and all(byte & 1 for byte in found.raw)
    finally:
        unmap(address, length)
