"""TCP between the peers of a node: a listener, and a link to each peer.

Raft needs no delivery guarantee: bundles for a peer that is unreachable or slow are dropped and
counted. The transport guarantees that a hostile or misconfigured peer loses its own connection and
affects no other, and that memory stays within the limits.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable, Mapping
from typing import Final

import msgspec

from bascule.cluster_identity import ClusterIdentity, ForeignPeer
from bascule.errors import RemoteProtocolError
from bascule.host.api import Random
from bascule.raft.codec import BODY_BYTES_MAX, decode
from bascule.raft.multi.bundle import Bundle
from bascule.raft_driver.framing import RaftFrameReader
from bascule.raft_driver.handshake import (
    HELLO_BYTES_MAX,
    Hello,
    KnownProcesses,
    RefusedProcess,
    Settings,
    check_hello,
    decode_hello,
    encode_hello,
)
from bascule.raft_driver.peer_link import Address, LinkEnds, LinkStatistics, PeerLink

log = logging.getLogger("bascule.raft_driver")

HELLO_TIMEOUT_S: Final = 3.0
UNAUTHENTICATED_MAX: Final = 64
"""Connections without a hello; one more is closed at once."""
QUEUE_BYTES_MAX: Final = 64 << 20
"""Bytes queued for one peer: twice what a few groups may have in flight to it."""


UNKNOWN_SECONDS: Final = 5.0
"""A node that joins connects to all others at once, and is a peer of each when that has applied its
admission. For so long it is no reason to warn that it is not."""
UNKNOWN_MAX: Final = 256
"""Nodes of which is kept since when they connect."""


class UnknownPeer(RemoteProtocolError):
    """A node of the cluster connects that is not a peer, perhaps not yet."""

    def __init__(self, node: int) -> None:
        super().__init__(f"node {node} is not a known peer")
        self.node = node


class TransportStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """What the transport has done since its creation."""

    peers: dict[int, LinkStatistics]
    frames_received: int
    bytes_received: int
    refused: int
    """Connections closed for a protocol error, or because there were too many."""
    unknown_dropped: int
    """Bundles dropped because their target has no address."""


class PeerTransport:
    """Listens for peers, connects to peers, and passes bundles in both directions."""

    def __init__(
        self,
        node_id: int,
        incarnation: int,
        *,
        cluster: ClusterIdentity,
        settings: Settings = (),
        random: Random,
        on_bundle: Callable[[Bundle], None],
        queue_bytes_max: int = QUEUE_BYTES_MAX,
        server_tls: ssl.SSLContext | None = None,
        client_tls: ssl.SSLContext | None = None,
    ) -> None:
        """`on_bundle` gets the bundles of known peers of `cluster` with the same `settings`."""
        self.node_id = node_id
        self.incarnation = incarnation
        self.cluster = cluster
        self.settings = settings
        self.on_bundle = on_bundle
        self._random = random
        self._queue_bytes_max = queue_bytes_max
        self._server_tls = server_tls
        self._client_tls = client_tls
        self._links: dict[int, PeerLink] = {}
        self._accepted: dict[int, _Accepted] = {}
        self._processes = KnownProcesses()
        self.on_own_refusal: Callable[[str], None] = lambda _: None
        """Called with the reason where a peer says that this process may not be its node."""
        self._unauthenticated: set[_Accepted] = set()
        self._server: asyncio.Server | None = None
        self._closing: set[asyncio.Task[None]] = set()
        self._unknown: dict[int, float] = {}
        """Node that is no peer -> when it connected first, on the loop's clock."""
        self._refused = 0
        self._unknown_dropped = 0
        self.frames_received = 0
        self.bytes_received = 0

    async def listen(self, host: str, port: int) -> Address:
        """Accept connections of peers. Returns the address, with the chosen port if `port` is 0.

        Raises: OSError.
        """
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(
            lambda: _Accepted(self),
            host,
            port,
            ssl=self._server_tls,
            ssl_handshake_timeout=None if self._server_tls is None else HELLO_TIMEOUT_S,
        )
        name = self._server.sockets[0].getsockname()
        return name[0], name[1]

    async def adopt(self, sock: socket.socket) -> None:
        """Take over an accepted connection, whose first bytes are not read yet. Raises: OSError."""
        loop = asyncio.get_running_loop()
        await loop.connect_accepted_socket(
            lambda: _Accepted(self),
            sock,
            ssl=self._server_tls,
            ssl_handshake_timeout=None if self._server_tls is None else HELLO_TIMEOUT_S,
        )

    def set_peers(self, peers: Mapping[int, Address]) -> None:
        """Connect to exactly these peers; this node's own id is ignored."""
        wanted = {node: address for node, address in peers.items() if node != self.node_id}
        for node in [node for node in self._links if node not in wanted]:
            self.remove_peer(node)
        for node, address in wanted.items():
            self.set_peer(node, address)

    def set_peer(self, node: int, address: Address) -> None:
        """Connect to `node` at `address`, unless it is connected there."""
        self._unknown.pop(node, None)
        if node == self.node_id:
            return
        link = self._links.get(node)
        if link is not None:
            if link.address == address:
                return
            self._close_later(link)
        self._links[node] = PeerLink(
            LinkEnds(self.cluster, self.node_id, node, self.incarnation, self.settings),
            address,
            random=self._random,
            queue_bytes_max=self._queue_bytes_max,
            tls=self._client_tls,
            on_own_refusal=lambda why: self.on_own_refusal(why),
        )

    def remove_peer(self, node: int) -> None:
        """Close the connections of the peer, in both directions, and accept none from it."""
        self._processes.on_removed(node)
        link = self._links.pop(node, None)
        if link is not None:
            self._close_later(link)
        accepted = self._accepted.pop(node, None)
        if accepted is not None:
            accepted.close()

    def _close_later(self, link: PeerLink) -> None:
        task = asyncio.get_running_loop().create_task(link.close())
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    def check_again(self) -> None:
        """The cluster's identity has changed: end the connections whose peers are foreign now."""
        for accepted in list(self._accepted.values()):
            accepted.check_again()
        for link in self._links.values():
            link.check_again()

    def send(self, bundle: Bundle) -> None:
        """Send the bundle, or drop and count it."""
        link = self._links.get(bundle.target)
        if link is None:
            self._unknown_dropped += 1
        else:
            link.send(bundle)

    async def close(self) -> None:
        """Return when all connections are closed."""
        if self._server is not None:
            self._server.close()
        for accepted in [*self._unauthenticated, *self._accepted.values()]:
            accepted.close()
        for link in self._links.values():
            self._close_later(link)
        self._links.clear()
        if self._closing:
            await asyncio.wait(list(self._closing))
        if self._server is not None:
            await self._server.wait_closed()

    def statistics(self) -> TransportStatistics:
        return TransportStatistics(
            peers={node: link.statistics() for node, link in self._links.items()},
            frames_received=self.frames_received,
            bytes_received=self.bytes_received,
            refused=self._refused,
            unknown_dropped=self._unknown_dropped,
        )

    # -- events of accepted connections --------------------------------------------------------

    def on_accepted(self, accepted: _Accepted) -> bool:
        """Whether there is room for one more connection without a hello."""
        if len(self._unauthenticated) >= UNAUTHENTICATED_MAX:
            self._refused += 1
            return False
        self._unauthenticated.add(accepted)
        return True

    def on_hello(self, accepted: _Accepted, hello: Hello) -> None:
        """Raises: UnknownPeer, RefusedProcess; RemoteProtocolError where it is to try again."""
        link = self._links.get(hello.source)
        if link is None:
            raise UnknownPeer(hello.source)
        now = asyncio.get_running_loop().time()
        self._processes.on_hello(hello.source, hello.incarnation, accepted.peer, now, accepted)
        self._unauthenticated.discard(accepted)
        before = self._accepted.get(hello.source)
        if before is not None:
            before.close()
        self._accepted[hello.source] = accepted
        link.retry_now()

    def on_refused(self, peer: str, error: RemoteProtocolError, node: int = 0) -> None:
        """`node` is what the peer says that it is; 0 before its hello."""
        self._refused += 1
        if isinstance(error, ForeignPeer):
            self.cluster.on_refused(error, node=node, peer=peer)
            return
        if isinstance(error, UnknownPeer) and self._may_be_known_soon(error.node):
            log.info("raft peer not known yet", extra={"peer": peer, "node": error.node})
            return
        log.warning("raft connection closed", extra={"peer": peer, "error": str(error)})

    def _may_be_known_soon(self, node: int) -> bool:
        now = asyncio.get_running_loop().time()
        if len(self._unknown) >= UNKNOWN_MAX:
            return False
        return now - self._unknown.setdefault(node, now) <= UNKNOWN_SECONDS

    def on_gone(self, accepted: _Accepted, node: int) -> None:
        self._unauthenticated.discard(accepted)
        self._processes.on_gone(node, accepted)
        if self._accepted.get(node) is accepted:
            del self._accepted[node]


