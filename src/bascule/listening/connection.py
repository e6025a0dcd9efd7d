"""One accepted connection: one coroutine, which answers requests in their order."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from functools import partial
from math import inf
from typing import Any, Final, Protocol, TypeAlias

from bascule.errors import Broken, RemoteProtocolError
from bascule.listening.deferred import Deferred
from bascule.listening.first_bytes import PEEK_BYTES, is_datastream, is_undecided
from bascule.listening.limits import ListenerLimits, ListenerStatistics
from bascule.listening.refusals import TEXT_LENGTH_MAX, RefusalLog
from bascule.listening.sending import RunOnThread, Sender
from bascule.wire.connection import ReceivedRequest, ServerConnection
from bascule.wire.frame import CHUNK_BYTES, SIZE_BYTES
from bascule.wire.primitives import Piece
from bascule.wire.schema import Message, memoize

log = logging.getLogger(__name__)

PARTIAL_REQUEST: Final = "the request did not arrive completely in time"

FIRST_LOOK_SECONDS: Final = 0.001
"""Until the first bytes of a connection are looked at again, where only a part has come. Doubles
each time, up to `LOOK_SECONDS_MAX`."""
LOOK_SECONDS_MAX: Final = 0.1

BASE_BUFFER_BYTES: Final = CHUNK_BYTES
"""A buffer, request or response of up to this size is not accounted for. What is larger counts
against `ListenerLimits.memory_bytes_max`."""
SHORTCUT_BYTES_MAX: Final = 1_024
"""Of a request that a `Shortcut` may answer: the memory of larger ones is accounted."""
DECODED_FACTOR: Final = 16
"""Upper bound of a decoded request's memory as a multiple of its bytes. Measured on Fetch and
Metadata requests of many small items."""


Handle: TypeAlias = Callable[[ReceivedRequest], Message | Awaitable[Message]]
"""Answers a request; awaitable if it may have to wait. Raises: RemoteProtocolError to close the
connection instead of a response."""


Answer: TypeAlias = "bytes | Message | Awaitable[Message] | None"
"""A frame, or a response to be encoded; None: the node stops, and the connection is closed."""


class Shortcut(Protocol):
    """Answers some requests of one connection without their being decoded."""

    name: str
    """Of the request that `begin` has answered last, as it is counted."""

    def begin(self, frame: memoryview, on_answer: Callable[[Answer], None]) -> bool | bytes:
        """Answer a request with a frame at once, or later and once by `on_answer` (True); False: it
        has to be decoded.

        Only requests of up to `SHORTCUT_BYTES_MAX` may be answered.
        """
        ...

    def on_decoded(self, request: ReceivedRequest) -> None:
        """The request that `begin` has refused last, or one that it was not asked for."""
        ...


class _Begun:
    """A request that is being answered."""

    __slots__ = ("decoded", "name", "request", "response", "rest", "started")

    def __init__(
        self, request: ReceivedRequest | memoryview, name: str, started: float, decoded: int
    ) -> None:
        self.request = request
        """The frame, if it was not decoded."""
        self.name = name
        """Of the request, as it is counted."""
        self.started = started
        """Loop time."""
        self.decoded = decoded
        """Accounted bytes of the request."""
        self.response: Answer = None
        self.rest: Sequence[Piece] = ()
        """What is still to be sent of the response."""


class ServedConnection:
    """Reads while it answers, so that it notices when the client closes and ends the waiting.

    The reader stays registered with the loop, so a request usually costs no call to epoll_ctl.
    The reader is removed only while `read_ahead_bytes` are waiting. A response that is there at
    once, or is `Deferred`, is sent by the callback that brought it. The task does the rest: what
    has to wait, requests that came together, and the end of the connection.
    """

    def __init__(
        self,
        sock: socket.socket,
        protocol: ServerConnection,
        handle: Handle,
        *,
        peer: str,
        limits: ListenerLimits,
        statistics: ListenerStatistics,
        refusals: RefusalLog,
        run_on_thread: RunOnThread,
        on_pipelined: Callable[[], None] | None = None,
        on_closed: Callable[[], None] | None = None,
        take_over: Callable[[socket.socket], None] | None = None,
        shortcut: Shortcut | None = None,
    ) -> None:
        """`peer` is the address and port of the other end. `on_pipelined` is called when bytes
        arrive while a request is answered, `on_closed` once the connection has ended. `take_over`
        gets the socket if its first bytes, still unread, are those of data streaming. `shortcut`
        is asked first for each request that comes alone."""
        self._socket = sock
        self._protocol = protocol
        self._frames = protocol.frames
        self._handle = handle
        self._on_pipelined = on_pipelined
        self._on_closed = on_closed
        self._take_over = take_over
        self._shortcut = shortcut
        self._peer = peer
        self._refusals = refusals
        self._client_id: str | None = None
        """As the last request said."""
        self._limits = limits
        self._statistics = statistics
        self._run_on_thread = run_on_thread
        self._loop = asyncio.get_running_loop()
        self._sender = Sender(
            sock,
            statistics=statistics,
            run_on_thread=run_on_thread,
            writable=self._wait_writable,
            progress=self._on_progress,
        )
        self._task: asyncio.Task[None] | None = None
        self._waiting: asyncio.Future[None] | None = None
        """What the task waits for while it has nothing to do; None while it answers a request."""
        self._begun: _Begun | None = None
        """The request that is being answered."""
        self._reading = False
        self._look_seconds = FIRST_LOOK_SECONDS
        self._next_look: asyncio.TimerHandle | None = None
        """Begins to read again, once the rest of the first bytes may be there."""
        self._closing = False
        self._expired = ""
        self._deadline = inf
        """Loop time at which the present state expires."""
        self._deadline_reason = ""
        self._answered_at = self._loop.time()
        """When the last response was sent; at first, when the connection was accepted."""
        self._accounted_bytes = 0
        """Bytes of this connection that count against `memory_bytes_max`."""

    def start(self) -> asyncio.Task[None]:
        """Serve until either side closes."""
        self._task = self._loop.create_task(self._run(), name=f"client {self._peer}")
        self._task.add_done_callback(self._release)
        return self._task

    def close_when_answered(self) -> None:
        """Close now, or as soon as the current request is answered."""
        self._closing = True
        if self._begun is None and self._task is not None:
            self._task.cancel()

    def abort(self) -> None:
        """Close now."""
        self._closing = True
        if self._task is not None:
            self._task.cancel()

    def expire(self, now: float) -> None:
        """Close if the deadline of the present state has passed."""
        if now >= self._deadline and self._task is not None:
            self._expired = self._deadline_reason
            self._deadline = inf
            self._task.cancel()

    async def _run(self) -> None:
        try:
            self._resume_reading()
            while not self._closing:
                await self._serve_one()
        except RemoteProtocolError as error:
            self._statistics.protocol_errors += 1
            if self._refusals.is_first(self._peer, self._client_id, str(error)):
                log.info(
                    "client closed: protocol error",
                    extra={"peer": self._peer, "client": self._client_id, "error": str(error)},
                )
        except (OSError, Broken) as error:
            log.info("client disconnected", extra={"peer": self._peer, "error": str(error)})
        except asyncio.CancelledError:
            if self._expired:
                self._statistics.connections_expired += 1
                log.info(
                    "client closed: timeout",
                    extra={"peer": self._peer, "reason": self._expired},
                )
        except Exception:  # boundary: the failure of one request must not affect other clients
            self._statistics.handler_errors += 1
            log.exception("client closed: internal error", extra={"peer": self._peer})

    def _release(self, _: asyncio.Task[None]) -> None:
        """Close the socket. A callback: a task that is cancelled before it begins runs nothing."""
        self._pause_reading()
        if self._next_look is not None:
            self._next_look.cancel()
        self._socket.close()
        response = None if self._begun is None else self._begun.response
        if isinstance(response, Deferred):
            response.done.cancel()
        elif isinstance(response, Coroutine):
            response.close()  # the task was cancelled before it came to wait for it
        self._account(-self._accounted_bytes)
        if self._on_closed is not None:
            self._on_closed()

    async def _serve_one(self) -> None:
        if self._begun is None:
            self._begin_next()
        if self._begun is None:
            await self._wait_readable()
            return
        try:
            await self._answer(self._begun)
        finally:
            self._end()
        if self._frames.buffered_bytes:
            await asyncio.sleep(0)  # let other connections run between pipelined requests

    def _serve_now(self, waiting: asyncio.Future[None]) -> None:
        """Answer the next request without a turn of the task, or leave it to the task if it has to
        wait, or has failed."""
        try:
            frame = self._protocol.next_frame()
            if frame is None:
                self._note_reading()
                return
            if self._shortcut is not None:
                answer = self._shortcut.begin(frame, self._on_answer)
                if answer is not False:
                    name = self._shortcut.name
                    self._deadline = inf
                    self._begun = _Begun(frame, name, self._loop.time(), 0)
                    self._statistics.requests[name] += 1
                    if answer is not True:
                        self._on_answer(answer)
                    return
            self._begin(frame)
            begun = self._begun
            assert begun is not None
            response = begun.response
            if isinstance(response, Deferred):
                response.done.add_done_callback(self._on_deferred)
                return
            if isinstance(response, Message):
                self._answer_now(begun, response)
        except Exception as error:  # boundary: the task ends the connection
            waiting.set_exception(error)
            return
        self._go_on(waiting)

    def _on_answer(self, answer: Answer) -> None:
        """What the shortcut answers to the request that it has begun."""
        waiting, begun = self._waiting, self._begun
        if waiting is None or waiting.done() or begun is None:
            return  # the connection ends
        if answer is None:
            waiting.cancel()
            return
        try:
            if isinstance(answer, bytes):
                begun.rest = self._sender.send_now((answer,))
                begun.response = answer
                if not begun.rest:
                    self._note_answered(begun)
                    self._end()
            else:
                assert isinstance(begun.request, memoryview)
                begun.request, begun.response = self._protocol.decode(begun.request), answer
        except Exception as error:  # boundary: the task ends the connection
            waiting.set_exception(error)
            return
        self._go_on(waiting)

    def _on_deferred(self, done: asyncio.Future[Any]) -> None:
        """What the response of a `Deferred` waits for is done."""
        waiting, begun = self._waiting, self._begun
        if waiting is None or waiting.done() or begun is None:
            return  # the connection ends
        if done.cancelled():
            waiting.cancel()
            return
        try:
            assert isinstance(begun.response, Deferred)
            response = begun.response = begun.response.response()
            if isinstance(response, Message):
                self._answer_now(begun, response)
        except Exception as error:  # boundary: the task ends the connection
            waiting.set_exception(error)
            return
        self._go_on(waiting)

    def _answer_now(self, begun: _Begun, response: Message) -> None:
        """Send a response, if it is small and the socket buffer has room for it."""
        if response.is_large:
            return
        assert isinstance(begun.request, ReceivedRequest)
        begun.rest = self._sender.send_now(self._protocol.send(begun.request, response))
        if not begun.rest:
            self._note_answered(begun)
            self._end()

    def _go_on(self, waiting: asyncio.Future[None]) -> None:
        """Wait for the next request, or have the task do what there is to do."""
        if self._begun is not None or self._frames.buffered_bytes or self._closing:
            _set_done(waiting)
        else:
            self._note_reading()

    def _begin_next(self) -> None:
        """Have the next request handled, if it has arrived. `_end` has to follow.

        Raises: RemoteProtocolError, and what the handler raises.
        """
        frame = self._protocol.next_frame()
        if frame is not None:
            self._begin(frame)

    def _begin(self, frame: memoryview) -> None:
        """Have a request handled. `_end` has to follow. Raises: as `_begin_next`."""
        event = self._protocol.decode(frame)
        # The deadline of the state before must not end a long wait of the handler.
        self._deadline = inf
        started = self._loop.time()
        decoded = _above_base_buffer(DECODED_FACTOR * (SIZE_BYTES + len(frame)))
        name = _api_name(type(event.message))
        begun = self._begun = _Begun(event, name, started, decoded)
        if not self._account(decoded):
            self._close_out_of_memory()
            return
        self._client_id = event.client_id and event.client_id[:TEXT_LENGTH_MAX]
        self._statistics.requests[name] += 1
        self._statistics.trailing_bytes += event.trailing_bytes
        if self._shortcut is not None:
            self._shortcut.on_decoded(event)
        begun.response = self._handle(event)

    def _end(self) -> None:
        begun = self._begun
        assert begun is not None
        self._account(-begun.decoded)
        self._begun = None
        self._deadline = inf

    async def _answer(self, begun: _Begun) -> None:
        response = begun.response
        if response is None:
            return  # there is no memory for it
        if not begun.rest:
            assert not isinstance(response, bytes)
            assert isinstance(begun.request, ReceivedRequest)
            if not isinstance(response, Message):
                response = await response
            if response.is_large:
                send = partial(self._protocol.send, begun.request, response)
                begun.rest = await self._run_on_thread(send)
            else:
                begun.rest = self._sender.send_now(self._protocol.send(begun.request, response))
        if begun.rest:
            await self._send(begun.rest)
        self._note_answered(begun)

    def _note_answered(self, begun: _Begun) -> None:
        now = self._answered_at = self._loop.time()
        self._statistics.on_answered(begun.name, int((now - begun.started) * 1e9))

    async def _send(self, pieces: Sequence[Piece]) -> None:
        self._on_progress()
        size = sum(len(p) for p in pieces if isinstance(p, (bytes, bytearray, memoryview)))
        try:
            if self._account(_above_base_buffer(size)):
                await self._sender.send(pieces)
            else:
                self._close_out_of_memory()
        finally:
            self._account(-_above_base_buffer(size))

    def _on_progress(self) -> None:
        self._deadline = self._loop.time() + self._limits.write_stall_ms_max / 1000
        self._deadline_reason = "the client does not read its response"

    def _account(self, count: int) -> bool:
        """Add `count` bytes to the accounted memory; False if that exceeds the limit."""
        if not count:
            return True  # most requests and responses fit into the base buffer
        self._accounted_bytes += count
        self._statistics.account(count)
        return count <= 0 or self._statistics.memory_bytes <= self._limits.memory_bytes_max

    def _close_out_of_memory(self) -> None:
        """Close: the listener has no memory left for this connection's request or response."""
        self._statistics.connections_out_of_memory += 1
        log.warning(
            "client closed: memory limit reached",
            extra={"peer": self._peer, "held_bytes": self._statistics.memory_bytes},
        )
        self.abort()
        self._pause_reading()

    async def _wait_writable(self) -> None:
        waiting: asyncio.Future[None] = self._loop.create_future()
        fd = self._socket.fileno()
        self._loop.add_writer(fd, _set_done, waiting)
        try:
            await waiting
        finally:
            self._loop.remove_writer(fd)

    async def _wait_readable(self) -> None:
        """Wait until there is something to do: bytes to read or a request that was begun."""
        self._note_reading()
        self._resume_reading()
        self._waiting = self._loop.create_future()
        try:
            await self._waiting
        finally:
            self._waiting = None

    def _note_reading(self) -> None:
        """Set the deadline of a connection that waits for a request, or for the rest of one."""
        partial = self._frames.buffered_bytes > 0
        if not partial:
            self._deadline = self._answered_at + self._limits.idle_ms_max / 1000
            self._deadline_reason = "the client has been idle for too long"
        elif self._deadline_reason is not PARTIAL_REQUEST or self._deadline == inf:
            # Further bytes do not extend the deadline: a slowly sent request must still end.
            self._deadline = self._loop.time() + self._limits.request_ms_max / 1000
            self._deadline_reason = PARTIAL_REQUEST

    def _resume_reading(self) -> None:
        if not self._reading:
            self._reading = True
            self._loop.add_reader(self._socket.fileno(), self._on_readable)

    def _pause_reading(self) -> None:
        if self._reading:
            self._reading = False
            self._loop.remove_reader(self._socket.fileno())

    def _on_readable(self) -> None:
        if self._begun is not None and self._frames.buffered_bytes >= self._limits.read_ahead_bytes:
            self._pause_reading()
            return
        if self._take_over is not None and self._is_taken_over(self._take_over):
            return
        before = self._frames.allocated_bytes
        room = self._frames.get_buffer()
        after = self._frames.allocated_bytes
        if after != before and not self._account(
            _above_base_buffer(after) - _above_base_buffer(before)
        ):
            self._close_out_of_memory()
            return
        try:
            count = self._socket.recv_into(room)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            count = 0
        if count == 0:
            self.abort()
            self._pause_reading()
            return
        self._statistics.bytes_in += count
        self._frames.received(count)
        if self._begun is not None:
            if self._on_pipelined is not None:
                self._on_pipelined()
        elif self._waiting is not None and not self._waiting.done():
            self._serve_now(self._waiting)

    def _is_taken_over(self, take_over: Callable[[socket.socket], None]) -> bool:
        """Look at the first bytes; whether another protocol has got the connection, or so few are
        there that nobody knows yet."""
        try:
            head = self._socket.recv(PEEK_BYTES, socket.MSG_PEEK)
        except (BlockingIOError, InterruptedError):
            return True  # look again when bytes are there
        except OSError:
            head = b""
        if is_undecided(head):
            self._look_later()
            return True
        self._take_over = None
        if not is_datastream(head):
            return False
        take_over(self._socket.dup())
        self.abort()
        self._pause_reading()
        return True

    def _look_later(self) -> None:
        """Wait for the rest of the first bytes. They stay unread, so the socket stays readable."""
        self._pause_reading()
        if self._deadline_reason is not PARTIAL_REQUEST:
            self._deadline = self._loop.time() + self._limits.request_ms_max / 1000
            self._deadline_reason = PARTIAL_REQUEST
        self._next_look = self._loop.call_later(self._look_seconds, self._resume_reading)
        self._look_seconds = min(2 * self._look_seconds, LOOK_SECONDS_MAX)


def _above_base_buffer(count: int) -> int:
    return count - BASE_BUFFER_BYTES if count > BASE_BUFFER_BYTES else 0


@memoize
def _api_name(message: type[Message]) -> str:
    return message.__name__.removesuffix("Request")


def _set_done(waiting: asyncio.Future[None]) -> None:
    if not waiting.done():
        waiting.set_result(None)
