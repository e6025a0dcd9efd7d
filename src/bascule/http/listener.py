"""The HTTP listener: the socket of the application, its limits, and the loopback guard."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import msgspec
import uvicorn
from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

from bascule.host.api import File
from bascule.host.lasting_tasks import start_lasting
from bascule.http.metrics.http_statistics import HttpStatistics
from bascule.http.payloads.sendfile import SENDFILE, send_file
from bascule.http.responses import json_response
from bascule.http.schemas import ErrorBody, ErrorDetail
from bascule.http.unfinished_requests import ABORT, UnfinishedRequests

CLOSE_SECONDS_MAX: Final = 5.0
"""For the answers of requests when the listener closes."""
SWEEP_SECONDS: Final = 1.0
"""Time between checks for expired connections."""
WATCHED_PATHS: Final = frozenset({"/healthz", "/readyz", "/metrics"})
"""What must be answered while other requests take all connections that they may have."""
BODY_STEP_BYTES: Final = 1 << 20
"""A body that goes on by so much has the time for a request again."""
WATCHED_SHARE: Final = 8
"""An eighth of the connections is kept for WATCHED_PATHS."""


class LoopbackGuard:
    """Refuses a request to a loopback address whose Host header names another host.

    It prevents DNS rebinding: a foreign site can let its own name resolve to 127.0.0.1, and its
    pages would then have the same origin as this listener. Requests to other addresses are not
    checked.
    """

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and _is_loopback(scope.get("server")):
            host = Request(scope).headers.get("host", "")
            if not _is_localhost_or_address(host):
                body = ErrorBody(
                    error=ErrorDetail(
                        code="forbidden_host",
                        message=f"host {host!r} is not an address of this node",
                    )
                )
                await json_response(body, 403)(scope, receive, send)
                return
        await self.app(scope, receive, send)


def _is_loopback(server: tuple[str, int | None] | None) -> bool:
    try:
        return server is not None and ipaddress.ip_address(server[0]).is_loopback
    except ValueError:
        return False


def _is_localhost_or_address(host: str) -> bool:
    name = host.rpartition(":")[0] if host.rpartition(":")[2].isdigit() else host
    if name in ("localhost", ""):
        return True
    try:
        ipaddress.ip_address(name.strip("[]"))
    except ValueError:
        return False
    return True


class ReservedShare:
    """Refuses requests when they take all connections but those kept for health and metrics.

    A request counts from its complete head to the end of its response, so that a slow body cannot
    take the kept connections either.
    """

    def __init__(self, app: ASGIApp, *, requests_max: int) -> None:
        self.app = app
        self.requests_max = requests_max
        self._requests = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in WATCHED_PATHS:
            await self.app(scope, receive, send)
            return
        if self._requests >= self.requests_max:
            detail = ErrorDetail(
                code="busy",
                message=f"{self._requests} requests are being answered; the remaining connections "
                "are kept for health and metrics; try again later",
                retriable=True,
            )
            refused = json_response(ErrorBody(error=detail), 503, {"connection": "close"})
            await refused(scope, receive, send)
            return
        self._requests += 1
        try:
            await self.app(scope, receive, send)
        finally:
            self._requests -= 1


class _Server(uvicorn.Server):
    """uvicorn without signal handlers: the node decides when its listeners close."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


@dataclass(frozen=True, slots=True)
class HttpLimits:
    """Limits of HTTP connections. The application bounds the body of a request; h11 bounds its
    head and trailers (64 KiB)."""

    connections_max: int = 256
    """At this number a new connection takes the place of one that waits for a request or has not
    read its response. Without such a one it is closed at once."""
    head_ms_max: int = 5_000
    """Time for the head of a request after the connection was made or the last response was
    sent."""
    request_ms_max: int = 30_000
    """Time for a complete request, from the same moment, and for each further MiB of its body."""
    write_stall_ms_max: int = 60_000
    """A client that reads no byte of its response for this long is closed."""

    @property
    def requests_max(self) -> int:
        """Requests at a time, but for those of WATCHED_PATHS."""
        return self.connections_max - self.connections_max // WATCHED_SHARE


class _Config(uvicorn.Config):
    """uvicorn's configuration with our limits and statistics, for `_Connection`."""

    def __init__(self, app: ASGIApp, limits: HttpLimits, statistics: HttpStatistics) -> None:
        super().__init__(
            app,
            http=_Connection,
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            # Unfinished requests have ended by then.
            timeout_graceful_shutdown=int(CLOSE_SECONDS_MAX) + 5,
        )
        self.limits = limits
        self.statistics = statistics


