"""A thread that keeps fetching one partition, ahead of whoever decodes what it fetched.

    socket --recv--> buffer --walk headers--> next offset --send Fetch--> hand the buffer on
                        ^                                                      |
                        +------------- recycle <---- decode (another thread) <-+

The next Fetch is on its way before the last answer is decoded, so node, network and decoder work
at the same time. `depth` buffers bound what is fetched ahead.
"""

from __future__ import annotations

import threading
from array import array
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Final, cast

from bascule.client import _hot
from bascule.client.connection import (
    ASK_TIMEOUT_S,
    Leader,
    LogConnection,
    PartitionDoor,
    ReceiveBuffer,
    error_of,
)
from bascule.errors import BasculeError, Broken, Closed, OffsetOutOfRange, RemoteProtocolError
from bascule.host.real import RealClock
from bascule.wire.error_codes import ErrorCode
from bascule.wire.messages.fetch import (
    FetchPartition,
    FetchPartitionResponse,
    FetchRequest,
    FetchResponse,
    FetchTopic,
)

OFFSET_MAX: Final = (1 << 63) - 1
WAIT_MS: Final = 1_000
"""How long a node may hold a Fetch that finds nothing new."""
CLOSE_TIMEOUT_S: Final = 5.0
BACKOFF_S_MIN: Final = 0.05
BACKOFF_S_MAX: Final = 2.0
_CLOCK: Final = RealClock()


@dataclass(frozen=True, slots=True)
class FetchOptions:
    """How to read: `fetch_bytes` per request, `depth` of them ahead, patience in seconds."""

    fetch_bytes: int = 4 << 20
    depth: int = 3
    timeout: float = 30.0


@dataclass(slots=True)
class Fetched:
    """One answer: record batches in `data`, of which the one at `offset` is wanted first."""

    buffer: ReceiveBuffer
    data: memoryview
    offset: int
    origin: str


