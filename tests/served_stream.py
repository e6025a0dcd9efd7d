"""A stream on disk behind a real client door, for tests: partitions without a node around them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from bascule.broker.door import ClientDoor, DoorLimits, DoorStatistics, NodeIdentity
from bascule.errors import PartitionFailed
from bascule.host.real import RealClock, RealFiles
from bascule.model import StreamConfig, StreamDefinition
from bascule.record.batch import Record
from bascule.record.builder import build_batch
from bascule.record.header import read_header
from bascule.storage.partition_log import LogConfig, LogPosition, PartitionLog

T = TypeVar("T")
NODE = NodeIdentity(node_id=7, cluster_id="served-stream-tests")
NOWHERE = LogPosition(0, 0, 0)
TIMESTAMP = 1_700_000_000_000


@dataclass
class StoredPartition:
    """One partition over a real log; `append` commits at once."""

    definition: StreamDefinition
    log: PartitionLog | None
    index: int = 0
    leader_epoch: int = 0
    failure: PartitionFailed | None = None
    deleted: bool = False
    watchers: set[Callable[[], None]] = field(default_factory=set)
    high_watermark: LogPosition = NOWHERE
    start_offset: int = 0

    def append(self, records: Sequence[Record], *, commit: bool = True) -> None:
        assert self.log is not None
        batch = build_batch(
            records, base_offset=self.log.end.offset, leader_epoch=self.leader_epoch
        )
        header = read_header(batch)
        self.log.append(
            batch,
            base_offset=header.base_offset,
            end_offset=header.end_offset,
            timestamp_max=header.max_timestamp,
            leader_epoch=self.leader_epoch,
        )
        if commit:
            self.commit()

    def commit(self) -> None:
        """Move the high watermark to the log's end."""
        assert self.log is not None
        self.high_watermark = self.log.end
        self.moved()

    def moved(self) -> None:
        for watcher in tuple(self.watchers):
            watcher()


class StoredPartitions:
    """Streams by name and id."""

    def __init__(self) -> None:
        self._streams: dict[str, tuple[StoredPartition, ...]] = {}

    def add(self, partition: StoredPartition) -> None:
        self._streams[partition.definition.name] = (partition,)

    def remove(self, name: str) -> None:
        for partition in self._streams.pop(name):
            partition.deleted = True
            partition.moved()

    def stream(self, name: str) -> tuple[StoredPartition, ...] | None:
        return self._streams.get(name)

    def stream_by_id(self, id: bytes) -> tuple[StoredPartition, ...] | None:
        return next((s for s in self._streams.values() if s[0].definition.id == id), None)

    def streams(self) -> Mapping[str, tuple[StoredPartition, ...]]:
        return self._streams


def make_partition(
    directory: Path, name: str = "flights", *, segment_bytes_max: int = 256 << 20
) -> StoredPartition:
    """An empty stream with a log below `directory`."""
    path = directory / name
    path.mkdir(parents=True, exist_ok=True)
    config = LogConfig(segment_bytes_max=segment_bytes_max)
    definition = StreamDefinition(
        name=name,
        id=name.encode().ljust(16, b"#")[:16],
        created_ms=TIMESTAMP,
        config=StreamConfig(subject=f"{name}.>"),
    )
    return StoredPartition(
        definition, PartitionLog.open(RealFiles(), str(path), config, RealClock())
    )


def make_records(first: int, count: int, *, bytes_each: int = 100) -> list[Record]:
    """Records with the offsets from `first` on; every tenth has no key, every seventh no value."""
    return [
        Record(
            offset=n,
            timestamp=TIMESTAMP + n,
            key=None if n % 10 == 0 else b"key-%d" % n,
            value=None if n % 7 == 6 else (b"value-%d-" % n).ljust(bytes_each, b"."),
            headers=(("subject", b"flights.%d" % n), ("empty", b""), ("none", None)),
        )
        for n in range(first, first + count)
    ]


class DoorThread:
    """A door on an event loop of its own thread, so that blocking clients can use it."""

    def __init__(self, partitions: StoredPartitions, limits: DoorLimits | None = None) -> None:
        self._partitions = partitions
        self._limits = limits
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, name="door")
        self.loop: asyncio.AbstractEventLoop
        self.door: ClientDoor
        self.host = ""
        self.port = 0

    @property
    def address(self) -> str:
        return f"{self.host}:{self.port}"

    def statistics(self) -> DoorStatistics:
        return self.call(self.door.statistics)

    def call(self, function: Callable[[], T]) -> T:
        """Run `function` on the door's loop."""

        async def run() -> T:
            return function()

        return asyncio.run_coroutine_threadsafe(run(), self.loop).result(30)

    def _run(self) -> None:
        asyncio.run(self._serve())

    async def _serve(self) -> None:
        self.loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        self.door = ClientDoor(partitions=self._partitions, node=NODE, limits=self._limits)
        self.host, self.port = await self.door.start("127.0.0.1", 0)
        self._ready.set()
        await self._stop.wait()
        await self.door.close()

    def __enter__(self) -> DoorThread:
        self._thread.start()
        assert self._ready.wait(30), "the door did not open"
        return self

    def __exit__(self, *_: Any) -> None:
        self.loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(30)
        assert not self._thread.is_alive(), "the door did not close"


@contextmanager
def serving(*partitions: StoredPartition, limits: DoorLimits | None = None) -> Iterator[DoorThread]:
    """A door over `partitions`; their logs are closed afterwards."""
    all_partitions = StoredPartitions()
    for partition in partitions:
        all_partitions.add(partition)
    try:
        with DoorThread(all_partitions, limits) as door:
            yield door
    finally:
        for partition in partitions:
            if partition.log is not None:
                partition.log.close()
