"""Which peers of this node run: their connections on the event loop, their pings on a thread."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

from bascule.cluster_identity import ClusterIdentity
from bascule.config.addresses import format_address
from bascule.heartbeats.heartbeat_thread import (
    HeartbeatHello,
    HeartbeatThread,
    encode_hello,
)
from bascule.host.api import Clock
from bascule.host.lasting_tasks import start_lasting

log = logging.getLogger("bascule.heartbeats")

CONNECT_SECONDS_MAX: Final = 3.0
RETRY_SECONDS: Final = 0.1
USER_TIMEOUT_MS: Final = 5_000
"""The connection ends if sent bytes are not acknowledged for so long (TCP_USER_TIMEOUT)."""

Address = tuple[str, int]


class PeerHeartbeats:
    """Belongs to the event loop on which it is made."""

    def __init__(
        self,
        node_id: int,
        cluster: ClusterIdentity,
        incarnation: int,
        clock: Clock,
        *,
        on_lost: Callable[[int], None],
    ) -> None:
        """`on_lost` is called on the event loop with a peer whose process is gone or silent, once
        each time; `loss` says more."""
        self._node_id = node_id
        self._cluster = cluster
        self._on_lost = on_lost
        self._loop = asyncio.get_running_loop()
        self._thread = HeartbeatThread(
            node_id, cluster, incarnation, clock,
            on_silent=lambda peer: self._on_loop(self._on_lost, peer),
            on_ended=lambda peer: self._on_loop(self._on_ended, peer),
        )  # fmt: skip
        self._links: dict[int, tuple[Address, asyncio.Task[None]]] = {}
        self._ended: dict[int, asyncio.Event] = {}
        self._refused: dict[int, Address] = {}
        """Peers where nobody listens."""
        self._is_started = False
        self._is_closed = False

    def start(self) -> None:
        """Answer others, and ask them, from now on."""
        self._is_started = True
        self._thread.start()

    def set_peers(self, peers: Mapping[int, Address]) -> None:
        """Watch exactly these, at the addresses of their peer listeners; this node is ignored."""
        if self._is_closed:
            return
        wanted = {node: address for node, address in peers.items() if node != self._node_id}
        for node, (address, task) in list(self._links.items()):
            if wanted.get(node) != address:
                task.cancel()
                del self._links[node]
                self._refused.pop(node, None)
                self._thread.forget(node)
        for node, address in wanted.items():
            if node not in self._links:
                self._ended[node] = asyncio.Event()
                self._links[node] = (
                    address,
                    start_lasting(f"heartbeats of node {node}", partial(self._keep, node, address)),
                )

    async def adopt(self, sock: socket.socket) -> None:
        """Answer an accepted connection, whose first bytes are not read yet."""
        self._thread.answer(sock)

    def loss(self, node: int, incarnation: int) -> str:
        """Why this process of a peer does not run; empty if it does, or if that is not known."""
        silence = self._thread.silence_of(node)
        if silence is None or silence.incarnation != incarnation:
            return ""
        if silence.is_connected:
            return f"no heartbeat for {silence.silent_ns / 1e9:.1f} s" if silence.is_silent else ""
        address = self._refused.get(node)
        return "" if address is None else f"nobody listens at {format_address(*address)}"

    def round_trips_ns(self) -> dict[int, int]:
        """Peer -> how long a ping and its answer take at least, ns. Any thread may call it."""
        return self._thread.round_trips_ns()

    def statistics(self) -> dict[str, Any]:
        """Counters for metrics."""
        return {"longest_ns": self._thread.longest_ns()}

    async def close(self) -> None:
        """End all connections."""
        self._is_closed = True
        tasks = [task for _, task in self._links.values()]
        self._links.clear()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.to_thread(self._thread.close)

    def _on_loop(self, call: Callable[[int], None], peer: int) -> None:
        try:
            self._loop.call_soon_threadsafe(call, peer)
        except RuntimeError:
            pass  # the loop has ended

    def _on_ended(self, peer: int) -> None:
        ended = self._ended.get(peer)
        if ended is not None:
            ended.set()

    async def _keep(self, node: int, address: Address) -> None:
        """Keep a connection to the peer."""
        ended = self._ended[node]
        while True:
            try:
                async with asyncio.timeout(CONNECT_SECONDS_MAX):
                    sock = await self._connect(node, address)
            except ConnectionRefusedError:
                if node not in self._refused:
                    self._refused[node] = address
                    self._on_lost(node)
            except (OSError, TimeoutError):
                pass  # whether the process runs is not known
            else:
                self._refused.pop(node, None)
                ended.clear()
                began = self._loop.time()
                self._thread.watch(node, sock)
                await ended.wait()
                if self._loop.time() - began > RETRY_SECONDS:
                    continue  # at once: it is refused if the process has ended
            await asyncio.sleep(RETRY_SECONDS)

    async def _connect(self, node: int, address: Address) -> socket.socket:
        """A connection past its hello. Raises: OSError."""
        host, port = address
        last: OSError = OSError(f"{host} has no address")
        for family, kind, protocol, _, place in await self._loop.getaddrinfo(
            host, port, type=socket.SOCK_STREAM
        ):
            sock = socket.socket(family, kind, protocol)
            try:
                sock.setblocking(False)
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                if hasattr(socket, "TCP_USER_TIMEOUT"):
                    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, USER_TIMEOUT_MS)
                await self._loop.sock_connect(sock, place)
                cluster = self._cluster
                hello = HeartbeatHello(cluster.name, self._node_id, node, cluster.id)
                await self._loop.sock_sendall(sock, encode_hello(hello))
            except OSError as error:
                sock.close()
                last = error
            except BaseException:
                sock.close()
                raise
            else:
                return sock
        raise last
