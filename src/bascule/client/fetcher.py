"""Fetches one partition and decodes it in pieces.

    node --> socket --> a piece of one response --> its complete batches --> Arrow --> reader
      ^                                                  |
      +----- next Fetch, once its offset is known -------+

A response is decoded in pieces as it arrives, in the reader's thread, while a piece is in the CPU
cache. The kernel's socket buffer holds the rest. The header of the batch that a response truncates
gives the next fetch offset, so the next request is sent before the response has arrived completely
and the node need not wait. A separate receiving thread with a queue was a third slower on two
cores.
"""

from __future__ import annotations

import threading
from array import array
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from bascule.client import _hot
from bascule.client.connection import (
    ASK_TIMEOUT_S,
    UNANSWERED_S,
    Leader,
    LeaderMoved,
    PartitionConnector,
    error_of,
)
from bascule.client.fetch_response import HEAD_BYTES_MAX, FetchHead, read_fetch_head
from bascule.errors import (
    BasculeError,
    Broken,
    Closed,
    CorruptData,
    OffsetOutOfRange,
    RemoteProtocolError,
)
from bascule.host.real import RealClock
from bascule.log_connection import FRAME_BYTES_MAX, LogConnection
from bascule.record.header import LENGTH_PREFIX_BYTES
from bascule.wire.error_codes import ErrorCode
from bascule.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic

if TYPE_CHECKING:
    import pyarrow as pa

OFFSET_MAX: Final = (1 << 63) - 1
WAIT_MS: Final = 1_000
"""Greatest time that a node may hold a Fetch without new records."""
BACKOFF_S_MIN: Final = 0.05
BACKOFF_S_MAX: Final = 2.0
_CLOCK: Final = RealClock()


@dataclass(frozen=True, slots=True)
class FetchOptions:
    """Options of a read: bytes per request, bytes per Arrow batch, and the timeout in seconds for a
    node that does not reply."""

    fetch_bytes: int = 8 << 20
    batch_bytes: int = 4 << 20
    """Measured against 0.5, 1, 2 and 8 MiB: half the CPU per record of 0.5 MiB."""
    timeout: float = 30.0


