"""A listener with Kafka's framing: accepts connections within limits, expires and closes them."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Final, TypeVar

from bascule.listening.connection import ServedConnection
from bascule.listening.limits import ListenerLimits, ListenerStatistics
from bascule.listening.listening_socket import bind
from bascule.listening.refusals import RefusalLog
from bascule.replica.purgatory import Purgatory

log = logging.getLogger(__name__)
T = TypeVar("T")

BACKLOG: Final = 512
SWEEP_SECONDS: Final = 2.0
"""Time between checks for expired connections."""
REFUSAL_LOG_SECONDS: Final = 10.0
"""Least time between log lines about refused connections."""
ACCEPT_RETRY_SECONDS: Final = 1.0
"""Pause after a failed accept. Accept fails while no file descriptor is free."""


class FrameListener:
    """The sockets of one listener. Used on one event loop. A subclass makes the connections."""

    NAME = "listener"
    """For threads."""

    def __init__(self, limits: ListenerLimits | None) -> None:
        self._limits = limits or ListenerLimits()
        self._statistics = ListenerStatistics()
        self._purgatory = Purgatory()
        self._refusals = RefusalLog(lambda: asyncio.get_running_loop().time())
        self._disk_threads = ThreadPoolExecutor(self._limits.disk_threads, f"{self.NAME}-disk")
        self._listeners: list[socket.socket] = []
        self._connections: dict[asyncio.Task[None], ServedConnection] = {}
        self._sweep: asyncio.TimerHandle | None = None
        self._refusal_logged_next = 0.0

    def _connection(self, sock: socket.socket, peer: str) -> ServedConnection:
        """The connection for an accepted socket. Raises: OSError where the peer is gone."""
        raise NotImplementedError

    async def start(self, host: str, port: int) -> tuple[str, int]:
        """Bind and open; see these. Raises: OSError."""
        address = await self.bind(host, port)
        self.open()
        return address

    async def bind(self, host: str, port: int) -> tuple[str, int]:
        """Bind every address of `host`; port 0 picks a free port. Returns the bound address.

        Until `open` the system refuses connections. Raises: OSError where an address cannot be
        bound.
        """
        loop = asyncio.get_running_loop()
        found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        for family, _, _, _, address in dict.fromkeys(found):
            bound = (address[0], port, *address[2:])
            listener = bind(family, bound)
            self._listeners.append(listener)
            port = listener.getsockname()[1]  # use the same port for the other addresses
        first: tuple[str, int] = self._listeners[0].getsockname()[:2]
        return first

    def open(self) -> None:
        """Accept connections. Raises: OSError where another process listens at the address."""
        loop = asyncio.get_running_loop()
        for listener in self._listeners:
            listener.listen(BACKLOG)
            loop.add_reader(listener, self._accept, listener)

    async def close(self) -> None:
        """Stop accepting, answer requests in flight within `drain_ms_max`, close everything."""
        loop = asyncio.get_running_loop()
        self._stop_accepting()
        if self._sweep is not None:
            self._sweep.cancel()
        self._purgatory.close()
        for connection in tuple(self._connections.values()):
            connection.close_when_answered()
        if self._connections:
            await asyncio.wait(self._connections, timeout=self._limits.drain_ms_max / 1000)
        for connection in tuple(self._connections.values()):
            connection.abort()
        if self._connections:
            await asyncio.wait(tuple(self._connections))
        await loop.run_in_executor(None, self._disk_threads.shutdown)

    def statistics(self) -> ListenerStatistics:
        """A copy of the counters."""
        now = self._statistics
        return replace(
            now,
            connections=len(self._connections),
            waiting=len(self._purgatory),
            requests=now.requests.copy(),
        )

    def _stop_accepting(self) -> None:
        for listener in self._listeners:
            asyncio.get_running_loop().remove_reader(listener)
            listener.close()
        self._listeners.clear()

    def _accept(self, listener: socket.socket) -> None:
        """Admit a waiting connection. Not a task: one that is cancelled drops what it accepted."""
        try:
            sock, address = listener.accept()
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):
            return
        except OSError as error:
            log.warning("cannot accept a client", extra={"error": str(error)})
            loop = asyncio.get_running_loop()
            loop.remove_reader(listener)
            loop.call_later(ACCEPT_RETRY_SECONDS, self._accept_again, listener)
            return
        sock.setblocking(False)
        self._admit(sock, f"{address[0]}:{address[1]}")

    def _accept_again(self, listener: socket.socket) -> None:
        if listener in self._listeners:
            asyncio.get_running_loop().add_reader(listener, self._accept, listener)

    def _admit(self, sock: socket.socket, peer: str) -> None:
        if len(self._connections) >= self._limits.connections_max:
            self._statistics.connections_refused += 1
            self._log_refusal(peer)
            sock.close()
            return
        try:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection = self._connection(sock, peer)
        except OSError:  # the client has closed already
            sock.close()
            return
        self._statistics.connections_accepted += 1
        task = connection.start()
        self._connections[task] = connection
        task.add_done_callback(self._on_connection_closed)
        if self._sweep is None:
            self._schedule_sweep()

    def _log_refusal(self, peer: str) -> None:
        """Log at most one line per `REFUSAL_LOG_SECONDS`: refusals must not flood the log."""
        now = asyncio.get_running_loop().time()
        if now >= self._refusal_logged_next:
            self._refusal_logged_next = now + REFUSAL_LOG_SECONDS
            log.warning(
                "client refused: too many connections",
                extra={
                    "peer": peer,
                    "connections": len(self._connections),
                    "refused": self._statistics.connections_refused,
                },
            )

    def _on_connection_closed(self, task: asyncio.Task[None]) -> None:
        del self._connections[task]

    def _run_on_thread(self, function: Callable[[], T], /) -> asyncio.Future[T]:
        return asyncio.get_running_loop().run_in_executor(self._disk_threads, function)

    def _schedule_sweep(self) -> None:
        """Schedule the next check for expired connections while there are connections."""
        loop = asyncio.get_running_loop()
        self._sweep = (
            loop.call_later(SWEEP_SECONDS, self._expire, loop, loop.time())
            if self._connections
            else None
        )

    def _expire(self, loop: asyncio.AbstractEventLoop, scheduled: float) -> None:
        now = loop.time()
        if now - scheduled <= 2 * SWEEP_SECONDS:
            for connection in tuple(self._connections.values()):
                connection.expire(now)
        # Else the process stood still: what has come meanwhile is not read yet.
        self._schedule_sweep()
