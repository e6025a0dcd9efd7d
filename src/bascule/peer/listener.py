"""The peer listener: one port for requests, Raft connections and heartbeats of other nodes."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable, Collection, Mapping
from itertools import count
from typing import Any, Final, TypeAlias

from bascule.cluster_identity import ClusterIdentity, ForeignPeer
from bascule.errors import RemoteProtocolError
from bascule.listening.connection import ServedConnection
from bascule.listening.first_bytes import PEEK_BYTES, is_datastream, peek
from bascule.listening.limits import ListenerLimits
from bascule.listening.listener import FrameListener
from bascule.wire.connection import ReceivedRequest, ServerConnection
from bascule.wire.messages.peer.control import (
    ANY_NODE,
    ControlRequest,
    PeerHelloRequest,
    PeerHelloResponse,
)
from bascule.wire.messages.registry import PEER_REQUESTS
from bascule.wire.schema import Message, Request, Versions

log = logging.getLogger(__name__)

PEEK_SECONDS_MAX: Final = 3.0
HELLO_REFUSED: Final = 1
"""The error code of a hello; the message says why."""
RAFT_FIRST_BYTES: Final = range(0x90, 0xA0)
"""A Raft hello is a MessagePack array. A request begins with an API key, of which none is so
large."""
HEARTBEAT_FIRST_BYTES: Final = range(0x80, 0x90)
"""The hello of heartbeats is a MessagePack map."""

_SERVED: Final[dict[int, Versions]] = {key: kind.VERSIONS for key, kind in PEER_REQUESTS.items()}


_NUMBERS: Final = count(1)


class PeerSession:
    """Who is at the other end of a connection; known after its hello."""

    def __init__(self, protocol: ServerConnection) -> None:
        self.node_id = 0
        self.node_epoch = -1
        self.number = next(_NUMBERS)
        """Rises with each connection that is accepted."""
        self.cluster_id = ""
        """Empty if it was not said."""
        self.watchers: set[Callable[[], None]] = set()
        """Called when bytes of the next request arrive while one is answered."""
        self.on_closed: list[Callable[[], None]] = []
        """Called once after the connection has ended."""
        self._protocol = protocol

    @property
    def has_more(self) -> bool:
        """Whether bytes of the next request have arrived."""
        return self._protocol.buffered_bytes > 0

    def notify_watchers(self) -> None:
        for watcher in tuple(self.watchers):
            watcher()

    def close(self) -> None:
        """The connection has ended."""
        for on_closed in self.on_closed:
            on_closed()


PeerHandler: TypeAlias = Callable[[Any, PeerSession], Message | Awaitable[Message]]
"""Answers a request of the node of the session."""


class PeerListener(FrameListener):
    """Serves other nodes; used on one event loop."""

    NAME = "peer"

    def __init__(
        self,
        *,
        node_id: int,
        cluster: ClusterIdentity,
        node_epoch: Callable[[], int],
        handlers: Mapping[type[Request[Any]], PeerHandler],
        on_raft: Callable[[socket.socket], Awaitable[None]],
        on_heartbeats: Callable[[socket.socket], Awaitable[None]],
        on_datastream: Callable[[socket.socket, str], None] = lambda sock, _: sock.close(),
        open_kinds: Collection[str] = (),
        limits: ListenerLimits | None = None,
    ) -> None:
        """`open_kinds` are the control requests of nodes that are not in the cluster yet.

        `on_raft` takes over a socket whose first bytes, still unread, are those of Raft,
        `on_heartbeats` one on which heartbeats come, and `on_datastream` one with payloads.
        """
        super().__init__(limits)
        self._node_id = node_id
        self._cluster = cluster
        self._node_epoch = node_epoch
        self._open_kinds = open_kinds
        self._handlers = handlers
        self._on_raft = on_raft
        self._on_heartbeats = on_heartbeats
        self._on_datastream = on_datastream
        self._peeking: set[asyncio.Task[None]] = set()

    async def close(self) -> None:
        """See `FrameListener.close`."""
        self._stop_accepting()
        for task in self._peeking:
            task.cancel()
        await asyncio.gather(*self._peeking, return_exceptions=True)
        await super().close()

    def _admit(self, sock: socket.socket, peer: str) -> None:
        task = asyncio.get_running_loop().create_task(self._sort(sock, peer))
        self._peeking.add(task)

        def end(task: asyncio.Task[None]) -> None:
            self._peeking.discard(task)
            if task.cancelled():  # perhaps before it began
                sock.close()

        task.add_done_callback(end)

    async def _sort(self, sock: socket.socket, peer: str) -> None:
        """Give the connection to Raft, to heartbeats, or to the handlers of requests."""
        try:
            async with asyncio.timeout(PEEK_SECONDS_MAX):
                head = await peek(sock)
            if len(head) == PEEK_BYTES and head[-1] in RAFT_FIRST_BYTES:
                await self._on_raft(sock)
            elif len(head) == PEEK_BYTES and head[-1] in HEARTBEAT_FIRST_BYTES:
                await self._on_heartbeats(sock)
            elif is_datastream(head):
                self._on_datastream(sock, peer)
            else:
                super()._admit(sock, peer)
        except (OSError, TimeoutError):
            sock.close()

    def _connection(self, sock: socket.socket, peer: str) -> ServedConnection:
        protocol = ServerConnection(
            served=_SERVED,
            frame_bytes_max=self._limits.request_bytes_max,
            requests=PEER_REQUESTS,
        )
        session = PeerSession(protocol)

        def handle(request: ReceivedRequest) -> Message | Awaitable[Message]:
            message = request.message
            if isinstance(message, PeerHelloRequest):
                return self._on_hello(message, session, peer)
            handler = self._handlers.get(type(message))
            if handler is None or not session.node_id:
                raise RemoteProtocolError(f"{type(message).__name__} before a hello")
            self._check_member(message, session)
            return handler(message, session)

        return ServedConnection(
            sock,
            protocol,
            handle,
            peer=peer,
            limits=self._limits,
            statistics=self._statistics,
            refusals=self._refusals,
            run_on_thread=self._run_on_thread,
            on_pipelined=session.notify_watchers,
            on_closed=session.close,
        )

    def _check_member(self, message: Message, session: PeerSession) -> None:
        """Raises: RemoteProtocolError where only a node of the cluster may ask this."""
        self._cluster.check_id(session.cluster_id)  # it may not have been known at the hello
        if session.cluster_id or not self._cluster.requires_ids:
            return
        if isinstance(message, ControlRequest) and message.kind in self._open_kinds:
            return
        raise RemoteProtocolError(
            f"node {session.node_id} said no cluster id, expected {self._cluster.id}: it may only "
            f"ask to join, and has sent {type(message).__name__}"
        )

    def _on_hello(
        self, hello: PeerHelloRequest, session: PeerSession, peer: str
    ) -> PeerHelloResponse:
        """Note who connects. Raises: RemoteProtocolError for another cluster or another node."""
        cluster = self._cluster
        try:
            cluster.check_name(hello.cluster)
            cluster.check_id(hello.cluster_id)
        except ForeignPeer as error:
            cluster.on_refused(error, node=hello.source, peer=peer)
            if hello.target == ANY_NODE or hello.cluster_id:
                return PeerHelloResponse(HELLO_REFUSED, str(error), cluster_id=cluster.id)
            raise
        if hello.target not in (self._node_id, ANY_NODE):
            raise RemoteProtocolError(
                f"the peer expects node {hello.target} here, this is node {self._node_id}"
            )
        session.node_id, session.node_epoch = hello.source, hello.node_epoch
        session.cluster_id = hello.cluster_id
        return PeerHelloResponse(node_epoch=self._node_epoch(), cluster_id=cluster.id)
