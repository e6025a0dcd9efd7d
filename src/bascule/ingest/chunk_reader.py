"""Receive into the reusable buffer of a NATS connection, parse it, and deliver the messages."""

from __future__ import annotations

from array import array
from typing import Final, Protocol

from bascule.errors import RemoteProtocolError
from bascule.ingest.nats_transport import Transport
from bascule.ingest.sequencer import MESSAGES_MAX, Slab
from bascule.publish.unstamped_batch import Replica, UnstampedBatch
from bascule.wire import _hot
from bascule.wire.nats import LINE_BYTES_MAX

RECEIVE_BYTES: Final = 256 << 10
"""Size of one receive: several of the server's writes, and small enough for a core's cache."""
BURST_BYTES_MIN: Final = 32 << 10
"""A receive of this much is part of a burst."""
BURST_PAUSE_SECONDS: Final = 0.0005
"""Pause in a burst without ack requests: meanwhile the kernel's buffer fills, the reader wakes
hundreds of times a second instead of thousands, and the NATS server gets the processor."""
ANSWERED_BURST_BYTES_MIN: Final = 64 << 10
ANSWERED_BURST_PAUSE_SECONDS: Final = 0.0002
"""The same where publishers wait for acks. Several hundred messages in one receive mean that
publishers have thousands in flight, and that fewer and larger batches and syncs ack them sooner."""


class ChunkHandler(Protocol):
    """Receives the messages and control lines of a chunk."""

    @property
    def body_bytes_max(self) -> int:
        """A larger message is a protocol error."""
        ...

    def on_received(self, count: int) -> None:
        """`count` bytes came."""
        ...

    def on_idle(self) -> None:
        """Nothing came for a ping interval. Raises: Broken to end the connection."""
        ...

    def on_control_line(self, line: bytes) -> None:
        """Raises: RemoteProtocolError for an unknown operation, Broken to end the connection."""
        ...

    def deliver(self, buf: bytearray, messages: array[int], count: int, wire_bytes: int) -> bool:
        """Take parsed messages; whether a publisher waits for an ack of one of them."""
        ...

    def pause(self, seconds: float) -> None: ...


class BatchSink(Protocol):
    """Bounded memory for batches, and the queue that takes them."""

    def reserve(self, size: int) -> tuple[Slab, int]:
        """Wait for `size` free bytes; return a slab and the start of its free part."""
        ...

    def submit(
        self, slab: Slab, end: int, routed: list[tuple[Replica, list[UnstampedBatch]]]
    ) -> None:
        """Take each replica's batches, in order. The slab is in use up to `end`."""
        ...


class ChunkReader:
    """The reusable buffer of one connection and the parse position in it."""

    def __init__(self, handler: ChunkHandler, transport: Transport, rest: bytes) -> None:
        self._handler = handler
        self._transport = transport
        self._buffer = bytearray(max(2 * RECEIVE_BYTES, len(rest)))
        self._buffer[: len(rest)] = rest
        self._start = 0
        self._end = len(rest)
        self._messages = array("i", bytes(4 * _hot.MESSAGE_FIELDS * MESSAGES_MAX))
        self._state = array("q", bytes(8 * 4))
        self._answers_wanted = False
        self._consume()

    def read_once(self) -> bool:
        """Receive once and deliver the complete messages; False at the end of the connection."""
        free = len(self._buffer) - self._end
        view = memoryview(self._buffer)
        try:
            count = self._transport.receive_into(
                view[self._end : self._end + min(free, RECEIVE_BYTES)]
            )
        except BlockingIOError:
            self._handler.on_idle()
            return True
        finally:
            view.release()
        if count == 0:
            return False
        self._handler.on_received(count)
        self._end += count
        self._answers_wanted = False
        self._consume()
        if BURST_BYTES_MIN <= count < RECEIVE_BYTES:
            if not self._answers_wanted:
                self._handler.pause(BURST_PAUSE_SECONDS)
            elif count >= ANSWERED_BURST_BYTES_MIN:
                self._handler.pause(ANSWERED_BURST_PAUSE_SECONDS)
        return True

    def _consume(self) -> None:
        handler, state = self._handler, self._state
        while True:
            begin = self._start
            count = _hot.parse_messages(
                self._buffer, begin, self._end, handler.body_bytes_max, LINE_BYTES_MAX,
                self._messages, state,
            )  # fmt: skip
            consumed, reason, needed, _ = state
            self._start = consumed
            if count:
                self._answers_wanted |= handler.deliver(
                    self._buffer, self._messages, count, consumed - begin
                )
            if reason == _hot.CONTROL_LINE:
                handler.on_control_line(bytes(self._buffer[consumed:needed]))
                self._start = needed + 2
            elif reason == _hot.MALFORMED:
                shown = bytes(self._buffer[consumed : consumed + 60])
                raise RemoteProtocolError(f"the NATS server sent {shown!r}, expected an operation")
            elif reason == _hot.NEED_DATA:
                self._make_room(needed)
                return

    def _make_room(self, needed: int) -> None:
        """Move the incomplete operation to the front; grow the buffer where it does not fit."""
        left = self._end - self._start
        if left == 0:
            self._start = self._end = 0
        elif (
            len(self._buffer) - self._end < RECEIVE_BYTES // 4
            or needed > len(self._buffer) - self._start
        ):
            rest = bytes(memoryview(self._buffer)[self._start : self._end])
            if needed + RECEIVE_BYTES > len(self._buffer):
                self._buffer = bytearray(needed + RECEIVE_BYTES)
            elif len(self._buffer) > 2 * RECEIVE_BYTES >= needed + RECEIVE_BYTES:
                self._buffer = bytearray(2 * RECEIVE_BYTES)
            self._buffer[:left] = rest
            self._start, self._end = 0, left
