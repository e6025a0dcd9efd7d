"""The reusable buffer of a NATS connection: receive, parse, hand on; the rest stays for later."""

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
"""Asked of the socket at a time: several of the server's writes, yet within a core's cache."""
BURST_BYTES_MIN: Final = 32 << 10
"""A receive of this much is part of a burst."""
BURST_PAUSE_SECONDS: Final = 0.0005
"""Pause in a burst nobody awaits answers to: the kernel's buffer goes on filling, the reader wakes
hundreds of times a second instead of thousands, and the NATS server gets the processor."""
ANSWERED_BURST_BYTES_MIN: Final = 64 << 10
ANSWERED_BURST_PAUSE_SECONDS: Final = 0.0002
"""The same where publishers wait: several hundred messages at a time say that a window of thousands
is open, and that fewer, larger batches and syncs answer it sooner."""


class ChunkOwner(Protocol):
    """Who takes what a chunk holds."""

    @property
    def body_bytes_max(self) -> int:
        """A message beyond this is no message of this server's."""
        ...

    def on_received(self, count: int) -> None:
        """`count` bytes came."""
        ...

    def on_idle(self) -> None:
        """Nothing came for a while. Raises: Broken where that is taken for the end."""
        ...

    def on_control_line(self, line: bytes) -> None:
        """Raises: RemoteProtocolError for what is no operation, Broken for the end."""
        ...

    def deliver(self, buf: bytearray, messages: array[int], count: int, wire_bytes: int) -> bool:
        """Take parsed messages; whether a publisher waits for an answer to one of them."""
        ...

    def pause(self, seconds: float) -> None: ...


class BatchSink(Protocol):
    """Where batches go: bounded room to write them into, and a queue behind it."""

    def reserve(self, size: int) -> tuple[Slab, int]:
        """Wait for `size` bytes of room: a slab and where its free part starts."""
        ...

    def submit(
        self, slab: Slab, end: int, routed: list[tuple[Replica, list[UnstampedBatch]]]
    ) -> None:
        """Take each replica's batches, in order; the slab is used up to `end`."""
        ...


class ChunkReader:
    """The reusable buffer of one connection and the parse position in it."""

    def __init__(self, owner: ChunkOwner, transport: Transport, rest: bytes) -> None:
        self._owner = owner
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
        """Receive once and deliver what is whole; False at the end of the connection."""
        free = len(self._buffer) - self._end
        view = memoryview(self._buffer)
        try:
            count = self._transport.receive_into(
                view[self._end : self._end + min(free, RECEIVE_BYTES)]
            )
        except BlockingIOError:
            self._owner.on_idle()
            return True
        finally:
            view.release()
        if count == 0:
            return False
        self._owner.on_received(count)
        self._end += count
        self._answers_wanted = False
        self._consume()
        if BURST_BYTES_MIN <= count < RECEIVE_BYTES:
            if not self._answers_wanted:
                self._owner.pause(BURST_PAUSE_SECONDS)
            elif count >= ANSWERED_BURST_BYTES_MIN:
                self._owner.pause(ANSWERED_BURST_PAUSE_SECONDS)
        return True

    def _consume(self) -> None:
        owner, state = self._owner, self._state
        while True:
            begin = self._start
            count = _hot.parse_messages(
                self._buffer, begin, self._end, owner.body_bytes_max, LINE_BYTES_MAX,
                self._messages, state,
            )  # fmt: skip
            consumed, reason, needed, _ = state
            self._start = consumed
            if count:
                self._answers_wanted |= owner.deliver(
                    self._buffer, self._messages, count, consumed - begin
                )
            if reason == _hot.CONTROL_LINE:
                owner.on_control_line(bytes(self._buffer[consumed:needed]))
                self._start = needed + 2
            elif reason == _hot.MALFORMED:
                shown = bytes(self._buffer[consumed : consumed + 60])
                raise RemoteProtocolError(f"the NATS server sent {shown!r}, expected an operation")
            elif reason == _hot.NEED_DATA:
                self._make_room(needed)
                return

    def _make_room(self, needed: int) -> None:
        """Move the operation that is cut short to the front; grow where it is larger."""
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
