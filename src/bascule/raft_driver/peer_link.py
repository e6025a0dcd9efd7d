"""Our connection to one peer: dialled, dialled again, and bounded in what waits for it."""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from typing import Final

import msgspec

from bascule.errors import LimitExceeded, RemoteProtocolError
from bascule.host.api import Random
from bascule.raft.codec import encode
from bascule.raft.multi.bundle import Bundle
from bascule.raft_driver.framing import RaftFrameReader
from bascule.raft_driver.handshake import (
    HELLO_BYTES_MAX,
    LENGTH_BYTES,
    Hello,
    decode_hello,
    encode_hello,
)

log = logging.getLogger("bascule.raft_driver")

DIAL_TIMEOUT_S: Final = 3.0
"""To connect, and again to hear the peer's hello."""
BACKOFF_FIRST_S: Final = 0.05
BACKOFF_LAST_S: Final = 1.0
USER_TIMEOUT_MS: Final = 5_000
"""Bytes that a peer's kernel has not taken for so long end the connection (TCP_USER_TIMEOUT): a
machine that vanished says nothing, and the kernel alone would wait for a quarter of an hour."""

Address = tuple[str, int]


class LinkStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """What left for one peer, and what did not."""

    connected: bool
    connections: int
    """How many times a hello was exchanged."""
    frames_sent: int
    bytes_sent: int
    frames_dropped: int
    """For want of a connection, or because too much waited. Raft sends again what matters."""
    bytes_queued: int
    dropping: bool
    """Whether too much waits now."""


class PeerLink:
    """Sends bundles to one peer, or drops them: it never waits and never fails."""

    def __init__(
        self,
        hello: Hello,
        address: Address,
        *,
        random: Random,
        queue_bytes_max: int,
        tls: ssl.SSLContext | None,
    ) -> None:
        """`hello` is what we say; it names the peer as its target."""
        self._hello = hello
        self._address = address
        self._random = random
        self._queue_bytes_max = queue_bytes_max
        self._tls = tls
        self._wire: asyncio.Transport | None = None
        self._nudged = asyncio.Event()
        self._trouble = ""
        """Why the last attempt failed, so that a long outage is one line of log."""
        self._connections = 0
        self._frames_sent = 0
        self._bytes_sent = 0
        self._frames_dropped = 0
        self._dropping = False
        self._task = asyncio.get_running_loop().create_task(
            self._run(), name=f"raft-peer-{hello.target}"
        )

    @property
    def address(self) -> Address:
        return self._address

    def send(self, bundle: Bundle) -> None:
        """Have the kernel take the bundle now, or queue it, or drop and count it."""
        wire = self._wire
        if wire is None:
            self._frames_dropped += 1
            return
        queued = wire.get_write_buffer_size()
        if queued > self._queue_bytes_max:
            self._drop(queued)
            return
        try:
            body = encode(bundle)
        except LimitExceeded as error:
            self._frames_dropped += 1
            log.error(
                "raft frame too large to send",
                extra={"peer": self._hello.target, "error": str(error)},
            )
            return
        self._dropping = False
        self._frames_sent += 1
        self._bytes_sent += LENGTH_BYTES + len(body)
        wire.write(len(body).to_bytes(LENGTH_BYTES, "big") + body)

    def _drop(self, queued: int) -> None:
        self._frames_dropped += 1
        if not self._dropping:
            self._dropping = True
            log.warning(
                "raft peer takes its messages too slowly; some are dropped",
                extra={"peer": self._hello.target, "queued_bytes": queued},
            )

    def nudge(self) -> None:
        """The peer was heard: dial at once where a dial is due later."""
        self._nudged.set()

    def statistics(self) -> LinkStatistics:
        return LinkStatistics(
            connected=self._wire is not None,
            connections=self._connections,
            frames_sent=self._frames_sent,
            bytes_sent=self._bytes_sent,
            frames_dropped=self._frames_dropped,
            bytes_queued=0 if self._wire is None else self._wire.get_write_buffer_size(),
            dropping=self._dropping,
        )

    async def close(self) -> None:
        """Return once nothing of the link is left; what was queued is sent as far as the kernel
        takes it at once."""
        self._task.cancel()
        await asyncio.wait([self._task])

    async def _run(self) -> None:
        backoff = BACKOFF_FIRST_S
        while True:
            self._nudged.clear()
            try:
                connected = await self._live()
            except (OSError, RemoteProtocolError, TimeoutError) as error:
                connected = False
                self._tell(error)
            backoff = BACKOFF_FIRST_S if connected else min(2 * backoff, BACKOFF_LAST_S)
            pause = self._random.uniform(0.5, 1.0) * backoff
            try:
                async with asyncio.timeout(pause):
                    await self._nudged.wait()
            except TimeoutError:
                pass

    def _tell(self, error: BaseException) -> None:
        trouble = f"{type(error).__name__}: {error}"
        if trouble != self._trouble:
            self._trouble = trouble
            host, port = self._address
            log.info(
                "raft peer not reached; it is dialled again",
                extra={
                    "peer": self._hello.target,
                    "address": f"{host}:{port}",
                    "error": trouble,
                },
            )

    async def _live(self) -> bool:
        """One connection from its dial to its end.

        Raises: OSError, TimeoutError, RemoteProtocolError where it never got to the hello.
        """
        loop = asyncio.get_running_loop()
        hello, (host, port) = self._hello, self._address
        # Not `wait_for`, which before Python 3.12 may lose a cancellation.
        async with asyncio.timeout(DIAL_TIMEOUT_S):
            wire, dialled = await loop.create_connection(
                lambda: _Dialled(hello),
                host,
                port,
                ssl=self._tls,
                server_hostname=None if self._tls is None else host,
            )
        try:
            _tune(wire)
            wire.write(encode_hello(hello.cluster, hello.source, hello.target, hello.incarnation))
            async with asyncio.timeout(DIAL_TIMEOUT_S):
                await asyncio.shield(dialled.welcomed)
            self._wire, self._trouble = wire, ""
            self._connections += 1
            log.info(
                "raft peer connected", extra={"peer": hello.target, "address": f"{host}:{port}"}
            )
            error = await asyncio.shield(dialled.ended)
            log.warning(
                "raft peer lost; it is dialled again",
                extra={"peer": hello.target, "error": str(error or "closed by the peer")},
            )
            return True
        finally:
            self._wire = None
            wire.abort()


