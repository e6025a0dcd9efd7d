"""Protocols of the operating system: Files, File, Clock, Random."""

from __future__ import annotations

import errno
from typing import Final, Protocol, TypeAlias

Buffer: TypeAlias = bytes | bytearray | memoryview
NO_SPACE: Final = frozenset({errno.ENOSPC, errno.EDQUOT})
"""Errors of a write to a disk, or a quota, that is full."""


class File(Protocol):
    """One open file, appended at its end and read anywhere.

    One thread appends at a time; other threads may read and call `sync` at the same time. The
    descriptor is closed when the last reference is gone, so a deleted file stays readable for those
    that still have it open.
    """

    @property
    def path(self) -> str: ...

    def fileno(self) -> int:
        """The descriptor, for sendfile."""
        ...

    def append(self, *data: Buffer) -> None:
        """Write all of `data` at the end, with one system call unless the kernel writes only a
        part.

        Raises: OSError; some of the bytes may have been written.
        """
        ...

    def read_at(self, position: int, length: int) -> bytes:
        """Read `length` bytes, or fewer at the end of the file."""
        ...

    def read_at_nowait(self, position: int, length: int) -> bytes | None:
        """Like `read_at`, from the page cache only; None if the read would wait for the disk."""
        ...

    def is_cached(self, start: int, end: int) -> bool:
        """Whether [start, end) can be read without waiting for the disk. Never waits for it."""
        ...

    def load(self, start: int, end: int) -> None:
        """Read [start, end), as far as the file goes, into the page cache. Waits for the disk.

        Raises: OSError.
        """
        ...

    def size(self) -> int: ...

    def truncate(self, size: int) -> None: ...

    def sync(self) -> None:
        """Return once every byte appended before the call is on the disk (fdatasync)."""
        ...

    def write_at(self, position: int, data: Buffer) -> None:
        """Overwrite the bytes at `position`; bytes beyond the end of the file are appended.

        Not for files that `append` is used on. Raises: OSError; some bytes may have been written.
        """
        ...

    def write_back(self, start: int, end: int) -> None:
        """Have [start, end) written to the disk, and wait for that, so that a later `sync` has less
        to do. It promises nothing: the disk may still have it in a cache, and not know how long the
        file is. A system without such a call does nothing.

        Raises: OSError; as after a failed `sync`, the bytes may be in memory only, and a later sync
        may not tell.
        """
        ...

    def write_again(self, position: int, length: int) -> None:
        """Read these bytes and write them again, so that the next sync writes them to the disk.

        After a failed sync the kernel marks the pages that it could not write as clean. A later
        sync then succeeds, also in another process, although the bytes are only in memory.
        """
        ...

    def close(self) -> None: ...


class Files(Protocol):
    """A file system. Paths are absolute strings."""

    def open(self, path: str, *, create: bool = False, write: bool = True) -> File:
        """Open a regular file. `create` creates a missing one. Without `write` it is read-only.

        Raises: FileNotFoundError, OSError.
        """
        ...

    def read_bytes(self, path: str) -> bytes: ...

    def size(self, path: str) -> int: ...

    def exists(self, path: str) -> bool: ...

    def room(self, path: str) -> tuple[int, int]:
        """Free bytes (for this process) and all bytes of the file system that holds `path`."""
        ...

    def list_dir(self, path: str) -> list[str]: ...

    def make_dirs(self, path: str) -> None:
        """Create `path` and its missing parents; each new entry is synced to the disk."""
        ...

    def remove(self, path: str) -> None: ...

    def remove_tree(self, path: str) -> None: ...

    def rename(self, source: str, target: str) -> None: ...

    def sync_dir(self, path: str) -> None:
        """Return once creations, renames and removals in `path` are on the disk."""
        ...


class Clock(Protocol):
    """Wall time for timestamps, monotonic time for durations."""

    def now_ms(self) -> int: ...

    def monotonic_ns(self) -> int: ...


class Random(Protocol):
    """Randomness, seeded in tests."""

    def bytes(self, count: int) -> bytes: ...

    def uniform(self, low: float, high: float) -> float: ...
