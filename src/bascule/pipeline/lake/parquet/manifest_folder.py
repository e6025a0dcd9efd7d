"""Reads and writes the `_bascule` folder of a parquet table, atomically and synced."""

from __future__ import annotations

import contextlib
import errno
import re
import uuid
from pathlib import Path
from typing import Final

import msgspec

from bascule.errors import ConfigError, UnknownSnapshot
from bascule.host.real import RealFiles
from bascule.pipeline.lake.parquet.manifest import (
    SnapshotManifest,
    TableManifest,
    decode_snapshot,
    decode_table,
    encode,
)

MANIFEST: Final = "_bascule"
SNAPSHOT: Final = re.compile(r"(\d{20})\.json")
TEMPORARY: Final = ".tmp"
NO_LINKS: Final = frozenset({errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EXDEV})
CACHE_MAX: Final = 128
"""Decoded snapshot files in the cache. A chain has at most 64."""


class LinkingFiles(RealFiles):
    """The host's files with a call that creates a name only if it does not exist."""

    def link(self, source: str, target: str) -> None:
        """Raises: FileExistsError, OSError."""
        Path(target).hardlink_to(source)


class ManifestFolder:
    """Reads and writes `table.json` and the snapshots. A snapshot file never changes its
    meaning."""

    def __init__(self, table: str, location: str, files: LinkingFiles) -> None:
        self._table = table
        self._files = files
        self._root = f"{location}/{MANIFEST}"
        self._snapshots = f"{self._root}/snapshots"
        self._cache: dict[int, SnapshotManifest] = {}
        self._top = 0

    def make(self, text: TableManifest) -> bool:
        """Write `table.json`. Return False if it exists.

        Raises: OSError.
        """
        self._files.make_dirs(self._snapshots)
        return self._write_new(self._root, "table.json", encode(text))

    def read_table(self) -> TableManifest | None:
        """Raises: CorruptData, UnsupportedFormat, OSError."""
        path = f"{self._root}/table.json"
        try:
            return decode_table(self._files.read_bytes(path), path)
        except (FileNotFoundError, NotADirectoryError):
            return None

    def numbers(self) -> list[int]:
        """Numbers of the snapshots, ascending."""
        names = self._files.list_dir(self._snapshots)
        return sorted(int(found[1]) for name in names if (found := SNAPSHOT.fullmatch(name)))

    def top(self) -> int:
        """Number of the newest snapshot; 0 if there is none."""
        if not self._top:
            self._top = max(self.numbers(), default=0)
        while self._files.exists(self._path(self._top + 1)):
            self._top += 1
        return self._top

    def holds(self, n: int) -> bool:
        """Whether snapshot `n` exists on disk, whatever the cache holds."""
        return self._files.exists(self._path(n))

    def read(self, n: int) -> SnapshotManifest:
        """Raises: UnknownSnapshot, CorruptData, UnsupportedFormat, OSError."""
        if (held := self._cache.get(n)) is not None:
            return held
        path = self._path(n)
        try:
            text = decode_snapshot(self._files.read_bytes(path), path)
        except FileNotFoundError:
            raise UnknownSnapshot(self._table, str(n)) from None
        if len(self._cache) >= CACHE_MAX:
            self._cache.pop(next(iter(self._cache)))
        self._cache[n] = text
        return text

    def forget(self) -> None:
        """Clear the cache after an expiry by another process."""
        self._cache.clear()
        self._top = 0

    def chain(self, n: int) -> list[SnapshotManifest]:
        """The snapshot files that make up snapshot `n`, oldest first.

        Raises: UnknownSnapshot if an expiry removed one of them; CorruptData; OSError.
        """
        found: list[SnapshotManifest] = []
        while n:
            found.append(self.read(n))
            n = found[-1].base
        return found[::-1]

    def add(self, text: SnapshotManifest) -> bool:
        """Create snapshot `text.n` from the changes of one commit. Return False if the number is
        taken.

        The file is synced before it is visible. On return its name is synced too.

        Raises: UnknownSnapshot after a concurrent expiry; OSError, after which the snapshot may
        exist.
        """
        target, below = text.n & (text.n - 1), text.n - 1
        while below > target:
            earlier = self.read(below)
            text = merge_changes(earlier, text)
            below = earlier.base
        return self.add_whole(msgspec.structs.replace(text, base=below))

    def sync_names(self) -> None:
        """Sync the names of the snapshots, which have been synced themselves. Raises: OSError."""
        self._files.sync_dir(self._snapshots)

    def add_whole(self, text: SnapshotManifest) -> bool:
        """As `add`, for a text that holds all changes since snapshot `text.base`."""
        if not self._write_new(self._snapshots, f"{text.n:020d}.json", encode(text)):
            return False
        self._top = max(self._top, text.n)
        return True

    def replace(self, text: SnapshotManifest) -> None:
        """Rewrite an existing snapshot with an equivalent description of the same files."""
        temporary = self._temporary(self._snapshots, encode(text))
        self._files.rename(temporary, self._path(text.n))
        self._files.sync_dir(self._snapshots)
        self._cache[text.n] = text

    def remove(self, n: int) -> None:
        self._cache.pop(n, None)
        with contextlib.suppress(FileNotFoundError):
            self._files.remove(self._path(n))

    def temporary_files(self) -> list[str]:
        """Temporary files that killed committers left."""
        return [
            f"{folder}/{name}"
            for folder in (self._root, self._snapshots)
            for name in self._files.list_dir(folder)
            if name.endswith(TEMPORARY)
        ]

    def _path(self, n: int) -> str:
        return f"{self._snapshots}/{n:020d}.json"

    def _temporary(self, folder: str, data: bytes) -> str:
        path = f"{folder}/.{uuid.uuid4().hex}{TEMPORARY}"
        file = self._files.open(path, create=True)
        try:
            file.append(data)
            file.sync()
        except BaseException:
            with contextlib.suppress(OSError):
                self._files.remove(path)
            raise
        finally:
            file.close()
        return path

    def _write_new(self, folder: str, name: str, data: bytes) -> bool:
        temporary = self._temporary(folder, data)
        try:
            self._files.link(temporary, f"{folder}/{name}")
        except FileExistsError:
            return False
        except OSError as error:
            if error.errno in NO_LINKS:
                raise ConfigError(
                    f"{folder} is on a file system without hard links, which a parquet table's "
                    f"commits need ({error}); use a local disk, or format delta or iceberg"
                ) from error
            raise
        finally:
            with contextlib.suppress(OSError):
                self._files.remove(temporary)
        self._files.sync_dir(folder)
        return True


def merge_changes(earlier: SnapshotManifest, later: SnapshotManifest) -> SnapshotManifest:
    """Merge the changes of two consecutive texts."""
    gone = set(later.removed)
    kept = [file for file in earlier.added if file.path not in gone]
    gone -= {file.path for file in earlier.added}
    return msgspec.structs.replace(
        later,
        base=earlier.base,
        commits=[*earlier.commits, *later.commits],
        added=[*kept, *later.added],
        removed=[*earlier.removed, *(path for path in later.removed if path in gone)],
    )


def merge_chain(chain: list[SnapshotManifest]) -> SnapshotManifest:
    """Merge a chain that starts at the empty table."""
    text = chain[0]
    for later in chain[1:]:
        text = merge_changes(text, later)
    return msgspec.structs.replace(text, base=0, removed=[])