class _Connection(H11Protocol):
    """A connection with timeouts for requests and responses; uvicorn itself has none."""

    config: _Config

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        statistics = self.config.statistics
        self._stalled_bytes = self._received_bytes = 0
        self.waiting_since = self._stalled_since = self.loop.time()
        if len(self.connections) >= self.config.limits.connections_max and not self._displace():
            statistics.connections_refused += 1
            self.transport = transport
            transport.abort()
            return
        statistics.connections_accepted += 1
        super().connection_made(transport)
        statistics.connections = len(self.connections)

    def handle_events(self) -> None:
        before = self.cycle
        super().handle_events()
        cycle: RequestResponseCycle | None = self.cycle
        if cycle is not None and cycle is not before:  # its task begins after this
            extensions: dict[str, Any] = {
                SENDFILE: partial(self._send_file, cycle),
                ABORT: partial(self._abort, cycle),
            }
            cycle.scope["extensions"] = extensions

    async def _send_file(
        self, cycle: RequestResponseCycle, file: File, position: int, length: int
    ) -> None:
        """See `SendFile`."""
        if cycle.disconnected:
            raise ConnectionResetError("the client has gone")
        await send_file(
            self.transport, self.conn, file, position, length,
            stall_seconds_max=self.config.limits.write_stall_ms_max / 1000,
        )  # fmt: skip
        self.config.statistics.bytes_out += length

    def _abort(self, cycle: RequestResponseCycle) -> None:
        """See `Abort`."""
        cycle.disconnected = True
        self.transport.abort()

    def data_received(self, data: bytes) -> None:
        self._received_bytes += len(data)
        if self._received_bytes >= BODY_STEP_BYTES and not self.is_idle:
            self._received_bytes = 0
            self.waiting_since = self.loop.time()
        super().data_received(data)

    def _displace(self) -> bool:
        """Close the connection that has waited longest; first of those without a request so far.
        False if all of them have a request to be answered."""
        idle = [each for each in self.connections if isinstance(each, _Connection) and each.is_idle]
        if not idle:
            return False
        oldest = min(idle, key=lambda each: (each.cycle is not None, each.waiting_since))
        self.config.statistics.connections_displaced += 1
        self.connections.discard(oldest)
        oldest.transport.abort()
        return True

    @property
    def is_idle(self) -> bool:
        """No request is complete in its head and unanswered."""
        cycle: RequestResponseCycle | None = self.cycle
        return cycle is None or cycle.response_complete

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self.config.statistics.connections = len(self.connections)

    def on_response_complete(self) -> None:
        self.waiting_since = self.loop.time()
        super().on_response_complete()

    def send_400_response(self, msg: str) -> None:
        self.config.statistics.protocol_errors += 1
        detail = ErrorDetail(code="malformed_request", message=msg.rstrip(".").lower())
        body = msgspec.json.encode(ErrorBody(error=detail)) + b"\n"
        head = (
            b"HTTP/1.1 400 Bad Request\r\ncontent-type: application/json\r\n"
            b"connection: close\r\ncontent-length: %d\r\n\r\n"
        )
        if self.is_idle:  # otherwise this would end up within a response
            self.transport.write(head % len(body) + body)
        self.transport.close()

    def expire(self, now: float) -> None:
        """Close if the time for the request or the response has passed."""
        limits = self.config.limits
        request_ms_max = limits.request_ms_max
        if self.is_idle:
            request_ms_max = min(request_ms_max, limits.head_ms_max)
        unsent = self.transport.get_write_buffer_size()
        if unsent == 0 or unsent != self._stalled_bytes:
            self._stalled_bytes, self._stalled_since = unsent, now
        cycle: RequestResponseCycle | None = self.cycle
        answering = cycle is not None and not cycle.more_body and not cycle.response_complete
        late = not answering and unsent == 0 and now - self.waiting_since > request_ms_max / 1000
        if late or now - self._stalled_since > limits.write_stall_ms_max / 1000:
            self.config.statistics.connections_expired += 1
            self.transport.abort()


class HttpListener:
    """Serves the application on a listening socket."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        limits: HttpLimits | None = None,
        statistics: HttpStatistics | None = None,
    ) -> None:
        limits = limits or HttpLimits()
        shared = ReservedShare(app, requests_max=limits.requests_max)
        self._requests = UnfinishedRequests(shared)
        config = _Config(self._requests, limits, statistics or HttpStatistics())
        self._server = _Server(config)
        self._task: asyncio.Task[None] | None = None
        self._sweep: asyncio.Task[None] | None = None

    async def start(self, host: str, port: int) -> tuple[str, int]:
        """Listen and serve; returns the bound address. Raises: OSError if it cannot be bound."""
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listener = socket.create_server((host, port), family=family, backlog=256)
        # Accepted sockets inherit it; asyncio sets it only on those whose protocol is named. The
        # head and the body of a response are two writes, and the second one waited for the
        # delayed acknowledgement of the first.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        listener.setblocking(False)
        bound = listener.getsockname()
        self._task = asyncio.create_task(self._server.serve(sockets=[listener]), name="http")
        self._sweep = start_lasting("http sweep", self._expire)
        return bound[0], bound[1]

    async def close(self) -> None:
        """Stop accepting, answer requests in flight for at most 5 s, close."""
        if self._task is not None:
            self._server.should_exit = True
            await self._requests.end_after(CLOSE_SECONDS_MAX)
            await self._task
            self._task = None
        if self._sweep is not None:
            self._sweep.cancel()
            self._sweep = None

    async def _expire(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            began = loop.time()
            await asyncio.sleep(SWEEP_SECONDS)
            if loop.time() - began > 2 * SWEEP_SECONDS:
                continue  # the process stood still: what has come meanwhile is not read yet
            for connection in tuple(self._server.server_state.connections):
                if isinstance(connection, _Connection):
                    connection.expire(loop.time())
