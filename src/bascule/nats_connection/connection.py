"""A NATS connection that reconnects."""

# These timeouts bound retries and report the attempts; they are not cancel scopes.
# ruff: noqa: ASYNC109

from __future__ import annotations

import asyncio
import logging
import ssl
from array import array
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Final

from bascule.errors import Broken, Closed, ConfigError, LimitExceeded, RemoteProtocolError
from bascule.host.real import RealRandom
from bascule.nats_connection.link import Chunk, NatsLink, open_link
from bascule.wire.nats import (
    ConnectOptions,
    ErrorKind,
    NatsRefused,
    ServerAddress,
    ServerError,
    ServerInfo,
    ServerPool,
    encode_sub,
)

log = logging.getLogger(__name__)

WRITE_BYTES_MAX: Final = 256 << 10
"""Collected writes beyond this size are sent at once."""
PING_INTERVAL_S: Final = 15.0
"""A server without a PONG for two of these intervals counts as lost."""
ANSWER_S_MAX: Final = 5.0
"""How long a reconnection waits for one server. One that hangs, or is behind a network that drops
packets, must not keep the others from being tried."""
MOVE_RETRY_S: Final = 1.0
LAST_ACKS_S: Final = 5.0
"""How long a server in lame duck mode may still deliver acks after the client has moved."""
TEMPORARY: Final = (ErrorKind.CONNECTIONS, ErrorKind.SHUTDOWN)
"""Temporary refusals."""
REFUSED_S_MAX: Final = 5.0
"""How long servers must refuse a client that was connected before it gives up.

A server that starts may refuse at first: the one that a node embeds does so for some milliseconds.
"""
REFUSED_RETRY_S: Final = 0.5
"""Pause before the second and last attempt of a new client that was refused."""


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
        reconnects: bool = True,
    ) -> None:
        """Without `reconnects` the loss of the first connection is a failure, see `on_failed`."""
        if not servers:
            raise ConfigError("no NATS server given")
        self.inbox = ""
        self.on_chunk: Chunk = lambda _data, _positions, _count: None
        self.on_reconnect: Callable[[], None] = lambda: None
        self.on_failed: Callable[[Exception], None] = lambda _error: None
        self.last_error = ""
        """The last -ERR of the server, for error texts."""
        self._random = RealRandom()
        self._pool = ServerPool(servers, self._random)
        self._options = options
        self._tls = tls
        self._reconnects = reconnects
        self._link: NatsLink | None = None
        self._left: set[NatsLink] = set()
        """Links to servers that shut down and may still deliver acks."""
        self._last: ServerAddress | None = None
        self._up = asyncio.Event()
        self._outgoing: list[bytes] = []
        self._outgoing_bytes = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed = False
        self._failure: Exception | None = None

    @property
    def info(self) -> ServerInfo:
        """The server's INFO on the current connection."""
        link = self._link
        return (link.handshake.info if link is not None else None) or ServerInfo()

    @property
    def is_connected(self) -> bool:
        """Whether `wait_connected` returns at once."""
        return self._link is not None

    @property
    def is_full(self) -> bool:
        """Whether `drain` waits."""
        return self._link is not None and not self._link.is_writable

    async def connect(self, timeout: float) -> None:
        """Connect to the first server that replies.

        Raises: Broken if none does within `timeout` seconds, NatsRefused if a server refuses twice
        and none accepts, ConfigError for unreadable credentials.
        """
        try:
            # Before Python 3.12 `wait_for` may lose a cancellation: who stops would wait for ever.
            async with asyncio.timeout(timeout):
                await self._connect_first(timeout)
        except TimeoutError:
            raise Broken(f"no NATS server answered within {timeout} s: {self._where()}") from None
        self._spawn(self._keep_alive())

    async def _connect_first(self, timeout: float) -> None:
        servers = self._pool.all_servers()
        each = timeout / len(servers)
        try:
            await self._connect_any(servers, each)
        except NatsRefused as error:
            log.debug("refused by NATS, once more in %s s: %s", REFUSED_RETRY_S, error)
            await asyncio.sleep(REFUSED_RETRY_S)
            await self._connect_any(servers, each)

    def send(self, data: bytes) -> None:
        """Add `data` to the next write. Dropped while there is no connection."""
        if self._link is None:
            return
        if not self._outgoing:
            asyncio.get_running_loop().call_soon(self._write)
        self._outgoing.append(data)
        self._outgoing_bytes += len(data)
        if self._outgoing_bytes >= WRITE_BYTES_MAX:
            self._write()

    async def drain(self) -> None:
        """Wait until the socket accepts more data. Returns at once without a connection."""
        if self._link is not None:
            await self._link.drain()

    async def wait_connected(self, timeout: float) -> None:
        """Raises: Broken if there is no connection within `timeout` seconds."""
        if self._up.is_set():
            return
        self.check_open()
        try:
            async with asyncio.timeout(timeout):
                await self._up.wait()
        except TimeoutError:
            raise Broken(f"not connected to a NATS server: {self._where()}") from None
        self.check_open()

    async def flush(self, timeout: float) -> None:
        """Wait until the server has received everything sent before (PING, PONG).

        Raises: Broken if the connection is lost or no PONG comes within `timeout` seconds.
        """
        await self.wait_connected(timeout)
        link = self._link
        assert link is not None
        pong: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        link.pongs.append(pong)
        self.send(b"PING\r\n")
        try:
            async with asyncio.timeout(timeout):
                await pong
        except TimeoutError:
            raise Broken(f"the NATS server sent no PONG within {timeout} s") from None

    def check_payload(self, frame: bytes) -> None:
        """Raises: LimitExceeded if the server would refuse this PUB or HPUB as too large."""
        limit = self.info.max_payload
        if len(frame) > limit:
            size = len(frame) - frame.index(b"\r\n") - 4
            if size > limit:
                raise LimitExceeded("max_payload of the NATS server", limit, size)

    def check_open(self) -> None:
        """Raises: Closed after `close`, or the error that ended the connection permanently."""
        if self._failure is not None:
            raise self._failure
        if self._closed:
            raise Closed("the client is closed")

    async def close(self) -> None:
        """Send collected writes and close. Idempotent."""
        if self._closed:
            return
        self._write()
        self._closed = True
        links = [*self._left, *([self._link] if self._link is not None else [])]
        self._link = None
        self._up.set()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, *(link.close() for link in links), return_exceptions=True)

    def on_messages(self, data: bytes, positions: array[int], count: int) -> None:
        """Pass on messages of the inbox from a link."""
        self.on_chunk(data, positions, count)

    def on_error(self, error: ServerError) -> None:
        """Handle -ERR after the handshake. The server closes the connection if it must."""
        self.last_error = error.text
        log.warning("the NATS server says: %s", error)

    def on_info(self, link: NatsLink, info: ServerInfo) -> None:
        """Learn the cluster's servers from INFO, and move if this server is about to shut down."""
        self._pool.update_discovered(link.address, info.connect_urls)
        if info.ldm and link is self._link:
            log.info("NATS server %s is in lame duck mode, moving to another", link.address)
            self._pool.mark_lame_duck(link.address)
            self._spawn(self._move(link))

    def on_lost(self, link: NatsLink, error: BaseException) -> None:
        """Start to reconnect. Each link that was ready calls it once."""
        self._left.discard(link)
        if link is not self._link or self._closed:
            return
        if self._reconnects:
            log.warning("the connection to NATS was lost, reconnecting: %s", error)
        self._link = None
        self._up.clear()
        self._outgoing.clear()
        self._outgoing_bytes = 0
        if self._reconnects:
            self._spawn(self._reconnect())
        else:
            self._fail(Broken(f"the connection to NATS was lost: {error}"))

    def _write(self) -> None:
        data = b"".join(self._outgoing)
        self._outgoing.clear()
        self._outgoing_bytes = 0
        link = self._link
        if data and link is not None and link.transport is not None:
            link.transport.write(data)

    def _where(self) -> str:
        shown = ", ".join(str(server) for server in self._pool.all_servers())
        return f"{shown} ({self.last_error})" if self.last_error else shown

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _connect_any(
        self, servers: Sequence[ServerAddress], timeout: float | None = None
    ) -> None:
        """Switch to the first server that accepts the connection within `timeout` seconds; None:
        ANSWER_S_MAX."""
        timeout = ANSWER_S_MAX if timeout is None else timeout
        causes = []
        refused: NatsRefused | None = None
        for server in servers:
            try:
                async with asyncio.timeout(timeout):
                    link = await open_link(server, self._options, self, tls=self._tls)
            except NatsRefused as error:
                refused = error
                causes.append(str(error))
            except TimeoutError as error:
                causes.append(f"{server}: {str(error) or f'no answer within {timeout:g} s'}")
            except (OSError, Broken, RemoteProtocolError) as error:
                causes.append(f"{server}: {error}")
            else:
                self._adopt(link)
                return
        if refused is not None:
            raise NatsRefused("; ".join(causes), refused.kind)
        raise Broken(f"cannot connect to NATS: {'; '.join(causes)}")

    def _adopt(self, link: NatsLink) -> None:
        """Use this link from now on."""
        assert link.handshake.info is not None
        if not self.inbox:
            self.inbox = f"_INBOX.{self._random.bytes(12).hex()}"
        self._write()
        self._link = link
        self._last = link.address
        self.last_error = ""
        self._pool.clear_lame_duck(link.address)
        self.send(encode_sub(f"{self.inbox}.>", 1))
        self._up.set()
        self.on_info(link, link.handshake.info)

    async def _reconnect(self) -> None:
        now_s = asyncio.get_running_loop().time
        refused_since_s: float | None = None
        for pause in self._pool.backoff_seconds():
            if self._closed:
                return
            try:
                await self._connect_any(self._pool.candidates(self._last))
            except (Broken, ConfigError) as error:
                refused = isinstance(error, NatsRefused) and error.kind not in TEMPORARY
                if not refused:
                    refused_since_s = None
                elif refused_since_s is None:
                    refused_since_s = now_s()
                lasting = refused_since_s is not None and now_s() - refused_since_s > REFUSED_S_MAX
                if lasting or isinstance(error, ConfigError):
                    self._fail(error)
                    return
                log.debug("still no NATS server: %s", error)
                await asyncio.sleep(pause)
            else:
                self.on_reconnect()
                return

    def _fail(self, error: Exception) -> None:
        self._failure = error
        self._up.set()
        self.on_failed(error)

    async def _move(self, leaving: NatsLink) -> None:
        """Switch to another server before this one shuts down. Acks may still come from both.

        Nothing is sent again, because this server delivers what it has received.
        """
        while self._link is leaving and not self._closed:
            others = self._pool.migration_candidates(leaving.address)
            try:
                if others:
                    await self._connect_any(others)
                    break
            except (Broken, ConfigError) as error:
                log.debug("no other NATS server: %s", error)
            await asyncio.sleep(MOVE_RETRY_S)
        if self._link is not leaving and leaving.ready:
            self._left.add(leaving)
            await asyncio.sleep(LAST_ACKS_S)
            self._left.discard(leaving)
            await leaving.close()

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