class _Dialled(asyncio.Protocol):
    """Waits for the peer's hello, then for the end: bundles come on the peer's own connection."""

    def __init__(self, hello: Hello) -> None:
        loop = asyncio.get_running_loop()
        self.welcomed: asyncio.Future[None] = loop.create_future()
        self.ended: asyncio.Future[Exception | None] = loop.create_future()
        self._hello = hello
        self._frames = RaftFrameReader(HELLO_BYTES_MAX)
        self._wire: asyncio.BaseTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._wire = transport

    def data_received(self, data: bytes) -> None:
        try:
            for body in self._frames.feed(data):
                self._on_frame(body)
        except RemoteProtocolError as error:
            self._give_up(error)

    def _on_frame(self, body: bytes) -> None:
        if self.welcomed.done():
            raise RemoteProtocolError("the peer spoke after its hello")
        answer = decode_hello(body, cluster=self._hello.cluster, target=self._hello.source)
        if answer.source != self._hello.target:
            raise RemoteProtocolError(
                f"node {answer.source} answers where node {self._hello.target} was dialled"
            )
        self.welcomed.set_result(None)

    def _give_up(self, error: Exception | None) -> None:
        if not self.welcomed.done():
            self.welcomed.set_exception(
                error or RemoteProtocolError("the peer hung up without a hello")
            )
            self.welcomed.exception()  # it is told to whoever waits, or was cancelled
        if not self.ended.done():
            self.ended.set_result(error)
        if self._wire is not None:
            self._wire.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self._give_up(exc)


def _tune(wire: asyncio.BaseTransport) -> None:
    """Small frames leave at once (asyncio's own default), and dead peers are noticed."""
    sock = wire.get_extra_info("socket")
    if sock is not None and hasattr(socket, "TCP_USER_TIMEOUT"):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, USER_TIMEOUT_MS)
