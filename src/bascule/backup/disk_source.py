"""The streams in the data directory of a node that does not run, for example of a lost cluster.

Nothing in the directory is changed. Everything in the logs is read, committed or not, since this
node alone cannot know what was: what it had acknowledged is among it.
"""

from __future__ import annotations

import errno
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from bascule.backup.places import file_chunks
from bascule.backup.sources import ReadExtent
from bascule.controller.cluster.image_files.stored_image import read_stored_image
from bascule.controller.directories import StreamDirectories
from bascule.errors import CorruptData, PayloadDamaged, PayloadMissing
from bascule.host.api import File, Files
from bascule.host.real import DirectoryLock, RealFiles
from bascule.model import StreamDefinition
from bascule.record.header import BatchHeader
from bascule.record.payload_links import PayloadLink
from bascule.replica.log_identity import read_identity
from bascule.storage import checkpoint
from bascule.storage.appended_batches import has_gaps
from bascule.storage.epochs import LeaderEpochs, read_epochs
from bascule.storage.payloads.payload_files import whole_paths
from bascule.storage.scan import (
    check_epoch,
    check_offset,
    find_batch,
    scan_batches,
    walk_headers,
)
from bascule.storage.segment import LOG_SUFFIX, base_offset_of

RAFT_DIRECTORY: Final = "raft"
BLOCK_BYTES: Final = 4 << 20


class DiskSource:
    """One data directory, which it locks until it is closed."""

    def __init__(self, data: str) -> None:
        """Raises: DataDirectoryInUse, ConfigError where no node has run there, CorruptData,
        OSError."""
        self.address = str(Path(data).absolute())
        self._files = RealFiles()
        self._directories = StreamDirectories(self._files, self.address)
        if not self._files.exists(f"{self.address}/{RAFT_DIRECTORY}"):
            read_stored_image(Path(self.address))  # raises: a directory of others gets no lock file
        self._lock = _lock(self.address)
        try:
            self._image = read_stored_image(Path(self.address))
        except BaseException:
            self.close()
            raise
        self.cluster_id = self._image.cluster_id

    def close(self) -> None:
        """Release the lock."""
        if self._lock is not None:
            self._lock.release()

    def streams(self) -> list[StreamDefinition]:
        return [each for _, each in sorted(self._image.streams.items())]

    def partitions(self, definition: StreamDefinition) -> list[int]:
        found = []
        for index in range(definition.partition_count):
            directory = self._directories.partition(definition.name, index)
            identity = read_identity(self._files, directory)
            if identity is not None and identity.place == (definition.id, index):
                found.append(index)
        return found

    @contextmanager
    def open(self, definition: StreamDefinition, partition: int) -> Iterator[StoredPartition]:
        directory = self._directories.partition(definition.name, partition)
        yield StoredPartition(self._files, directory)


def _lock(address: str) -> DirectoryLock | None:
    """None on a file system that is mounted to be read only: no node runs there."""
    try:
        return DirectoryLock(address)
    except OSError as error:
        if error.errno == errno.EROFS:
            return None
        raise


class StoredPartition:
    """One log, read from its files."""

    def __init__(self, files: Files, directory: str) -> None:
        """Raises: CorruptData, OSError."""
        self._files = files
        self._directory = directory
        self._epochs = read_epochs(files, directory) or LeaderEpochs()
        self._has_gaps = has_gaps(files, directory)
        self._payloads: dict[str, str] | None = None
        """The files of the payloads, by id; None: not looked yet."""
        names = (name for name in files.list_dir(directory) if name.endswith(LOG_SUFFIX))
        self._segments = sorted((base_offset_of(name) or 0, name) for name in names)
        path = f"{directory}/{checkpoint.FILE_NAME}"
        start = 0
        if files.exists(path):
            start = checkpoint.decode_checkpoint(files.read_bytes(path), path=path).start_offset
        end = self._segments[-1][0] if self._segments else start
        last = None
        if self._segments:
            for _, last in self._headers(len(self._segments) - 1):
                end = last.end_offset
        self._extent = ReadExtent(min(start, end), end)

    @property
    def start_offset(self) -> int:
        return self._extent.start

    @property
    def end_offset(self) -> int:
        return self._extent.end

    def end_of_epoch(self, epoch: int) -> tuple[int, int]:
        return self._epochs.end_of(epoch, end_offset=self._extent.end)

    def read(self, offset: int) -> Iterator[memoryview]:
        """Raises: CorruptData at the first damage, after all blocks before it; OSError."""
        for number, (base, name) in enumerate(self._segments):
            later = self._segments[number + 1][0] if number + 1 < len(self._segments) else None
            if later is not None and later <= offset:
                continue
            file = self._files.open(f"{self._directory}/{name}", write=False)
            try:
                yield from self._blocks(file, base, offset, later)
            finally:
                file.close()

    @property
    def copies(self) -> int:
        return 1

    def read_payload(self, link: PayloadLink) -> Generator[bytes, None, None]:
        id = link.payload.id
        path = self._directory
        try:
            if self._payloads is None:
                self._payloads = whole_paths(self._files, self._directory)
            if id not in self._payloads:
                raise PayloadMissing(id, self._directory)
            path = self._payloads[id]
            yield from file_chunks(self._files, path)
        except OSError as error:
            raise PayloadDamaged(id, "file", f"{path}: {error}", "one that can be read") from error

    def _blocks(
        self, file: File, base: int, offset: int, later: int | None
    ) -> Iterator[memoryview]:
        """The batches of a segment that begins at `base`, from `offset` on; the next one begins at
        `later`, None: it is the last."""
        begin = end = 0
        damage: CorruptData | None = None
        batches = scan_batches(file, start=0, end=file.size())
        while True:
            try:
                at, header = next(batches)
                self._check(header, file.path, at, base, later)
            except StopIteration:
                break
            except CorruptData as error:
                damage = error
                break
            base = header.end_offset
            if header.end_offset <= offset:
                begin = end = at + header.total_bytes
                continue
            if end > begin and at + header.total_bytes - begin > BLOCK_BYTES:
                yield memoryview(file.read_at(begin, end - begin))
                begin = at
            end = at + header.total_bytes
        if end > begin:
            yield memoryview(file.read_at(begin, end - begin))
        if damage is not None and (later is not None or not self._is_torn_tail(file, end, base)):
            raise damage

    def _check(self, header: BatchHeader, path: str, at: int, base: int, later: int | None) -> None:
        """Check what the CRC does not cover. Raises: CorruptData."""
        check_offset(header, path, at, offset=base, gaps_allowed=self._has_gaps)
        if later is not None and header.end_offset > later:
            end = header.end_offset
            raise CorruptData(path, at, f"a batch that ends at {later} at most", f"end {end}")
        check_epoch(header, path, at, epoch=self._epochs.at(header.base_offset))

    def _headers(self, number: int) -> Iterator[tuple[int, BatchHeader]]:
        """The batches of a segment up to a torn tail. Raises: CorruptData, OSError."""
        base, name = self._segments[number]
        file = self._files.open(f"{self._directory}/{name}", write=False)
        position = 0
        try:
            for at, header in walk_headers(file, start=0, end=file.size()):
                yield at, header
                position, base = at + header.total_bytes, header.end_offset
        except CorruptData:
            if not self._is_torn_tail(file, position, base):
                raise
        finally:
            file.close()

    def _is_torn_tail(self, file: File, position: int, offset: int) -> bool:
        """Whether no valid batch follows: a write that the end of the process has cut."""
        size = file.size()
        found = find_batch(
            file, start=position + 1, end=size, offset=offset, offset_max=offset + size
        )
        return found is None
