"""Expires old snapshots of a parquet table, then deletes data files that no snapshot names.

The order makes each step safe for committers and readers, and for a crash between any two steps:

1. Create a snapshot that builds on no other one, so that every later commit builds on it. A
  committer that is about to build on an older snapshot finds its number taken.
2. Rewrite each kept snapshot that builds on an expired one, by a rename.
3. Remove the expired snapshots, newest first, so that a snapshot's base exists as long as it does.
4. Delete old data files that are in no remaining snapshot.
"""

from __future__ import annotations

import time

import msgspec

from bascule.errors import UnknownSnapshot
from bascule.pipeline.lake import storage
from bascule.pipeline.lake.model import ExpiryResult
from bascule.pipeline.lake.parquet.manifest import CommitEntry, SnapshotManifest
from bascule.pipeline.lake.parquet.manifest_folder import ManifestFolder, merge_chain


def expire(folder: ManifestFolder, location: str, *, older_than_ms: int, keep: int) -> ExpiryResult:
    """Expire snapshots and delete files. Raises: UnknownSnapshot if another expiry ran
    concurrently; OSError."""
    numbers = folder.numbers()
    going = _expired_numbers(folder, numbers, older_than_ms=older_than_ms, keep=keep)
    if going:
        _rebase(folder, oldest=going[-1] + 1)
        for n in reversed(going):
            folder.remove(n)
    candidates = [
        found
        for found in storage.files_below(f"{location}/data")
        if found.modified_ms < older_than_ms
    ]
    held = referenced(folder)
    _, removed_bytes = counted = storage.delete_files(
        found.path for found in candidates if found.path[len(location) + 1 :] not in held
    )
    storage.delete_files(
        path for path in folder.temporary_files() if _modified_ms(path) < older_than_ms
    )
    return ExpiryResult(len(going), counted[0], removed_bytes)


def _expired_numbers(
    folder: ManifestFolder, numbers: list[int], *, older_than_ms: int, keep: int
) -> list[int]:
    """Numbers of the snapshots to expire. Times ascend with numbers."""
    going = []
    for n in numbers[: len(numbers) - keep]:
        if folder.read(n).ms >= older_than_ms:
            break
        going.append(n)
    return going


def _rebase(folder: ManifestFolder, *, oldest: int) -> None:
    """Make every snapshot from `oldest` on independent of older ones."""
    while True:
        top = folder.top()
        text = _whole(folder, top, oldest)
        now = max(time.time_ns() // 1_000_000, text.ms)
        own = CommitEntry(n=top + 1, ms=now, kind="expire")
        commits = [*text.commits, own]
        text = msgspec.structs.replace(text, n=top + 1, ms=now, commits=commits)
        if folder.add_whole(text):
            break
    for n in folder.numbers():
        if n >= oldest and 0 < folder.read(n).base < oldest:
            folder.replace(_whole(folder, n, oldest))


def _whole(folder: ManifestFolder, n: int, oldest: int) -> SnapshotManifest:
    text = merge_chain(folder.chain(n))
    kept = [commit for commit in text.commits if commit.n >= oldest]
    return msgspec.structs.replace(text, commits=kept)


def referenced(folder: ManifestFolder) -> set[str]:
    """Paths below the location of the data files of all snapshots."""
    paths: set[str] = set()
    for n in folder.numbers():
        try:
            text = folder.read(n)
        except UnknownSnapshot:
            continue  # expired since the folder was listed
        paths.update(file.path for file in text.added)
    return paths


def _modified_ms(path: str) -> int:
    filesystem, inner = storage.filesystem_of(path)
    return int((filesystem.get_file_info(inner).mtime_ns or 0) // 1_000_000)
