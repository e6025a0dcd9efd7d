"""Statistics of the HTTP listener, and the middleware that counts requests."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from bascule.replica.metrics import SECONDS, Histogram

UNKNOWN_OPERATION = "unknown"
"""The operation label of a request to an unknown path."""


@dataclass(slots=True)
class HttpStatistics:
    """Counters since the listener started; only the event loop writes them."""

    requests: Counter[tuple[str, int]] = field(default_factory=Counter)
    """By operation and status."""
    request_ns: dict[str, Histogram] = field(default_factory=dict)
    """Time until the last byte was passed to the server, by operation."""
    bytes_out: int = 0
    """Bytes of response bodies sent."""
    connections: int = 0
    """Open now."""
    connections_accepted: int = 0
    connections_refused: int = 0
    """Closed at once because of `HttpLimits.connections_max`."""
    connections_displaced: int = 0
    """Closed while waiting, in favour of a new connection, at `HttpLimits.connections_max`."""
    connections_expired: int = 0
    """Closed because of an incomplete request or an unread response."""
    protocol_errors: int = 0
    """Answered with 400 and closed: not valid HTTP."""

    def on_answered(self, operation: str, *, status: int, took_ns: int) -> None:
        self.requests[operation, status] += 1
        histogram = self.request_ns.get(operation)
        if histogram is None:
            histogram = self.request_ns[operation] = Histogram(SECONDS)
        histogram.observe(took_ns)


class StatisticsMiddleware:
    """Counts requests, their duration and the bytes of their responses."""

    def __init__(self, app: ASGIApp, statistics: HttpStatistics) -> None:
        self.app = app
        self.statistics = statistics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        loop = asyncio.get_running_loop()
        started = loop.time()
        status = 500

        async def count_and_send(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            elif scope["method"] != "HEAD":
                self.statistics.bytes_out += len(message.get("body", b""))
            await send(message)

        try:
            await self.app(scope, receive, count_and_send)
        finally:
            took_ns = int((loop.time() - started) * 1e9)
            self.statistics.on_answered(_operation(scope), status=status, took_ns=took_ns)


def _operation(scope: Scope) -> str:
    """The operation of the handler that the router stored in the scope."""
    endpoint: Any = scope.get("endpoint")
    return getattr(endpoint, "__name__", UNKNOWN_OPERATION).removeprefix("handle_").strip("<>")
