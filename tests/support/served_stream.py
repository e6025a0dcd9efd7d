"""Streams on disk behind a real client listener, without the other parts of a node."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from bascule.config import ClientConfig, Config
from bascule.errors import PartitionFailed
from bascule.groups import CommittedOffsetStore, GroupCoordinator
from bascule.groups.classic import GroupLimits
from bascule.host.real import RealClock, RealFiles, RealRandom
from bascule.kafka import ClientListener, ListenerLimits, ListenerStatistics, NodeIdentity
from bascule.model import NodeRegistration, PartitionState, StreamConfig, StreamDefinition
from bascule.publish.headers import HashKey
from bascule.publish.unstamped_batch import UnstampedBatch
from bascule.record._hot_encode import encode_records
from bascule.record.batch import Record, RecordBatch
from bascule.record.builder import build_batch
from bascule.record.header import HEADER_BYTES, seal
from bascule.replica.internal_publisher import EncodableRecord, InternalRecord, encodable
from bascule.replica.partition import Partition
from bascule.replica.partitions import Partitions
from bascule.storage.partition_log import LogConfig, PartitionLog

T = TypeVar("T")
NODE = NodeIdentity(node_id=7, cluster_id="served-stream-tests")
READING = Config(node_id=NODE.node_id, client=ClientConfig(administration="off"))
"""Of a node whose clients may not change streams: there is no controller here."""
TIMESTAMP = 1_700_000_000_000


class ManualClock(RealClock):
    """A clock whose wall time the test sets, so that timestamps in logs are known."""

    def __init__(self) -> None:
        self.wall_ms = TIMESTAMP

    def now_ms(self) -> int:
        return self.wall_ms


class BatchMemory:
    """The memory of one batch, as the ingest buffer would provide it."""

    def __init__(self, data: bytearray) -> None:
        self.view = memoryview(data)


def open_stream(
    directory: Path,
    partitions: Partitions,
    name: str = "flights",
    *,
    segment_bytes_max: int = 256 << 20,
    clock: ManualClock | None = None,
    failure: str | None = None,
    replicas: tuple[int, ...] = (NODE.node_id,),
    id: bytes | None = None,
) -> Partition:
    """Open, or create, a stream of one partition below `directory`, and add it.

    The node leads it. With more `replicas` it knows nothing as committed until they have fetched.
    """
    path = directory / name
    path.mkdir(parents=True, exist_ok=True)
    clock = clock or ManualClock()
    definition = StreamDefinition(
        name=name,
        id=id or name.encode().ljust(16, b"#")[:16],
        created_ms=TIMESTAMP,
        config=StreamConfig(subject=f"{name}.>"),
    )
    log = None
    if failure is None:
        config = LogConfig(segment_bytes_max=segment_bytes_max)
        log = PartitionLog.open(RealFiles(), str(path), config, clock)
    partition = Partition(
        definition,
        0,
        log=log,
        failure=None if failure is None else PartitionFailed(name, 0, failure),
        clock=clock,
        on_changed=partitions.notify_watchers,
        hash_key=HashKey(bytes(16)),
    )
    state = PartitionState(replicas, replicas, NODE.node_id, partition.leader_epoch, 0)
    partition.set_role(state, NODE.node_id, lag_ns_max=1 << 60)
    partitions.add((partition,))
    return partition


class OneNode:
    """The `ClusterView` of a node alone, which leads everything."""

    def __init__(self, partitions: Partitions) -> None:
        self._partitions = partitions

    @property
    def controller_id(self) -> int:
        return NODE.node_id

    def nodes(self) -> list[NodeRegistration]:
        return [NodeRegistration(NODE.node_id, "here:9093", "here:9092", "http://here:9080", 1)]

    def registrations(self) -> list[NodeRegistration]:
        return self.nodes()

    def states(self, stream_id: bytes) -> list[PartitionState]:
        found = self._partitions.stream_by_id(stream_id) or ()
        alone = (NODE.node_id,)
        return [
            PartitionState(alone, alone, NODE.node_id, partition.leader_epoch, 0)
            for partition in found
        ]


class _NoController:
    """In place of a controller: whoever asks it for a change has made a mistake."""

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"there is no controller to ask for {name}")


NO_CONTROLLER: Any = _NoController()


def append(partition: Partition, records: Sequence[Record], *, commit: bool = True) -> None:
    """Append one batch; with `commit` it is synced, which moves the high watermark."""
    batch = build_batch(records, base_offset=records[0].offset)
    memory = BatchMemory(batch)
    partition.append(
        UnstampedBatch(
            data=memory.view,
            record_count=len(records),
        )
    )
    if commit:
        partition.sync()


class DirectPublisher:
    """An `InternalPublisher` that appends to partitions directly, without a log writer."""

    def __init__(self, partitions: Partitions) -> None:
        self._partitions = partitions

    async def publish(self, stream: str, partition: int, records: Sequence[InternalRecord]) -> int:
        return await self.publish_encodable(stream, partition, [encodable(r) for r in records])

    async def publish_encodable(
        self, stream: str, partition: int, records: list[EncodableRecord]
    ) -> int:
        """As the real one: what is encoded and decoded again has its headers as tuples."""
        batch = encode_records(records, HEADER_BYTES)
        seal(batch, record_count=len(records), base_timestamp=0, max_timestamp=0)
        found = self._partitions.stream(stream)
        assert found is not None
        base = found[partition].high_watermark.offset
        decoded = RecordBatch(memoryview(batch), origin="test")
        append(
            found[partition],
            [Record(base + row, 0, r.key, r.value, r.headers) for row, r in enumerate(decoded)],
        )
        return base


def make_offset_store(partitions: Partitions) -> CommittedOffsetStore:
    """A store over the stream `_offsets` of `partitions`; the caller starts it."""
    return CommittedOffsetStore(partitions, DirectPublisher(partitions), ManualClock())  # type: ignore[arg-type]


def make_coordinator(
    partitions: Partitions, offsets: CommittedOffsetStore, **limits: int
) -> GroupCoordinator:
    """Coordinates groups whose states are in `offsets`; without initial delay unless given."""
    limits.setdefault("initial_delay_ms", 0)
    return GroupCoordinator(partitions, offsets, RealRandom(seed=7), GroupLimits(**limits))


def make_records(first: int, count: int, *, bytes_each: int = 100) -> list[Record]:
    """`count` records from offset `first`; every tenth has no key, every seventh no value."""
    return [
        Record(
            offset=n,
            timestamp=TIMESTAMP,
            key=None if n % 10 == 0 else b"key-%d" % n,
            value=None if n % 7 == 6 else (b"value-%d-" % n).ljust(bytes_each, b"."),
            headers=(("subject", b"flights.%d" % n), ("empty", b""), ("none", None)),
        )
        for n in range(first, first + count)
    ]


def stored_bytes(partition: Partition) -> bytes:
    """All bytes of the partition's log files."""
    assert partition.log is not None
    files = sorted(Path(partition.log.directory).glob("*.log"))
    return b"".join(file.read_bytes() for file in files)


