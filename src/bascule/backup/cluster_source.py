"""The streams of a running cluster: definitions over HTTP, batches as consumers fetch them."""

from __future__ import annotations

import asyncio
import threading
from array import array
from collections.abc import Callable, Generator, Iterator
from contextlib import closing, contextmanager
from functools import partial
from typing import Final, TypeVar

from bascule.backup.batch_checks import BatchChecker
from bascule.backup.sources import OtherHistory, ReadExtent
from bascule.client import _hot
from bascule.client.admin import Admin, server_url
from bascule.client.connection import Leader, LeaderMoved, PartitionConnector, error_of
from bascule.client.fetch_response import read_fetch_head
from bascule.errors import (
    BasculeError,
    Broken,
    CorruptData,
    OffsetOutOfRange,
    UnknownPayload,
    UnknownStream,
)
from bascule.host.api import Clock
from bascule.host.real import RealClock
from bascule.log_connection import FRAME_BYTES_MAX, LogConnection
from bascule.model import Cleanup, StreamDefinition, StreamInfo
from bascule.payload_connection.places import Places
from bascule.payload_connection.reader import PayloadReader
from bascule.record.payload_links import PayloadLink
from bascule.wire.datastream.messages import FetchPayload
from bascule.wire.error_codes import ErrorCode
from bascule.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from bascule.wire.messages.offset_for_leader_epoch import (
    EpochPartition,
    EpochTopic,
    OffsetForLeaderEpochRequest,
)
from bascule.wire.offsets import OFFSETS_STREAM

T = TypeVar("T")

HTTP_SECONDS: Final = 30.0
FETCH_BYTES: Final = 8 << 20
WAIT_MS: Final = 1_000
SILENT_SECONDS_MAX: Final = 10.0
RETRY_SECONDS_MAX: Final = 30.0
"""How long a partition may have no leader, or give nothing, before its backup fails; also how long
there may be no controller."""
RETRY_SECONDS: Final = 0.2
PAYLOAD_SECONDS: Final = 10.0
"""How long no replica may send anything of a payload before the backup goes on without it."""
FAILED_SECONDS: Final = 2.0
"""As PAYLOAD_SECONDS, after one that failed: there may be many."""
ROUNDS_MAX: Final = 100
"""How often a compacted partition is read on to where it ends now: each time there is less."""
INTERNAL: Final = (OFFSETS_STREAM,)
"""Streams that lists leave out: the offsets that consumers have committed."""


class ClusterSource:
    """Reads from the leaders."""

    def __init__(self, server: str | None, clock: Clock | None = None) -> None:
        """`server` is as for commands. Raises: ConfigError."""
        self.address = server_url(server)
        self._clock = clock or RealClock()
        self.cluster_id = ""
        self.failure = ""
        self.names_all_streams = False
        self._bootstrap = ""

    def streams(self) -> list[StreamDefinition]:
        return asyncio.run(self._ask())

    async def _ask(self) -> list[StreamDefinition]:
        admin = Admin(self.address, timeout=HTTP_SECONDS)
        try:
            await admin.node()  # where nobody answers at all, there is no controller to wait for
            found = [each.definition for each in await self._list(admin)]
            node = await admin.node()
            self.cluster_id, self._bootstrap = node.cluster_id, node.bootstrap
            known = {each.name for each in found}
            for name in INTERNAL:
                if name not in known:
                    try:
                        found.append((await admin.stream(name)).definition)
                    except UnknownStream:
                        continue
        finally:
            await admin.close()
        return found

    async def _list(self, admin: Admin) -> list[StreamInfo]:
        """What the controller has confirmed, or else what a node knows. One that is cut off knows
        neither of streams that were made since nor that others were deleted."""
        self.failure, self.names_all_streams = "", False
        try:
            found = await self._confirmed(admin)
        except BasculeError as error:
            listed = await admin.streams()
            self.failure = (
                f"no controller has confirmed the list of streams ({error}): streams that were "
                "made or changed last may be missing"
            )
            return listed
        self.names_all_streams = found is not None
        return await admin.streams() if found is None else found

    async def _confirmed(self, admin: Admin) -> list[StreamInfo] | None:
        """As `Admin.confirmed_streams`. Another controller may have to be elected first."""
        began = self._clock.monotonic_ns()
        while True:
            try:
                return await admin.confirmed_streams()
            except BasculeError:
                if self._clock.monotonic_ns() - began > RETRY_SECONDS_MAX * 1e9:
                    raise
                await asyncio.sleep(RETRY_SECONDS)

    def partitions(self, definition: StreamDefinition) -> list[int]:
        return list(range(definition.partition_count))

    @contextmanager
    def open(self, definition: StreamDefinition, partition: int) -> Iterator[LeaderRead]:
        reading = LeaderRead(
            PartitionConnector(self._bootstrap, definition.name, partition), definition, self._clock
        )
        try:
            reading.start()
            yield reading
        finally:
            reading.close()