class Fetcher:
    """Fetches and decodes [start, end) of a partition in the iterating thread.

    `start` must be available. Without `follow`, `end` must be committed.
    """

    def __init__(
        self,
        connector: PartitionConnector,
        opened: tuple[LogConnection, Leader] | None,
        *,
        start: int,
        end: int,
        follow: bool,
        options: FetchOptions,
    ) -> None:
        """`opened` is a connection to the partition's leader; None: connect at the first fetch."""
        self._connector = connector
        self._connection: LogConnection | None = None
        self._leader: Leader | None = None
        if opened is not None:
            self._connection, self._leader = opened
        self._position = start
        """The first offset not yet returned."""
        self._end = end
        self._follow = follow
        self._options = options
        self._fetch_bytes = options.fetch_bytes
        self._origin = f"stream {connector.stream!r} partition {connector.partition}"
        # A quarter more for the truncated batch before a piece, or a small rest after it.
        self._buffer = memoryview(bytearray(options.batch_bytes * 5 // 4 + HEAD_BYTES_MAX))
        self._state = array("q", [0, 0])
        self._stop = threading.Event()
        self._batches = self._run()
        self._failure: BasculeError | None = None

    def next(self) -> pa.RecordBatch | None:
        """Return the next batch, with at least one row, or None at the end. Blocks.

        Raises: Closed after `close`, and the error that ended the fetching, also of later calls: an
        end would say that all was read.
        """
        if self._stop.is_set():
            raise Closed("the read was closed")
        if self._failure is not None:
            raise self._failure
        try:
            return next(self._batches, None)
        except BasculeError as error:
            self._failure = error
            raise

    def close(self) -> None:
        """End the fetching. Idempotent and thread-safe. A `next` in progress ends at once."""
        self._stop.set()
        connection = self._connection
        if connection is not None:
            connection.abort()
        try:
            self._batches.close()
        except ValueError:
            return  # another thread runs it and cleans up itself
        self._drop()

    def _run(self) -> Generator[pa.RecordBatch, None, None]:
        """Fetch until the end. Reconnect until there was no progress for `timeout`."""
        try:
            failing_since: float | None = None
            backoff = BACKOFF_S_MIN
            while self._position < self._end:
                before = self._position
                try:
                    yield from self._stream_from(self._connect())
                except Broken as error:
                    if self._stop.is_set():
                        break
                    now = _CLOCK.monotonic_ns() / 1e9
                    if failing_since is None or self._position > before:
                        failing_since, backoff = now, BACKOFF_S_MIN
                    if now - failing_since > self._options.timeout:
                        raise Broken(
                            f"reading stream {self._connector.stream!r} failed at offset "
                            f"{self._position} for {self._options.timeout} s: {error}"
                        ) from error
                    self._drop()
                    self._stop.wait(backoff)
                    backoff = min(2 * backoff, BACKOFF_S_MAX)
                if self._stop.is_set():
                    break
        finally:
            self._drop()
        if self._stop.is_set():
            raise Closed("the read was closed")

    def _connect(self) -> LogConnection:
        if self._connection is None:
            connection, self._leader = self._connector.open()
            self._connection = connection
            if self._stop.is_set():
                connection.abort()
        # A node holds a Fetch for up to WAIT_MS. Longer silence is a failure.
        self._connection.set_timeout(ASK_TIMEOUT_S + WAIT_MS / 1000)
        return self._connection

    def _drop(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _stream_from(self, connection: LogConnection) -> Iterator[pa.RecordBatch]:
        connection.send(self._request(self._position))
        while self._position < self._end and not self._stop.is_set():
            self._wait_for_response(connection)
            version, size = connection.receive_size()
            first = self._buffer[: min(size, HEAD_BYTES_MAX)]
            connection.receive_into(first)
            body = connection.check_head(first)
            head = read_fetch_head(first, body, version=version, size=size)
            after = size - len(first)
            self._check(connection, head, after)
            if not head.records_bytes and head.high_watermark > self._position:
                # A node sends at least one batch if there is one. Compaction removed these offsets.
                self._position = min(head.high_watermark, self._end)
            have = min(max(len(first) - head.records_at, 0), head.records_bytes)
            left = head.records_bytes - have
            self._move_to_front(head.records_at, have)
            yield from self._take_records(connection, have, left)
            self._discard(connection, after - left)

    def _wait_for_response(self, connection: LogConnection) -> None:
        """Return once a response comes. A leader that hangs is left as soon as others name another
        one.

        Raises: LeaderMoved, UnknownStream, UnknownPartition; Broken where it is silent for too
        long.
        """
        step = UNANSWERED_S + WAIT_MS / 1000  # a node holds a Fetch for up to WAIT_MS
        waited = 0.0
        while not connection.wait_readable(step):
            waited += step
            if waited > ASK_TIMEOUT_S:
                raise Broken(f"{connection.address} was silent for {waited:g} s")
            assert self._leader is not None
            if self._connector.names_another(self._leader):
                raise LeaderMoved(f"{connection.address} does not answer, and leads no more")

    def _take_records(
        self, connection: LogConnection, have: int, left: int
    ) -> Iterator[pa.RecordBatch]:
        """Decode the batches of a response: `have` bytes at the buffer's front, `left` still to
        come.

        The next Fetch is sent as soon as it is known that no further complete batch follows.
        """
        begun = self._position
        while True:
            count = _hot.walk_batches(self._buffer, 0, have, self._state)
            position = self._state[0] if count else self._position
            walked = self._state[1]
            if count and position <= self._position:
                raise RemoteProtocolError(
                    f"a fetch from offset {self._position} was answered with batches that end "
                    f"at {position}"
                )
            is_last = not left or self._batch_end(walked, have) > have + left
            if is_last and position < self._end:
                if position == begun and have:
                    self._ask_for_more(self._batch_end(0, have))
                connection.send(self._request(position))
            if count:
                yield from self._decode(walked, min(position, self._end))
                self._position = position
            if is_last:
                self._discard(connection, left)
                return
            have -= walked
            self._move_to_front(walked, have)
            self._make_room(self._batch_end(0, have))
            piece = min(left, len(self._buffer) - have)
            if piece < left:
                piece = min(piece, self._options.batch_bytes)
            connection.receive_into(self._buffer[have : have + piece])
            have += piece
            left -= piece

    def _ask_for_more(self, size: int) -> None:
        """Increase the fetch size: no batch came completely, and the first one has `size` bytes.

        Raises: CorruptData for an impossible size; a node always sends its first batch completely.
        """
        if not self._fetch_bytes < size <= FRAME_BYTES_MAX:
            raise CorruptData(
                f"{self._origin} from offset {self._position}",
                8,
                "a whole batch",
                f"one that should have {size} bytes",
            )
        self._fetch_bytes = size

    def _decode(self, size: int, end: int) -> Iterator[pa.RecordBatch]:
        """Decode the complete batches in `size` bytes at the buffer's front, up to offset `end`.

        They make one Arrow batch, or several if compression is so high that one would be huge.
        """
        # Imported here, so that a command that only administers or publishes loads no Arrow.
        from bascule.record.columns import decode_batches

        subject = None if self._leader is None else self._leader.subject
        while self._position < end:
            batch, self._position = decode_batches(
                self._buffer[:size],
                partition=self._connector.partition,
                offset_min=self._position,
                offset_end=self._end,
                subject=subject,
                origin=f"{self._origin} from offset {self._position}",
            )
            if batch.num_rows:
                yield batch
            # Release it before the next one is made: its memory is in the cache.
            del batch

    def _batch_end(self, at: int, have: int) -> int:
        """End of the batch at `at`; 0 while too few of its bytes have arrived."""
        if have - at < LENGTH_PREFIX_BYTES:
            return 0
        return at + LENGTH_PREFIX_BYTES + int.from_bytes(self._buffer[at + 8 : at + 12], "big")

    def _move_to_front(self, at: int, size: int) -> None:
        if at and size:
            self._buffer[:size] = bytes(self._buffer[at : at + size])

    def _make_room(self, size: int) -> None:
        """Grow the buffer to `size` bytes, which the node is sending."""
        if size > len(self._buffer):
            larger = memoryview(bytearray(size + size // 8))
            larger[: len(self._buffer)] = self._buffer
            self._buffer = larger

    def _discard(self, connection: LogConnection, size: int) -> None:
        """Receive and discard `size` bytes."""
        while size > 0:
            piece = min(size, len(self._buffer))
            connection.receive_into(self._buffer[:piece])
            size -= piece

    def _check(self, connection: LogConnection, head: FetchHead, after: int) -> None:
        """Raises: the exception of the response's error code. `after` bytes of it are still to
        come."""
        code = head.error_code
        if code:
            self._discard(connection, after)
        if code == ErrorCode.OFFSET_OUT_OF_RANGE:
            start, end = self._connector.extent(connection)
            raise OffsetOutOfRange(self._position, start, end)
        if code:
            raise error_of(
                code, self._connector.stream, self._connector.partition, address=connection.address
            )
        if not self._follow and not head.records_bytes and head.high_watermark < self._end:
            raise OffsetOutOfRange(self._end, self._position, head.high_watermark)

    def _request(self, offset: int) -> FetchRequest:
        assert self._leader is not None, "a request needs a connection"
        return FetchRequest(
            max_wait_ms=WAIT_MS,
            min_bytes=1,
            max_bytes=self._fetch_bytes,
            topics=[
                FetchTopic(
                    topic=self._connector.stream,
                    topic_id=self._leader.topic_id,
                    partitions=[
                        FetchPartition(
                            partition=self._connector.partition,
                            current_leader_epoch=self._leader.epoch,
                            fetch_offset=offset,
                            partition_max_bytes=self._fetch_bytes,
                        )
                    ],
                )
            ],
        )
