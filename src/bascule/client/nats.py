"""The client's NATS connection: asyncio, one inbox for all acks, reconnecting by itself.

Writes are collected and leave once per turn of the event loop, so that a thousand small publishes
cost one system call. What arrives is handed on chunk by chunk: the bytes, and the positions that
the compiled parser found in them.
"""

# A timeout here bounds retries and says what it did; it is no cancel scope.
# ruff: noqa: ASYNC109

from __future__ import annotations

import asyncio
import logging
import ssl
from array import array
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Final, cast

from bascule import __version__
from bascule.errors import Broken, Closed, ConfigError, LimitExceeded, RemoteProtocolError
from bascule.host.real import RealRandom
from bascule.wire import _hot
from bascule.wire.nats import (
    LINE_BYTES_MAX,
    ConnectOptions,
    NatsHandshake,
    NatsRefused,
    ServerAddress,
    ServerInfo,
    Step,
    decode_error,
    decode_info,
    encode_sub,
)

log = logging.getLogger(__name__)

Chunk = Callable[[bytes, "array[int]", int], None]
"""Takes the bytes, MESSAGE_FIELDS numbers a message, and the number of messages."""

WRITE_BYTES_MAX: Final = 256 << 10
"""Collected writes leave at once beyond this."""
MESSAGES_PER_PARSE: Final = 4096
BODY_BYTES_MAX: Final = 64 << 20
"""Beyond NATS's own largest max_payload."""
BACKOFF_MS_MIN: Final = 20
BACKOFF_MS_MAX: Final = 2_000
PING_INTERVAL_S: Final = 15.0
"""A server that has answered no PING for two of these is taken for gone."""


class _Link(asyncio.Protocol):
    """One TCP connection, from handshake to loss."""

    def __init__(self, handshake: NatsHandshake, owner: NatsConnection) -> None:
        loop = asyncio.get_running_loop()
        self.transport: asyncio.Transport | None = None
        self.handshake = handshake
        self.step: asyncio.Future[Step] = loop.create_future()
        self.ready = False
        self.pongs: deque[asyncio.Future[None]] = deque()
        self.unanswered_pings = 0
        self._owner = owner
        self._rest = b""
        self._positions = array("i", bytes(4 * _hot.MESSAGE_FIELDS * MESSAGES_PER_PARSE))
        self._state = array("q", [0] * 4)
        self._writable = asyncio.Event()
        self._writable.set()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    async def drain(self) -> None:
        await self._writable.wait()

    def data_received(self, data: bytes) -> None:
        try:
            if self.ready:
                self._parse(data)
            else:
                self._shake(data)
        except (RemoteProtocolError, NatsRefused) as error:
            self.fail(error)

    def tls_started(self, transport: asyncio.Transport) -> None:
        self.transport = transport
        self.step = asyncio.get_running_loop().create_future()
        self.handshake.tls_started()
        transport.write(self.handshake.to_send())

    def _shake(self, data: bytes) -> None:
        step = self.handshake.receive(data)
        assert self.transport is not None
        if outgoing := self.handshake.to_send():
            self.transport.write(outgoing)
        if step is Step.NEED_DATA or self.step.done():
            return
        self.ready = step is Step.READY
        self.step.set_result(step)
        if self.ready and self.handshake.rest:
            self._parse(self.handshake.rest)

    def _parse(self, data: bytes) -> None:
        if self._rest:
            data = self._rest + data
        at, state = 0, self._state
        while True:
            count = _hot.parse_messages(
                data, at, len(data), BODY_BYTES_MAX, LINE_BYTES_MAX, self._positions, state
            )
            if count:
                self._owner.on_chunk(data, self._positions, count)
            at = state[0]
            if state[1] == _hot.NEED_DATA:
                break
            if state[1] == _hot.CONTROL_LINE:
                self._on_line(data[at : state[2]])
                at = state[2] + 2
            elif state[1] == _hot.MALFORMED:
                raise RemoteProtocolError(
                    f"the NATS server sent {data[at : at + 40]!r}, expected a message"
                )
        self._rest = data[at:]

    def _on_line(self, line: bytes) -> None:
        word = line[:5].upper()
        if word.startswith(b"PONG"):
            self.unanswered_pings = 0
            if self.pongs and not (pong := self.pongs.popleft()).done():
                pong.set_result(None)
        elif word.startswith(b"PING"):
            assert self.transport is not None
            self.transport.write(b"PONG\r\n")
        elif word.startswith(b"-ERR"):
            self._owner.on_error(decode_error(line))
        elif word == b"INFO ":
            self.handshake.info = decode_info(line)
        elif not word.startswith(b"+OK"):
            raise RemoteProtocolError(f"the NATS server sent {line[:40]!r}, expected an operation")

    def fail(self, error: BaseException) -> None:
        """End this connection; its owner hears why."""
        if self.transport is not None:
            self.transport.abort()
        self._lost(error)

    def connection_lost(self, exc: Exception | None) -> None:
        self._lost(exc or Broken("the NATS server closed the connection"))

    def _lost(self, error: BaseException) -> None:
        if not self.step.done():
            self.step.set_exception(error)
            self.step.exception()
        self._writable.set()
        while self.pongs:
            if not (pong := self.pongs.popleft()).done():
                pong.set_exception(Broken(f"the NATS connection was lost: {error}"))
                pong.exception()
        if self.ready:
            self.ready = False
            self._owner.on_lost(self, error)


