"""Access to data files in local folders and object stores through Arrow's file systems."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pyarrow.fs as pafs

from bascule.host.real import RealFiles

LISTINGS_MAX: Final = 10
"""Attempts to list a folder while other processes create folders below it."""


def filesystem_of(path: str) -> tuple[pafs.FileSystem, str]:
    """Return the file system of a path or URI, and the path within it."""
    if local := local_path(path):
        return pafs.LocalFileSystem(), local
    return pafs.FileSystem.from_uri(path)  # type: ignore[no-any-return]


def local_path(path: str) -> str:
    """Return the local path of a path or `file:` URI; empty for other URIs."""
    if path.startswith("file:"):
        # As in Iceberg, the path is not escaped.
        rest = path[len("file:") :]
        return "/" + rest[2:].partition("/")[2] if rest.startswith("//") else rest
    return "" if "://" in path else path


def absolute(location: str) -> str:
    """Return a location that is valid in every process."""
    local = local_path(location)
    return str(Path(local).absolute()) if local else location.rstrip("/")


def sync_files(paths: Iterable[str], *, root: str = "") -> None:
    """Sync local files and their directories, up to `root` and its name, which may have been made
    for them. Paths of other file systems are ignored.

    Raises: OSError.
    """
    files = RealFiles()
    folders = set()
    top = local_path(root).rstrip("/")
    for path in paths:
        if local := local_path(path):
            file = files.open(local, write=False)
            try:
                file.sync()
            finally:
                file.close()
            folder = Path(local).parent
            folders.add(str(folder))
            while top and Path(top) in folder.parents:
                folder = folder.parent
                folders.add(str(folder))
    for folder_path in sorted(folders):
        files.sync_dir(folder_path)
    if top and folders:
        # The folder above the table may belong to somebody else.
        with contextlib.suppress(PermissionError):
            files.sync_dir(str(Path(top).parent))


def delete_files(paths: Iterable[str]) -> tuple[int, int]:
    """Delete files; missing ones are ignored. Return the number of files and bytes deleted."""
    count = total = 0
    for path in paths:
        filesystem, inner = filesystem_of(path)
        info = filesystem.get_file_info(inner)
        if info.type == pafs.FileType.File:
            filesystem.delete_file(inner)
            count += 1
            total += info.size
    return count, total


def entries_below(
    filesystem: pafs.FileSystem, folder: str, *, recursive: bool = False
) -> list[pafs.FileInfo]:
    """The files and folders in a folder; none if it does not exist.

    Raises: OSError.
    """
    selector = pafs.FileSelector(folder, recursive=recursive, allow_not_found=True)
    for _ in range(LISTINGS_MAX - 1):
        try:
            return list(filesystem.get_file_info(selector))
        except FileNotFoundError:
            # Arrow reports a folder that another process creates while it is listed.
            continue
    return list(filesystem.get_file_info(selector))


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A file below a folder."""

    path: str
    """An absolute path or a URI, for `filesystem_of`."""
    bytes: int
    modified_ms: int


def files_below(location: str) -> list[StoredFile]:
    """All files below a folder, recursively; none if it does not exist."""
    filesystem, inner = filesystem_of(location)
    base = location.rstrip("/")
    found = []
    for info in entries_below(filesystem, inner, recursive=True):
        if info.type == pafs.FileType.File:
            rest = info.path[len(inner.rstrip("/")) :].lstrip("/")
            modified = int((info.mtime_ns or 0) // 1_000_000)
            found.append(StoredFile(f"{base}/{rest}", info.size, modified))
    return found
