"""`Deferred`: a response that is made once something is done, without a task that waits for it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Generator
from typing import Any

from bascule.wire.schema import Message


class Deferred:
    """What a handler returns where many wait for one event, as commits do for a sync: a connection
    takes the response with one callback of the loop. Everybody else may await it."""

    __slots__ = ("done", "response")

    def __init__(
        self, done: asyncio.Future[Any], response: Callable[[], Message | Awaitable[Message]]
    ) -> None:
        """`response` is called when `done` has a result or an error, and not if it is cancelled."""
        self.done = done
        self.response = response

    def __await__(self) -> Generator[Any, None, Message]:
        return self._answered().__await__()

    async def _answered(self) -> Message:
        try:
            await asyncio.wait([self.done])
        except asyncio.CancelledError:
            self.done.cancel()
            raise
        if self.done.cancelled():
            raise asyncio.CancelledError
        found = self.response()
        return found if isinstance(found, Message) else await found
