"""Protocols for the machine: Files, File, Clock, Random."""

from __future__ import annotations

from typing import Protocol, TypeAlias

Buffer: TypeAlias = bytes | bytearray | memoryview


class File(Protocol):
    """One open file, appended at its end and read anywhere.

    One thread appends at a time; reads and `sync` may run beside it. Dropping the last reference
    closes the descriptor, so a file that was deleted stays readable for whoever still holds it.
    """

    @property
    def path(self) -> str: ...

    def fileno(self) -> int:
        """The descriptor, for sendfile."""
        ...

    def append(self, *data: Buffer) -> None:
        """Write all of `data` at the end, in one call to the kernel where it takes it whole.

        Raises: OSError; some of the bytes may then have been written.
        """
        ...

    def read_at(self, position: int, length: int) -> bytes:
        """Read up to `length` bytes; shorter only at the end of the file."""
        ...

    def read_at_nowait(self, position: int, length: int) -> bytes | None:
        """As `read_at`, from the page cache only: None where the disk would have to be asked."""
        ...

    def is_cached(self, start: int, end: int) -> bool:
        """Whether [start, end) can be read without waiting for the disk; does not wait itself."""
        ...

    def size(self) -> int: ...

    def truncate(self, size: int) -> None: ...

    def sync(self) -> None:
        """Return once every byte appended before the call is on the disk (fdatasync)."""
        ...

    def write_at(self, position: int, data: Buffer) -> None:
        """Write over what is at `position`, or append where the file ends there or before.

        Not for a file that is also appended to. Raises: OSError; some bytes may have been written.
        """
        ...

    def write_again(self, position: int, length: int) -> None:
        """Write the bytes held there once more, so that the next sync is about them.

        After a failed sync the kernel takes what it could not write for written, and a later sync,
        also by another process, would confirm bytes that are in memory alone.
        """
        ...

    def close(self) -> None: ...


class Files(Protocol):
    """A file system. Paths are absolute strings."""

    def open(self, path: str, *, create: bool = False, write: bool = True) -> File:
        """Open a regular file; `create` makes a missing one, without `write` it is read only.

        Raises: FileNotFoundError, OSError.
        """
        ...

    def read_bytes(self, path: str) -> bytes: ...

    def size(self, path: str) -> int: ...

    def exists(self, path: str) -> bool: ...

    def list_dir(self, path: str) -> list[str]: ...

    def make_dirs(self, path: str) -> None:
        """Create `path` and its missing parents, each synced into its parent."""
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
