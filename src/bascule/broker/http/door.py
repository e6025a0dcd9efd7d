"""The HTTP listener: the application behind a socket, and who may speak to it."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Iterator
from contextlib import contextmanager

import uvicorn
from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from bascule.broker.http.answers import json_response
from bascule.broker.http.shapes import ErrorBody, ErrorDetail


class LoopbackGuard:
    """Refuse a request that reached a loopback address under another host's name.

    A page of a stranger can have its own name resolve to 127.0.0.1 and would then be of the same
    origin as this door (DNS rebinding). A node that listens on a public address is not guarded.
    """

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and _is_loopback(scope.get("server")):
            host = Request(scope).headers.get("host", "")
            if not _names_an_address(host):
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


def _names_an_address(host: str) -> bool:
    name = host.rpartition(":")[0] if host.rpartition(":")[2].isdigit() else host
    if name in ("localhost", ""):
        return True
    try:
        ipaddress.ip_address(name.strip("[]"))
    except ValueError:
        return False
    return True


class _Server(uvicorn.Server):
    """uvicorn without signal handlers: the node decides when its doors close."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class HttpDoor:
    """The application behind a listening socket."""

    def __init__(self, app: ASGIApp) -> None:
        config = uvicorn.Config(
            app,
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=5,
        )
        self._server = _Server(config)
        self._task: asyncio.Task[None] | None = None

    async def start(self, host: str, port: int) -> tuple[str, int]:
        """Listen and serve; returns the bound address. Raises: OSError if it cannot be bound."""
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listener = socket.create_server((host, port), family=family, backlog=256)
        listener.setblocking(False)
        bound = listener.getsockname()
        self._task = asyncio.create_task(self._server.serve(sockets=[listener]), name="http")
        return bound[0], bound[1]

    async def close(self) -> None:
        """Stop accepting, answer what is in flight for at most 5 s, close."""
        if self._task is not None:
            self._server.should_exit = True
            await self._task
            self._task = None
