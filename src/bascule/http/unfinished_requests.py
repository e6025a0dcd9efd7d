"""What requests get that are not answered in time when the listener closes."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import Final, Protocol

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from bascule.errors import Closed, Indeterminate
from bascule.http.responses import error_response

log = logging.getLogger("bascule.http")

ABORT: Final = "bascule.abort"
"""The key in the `extensions` of a scope."""
SAFE_METHODS: Final = frozenset({"GET", "HEAD"})
"""They change nothing, so a client may ask another node at once."""


class Abort(Protocol):
    """An ASGI extension: close the connection now, in the middle of a response."""

    def __call__(self) -> None: ...


class UnfinishedRequests:
    """Knows which requests are being answered, and ends them when the listener has to close.

    Left to the server, they would be cancelled, and logged as failures of the application.
    """

    def __init__(self, app: ASGIApp) -> None:
        self.app = app
        self._tasks: set[asyncio.Task[object]] = set()
        self._is_ended = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        task = asyncio.current_task()
        assert task is not None
        is_begun = False

        async def noting(message: Message) -> None:
            nonlocal is_begun
            is_begun = True
            await send(message)

        self._tasks.add(task)
        try:
            await self.app(scope, receive, noting)
        except asyncio.CancelledError:
            if not self._is_ended:
                raise
            task.uncancel()
            if is_begun:
                scope["extensions"][ABORT]()
            else:
                await _refuse(scope, receive, send)
        finally:
            self._tasks.discard(task)

    async def end_after(self, seconds: float) -> None:
        """Wait for the requests to be answered; after so many seconds end those that are left."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while self._tasks:
                    await asyncio.wait(self._tasks)
        if self._tasks:
            log.warning("requests are not answered in time", extra={"requests": len(self._tasks)})
        self._is_ended = True
        for task in self._tasks:
            task.cancel()


async def _refuse(scope: Scope, receive: Receive, send: Send) -> None:
    error: Closed | Indeterminate = Indeterminate(
        "the node is stopping and did not wait any longer: the request may have taken effect"
    )
    if scope["method"] in SAFE_METHODS:
        error = Closed("the node is stopping and did not wait any longer; ask another node")
    response = error_response(error)
    response.headers["connection"] = "close"
    await response(scope, receive, send)