class LeaderRead:
    """One partition, fetched from its leader, whoever that is meanwhile."""

    def __init__(
        self, connector: PartitionConnector, definition: StreamDefinition, clock: Clock
    ) -> None:
        self._connector = connector
        self._definition = definition
        self._clock = clock
        self._origin = f"stream {connector.stream!r} partition {connector.partition}"
        self._opened: tuple[LogConnection, Leader] | None = None
        self._extent = ReadExtent(0, 0)
        self._compared: LogConnection | None = None
        """To the leader whose log has the history of what was read."""
        self._fetch_bytes = FETCH_BYTES
        self._places = Places(connector.bootstrap)
        self._runner = asyncio.Runner()
        self._payload_seconds = PAYLOAD_SECONDS

    @property
    def start_offset(self) -> int:
        return self._extent.start

    @property
    def end_offset(self) -> int:
        return self._extent.end

    @property
    def latest_epoch(self) -> int:
        return -1

    def start(self) -> None:
        """Ask which offsets there are. Raises: UnknownStream, Broken."""
        self._extent = ReadExtent(*self._retried(lambda at, _: self._connector.extent(at)))

    def end_of_epoch(self, epoch: int) -> tuple[int, int]:
        return self._retried(partial(self._ask_end, epoch=epoch))

    def _ask_end(self, connection: LogConnection, leader: Leader, epoch: int) -> tuple[int, int]:
        name, partition = self._connector.stream, self._connector.partition
        asked = EpochPartition(partition, leader.epoch, epoch)
        response = connection.request(
            OffsetForLeaderEpochRequest(topics=[EpochTopic(name, [asked])])
        )
        found = response.topics[0].partitions[0]
        if found.error_code:
            raise error_of(found.error_code, name, partition, address=connection.address)
        return found.leader_epoch, found.end_offset

    def read(self, offset: int, *, epoch: int = -1) -> Iterator[memoryview]:
        checker = BatchChecker(self._origin)
        position, end, latest, rounds = offset, self._extent.end, 0, 0
        self._compared = None
        while position < end:
            last = max(epoch, checker.epochs.latest)
            block, committed = self._retried(partial(self._fetch_on, offset=position, epoch=last))
            latest = max(latest, committed)
            if block is None:
                # A node sends one batch at least where it has one: these were compacted away.
                position = committed
            else:
                checker.check(block)
                position = checker.offset
                if position > committed:
                    # The CRC does not cover offsets.
                    expected = f"batches up to {committed}"
                    raise CorruptData(self._origin, 0, expected, f"end {position}")
                yield block
            if position >= end and Cleanup.COMPACT in self._definition.config.cleanup:
                # Of what was removed before it was read, the records that replaced it are below
                # what was committed then.
                rounds += end < latest
                end = max(end, latest)
                if rounds > ROUNDS_MAX:
                    raise Broken(f"{self._origin}: records come faster than they are read")

    def behind_damage(self, offset: int) -> int | None:
        """A node heals damage from other replicas, or waits for its user to decide."""
        return None

    def read_payload(self, link: PayloadLink) -> Generator[bytes, None, None]:
        """From any replica that has it; the one that has failed comes last the next time."""
        name, partition = self._connector.stream, self._connector.partition
        fetch = FetchPayload(name, partition, offset=link.offset)
        reader = PayloadReader(
            lambda: self._connector.bootstrap, fetch, timeout=self._payload_seconds,
            places=self._places,
        )  # fmt: skip
        chunks = reader.chunks()

        async def following() -> bytes:
            return await anext(chunks, b"")

        run = self._runner.run
        try:
            with closing(reader):
                run(reader.__aenter__())
                if reader.id != link.payload.id:
                    raise UnknownPayload(name, partition, link.offset)
                try:
                    while chunk := run(following()):
                        yield chunk
                finally:
                    run(chunks.aclose())
        except UnknownPayload:
            raise
        except BasculeError:
            self._payload_seconds = FAILED_SECONDS
            raise
        self._payload_seconds = PAYLOAD_SECONDS

    @property
    def copies(self) -> int:
        return len(self._places.order)

    def close(self) -> None:
        """End it, on the thread that has read payloads."""
        self._disconnect()
        self._runner.close()

    def _disconnect(self) -> None:
        if self._opened is not None:
            self._opened[0].close()
            self._opened = None

    def _retried(self, ask: Callable[[LogConnection, Leader], T]) -> T:
        """The answer of the leader, which may change meanwhile. Raises: BasculeError."""
        failing_since: int | None = None
        while True:
            try:
                if self._opened is None:
                    self._opened = self._connector.open()
                    if self._opened[1].topic_id != self._definition.id:
                        raise UnknownStream(self._connector.stream)
                    self._opened[0].set_timeout(SILENT_SECONDS_MAX)
                return ask(*self._opened)
            except Broken:
                self._disconnect()
                now = self._clock.monotonic_ns()
                failing_since = failing_since or now
                if now - failing_since > RETRY_SECONDS_MAX * 1e9:
                    raise
                threading.Event().wait(RETRY_SECONDS)

    def _fetch_on(
        self, connection: LogConnection, leader: Leader, offset: int, epoch: int
    ) -> tuple[memoryview | None, int]:
        """As `_fetch`, where the log has the history of what was read below `offset`, whose last
        leader epoch is `epoch`. Raises: OtherHistory as well."""
        if connection is not self._compared:
            # A leader fences requests of other leader epochs, so its log only grows meanwhile.
            if epoch >= 0:
                found = self._ask_end(connection, leader, epoch)
                if found[0] != epoch or found[1] < offset:
                    self._extent = ReadExtent(*self._connector.extent(connection))
                    raise OtherHistory(had=(epoch, offset), has=found)
            self._compared = connection
        return self._fetch(connection, leader, offset)

    def _fetch(
        self, connection: LogConnection, leader: Leader, offset: int
    ) -> tuple[memoryview | None, int]:
        """Whole batches from `offset` on, and the end of what is committed; None: no batches are
        left below it. Raises: OffsetOutOfRange, Broken."""
        while True:
            connection.send(self._request(leader, offset))
            version, size = connection.receive_size()
            frame = memoryview(bytearray(size))
            connection.receive_into(frame)
            head = read_fetch_head(frame, connection.check_head(frame), version=version, size=size)
            if head.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
                raise OffsetOutOfRange(offset, *self._connector.extent(connection))
            if head.error_code:
                raise error_of(
                    head.error_code, self._connector.stream, self._connector.partition,
                    address=connection.address,
                )  # fmt: skip
            records = frame[head.records_at : head.records_at + head.records_bytes]
            if not len(records):
                if head.high_watermark <= offset:
                    raise LeaderMoved(
                        f"{self._origin}: {connection.address} has committed offsets below "
                        f"{head.high_watermark}, and not yet below {self._extent.end}"
                    )
                return None, head.high_watermark
            state = array("q", (0, 0))
            if _hot.walk_batches(records, 0, len(records), state):
                return records[: state[1]], head.high_watermark
            self._ask_for_more(records, offset)

    def _ask_for_more(self, records: memoryview, offset: int) -> None:
        """Raises: CorruptData for a batch of an impossible size."""
        size = 12 + int.from_bytes(records[8:12], "big") if len(records) >= 12 else 0
        if not self._fetch_bytes < size <= FRAME_BYTES_MAX:
            origin = f"{self._origin} from offset {offset}"
            raise CorruptData(origin, 8, "a whole batch", f"one that should have {size} bytes")
        self._fetch_bytes = size

    def _request(self, leader: Leader, offset: int) -> FetchRequest:
        asked = FetchPartition(
            partition=self._connector.partition,
            current_leader_epoch=leader.epoch,
            fetch_offset=offset,
            partition_max_bytes=self._fetch_bytes,
        )
        topic = FetchTopic(self._connector.stream, leader.topic_id, [asked])
        return FetchRequest(
            max_wait_ms=WAIT_MS, min_bytes=1, max_bytes=self._fetch_bytes, topics=[topic]
        )
