"""A NATS connection that outlives its sockets."""

# A timeout here bounds retries and says what it did; it is no cancel scope.
# ruff: noqa: ASYNC109

from __future__ import annotations

import asyncio
import logging
import ssl
from array import array
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Final

from bascule.client.nats.link import Chunk, NatsLink, open_link
from bascule.errors import Broken, Closed, ConfigError, LimitExceeded, RemoteProtocolError
from bascule.host.real import RealRandom
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
"""Collected writes leave at once beyond this."""
PING_INTERVAL_S: Final = 15.0
"""A server that has answered no PING for two of these is taken for gone."""
MOVE_RETRY_S: Final = 1.0
LAST_ACKS_S: Final = 5.0
"""How long a server in lame duck mode may still bring acks after the client has moved."""
TEMPORARY: Final = (ErrorKind.CONNECTIONS, ErrorKind.SHUTDOWN)
"""Refusals that pass by themselves."""


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
        self._random = RealRandom()
        self._pool = ServerPool(servers, self._random)
        self._options = options
        self._tls = tls
        self._link: NatsLink | None = None
        self._left: set[NatsLink] = set()
        """Links to servers about to go, which may still bring acks."""
        self._last: ServerAddress | None = None
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

        Raises: Broken where none does within `timeout` seconds, NatsRefused where one refuses and
        none takes us, ConfigError for credentials that cannot be read.
        """
        try:
            await asyncio.wait_for(self._connect_any(self._pool.in_order()), timeout)
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
        """What a link received: answers on the inbox."""
        self.on_chunk(data, positions, count)

    def on_error(self, error: ServerError) -> None:
        """Handle -ERR after the handshake; the server closes the connection where it must."""
        self.last_error = error.text
        log.warning("the NATS server says: %s", error)

    def on_info(self, link: NatsLink, info: ServerInfo) -> None:
        """Take what the server says of its cluster, and move where it is about to go."""
        self._pool.learn(link.address, info.connect_urls)
        if info.ldm and link is self._link:
            log.info("NATS server %s is in lame duck mode, moving to another", link.address)
            self._pool.leave(link.address)
            self._spawn(self._move(link))

    def on_lost(self, link: NatsLink, error: BaseException) -> None:
        """Start to reconnect; called once by each link that was ready."""
        self._left.discard(link)
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
        shown = ", ".join(str(server) for server in self._pool.in_order())
        return f"{shown} ({self.last_error})" if self.last_error else shown

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _connect_any(self, servers: Sequence[ServerAddress]) -> None:
        """Go on with the first of the servers that takes us."""
        causes = []
        refused: NatsRefused | None = None
        for server in servers:
            try:
                link = await open_link(server, self._options, self, tls=self._tls)
            except NatsRefused as error:
                refused = error
                causes.append(str(error))
            except (OSError, Broken, RemoteProtocolError) as error:
                causes.append(f"{server}: {error}")
            else:
                self._adopt(link)
                return
        if refused is not None:
            raise NatsRefused("; ".join(causes), refused.kind)
        raise Broken(f"cannot connect to NATS: {'; '.join(causes)}")

    def _adopt(self, link: NatsLink) -> None:
        """Send and receive over this link from now on."""
        assert link.handshake.info is not None
        if not self.inbox:
            self.inbox = f"_INBOX.{self._random.bytes(12).hex()}"
        self._write()
        self._link = link
        self._last = link.address
        self.last_error = ""
        self._pool.stay(link.address)
        self.send(encode_sub(f"{self.inbox}.>", 1))
        self._up.set()
        self.on_info(link, link.handshake.info)

    async def _reconnect(self) -> None:
        for pause in self._pool.pauses():
            if self._closed:
                return
            try:
                await self._connect_any(self._pool.candidates(self._last))
            except (Broken, ConfigError) as error:
                lasting = isinstance(error, NatsRefused) and error.kind not in TEMPORARY
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
        """Go on with another server before this one goes; acks may still come by both.

        Nothing is sent again: what this server took, it passes on.
        """
        while self._link is leaving and not self._closed:
            others = self._pool.others(leaving.address)
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
