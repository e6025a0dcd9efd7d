"""A connection to one peer, with reconnects and a bounded queue."""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable
from typing import Final

import msgspec

from bascule.cluster_identity import ClusterIdentity, ForeignPeer
from bascule.errors import LimitExceeded, RemoteProtocolError
from bascule.host.api import Random
from bascule.raft.codec import encode
from bascule.raft.multi.bundle import Bundle
from bascule.raft_driver.framing import RaftFrameReader
from bascule.raft_driver.handshake import (
    HELLO_BYTES_MAX,
    LENGTH_BYTES,
    Hello,
    RefusedProcess,
    Settings,
    check_hello,
    decode_hello,
    encode_hello,
)

log = logging.getLogger("bascule.raft_driver")

CONNECT_TIMEOUT_S: Final = 3.0
"""For the connection, and again for the peer's hello."""
BACKOFF_FIRST_S: Final = 0.05
BACKOFF_LAST_S: Final = 1.0
LASTING_S: Final = 3.0
"""A connection that has ended sooner counts as a failed attempt: it may end again and again."""
USER_TIMEOUT_MS: Final = 5_000
"""The connection ends if sent bytes are not acknowledged for so long (TCP_USER_TIMEOUT). A machine
that lost power closes nothing, and the kernel's default is a quarter of an hour."""

Address = tuple[str, int]


REFUSAL_SHOWN_MAX: Final = 400
"""Characters of what a peer says."""


class LinkEnds(msgspec.Struct, frozen=True):
    """What this node's hello says, and what the answer of `target` is to say."""

    cluster: ClusterIdentity
    source: int
    target: int
    incarnation: int
    settings: Settings = ()

    def hello(self) -> bytes:
        """The frame with which a connection begins."""
        return encode_hello(self.cluster, self.source, self.target, self.incarnation, self.settings)

    def check(self, answer: Hello) -> None:
        """Raises: RemoteProtocolError where it is not that of the peer; ForeignPeer."""
        check_hello(answer, cluster=self.cluster, target=self.source, settings=self.settings)
        if answer.source != self.target:
            raise RemoteProtocolError(
                f"node {answer.source} answers at the address of node {self.target}"
            )
        if answer.refusal:
            raise RefusedProcess(answer.refusal[:REFUSAL_SHOWN_MAX])


class LinkStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """What was sent to one peer, and what was dropped."""

    connected: bool
    connections: int
    """Completed handshakes."""
    frames_sent: int
    bytes_sent: int
    frames_dropped: int
    """Because of a missing connection or a full queue. Raft sends again what is needed."""
    bytes_queued: int
    dropping: bool
    """Whether the queue is full."""


