"""One TCP connection to a NATS server, from handshake to loss."""

from __future__ import annotations

import asyncio
import ssl
from array import array
from collections import deque
from collections.abc import Callable
from typing import Final, Protocol, cast

from bascule.errors import Broken, ConfigError, RemoteProtocolError
from bascule.host.credential_files import explain_tls, read_secret
from bascule.host.real import RealClock
from bascule.version import __version__
from bascule.wire import _hot
from bascule.wire.nats import (
    LINE_BYTES_MAX,
    ConnectOptions,
    NatsHandshake,
    NatsRefused,
    ServerAddress,
    ServerError,
    ServerInfo,
    Step,
    decode_info,
)

Chunk = Callable[[bytes, "array[int]", int], None]
"""Called with the bytes, MESSAGE_FIELDS integers per message, and the number of messages."""

MESSAGES_PER_PARSE: Final = 4096
BODY_BYTES_MAX: Final = 64 << 20
"""Larger than NATS's greatest max_payload."""

CLOSE_S_MAX: Final = 2.0


class NatsLinkOwner(Protocol):
    """Receives the events of a link."""

    def on_messages(self, data: bytes, positions: array[int], count: int) -> None: ...

    def on_error(self, error: ServerError) -> None: ...

    def on_info(self, link: NatsLink, info: ServerInfo) -> None:
        """The server sent INFO: its cluster changed, or it is about to shut down."""
        ...

    def on_lost(self, link: NatsLink, error: BaseException) -> None:
        """Called once by each link that was ready."""
        ...


class NatsLink(asyncio.Protocol):
    """One connection, created by `open_link`."""

    def __init__(
        self, handshake: NatsHandshake, address: ServerAddress, owner: NatsLinkOwner
    ) -> None:
        loop = asyncio.get_running_loop()
        self.transport: asyncio.Transport | None = None
        self.handshake = handshake
        self.address = address
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
        self._gone = asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.data_received(b"")

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    @property
    def is_writable(self) -> bool:
        """Whether the socket accepts more data."""
        return self._writable.is_set()

    async def drain(self) -> None:
        await self._writable.wait()

    def data_received(self, data: bytes) -> None:
        try:
            if self.ready:
                self._parse(data)
            else:
                self._shake(data)
        except (RemoteProtocolError, NatsRefused, ConfigError) as error:
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
        if self.ready and self.handshake.trailing_bytes:
            self._parse(self.handshake.trailing_bytes)

    def _parse(self, data: bytes) -> None:
        if self._rest:
            data = self._rest + data
        at, state = 0, self._state
        while True:
            count = _hot.parse_messages(
                data, at, len(data), BODY_BYTES_MAX, LINE_BYTES_MAX, self._positions, state
            )
            if count:
                self._owner.on_messages(data, self._positions, count)
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
            self._owner.on_error(ServerError.decode(line))
        elif word == b"INFO ":
            info = self.handshake.info = decode_info(line)
            self._owner.on_info(self, info)
        elif not word.startswith(b"+OK"):
            raise RemoteProtocolError(f"the NATS server sent {line[:40]!r}, expected an operation")

    def fail(self, error: BaseException) -> None:
        """End this connection and report the error to the owner."""
        if self.transport is not None:
            self.transport.abort()
        self._lost(error)

    async def close(self) -> None:
        """Send pending data, close the connection and wait until it is closed."""
        self.ready = False
        if self.transport is None:
            return
        self.transport.close()
        try:
            # TLS sends close_notify and waits for the peer's.
            async with asyncio.timeout(CLOSE_S_MAX):
                await self._gone.wait()
        except TimeoutError:
            self.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._gone.set()
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


async def open_link(
    address: ServerAddress,
    options: ConnectOptions,
    owner: NatsLinkOwner,
    *,
    tls: ssl.SSLContext | None,
) -> NatsLink:
    """Connect, upgrade to TLS if required, send the credentials, wait for the first PONG.

    Raises: OSError (network), NatsRefused (credentials, limits), ConfigError (credential files),
    RemoteProtocolError, Broken.
    """
    loop = asyncio.get_running_loop()
    clock = RealClock()
    handshake = NatsHandshake(
        options,
        address,
        version=__version__,
        read=read_secret,
        now_s=lambda: clock.now_ms() // 1000,
    )
    transport, link = await loop.create_connection(
        lambda: NatsLink(handshake, address, owner), address.host, address.port
    )
    try:
        if await link.step is Step.START_TLS:
            context = tls or ssl.create_default_context()
            name = address.tls_name or address.host
            secure = await loop.start_tls(transport, link, context, server_hostname=name)
            assert secure is not None
            link.tls_started(secure)
            await link.step
    except ssl.SSLError as error:
        transport.abort()
        raise Broken(explain_tls(error)) from error
    except BaseException:
        transport.abort()
        raise
    if not link.ready:
        raise Broken("the connection was lost as it began")
    return link