class ListenerThread:
    """A client listener on an event loop in its own thread, for tests with blocking clients."""

    def __init__(self, partitions: Partitions, limits: ListenerLimits | None) -> None:
        self._partitions = partitions
        self._limits = limits
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, name="listener")
        self._loop: asyncio.AbstractEventLoop
        self._stop: asyncio.Event
        self._listener: ClientListener
        self.host = ""
        self.port = 0

    @property
    def address(self) -> str:
        return f"{self.host}:{self.port}"

    def statistics(self) -> ListenerStatistics:
        return self.call(self._listener.statistics)

    def call(self, function: Callable[[], T]) -> T:
        """Run `function` on the listener's loop."""

        async def run() -> T:
            return function()

        return asyncio.run_coroutine_threadsafe(run(), self._loop).result(30)

    def close(self) -> None:
        """Close the listener; returns when it is closed."""
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(30)
        assert not self._thread.is_alive(), "the listener did not close"

    def _run(self) -> None:
        asyncio.run(self._serve())

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        self._partitions.bind(self._loop)
        offsets = make_offset_store(self._partitions)
        offsets.start()
        groups = make_coordinator(self._partitions, offsets)
        groups.start()
        self._listener = ClientListener(
            partitions=self._partitions,
            offsets=offsets,
            groups=groups,
            node=NODE,
            cluster=OneNode(self._partitions),
            streams=NO_CONTROLLER,
            config=READING,
            limits=self._limits,
        )
        self.host, self.port = await self._listener.start("127.0.0.1", 0)
        self._ready.set()
        await self._stop.wait()
        await groups.close()
        await self._listener.close()
        await offsets.close()

    def __enter__(self) -> ListenerThread:
        self._thread.start()
        assert self._ready.wait(30), "the listener did not open"
        return self

    def __exit__(self, *_: Any) -> None:
        if self._thread.is_alive():
            self.close()


@contextmanager
def running_listener(
    partitions: Partitions, limits: ListenerLimits | None = None
) -> Iterator[ListenerThread]:
    """A client listener over `partitions`; closes the listener and the logs at the end."""
    try:
        with ListenerThread(partitions, limits) as listener:
            yield listener
    finally:
        for stream in partitions.streams().values():
            for partition in stream:
                if partition.log is not None:
                    partition.log.close()
