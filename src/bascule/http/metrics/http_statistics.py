"""How much the HTTP door is used, by operation."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from bascule.replica.metrics import SECONDS, Histogram

UNKNOWN = "unknown"
"""The operation of a request to a path that is not offered."""


@dataclass(slots=True)
class HttpStatistics:
    """Counters since the door opened; only the event loop writes them."""

    requests: Counter[tuple[str, int]] = field(default_factory=Counter)
    """By operation and status."""
    request_ns: dict[str, Histogram] = field(default_factory=dict)
    """Time until the last byte was handed over, by operation."""
    bytes_out: int = 0
    """Bytes of bodies sent."""
    connections: int = 0
    """Open now."""
    connections_accepted: int = 0
    connections_refused: int = 0
    """Closed at once: too many."""
    connections_expired: int = 0
    """Closed for a request never finished or a response never taken."""
    protocol_errors: int = 0
    """Answered with 400 and closed: no HTTP."""

    def on_answered(self, operation: str, *, status: int, took_ns: int) -> None:
        self.requests[operation, status] += 1
        histogram = self.request_ns.get(operation)
        if histogram is None:
            histogram = self.request_ns[operation] = Histogram(SECONDS)
        histogram.observe(took_ns)


class Measured:
    """Counts what passes to the application and back."""

    def __init__(self, app: ASGIApp, statistics: HttpStatistics) -> None:
        self.app = app
        self.statistics = statistics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        loop = asyncio.get_running_loop()
        began = loop.time()
        status = 500

        async def counted(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            else:
                self.statistics.bytes_out += len(message.get("body", b""))
            await send(message)

        try:
            await self.app(scope, receive, counted)
        finally:
            took_ns = int((loop.time() - began) * 1e9)
            self.statistics.on_answered(_operation(scope), status=status, took_ns=took_ns)


def _operation(scope: Scope) -> str:
    """The name of the handler the router chose, which it leaves in the scope."""
    endpoint: Any = scope.get("endpoint")
    return getattr(endpoint, "__name__", UNKNOWN).removeprefix("handle_").strip("<>")
