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
SILENCE_ASKED_S: Final = 2.5
"""After that a node that streams, and sends nothing, is asked whether it is there."""
SILENCE_S_MAX: Final = 20.0
"""Of a table that is watched: a node says something every 15 s."""
PROBE_APART_S: Final = 0.25
"""The next node is asked so long after the one before, which has answered by then if it can."""
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
        self._asked: dict[str, tuple[float, asyncio.Task[bool]]] = {}
        """Address -> when `answers_lately` has asked there, and the answer."""

        self._patience: dict[str, float] = {}
        """Address -> seconds of silence after which it is asked, where that is not as usual."""

    @property
    def first(self) -> str:
        """The node that is asked next."""
        return self._addresses[0]

    def turn_from(self, asked: str) -> None:
        """Ask another node than `asked` from now on. Requests that went there fail together."""
        if self.first == asked:
            self._addresses.append(self._addresses.pop(0))
            self._heard_at = float("-inf")

    def close(self) -> None:
        for _, asking in self._asked.values():
            asking.cancel()

    async def request(
        self, method: str, path: str, *, waits: float = 0, is_read: bool | None = None, **given: Any
    ) -> httpx.Response:
        """The answer of the first node that gives one; it may come `waits` seconds later than
        usual. A change that was sent is not sent again. `is_read`: None for what the method says.

        Raises: httpx.HTTPError of the last node; the next request goes to another one.
        httpx.LocalProtocolError for what HTTP does not allow.
        """
        is_read = method == "GET" if is_read is None else is_read
        if not is_read:
            await self.turn_to_living()
        left = len(self._addresses)
        while True:
            asked, left = self.first, left - 1
            soon = self._timeout if left == 0 else min(self._timeout, UNANSWERED_S)
            read = (soon if is_read else self._timeout) + waits
            timeout = httpx.Timeout(self._timeout, connect=soon, read=read)
            try:
                response = await self._http.request(
                    method, asked + path, timeout=timeout, follow_redirects=is_read, **given
                )
            except httpx.LocalProtocolError:
                raise  # nothing was sent, and no other node would get it
            except httpx.HTTPError as error:
                # Nobody knows whether a change was carried out; another node may say so.
                self.turn_from(asked)
                if left == 0 or not isinstance(error, _MISSED if is_read else _UNSENT):
                    raise
                if left > 1:
                    await self.turn_to_living()
                continue
            self._hear(asked)
            return response

    def _hear(self, address: str) -> None:
        if self.first == address:
            self._heard_at = asyncio.get_running_loop().time()

    async def turn_to_living(self) -> None:
        """Have the first node be one that has just answered, if there is one. Without others there
        is nothing to choose."""
        loop = asyncio.get_running_loop()
        if len(self._addresses) == 1 or loop.time() - self._heard_at <= HEARD_S:
            return
        asking = [
            loop.create_task(self._is_living(address, PROBE_APART_S * number))
            for number, address in enumerate(self._addresses)
        ]
        try:
            for answer in asyncio.as_completed(asking):
                if (found := await answer) is not None:
                    self._addresses.remove(found)
                    self._addresses.insert(0, found)
                    self._hear(found)
                    return
        finally:
            for task in asking:
                task.cancel()

    def silence_s(self, address: str) -> float:
        """After how many seconds of silence a node that streams is to be asked."""
        return self._patience.get(address, SILENCE_ASKED_S)

    async def is_best(self, address: str, silence_s: float) -> bool:
        """Whether to wait on for a node that streams, and was silent for `silence_s` seconds: it is
        there, or no other one is. One that was left for others may be the only one that can stream
        what is asked: the next time it is given twice as long, until it answers at once again.
        """
        others = [each for each in self._addresses if each != address]
        if not others:
            return True
        if await self.answers_lately(address):
            self._patience.pop(address, None)
            return True
        if not any(await asyncio.gather(*map(self.answers_lately, others))):
            return True
        self._patience[address] = min(2 * silence_s, SILENCE_S_MAX)
        return False

    async def _is_living(self, address: str, later: float) -> str | None:
        """The address if that node answers; `later` seconds after the one before, which most often
        has answered by then."""
        await asyncio.sleep(later)
        return address if await self.answers_lately(address) else None

    async def answers_lately(self, address: str) -> bool:
        """Whether a node says that it is there; what it said within `HEARD_S` counts."""
        loop = asyncio.get_running_loop()
        found = self._asked.get(address)
        if found is None or loop.time() - found[0] > HEARD_S:
            found = self._asked[address] = loop.time(), loop.create_task(self._answers(address))
        return await asyncio.shield(found[1])

    async def _answers(self, address: str) -> bool:
        timeout = min(self._timeout, UNANSWERED_S)
        try:
            await self._http.get(address + ALIVE_PATH, timeout=timeout)
        except httpx.HTTPError:
            return False
        return True
