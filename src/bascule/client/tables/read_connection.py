"""`TableReader`: reads of tables by key over the client listener, many in one request.

Reads that come while a request is under way are sent together in the next one: so the throughput
grows with their number. What the node does not answer so, and everything while no node can be
reached, is None: ask over HTTP, which waits, goes to another node, or says why not.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from struct import Struct
from typing import Final

from bascule.config.addresses import parse_address
from bascule.errors import BasculeError, RemoteProtocolError
from bascule.table_results import TableValues
from bascule.wire.messages.table_reads import TableReadsRequest
from bascule.wire.tables.read_batches import (
    KEYS_MAX,
    READS_MAX,
    KeyRead,
    decode_answers,
    encode_reads,
)

CLIENT_ID: Final = b"bascule-python"
REQUESTS_MAX: Final = 2
"""Requests under way: one is answered while the next one is on its way."""
SILENCE_SECONDS_MAX: Final = 2.0
"""A node answers within some 0.5 s; one that does not is paused."""
CONNECT_SECONDS_MAX: Final = 2.0
RETRY_SECONDS: Final = 1.0
UNSERVED_SECONDS: Final = 60.0
"""A node of an earlier release closes the connection at the first request."""
RESPONSE_BYTES_MAX: Final = 1 << 30
_HEAD: Final = Struct(f">ihhih{len(CLIENT_ID)}si")
_HEAD_BYTES: Final = _HEAD.size - 4
"""Behind the size itself, before the body."""
_FRAME: Final = Struct(">iii")
"""Its size, the correlation id, and the size of the body, which is the rest: the whole response of
TableReads is one value of bytes."""
_FRAME_BYTES_MIN: Final = _FRAME.size - 4

Waiting = tuple[KeyRead, "asyncio.Future[TableValues | None]"]


class ReadProtocol(asyncio.Protocol):
    """One connection; responses come in the order of the requests."""

    def __init__(self) -> None:
        self.is_closed = False
        self.has_answered = self.is_silent = False
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._waiting: deque[Waiting] = deque()
        self._sent: deque[list[Waiting]] = deque()
        self._sent_at = 0.0
        self._is_scheduled = False
        self._received = bytearray()
        """The beginning of a response."""
        self._needed = 0
        """Bytes with which it is looked at again."""
        self._correlation = self._expected = 0
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._timer = self._loop.call_later(SILENCE_SECONDS_MAX, self._check)

    def read(self, read: KeyRead) -> asyncio.Future[TableValues | None]:
        answer: asyncio.Future[TableValues | None] = self._loop.create_future()
        self._waiting.append((read, answer))
        if not self._sent and not self._is_scheduled:
            self._send()
        elif not self._is_scheduled and len(self._sent) < REQUESTS_MAX:
            self._is_scheduled = True
            self._loop.call_soon(self._send)
        return answer

    def _send(self) -> None:
        """Send what has come, one request."""
        self._is_scheduled = False
        if not self._waiting or len(self._sent) >= REQUESTS_MAX or self._transport is None:
            return
        batch: list[Waiting] = []
        keys = 0
        while self._waiting and len(batch) < READS_MAX:
            keys += len(self._waiting[0][0].keys)
            if batch and keys > KEYS_MAX:
                break
            batch.append(self._waiting.popleft())
        body = encode_reads([read for read, _ in batch])
        head = _HEAD.pack(
            _HEAD_BYTES + len(body), TableReadsRequest.API_KEY, 0, self._correlation,
            len(CLIENT_ID), CLIENT_ID, len(body),
        )  # fmt: skip
        self._correlation = (self._correlation + 1) & 0x7FFFFFFF
        if not self._sent:
            self._sent_at = self._loop.time()
        self._sent.append(batch)
        self._transport.write(head + body)

    def data_received(self, data: bytes) -> None:
        if self._received:
            self._received += data
            if len(self._received) < self._needed:
                return
            data = bytes(self._received)
        at, self._needed = 0, _FRAME.size
        try:
            while len(data) - at >= _FRAME.size:
                size, correlation, body_bytes = _FRAME.unpack_from(data, at)
                if not _FRAME_BYTES_MIN <= size <= RESPONSE_BYTES_MAX or (
                    (correlation, body_bytes) != (self._expected, size - _FRAME_BYTES_MIN)
                ):
                    raise RemoteProtocolError("the node answers another request")
                end = at + 4 + size
                if len(data) < end:
                    self._needed = 4 + size
                    break
                self._take(decode_answers(memoryview(data)[at + _FRAME.size : end]))
                at = end
        except RemoteProtocolError:
            self.close()
        self._received = bytearray(data[at:])

    def _take(self, answers: list[TableValues | None]) -> None:
        if not self._sent or len(answers) != len(self._sent[0]):
            raise RemoteProtocolError(f"{len(answers)} answers to reads of tables")
        self._expected = (self._expected + 1) & 0x7FFFFFFF
        self.has_answered, self._sent_at = True, self._loop.time()
        for (_, waiting), answer in zip(self._sent.popleft(), answers, strict=True):
            if not waiting.done():
                waiting.set_result(answer)
        if self._waiting and not self._is_scheduled:
            self._is_scheduled = True
            self._loop.call_soon(self._send)

    def _check(self) -> None:
        """Give a node up that does not answer."""
        if self._sent and self._loop.time() - self._sent_at > SILENCE_SECONDS_MAX:
            self.is_silent = True
            self.close()
        else:
            self._timer = self._loop.call_later(SILENCE_SECONDS_MAX / 2, self._check)

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()
        self.connection_lost(None)

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_closed = True
        if self._timer is not None:
            self._timer.cancel()
        for _, waiting in [*(each for batch in self._sent for each in batch), *self._waiting]:
            if not waiting.done():
                waiting.set_result(None)
        self._sent.clear()
        self._waiting.clear()


class TableReader:
    """Belongs to the event loop. Linearizable reads, which may take longer, have a connection of
    their own."""

    def __init__(self, addresses: Callable[[], list[str]]) -> None:
        """`addresses` are the client listeners, `host:port`, the preferred one first."""
        self._addresses = addresses
        self._passed_over = 0
        """Connections that have ended: each time another listener is the first."""
        self._connections: dict[bool, ReadProtocol] = {}
        self._opening = asyncio.Lock()
        self._not_before = 0.0
        """No connection is tried earlier."""

    def read_soon(self, read: KeyRead) -> asyncio.Future[TableValues | None] | None:
        """The values, see `read`, without a coroutine of its own; None: there is no connection."""
        connection = self._connections.get(read.linearizable)
        if connection is None or connection.is_closed:
            return None
        return connection.read(read)

    async def read(self, read: KeyRead) -> TableValues | None:
        """The values; None: ask over HTTP."""
        connection = await self._connected(read.linearizable)
        return None if connection is None else await connection.read(read)

    async def _connected(self, linearizable: bool) -> ReadProtocol | None:
        loop = asyncio.get_running_loop()
        async with self._opening:
            found = self._connections.get(linearizable)
            if found is not None and not found.is_closed:
                return found
            if found is not None:
                del self._connections[linearizable]
                self._passed_over += 1
                if not found.has_answered and not found.is_silent:
                    self._not_before = loop.time() + UNSERVED_SECONDS
            if loop.time() < self._not_before:
                return None
            listeners = self._addresses()
            turned = self._passed_over % len(listeners) if listeners else 0
            for address in (*listeners[turned:], *listeners[:turned]):
                try:
                    host, port = parse_address(address)
                    async with asyncio.timeout(CONNECT_SECONDS_MAX):
                        _, made = await loop.create_connection(ReadProtocol, host, port)
                except (OSError, TimeoutError, BasculeError):
                    continue
                self._connections[linearizable] = made
                return made
            self._not_before = loop.time() + RETRY_SECONDS
            return None

    def close(self) -> None:
        for each in self._connections.values():
            each.close()
        self._connections.clear()
