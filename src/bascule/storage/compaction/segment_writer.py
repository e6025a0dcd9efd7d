"""Write a new segment beside the old ones, check it, and write its indexes."""

from __future__ import annotations

from typing import Final

from bascule.host.api import File, Files
from bascule.storage.compaction.replacement_manifest import cleaned_path
from bascule.storage.index.sparse_index import Covered
from bascule.storage.segment import Contents, Segment

COPY_BYTES: Final = 4 << 20
SYNC_BYTES: Final = 64 << 20
"""Bytes between two syncs, so that the last sync does not delay other writers for long."""


class SegmentWriter:
    """Writes the file of one new segment, and at the end its two indexes."""

    def __init__(
        self, files: Files, directory: str, base_offset: int, *, index_interval_bytes: int
    ) -> None:
        self._files = files
        self._directory = directory
        self._base_offset = base_offset
        self._interval = index_interval_bytes
        self._file = files.open(cleaned_path(directory, base_offset), create=True)
        self._file.truncate(0)
        self._unsynced = 0
        self.size = 0

    def write(self, data: memoryview | bytes) -> None:
        self._file.append(data)
        self.size += len(data)
        self._unsynced += len(data)
        if self._unsynced >= SYNC_BYTES:
            self._file.sync()
            self._unsynced = 0

    def copy(self, file: File, end: int) -> None:
        """Write bytes [0, end) of another file."""
        for at in range(0, end, COPY_BYTES):
            self.write(file.read_at(at, min(COPY_BYTES, end - at)))

    def complete(self) -> Segment:
        """Read the file back and check it, write the indexes, and sync all three files.

        Raises: CorruptData if the file differs from what was written, OSError.
        """
        self._file.sync()
        contents = Contents(self._file, self._interval)
        _, end_offset, damage = contents.scan(
            start=0,
            end=self.size,
            offset=self._base_offset,
            epochs=None,
            gaps_allowed=True,
        )
        if damage is not None:
            raise damage
        covered = Covered(self.size, end_offset, contents.timestamp_max)
        for index in (contents.offsets, contents.times):
            path = cleaned_path(self._directory, self._base_offset, index.SUFFIX)
            file = self._files.open(path, create=True)
            file.truncate(0)
            block = index.encode_block(covered, start=0, end=len(index))
            file.append(index.encode_header(self._base_offset) + block)
            file.sync()
            file.close()
        segment = Segment(self._base_offset, self.size, contents)
        segment.timestamp_max = contents.timestamp_max
        return segment
