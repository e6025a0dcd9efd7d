"""Backups of logs that a test writes, without a node."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from crc32c import crc32c

from bascule.backup.disk_source import StoredPartition
from bascule.backup.manifest import BackedUpPartition, Manifest
from bascule.backup.places import LocalPlace
from bascule.backup.repository import Repository
from bascule.backup.sources import PartitionRead
from bascule.backup.taking import BackupTaker, Taken
from bascule.backup.verifying import verified_files
from bascule.errors import UnknownStream
from bascule.host.real import RealClock, RealFiles
from bascule.model import StreamConfig, StreamDefinition
from bascule.record.batch import Record
from bascule.record.builder import build_batch
from bascule.record.header import LOG_APPEND_TIME, PAYLOAD_LINKS, seal
from bascule.record.payload_links import Payload, PayloadLink
from bascule.storage.partition_log import LogConfig, PartitionLog
from bascule.storage.payloads.payload_log import PayloadLog
from support.payload_logs import have_whole
from support.stored_batches import make_batch

SEGMENT_BYTES = 2_000


class WrittenLogs:
    """Logs below a directory, one per stream and partition."""

    cluster_id = "c1"
    failure = ""
    names_all_streams = True

    def __init__(self, directory: Path) -> None:
        self.address = str(directory)
        self.definitions: list[StreamDefinition] = []
        self.failing: dict[tuple[str, int], Exception] = {}

    def add(self, name: str, **config: Any) -> StreamDefinition:
        """A stream with empty logs."""
        number = len(self.definitions)
        made = StreamDefinition(
            name, b"%016d" % number, 1_000 + number, StreamConfig(f"{name}.>", **config)
        )
        self.definitions.append(made)
        for index in range(made.partition_count):
            self.log(name, index).close()
        return made

    def log(self, name: str, index: int = 0) -> PartitionLog:
        """The log, open for writing; close it before a backup."""
        config = LogConfig(segment_bytes_max=SEGMENT_BYTES, gaps_allowed=True)
        directory = f"{self.address}/{name}/{index}"
        return PartitionLog.open(RealFiles(), directory, config, RealClock())

    def write(self, name: str, count: int, *, index: int = 0, epoch: int = 0) -> None:
        """Append `count` records, five in a batch."""
        log = self.log(name, index)
        for _ in range(count // 5):
            log.append(make_batch(log.end.offset, 5, leader_epoch=epoch))
        log.close(high_watermark=log.end.offset)

    def put(self, name: str, content: bytes, *, index: int = 0, damaged: bool = False) -> Payload:
        """Append a record with a payload; `damaged`: without its file."""
        log = PayloadLog.open(
            RealFiles(), f"{self.address}/{name}/{index}",
            LogConfig(segment_bytes_max=SEGMENT_BYTES, gaps_allowed=True), RealClock(),
        )  # fmt: skip
        offset = log.end.offset
        payload = Payload(f"{index:016x}{offset:016x}", len(content), crc32c(content))
        have_whole(log.payloads, payload, content)
        log.append(link_batch(PayloadLink(offset, payload)))
        log.close(high_watermark=log.end.offset)
        if damaged:
            self.payload_file(name, payload, index=index).unlink()
        return payload

    def payload_file(self, name: str, payload: Payload, *, index: int = 0) -> Path:
        """The file of a payload."""
        (path,) = (Path(self.address) / name / str(index) / "payloads").glob(f"*{payload.id}-*")
        return path

    def bytes_of(self, name: str, index: int = 0) -> bytes:
        """All batches of a log."""
        return log_bytes(Path(self.address) / name / str(index))

    def streams(self) -> list[StreamDefinition]:
        return self.definitions

    def partitions(self, definition: StreamDefinition) -> list[int]:
        return list(range(definition.partition_count))

    @contextmanager
    def open(self, definition: StreamDefinition, partition: int) -> Iterator[PartitionRead]:
        if definition not in self.definitions:
            raise UnknownStream(definition.name)
        error = self.failing.get((definition.name, partition))
        if error is not None:
            raise error
        yield StoredPartition(RealFiles(), f"{self.address}/{definition.name}/{partition}")


def link_batch(link: PayloadLink) -> bytes:
    """A batch of the record of a payload."""
    offset = link.offset
    headers = link.payload.headers()
    batch = build_batch([Record(offset, 1_000, b"key", b"", headers)], base_offset=offset)
    seal(
        batch, record_count=1, base_timestamp=1_000, max_timestamp=1_000,
        attributes=LOG_APPEND_TIME | PAYLOAD_LINKS, base_offset=offset,
    )  # fmt: skip
    return bytes(batch)


class Backups:
    """Logs, and the place where their backups go; time is what a test says."""

    def __init__(self, directory: Path) -> None:
        self.logs = WrittenLogs(directory / "logs")
        self.repository = Repository(LocalPlace(str(directory / "place")))
        self.now_ms = 1_700_000_000_000

    def take(self, *names: str, full: bool = False) -> Taken:
        """A backup of these streams; without names, of all."""
        self.now_ms += 1_000
        streams = [each for each in self.logs.streams() if not names or each.name in names]
        taker = BackupTaker(self.logs, self.repository.place, now_ms=lambda: self.now_ms)
        before = self.repository.latest_of(streams, passes_damage=full)
        usable = None if before is None else self.repository.usable(before)
        ids = self.repository.ids()
        taken = taker.take(
            streams, usable, known_ids=ids, is_full=full, jobs=2, names_all_streams=not names
        )
        self.repository.add(taken.manifest, known=ids)
        return taken

    def partition(self, manifest: Manifest, stream: str, index: int = 0) -> BackedUpPartition:
        (found,) = (s for s in manifest.streams if s.definition["name"] == stream)
        return found.partitions[index]

    def content(self, manifest: Manifest, stream: str, index: int = 0) -> bytes:
        partition = self.partition(manifest, stream, index)
        return b"".join(verified_files(self.repository.place, partition))


def log_bytes(directory: Path) -> bytes:
    """All batches of the log in a directory."""
    return b"".join(path.read_bytes() for path in sorted(directory.glob("*.log")))