class Fetcher:
    """Fetches [start, end) of a partition on a thread of its own.

    `start` lies in what is held. Without `follow`, `end` must be committed already.
    """

    def __init__(
        self,
        door: PartitionDoor,
        connection: LogConnection,
        leader: Leader,
        *,
        start: int,
        end: int,
        follow: bool,
        options: FetchOptions,
    ) -> None:
        self._door = door
        self._connection: LogConnection | None = connection
        self._leader = leader
        self._position = start
        self._end = end
        self._follow = follow
        self._options = options
        self._fetch_bytes = options.fetch_bytes
        self._stop = threading.Event()
        self._state = array("q", [0, 0])
        self._ready: SimpleQueue[Fetched | BaseException | None] = SimpleQueue()
        self._free: SimpleQueue[ReceiveBuffer | None] = SimpleQueue()
        for _ in range(max(2, options.depth)):
            self._free.put(ReceiveBuffer())
        self._thread = threading.Thread(
            target=self._run, name=f"bascule-fetch-{door.stream}", daemon=True
        )
        self._thread.start()

    def next(self) -> Fetched | None:
        """The next answer that holds batches, or None at the end. Blocks.

        Raises: what ended the fetching.
        """
        item = self._ready.get()
        if isinstance(item, BaseException):
            self._ready.put(item)
            raise item
        if item is None:
            self._ready.put(None)
        return item

    def recycle(self, fetched: Fetched) -> None:
        """Give a decoded answer's memory back; its data may not be touched after."""
        self._free.put(fetched.buffer)

    def close(self, *, wait: bool = True) -> None:
        """Stop the thread and end the connection; idempotent, from any thread.

        With `wait` the thread has ended on return, unless it is just connecting somewhere.
        """
        self._stop.set()
        self._free.put(None)
        self._ready.put(Closed("the read was closed"))
        connection = self._connection
        if connection is not None:
            connection.abort()
        if wait:
            self._thread.join(timeout=CLOSE_TIMEOUT_S)

    def _run(self) -> None:
        outcome: BasculeError | None = Broken("the fetching thread failed; see its traceback")
        try:
            self._fetch_all()
            outcome = None
        except BasculeError as error:
            outcome = error
        finally:
            self._ready.put(outcome)
            if self._connection is not None:
                self._connection.close()

    def _fetch_all(self) -> None:
        """Fetch until the end; reconnect for as long as `timeout` allows without progress."""
        failing_since: float | None = None
        backoff = BACKOFF_S_MIN
        while self._position < self._end and not self._stop.is_set():
            before = self._position
            try:
                self._stream_from(self._connect())
                return
            except Broken as error:
                if self._stop.is_set():
                    return
                now = _CLOCK.monotonic_ns() / 1e9
                if failing_since is None or self._position > before:
                    failing_since, backoff = now, BACKOFF_S_MIN
                if now - failing_since > self._options.timeout:
                    raise Broken(
                        f"reading stream {self._door.stream!r} failed at offset {self._position} "
                        f"for {self._options.timeout} s: {error}"
                    ) from error
                self._drop()
                self._stop.wait(backoff)
                backoff = min(2 * backoff, BACKOFF_S_MAX)

    def _connect(self) -> LogConnection:
        if self._connection is None:
            connection, self._leader = self._door.open()
            self._connection = connection
            if self._stop.is_set():
                connection.abort()
        # A node holds a Fetch for WAIT_MS; beyond that silence is a failure.
        self._connection.set_timeout(ASK_TIMEOUT_S + WAIT_MS / 1000)
        return self._connection

    def _drop(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _stream_from(self, connection: LogConnection) -> None:
        connection.send(self._request())
        origin = f"stream {self._door.stream!r} partition {self._door.partition}"
        while not self._stop.is_set():
            buffer = self._free.get()
            if buffer is None:
                return
            try:
                data = self._take(connection, buffer)
            except BaseException:
                self._free.put(buffer)
                raise
            offset = self._position
            if not self._advance(data):
                self._free.put(buffer)
                connection.send(self._request())
                continue
            more = self._position < self._end
            try:
                if more:
                    connection.send(self._request())
            finally:
                # The position has moved: what was received must be handed on in any case.
                self._ready.put(Fetched(buffer, data, offset, f"{origin} from offset {offset}"))
            if not more:
                return

    def _advance(self, data: memoryview) -> bool:
        """Move on behind the last complete batch of `data`; False where there is none."""
        self._state[0] = self._position
        if not _hot.walk_batches(data, 0, len(data), self._state):
            if len(data):
                self._fetch_bytes *= 2
            return False
        if self._state[0] <= self._position:
            raise RemoteProtocolError(
                f"a fetch from offset {self._position} was answered with batches that end "
                f"at {self._state[0]}"
            )
        self._position = self._state[0]
        return True

    def _take(self, connection: LogConnection, buffer: ReceiveBuffer) -> memoryview:
        """Receive one answer: its batches, possibly none."""
        answer = cast(FetchResponse, connection.receive(buffer))
        code = answer.error_code
        partition = FetchPartitionResponse()
        if not code and answer.responses and answer.responses[0].partitions:
            partition = answer.responses[0].partitions[0]
            code = partition.error_code
        if code == ErrorCode.OFFSET_OUT_OF_RANGE:
            start, end = self._door.extent(connection)
            raise OffsetOutOfRange(self._position, start, end)
        if code:
            raise error_of(
                code, self._door.stream, self._door.partition, address=connection.address
            )
        if not self._follow and not partition.records and partition.high_watermark < self._end:
            raise OffsetOutOfRange(self._end, self._position, partition.high_watermark)
        return cast(memoryview, partition.records or memoryview(b""))

    def _request(self) -> FetchRequest:
        return FetchRequest(
            max_wait_ms=WAIT_MS,
            min_bytes=1,
            max_bytes=self._fetch_bytes,
            topics=[
                FetchTopic(
                    topic=self._door.stream,
                    topic_id=self._leader.topic_id,
                    partitions=[
                        FetchPartition(
                            partition=self._door.partition,
                            current_leader_epoch=self._leader.epoch,
                            fetch_offset=self._position,
                            partition_max_bytes=self._fetch_bytes,
                        )
                    ],
                )
            ],
        )