class NatsConnection:
    """A connection that outlives its sockets.

    Everything sent while there is no socket is dropped: who needs an answer sends again when
    `on_reconnect` is called, which happens after the inbox is subscribed.
    """

    def __init__(
        self,
        servers: Sequence[ServerAddress],
        options: ConnectOptions,
        *,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        if not servers:
            raise ConfigError("no NATS server given")
        self.inbox = ""
        self.on_chunk: Chunk = lambda _data, _positions, _count: None
        self.on_reconnect: Callable[[], None] = lambda: None
        self.on_failed: Callable[[Exception], None] = lambda _error: None
        self.last_error = ""
        """What the server last complained about with -ERR, for error texts."""
        self._servers = list(servers)
        self._options = options
        self._tls = tls
        self._link: _Link | None = None
        self._up = asyncio.Event()
        self._outgoing: list[bytes] = []
        self._outgoing_bytes = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed = False
        self._failure: Exception | None = None

    @property
    def info(self) -> ServerInfo:
        """What the server said of itself on the current connection."""
        link = self._link
        return (link.handshake.info if link is not None else None) or ServerInfo()

    async def connect(self, timeout: float) -> None:
        """Connect to the first server that answers.

        Raises: Broken where none does within `timeout` seconds, NatsRefused for bad credentials.
        """
        try:
            await asyncio.wait_for(self._connect_any(), timeout)
        except TimeoutError:
            raise Broken(f"no NATS server answered within {timeout} s: {self._where()}") from None
        self._spawn(self._keep_alive())

    def send(self, data: bytes) -> None:
        """Collect `data` for the next write; silently dropped while there is no connection."""
        if self._link is None:
            return
        if not self._outgoing:
            asyncio.get_running_loop().call_soon(self._write)
        self._outgoing.append(data)
        self._outgoing_bytes += len(data)
        if self._outgoing_bytes >= WRITE_BYTES_MAX:
            self._write()

    async def drain(self) -> None:
        """Wait until the socket takes more; at once where there is none."""
        if self._link is not None:
            await self._link.drain()

    async def wait_connected(self, timeout: float) -> None:
        """Raises: Broken where there is no connection within `timeout` seconds."""
        if self._up.is_set():
            return
        self.check_open()
        try:
            await asyncio.wait_for(self._up.wait(), timeout)
        except TimeoutError:
            raise Broken(f"not connected to a NATS server: {self._where()}") from None
        self.check_open()

    async def flush(self, timeout: float) -> None:
        """Return once the server has taken everything sent before (PING, PONG).

        Raises: Broken where the connection is lost meanwhile or no PONG comes within `timeout` s.
        """
        await self.wait_connected(timeout)
        link = self._link
        assert link is not None
        pong: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        link.pongs.append(pong)
        self.send(b"PING\r\n")
        try:
            await asyncio.wait_for(pong, timeout)
        except TimeoutError:
            raise Broken(f"the NATS server sent no PONG within {timeout} s") from None

    def check_payload(self, frame: bytes) -> None:
        """Raises: LimitExceeded where the server would refuse this PUB or HPUB as too large."""
        limit = self.info.max_payload
        if len(frame) > limit:
            size = len(frame) - frame.index(b"\r\n") - 4
            if size > limit:
                raise LimitExceeded("max_payload of the NATS server", limit, size)

    def check_open(self) -> None:
        """Raises: Closed after `close`, or what ended the connection for good."""
        if self._failure is not None:
            raise self._failure
        if self._closed:
            raise Closed("the client is closed")

    async def close(self) -> None:
        """Send what is collected and close; idempotent."""
        if self._closed:
            return
        link = self._link
        if link is not None and link.transport is not None:
            self._write()
            link.ready = False
            link.transport.close()
        self._closed = True
        self._link = None
        self._up.set()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def on_error(self, text: str) -> None:
        """Handle -ERR after the handshake; the server closes the connection where it must."""
        self.last_error = text
        log.warning("the NATS server says: %s", text)

    def on_lost(self, link: _Link, error: BaseException) -> None:
        """Start to reconnect; called once by each link that was ready."""
        if link is not self._link or self._closed:
            return
        log.warning("the connection to NATS was lost, reconnecting: %s", error)
        self._link = None
        self._up.clear()
        self._outgoing.clear()
        self._outgoing_bytes = 0
        self._spawn(self._reconnect())

    def _write(self) -> None:
        data = b"".join(self._outgoing)
        self._outgoing.clear()
        self._outgoing_bytes = 0
        link = self._link
        if data and link is not None and link.transport is not None:
            link.transport.write(data)

    def _where(self) -> str:
        shown = ", ".join(str(server) for server in self._servers)
        return f"{shown} ({self.last_error})" if self.last_error else shown

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _connect_any(self) -> None:
        causes = []
        for server in self._servers:
            try:
                await self._open(server)
            except NatsRefused:
                raise
            except (OSError, Broken, RemoteProtocolError) as error:
                causes.append(f"{server}: {error}")
            else:
                return
        raise Broken(f"cannot connect to NATS: {'; '.join(causes)}")

    async def _open(self, server: ServerAddress) -> None:
        loop = asyncio.get_running_loop()
        handshake = NatsHandshake(self._options, server, version=__version__)
        transport, link = await loop.create_connection(
            lambda: _Link(handshake, self), server.host, server.port
        )
        try:
            if await link.step is Step.START_TLS:
                context = self._tls or ssl.create_default_context()
                secure = await loop.start_tls(transport, link, context, server_hostname=server.host)
                assert secure is not None
                link.tls_started(secure)
                await link.step
        except BaseException:
            transport.abort()
            raise
        if not link.ready:
            raise Broken("the connection was lost as it began")
        assert handshake.info is not None
        if not self.inbox:
            self.inbox = f"_INBOX.{RealRandom().bytes(12).hex()}"
        self._link = link
        self.last_error = ""
        self.send(encode_sub(f"{self.inbox}.>", 1))
        self._up.set()

    async def _reconnect(self) -> None:
        delay_ms = BACKOFF_MS_MIN
        while not self._closed:
            try:
                await self._connect_any()
            except NatsRefused as refused:
                self._failure = refused
                self._up.set()
                self.on_failed(refused)
                return
            except Broken as error:
                log.debug("still no NATS server: %s", error)
                await asyncio.sleep(delay_ms / 1000)
                delay_ms = min(2 * delay_ms, BACKOFF_MS_MAX)
            else:
                self.on_reconnect()
                return

    async def _keep_alive(self) -> None:
        while True:
            await asyncio.sleep(PING_INTERVAL_S)
            link = self._link
            if link is None:
                continue
            if link.unanswered_pings >= 2:
                link.fail(Broken(f"no PONG for {2 * PING_INTERVAL_S:.0f} s"))
                continue
            link.unanswered_pings += 1
            link.pongs.append(asyncio.get_running_loop().create_future())
            self.send(b"PING\r\n")
