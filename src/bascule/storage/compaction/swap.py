"""Old segments against new ones in one step that a crash cannot cut in two.

The new files lie complete and synced beside the old ones, `.cleaned` behind their names. Then the
manifest is put in its place, which is the step: from there on the swap has happened, and `finish`
makes the names say so. Everything it does may be done again, so a crash in it costs a repetition.
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


class Swap(NamedTuple):
    """Segments by base offset: those that go, and those that come with the bytes of each."""

    removed: tuple[int, ...]
    added: tuple[tuple[int, int], ...]


def cleaned_path(directory: str, base_offset: int, suffix: str = LOG_SUFFIX) -> str:
    """Where a file of a new segment lies before the swap."""
    return segment_path(directory, base_offset, suffix) + CLEANED_SUFFIX


def encode_swap(swap: Swap) -> bytes:
    body = _COUNTS.pack(len(swap.removed), len(swap.added))
    body += b"".join(map(_OFFSET.pack, swap.removed))
    body += b"".join(_ADDED.pack(*pair) for pair in swap.added)
    return _HEADER.pack(MAGIC, crc32c(body)) + body


def decode_swap(data: bytes, *, path: str) -> Swap:
    """Read a whole file.

    Raises: CorruptData.
    """
    least = _HEADER.size + _COUNTS.size
    if len(data) < least:
        raise CorruptData(path, len(data), f"at least {least} bytes", str(len(data)))
    magic, crc = _HEADER.unpack_from(data)
    if magic != MAGIC:
        raise CorruptData(path, 0, MAGIC.decode(), repr(magic))
    if crc32c(memoryview(data)[_HEADER.size :]) != crc:
        raise CorruptData(path, 8, "the CRC of the manifest", f"{crc:#010x}")
    removed, added = _COUNTS.unpack_from(data, _HEADER.size)
    middle = least + removed * _OFFSET.size
    if len(data) != middle + added * _ADDED.size:
        raise CorruptData(path, _HEADER.size, "the counts of what follows", f"{removed}, {added}")
    return Swap(
        tuple(offset for (offset,) in _OFFSET.iter_unpack(data[least:middle])),
        tuple((base, size) for base, size in _ADDED.iter_unpack(data[middle:])),
    )


def commit(files: Files, directory: str, swap: Swap) -> None:
    """Let the swap happen: after a crash from here on, `finish` completes it.

    The new files are complete and synced. Raises: OSError; whether the swap has happened is then
    not known before `undo` has returned.
    """
    # Their names, too: a manifest without them would be refused.
    files.sync_dir(directory)
    replace_file(files, f"{directory}/{FILE_NAME}", encode_swap(swap))


def undo(files: Files, directory: str) -> None:
    """Let a swap whose `commit` failed not have happened. Raises: OSError; then try again."""
    for name in (FILE_NAME, FILE_NAME + NEW_SUFFIX):
        if files.exists(f"{directory}/{name}"):
            files.remove(f"{directory}/{name}")
    files.sync_dir(directory)


def finish(files: Files, directory: str) -> None:
    """Complete the swap that has happened, or remove what was prepared for one that has not.

    May be called any number of times, and at every opening before segments are listed.

    Raises: CorruptData where the manifest or a file that it names is not what was written; OSError.
    """
    path = f"{directory}/{FILE_NAME}"
    if files.exists(path):
        swap = decode_swap(files.read_bytes(path), path=path)
        _check(files, directory, swap)
        _rename(files, directory, swap)
        files.sync_dir(directory)
        # Gone for good before another swap is prepared: it would be completed half written.
        files.remove(path)
        files.sync_dir(directory)
    discard(files, directory)


def discard(files: Files, directory: str) -> None:
    """Remove what was prepared for a swap that has not happened. Raises: OSError."""
    prepared = [name for name in files.list_dir(directory) if name.endswith(CLEANED_SUFFIX)]
    if prepared:
        # First of all the manifest must be gone for good: it would miss them.
        files.sync_dir(directory)
    for name in prepared:
        files.remove(f"{directory}/{name}")


def _check(files: Files, directory: str, swap: Swap) -> None:
    """Refuse to remove anything unless all that comes is there."""
    for base, size in swap.added:
        path = cleaned_path(directory, base)
        if not files.exists(path):
            path = segment_path(directory, base)
        found = files.size(path) if files.exists(path) else -1
        if found != size:
            shown = "no such file" if found < 0 else f"{found} bytes"
            raise CorruptData(path, max(found, 0), f"{size} bytes", shown)


def _rename(files: Files, directory: str, swap: Swap) -> None:
    staying = {base for base, _ in swap.added}
    for base in swap.removed:
        if base not in staying:
            remove_segment(files, directory, base)
    for base in staying:
        for suffix in SUFFIXES:
            cleaned = cleaned_path(directory, base, suffix)
            if files.exists(cleaned):
                files.rename(cleaned, segment_path(directory, base, suffix))
