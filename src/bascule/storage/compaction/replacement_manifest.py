"""The replacement manifest: replaces segments by new ones atomically.

The new files are complete and synced beside the old ones. Their names have the suffix `.cleaned`.
Creating the manifest, the file `swap`, commits the replacement. `finish` then removes the old files
and renames the new ones. Its steps are idempotent, so after a crash `finish` repeats them.
"""

from __future__ import annotations

from struct import Struct
from typing import Final, NamedTuple

from crc32c import crc32c

from bascule.errors import CorruptData
from bascule.host.api import Files
from bascule.storage.checkpoint import NEW_SUFFIX, replace_file
from bascule.storage.index.offset_index import OffsetIndex
from bascule.storage.index.time_index import TimeIndex
from bascule.storage.segment import LOG_SUFFIX, remove_segment, segment_path

FILE_NAME: Final = "swap"
CLEANED_SUFFIX: Final = ".cleaned"
MAGIC: Final = b"BscSwap1"
SUFFIXES: Final = (OffsetIndex.SUFFIX, TimeIndex.SUFFIX, LOG_SUFFIX)
_HEADER: Final = Struct(">8sI")
_COUNTS: Final = Struct(">II")
_OFFSET: Final = Struct(">q")
_ADDED: Final = Struct(">qq")


class ReplacementManifest(NamedTuple):
    """The segments of one replacement."""

    removed: tuple[int, ...]
    """Base offsets."""
    added: tuple[tuple[int, int], ...]
    """(base offset, size in bytes)."""


def cleaned_path(directory: str, base_offset: int, suffix: str = LOG_SUFFIX) -> str:
    """The path of a file of a new segment before the replacement."""
    return segment_path(directory, base_offset, suffix) + CLEANED_SUFFIX


def encode_manifest(manifest: ReplacementManifest) -> bytes:
    body = _COUNTS.pack(len(manifest.removed), len(manifest.added))
    body += b"".join(map(_OFFSET.pack, manifest.removed))
    body += b"".join(_ADDED.pack(*pair) for pair in manifest.added)
    return _HEADER.pack(MAGIC, crc32c(body)) + body


def decode_manifest(data: bytes, *, path: str) -> ReplacementManifest:
    """Read a whole file.

    Raises: CorruptData.
    """
    size_min = _HEADER.size + _COUNTS.size
    if len(data) < size_min:
        raise CorruptData(path, len(data), f"at least {size_min} bytes", f"{len(data)} bytes")
    magic, crc = _HEADER.unpack_from(data)
    if magic != MAGIC:
        raise CorruptData(path, 0, MAGIC.decode(), repr(magic))
    if crc32c(memoryview(data)[_HEADER.size :]) != crc:
        raise CorruptData(path, 8, "the CRC of the manifest", f"{crc:#010x}")
    removed, added = _COUNTS.unpack_from(data, _HEADER.size)
    middle = size_min + removed * _OFFSET.size
    if len(data) != middle + added * _ADDED.size:
        raise CorruptData(
            path, _HEADER.size, f"counts of segments that take {len(data) - size_min} bytes",
            f"{removed} removed, {added} added",
        )  # fmt: skip
    return ReplacementManifest(
        tuple(offset for (offset,) in _OFFSET.iter_unpack(data[size_min:middle])),
        tuple((base, size) for base, size in _ADDED.iter_unpack(data[middle:])),
    )


def commit(files: Files, directory: str, manifest: ReplacementManifest) -> None:
    """Commit the replacement. After a crash `finish` completes it.

    The new files must be complete and synced. Raises: OSError. It is then unknown whether the
    replacement is committed, until `undo` has returned.
    """
    # Sync the names of the new files, too: `finish` refuses a manifest whose files are missing.
    files.sync_dir(directory)
    replace_file(files, f"{directory}/{FILE_NAME}", encode_manifest(manifest))


def undo(files: Files, directory: str) -> None:
    """Undo a replacement whose `commit` failed. Raises: OSError; then call it again."""
    for name in (FILE_NAME, FILE_NAME + NEW_SUFFIX):
        if files.exists(f"{directory}/{name}"):
            files.remove(f"{directory}/{name}")
    files.sync_dir(directory)


def finish(files: Files, directory: str) -> None:
    """Complete a committed replacement, and remove the new files of an uncommitted one.

    Idempotent. Opening a log calls it before it lists segments.

    Raises: CorruptData if the manifest or a file that it names is damaged; OSError.
    """
    path = f"{directory}/{FILE_NAME}"
    if files.exists(path):
        manifest = decode_manifest(files.read_bytes(path), path=path)
        _check(files, directory, manifest)
        _rename(files, directory, manifest)
        files.sync_dir(directory)
        # Sync the removal. Otherwise this manifest could return beside the files of the next
        # replacement and commit them before they are complete.
        files.remove(path)
        files.sync_dir(directory)
    discard(files, directory)


def discard(files: Files, directory: str) -> None:
    """Remove the new files of an uncommitted replacement. Raises: OSError."""
    prepared = [name for name in files.list_dir(directory) if name.endswith(CLEANED_SUFFIX)]
    if prepared:
        # Sync the removal of the manifest first: `finish` refuses a manifest without its files.
        files.sync_dir(directory)
    for name in prepared:
        files.remove(f"{directory}/{name}")


def _check(files: Files, directory: str, manifest: ReplacementManifest) -> None:
    """Raise CorruptData before any file is removed, unless every new file is complete."""
    for base, size in manifest.added:
        path = cleaned_path(directory, base)
        if not files.exists(path):
            path = segment_path(directory, base)
        found = files.size(path) if files.exists(path) else -1
        if found != size:
            shown = "no such file" if found < 0 else f"{found} bytes"
            raise CorruptData(path, max(found, 0), f"{size} bytes", shown)


def _rename(files: Files, directory: str, manifest: ReplacementManifest) -> None:
    added = {base for base, _ in manifest.added}
    for base in manifest.removed:
        if base not in added:
            remove_segment(files, directory, base)
    for base in added:
        for suffix in SUFFIXES:
            cleaned = cleaned_path(directory, base, suffix)
            if files.exists(cleaned):
                files.rename(cleaned, segment_path(directory, base, suffix))