class _Accepted(asyncio.Protocol):
    """An accepted connection: a hello, then bundles."""

    def __init__(self, owner: PeerTransport) -> None:
        self._owner = owner
        self._frames = RaftFrameReader(HELLO_BYTES_MAX)
        self._wire: asyncio.Transport | None = None
        self._node = 0
        """What the peer says that it is; 0 before its hello."""
        self._hello: Hello | None = None
        """The peer's hello, once it is accepted."""
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._wire = transport
        if not self._owner.on_accepted(self):
            transport.abort()
            return
        self._timer = asyncio.get_running_loop().call_later(HELLO_TIMEOUT_S, transport.abort)

    def data_received(self, data: bytes) -> None:
        owner, wire = self._owner, self._wire
        assert wire is not None
        if wire.is_closing():
            return
        owner.bytes_received += len(data)
        try:
            for body in self._frames.feed(data):
                if self._hello is None:
                    self._on_hello(body)
                else:
                    self._on_bundle(body, self._hello)
        except RemoteProtocolError as error:
            self._refuse(error)

    @property
    def peer(self) -> str:
        """The address of the other end."""
        name = None if self._wire is None else self._wire.get_extra_info("peername")
        return f"{name[0]}:{name[1]}" if name else "?"

    def _refuse(self, error: RemoteProtocolError) -> None:
        wire = self._wire
        assert wire is not None
        self._owner.on_refused(self.peer, error, self._node)
        if isinstance(error, ForeignPeer | RefusedProcess):
            wire.close()  # once the answer is sent
        else:
            wire.abort()

    def _on_bundle(self, body: bytes, hello: Hello) -> None:
        bundle = decode(body)
        owner = self._owner
        if (bundle.source, bundle.target, bundle.incarnation) != (
            hello.source,
            owner.node_id,
            hello.incarnation,
        ):
            raise RemoteProtocolError(
                f"bundle from node {bundle.source} to {bundle.target}, incarnation "
                f"{bundle.incarnation}, on the connection from {hello.source} to {owner.node_id}, "
                f"incarnation {hello.incarnation}"
            )
        owner.frames_received += 1
        owner.on_bundle(bundle)

    def _on_hello(self, body: bytes) -> None:
        owner, wire = self._owner, self._wire
        assert wire is not None
        hello = decode_hello(body)
        self._node = hello.source
        answer = encode_hello(
            owner.cluster, owner.node_id, hello.source, owner.incarnation, owner.settings
        )
        try:
            check_hello(hello, cluster=owner.cluster, target=owner.node_id, settings=owner.settings)
            owner.on_hello(self, hello)
        except ForeignPeer:
            if hello.cluster_id:  # so that the peer sees it, too; an earlier release would go on
                wire.write(answer)
            raise
        except RefusedProcess as error:
            wire.write(
                encode_hello(
                    owner.cluster, owner.node_id, hello.source, owner.incarnation,
                    owner.settings, str(error),
                )
            )  # fmt: skip
            raise
        self._hello = hello
        self._frames.bytes_max = BODY_BYTES_MAX
        if self._timer is not None:
            self._timer.cancel()
        wire.write(answer)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._owner.on_gone(self, self._node)

    def check_again(self) -> None:
        """See `PeerTransport.check_again`."""
        owner = self._owner
        try:
            if self._hello is not None:
                owner.cluster.check(self._hello.cluster, self._hello.cluster_id)
        except ForeignPeer as error:
            self._refuse(error)

    def close(self) -> None:
        if self._wire is not None:
            self._wire.abort()