class PeerLink:
    """Sends bundles to one peer, or drops them: it never waits and never fails."""

    def __init__(
        self,
        ends: LinkEnds,
        address: Address,
        *,
        random: Random,
        queue_bytes_max: int,
        tls: ssl.SSLContext | None,
        on_own_refusal: Callable[[str], None],
    ) -> None:
        """The target of `ends` is the peer. `on_own_refusal` is called where that says that this
        process may not be its node, and why."""
        self._ends = ends
        self._address = address
        self._random = random
        self._queue_bytes_max = queue_bytes_max
        self._tls = tls
        self._on_own_refusal = on_own_refusal
        self._wire: asyncio.Transport | None = None
        self._answer: Hello | None = None
        """The peer's last hello."""
        self._retry = asyncio.Event()
        self._last_error = ""
        """Why the last attempt failed, so that a long outage is logged once."""
        self._connections = 0
        self._frames_sent = 0
        self._bytes_sent = 0
        self._frames_dropped = 0
        self._dropping = False
        self._task = asyncio.get_running_loop().create_task(
            self._run(), name=f"raft-peer-{ends.target}"
        )

    @property
    def address(self) -> Address:
        return self._address

    def send(self, bundle: Bundle) -> None:
        """Write or queue the bundle, or drop and count it."""
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
                extra={"peer": self._ends.target, "error": str(error)},
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
                "raft peer is too slow; messages dropped",
                extra={"peer": self._ends.target, "queued_bytes": queued},
            )

    def retry_now(self) -> None:
        """Connect at once if the link waits to reconnect: the peer has connected to this node."""
        self._retry.set()

    def check_again(self) -> None:
        """The cluster's identity has changed: end the connection if the peer is foreign now."""
        if self._wire is None or self._answer is None:
            return
        try:
            self._ends.check(self._answer)
        except ForeignPeer as error:
            self._log_unreachable(error)
            self._wire.abort()

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
        """Close the connection. Queued bundles are sent as far as the kernel takes them at once."""
        self._task.cancel()
        await asyncio.wait([self._task])

    async def _run(self) -> None:
        backoff = BACKOFF_FIRST_S
        while True:
            self._retry.clear()
            try:
                has_lasted = await self._connect()
            except (OSError, RemoteProtocolError, TimeoutError) as error:
                has_lasted = False
                self._log_unreachable(error)
            backoff = BACKOFF_FIRST_S if has_lasted else min(2 * backoff, BACKOFF_LAST_S)
            pause = self._random.uniform(0.5, 1.0) * backoff
            try:
                async with asyncio.timeout(pause):
                    await self._retry.wait()
            except TimeoutError:
                pass

    def _log_unreachable(self, error: BaseException) -> None:
        error_text = f"{type(error).__name__}: {error}"
        address = f"{self._address[0]}:{self._address[1]}"
        if isinstance(error, ForeignPeer):
            self._ends.cluster.on_misled(error, node=self._ends.target, address=address)
        elif isinstance(error, RefusedProcess):
            self._on_own_refusal(f"node {self._ends.target} says: {error}")
        elif error_text != self._last_error:
            log.info(
                "raft peer unreachable; retrying",
                extra={"peer": self._ends.target, "address": address, "error": error_text},
            )
        self._last_error = error_text

    async def _connect(self) -> bool:
        """Connect, and return when the connection has ended. Returns whether it has lasted.

        Raises: OSError, TimeoutError, RemoteProtocolError if there was no handshake.
        """
        loop = asyncio.get_running_loop()
        ends, (host, port) = self._ends, self._address
        # Not `wait_for`, which may lose a cancellation before Python 3.12.
        async with asyncio.timeout(CONNECT_TIMEOUT_S):
            wire, outbound = await loop.create_connection(
                lambda: _Outbound(ends),
                host,
                port,
                ssl=self._tls,
                server_hostname=None if self._tls is None else host,
            )
        try:
            _tune(wire)
            wire.write(ends.hello())
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                self._answer = await asyncio.shield(outbound.handshake_done)
            self._wire, self._last_error = wire, ""
            connected_at = loop.time()
            self._connections += 1
            log.info(
                "raft peer connected", extra={"peer": ends.target, "address": f"{host}:{port}"}
            )
            error = await asyncio.shield(outbound.ended)
            log.warning(
                "raft peer disconnected; retrying",
                extra={"peer": ends.target, "error": str(error or "closed by the peer")},
            )
            return loop.time() - connected_at >= LASTING_S
        finally:
            self._wire = None
            wire.abort()


class _Outbound(asyncio.Protocol):
    """Waits for the peer's hello, then for the end. Bundles arrive on the peer's connection."""

    def __init__(self, ends: LinkEnds) -> None:
        loop = asyncio.get_running_loop()
        self.handshake_done: asyncio.Future[Hello] = loop.create_future()
        """The peer's hello."""
        self.ended: asyncio.Future[Exception | None] = loop.create_future()
        self._ends = ends
        self._frames = RaftFrameReader(HELLO_BYTES_MAX)
        self._wire: asyncio.BaseTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._wire = transport

    def data_received(self, data: bytes) -> None:
        try:
            for body in self._frames.feed(data):
                self._on_frame(body)
        except RemoteProtocolError as error:
            self._fail(error)

    def _on_frame(self, body: bytes) -> None:
        if self.handshake_done.done():
            raise RemoteProtocolError("the peer sent a frame after its hello")
        answer = decode_hello(body)
        self._ends.check(answer)
        self.handshake_done.set_result(answer)

    def _fail(self, error: Exception | None) -> None:
        if not self.handshake_done.done():
            self.handshake_done.set_exception(
                error or RemoteProtocolError("the peer closed the connection without a hello")
            )
            self.handshake_done.exception()  # retrieved: the waiter may be cancelled
        if not self.ended.done():
            self.ended.set_result(error)
        if self._wire is not None:
            self._wire.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self._fail(exc)


def _tune(wire: asyncio.BaseTransport) -> None:
    """Detect dead peers. (asyncio has set TCP_NODELAY.)"""
    sock = wire.get_extra_info("socket")
    if sock is not None and hasattr(socket, "TCP_USER_TIMEOUT"):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, USER_TIMEOUT_MS)
