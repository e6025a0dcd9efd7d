"""A source of backups that reads logs which a test writes, without a node."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bascule.backup.disk_source import StoredPartition
from bascule.backup.sources import PartitionRead
from bascule.errors import UnknownStream
from bascule.host.real import RealClock, RealFiles
from bascule.model import StreamConfig, StreamDefinition
from bascule.storage.partition_log import LogConfig, PartitionLog
from support.stored_batches import make_batch

SEGMENT_BYTES = 2_000


class WrittenLogs:
    """Logs below a directory, one per stream and partition."""

    cluster_id = "c1"

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


def log_bytes(directory: Path) -> bytes:
    """All batches of the log in a directory."""
    return b"".join(path.read_bytes() for path in sorted(directory.glob("*.log")))
