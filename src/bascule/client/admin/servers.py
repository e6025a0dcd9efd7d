"""`Servers`: which of several nodes a request goes to, where some do not answer.

A node that is down refuses connections. One that hangs, such as a machine that stands still, takes
them and answers nothing: the next one is asked after a few seconds. Nobody can say whether a change
that a node has not answered was carried out, so it is not sent to another one. Instead a node that
has not been heard of for a moment is asked first whether it is there.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

import httpx

UNANSWERED_S: Final = 3.0
"""A node whose answer needs others waits 2 s for them."""
HEARD_S: Final = 3.0
"""A node that has answered within this time gets changes without a question."""
ALIVE_PATH: Final = "/healthz"
_UNSENT: Final = (httpx.ConnectError, httpx.ConnectTimeout)
_MISSED: Final = (*_UNSENT, httpx.NetworkError, httpx.ProtocolError, httpx.TimeoutException)


class Servers:
    """Belongs to the event loop."""

    def __init__(self, addresses: list[str], http: httpx.AsyncClient, *, timeout: float) -> None:
        """`addresses` are URLs; `timeout` is in seconds."""
        self._addresses = addresses
        self._http = http
        self._timeout = timeout
        self._heard_at = float("-inf")
        """When the first of them has answered."""

    @property
    def first(self) -> str:
        """The node that is asked next."""
        return self._addresses[0]

    def turn(self) -> None:
        """Ask another node from now on."""
        self._addresses.append(self._addresses.pop(0))
        self._heard_at = float("-inf")

    async def request(
        self, method: str, path: str, *, waits: float = 0, **given: Any
    ) -> httpx.Response:
        """The answer of the first node that gives one; it may come `waits` seconds later than
        usual. A change that was sent is not sent again.

        Raises: httpx.HTTPError of the last node; the next request goes to another one.
        """
        missed: tuple[type[httpx.HTTPError], ...] = _MISSED
        if method != "GET":
            await self.turn_to_living()
            missed = _UNSENT
        left = len(self._addresses)
        while True:
            asked, left = self.first, left - 1
            try:
                return await self._send(method, path, waits, given, is_last=left == 0)
            except httpx.HTTPError as error:
                # Nobody knows whether a change was carried out; another node may say so.
                self._turn_from(asked)
                if left == 0 or not isinstance(error, missed):
                    raise

    async def _send(
        self, method: str, path: str, waits: float, given: dict[str, Any], *, is_last: bool
    ) -> httpx.Response:
        """The answer of the first node. Raises: httpx.HTTPError."""
        is_read = method == "GET"
        soon = self._timeout if is_last else min(self._timeout, UNANSWERED_S)
        read = (soon if is_read else self._timeout) + waits
        timeout = httpx.Timeout(self._timeout, connect=soon, read=read)
        asked = self.first
        response = await self._http.request(
            method, asked + path, timeout=timeout, follow_redirects=is_read, **given
        )
        if self.first == asked:
            self._heard_at = asyncio.get_running_loop().time()
        return response

    def _turn_from(self, asked: str) -> None:
        """Requests that went to the same node fail together."""
        if self.first == asked:
            self.turn()

    async def turn_to_living(self) -> None:
        """Have the first node be one that has just answered, if another than the last one does."""
        loop = asyncio.get_running_loop()
        for _ in self._addresses[1:]:
            if loop.time() - self._heard_at <= HEARD_S:
                break
            asked = self.first
            try:
                await self._send("GET", ALIVE_PATH, 0, {}, is_last=False)
            except _MISSED:
                self._turn_from(asked)
