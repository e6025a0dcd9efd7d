"""The events of a watched table over HTTP."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, aclosing
from typing import Any, NamedTuple
from urllib.parse import quote, urlencode

import httpx
import msgspec

from bascule.errors import RemoteProtocolError
from bascule.table_results import TableChange
from bascule.wire.tables.patterns import KeyPattern


class TableEvent(NamedTuple):
    """A server-sent event."""

    kind: str
    """`set`, `remove`, `position`, `restart` or `error`."""
    id: str
    """Where to go on behind it; empty: behind the one before."""
    data: dict[str, Any]

    def change(self) -> TableChange:
        """Of an event `set` or `remove`. Raises: RemoteProtocolError."""
        data = self.data
        try:
            key, version, timestamp = _bytes(data, "key"), data["version"], data["timestamp"]
        except KeyError as error:
            raise RemoteProtocolError(f"the node's event is not valid: {error!r}") from error
        value = _bytes(data, "value") if self.kind == "set" else None
        content_type = data.get("content_type")
        return TableChange(key, int(version), int(timestamp), value, content_type, self.id)


class TableEvents:
    """A part of `Admin`."""

    def _stream(
        self, path: str, headers: dict[str, str]
    ) -> AbstractAsyncContextManager[httpx.Response]:
        raise NotImplementedError

    def _silence_s(self, response: httpx.Response) -> float:
        raise NotImplementedError

    async def _is_best(self, response: httpx.Response, silence_s: float) -> bool:
        raise NotImplementedError

    def _refusal(self, response: httpx.Response, *, what: str, name: str) -> Exception:
        raise NotImplementedError

    async def table_events(
        self, name: str, *, pattern: KeyPattern, start: str, last_id: str
    ) -> AsyncGenerator[TableEvent, None]:
        """Events behind that with `last_id`, or from `start` on, until the connection is lost.

        Raises: httpx.HTTPError, UnknownStream, NotATable, InvalidPattern, RemoteProtocolError.
        """
        # Nodes of earlier releases know no `key`.
        asked = "key" if pattern.has_literal_wildcard else "pattern"
        query = urlencode({asked: pattern.text, "start": start})
        path = f"/v1/tables/{quote(name, safe='')}/watch?{query}"
        headers = {"last-event-id": last_id} if last_id else {}
        async with self._stream(path, headers) as response:
            if not response.is_success:
                await response.aread()
                raise self._refusal(response, what=f"GET {path}", name=name)
            fields: dict[str, str] = {}
            silence_s = self._silence_s(response)
            chunks = while_there(
                response.aiter_bytes(), lambda: self._is_best(response, silence_s), silence_s
            )
            async with aclosing(chunks):
                async for line in lines_of(chunks):
                    if line:
                        field, _, value = line.partition(":")
                        fields[field] = value.removeprefix(" ")
                    elif fields:
                        yield _event(fields)
                        fields = {}


async def while_there(
    chunks: AsyncIterator[bytes], is_there: Callable[[], Awaitable[bool]], silence_s: float
) -> AsyncGenerator[bytes, None]:
    """The chunks, as long as who sends them is there, which is asked each `silence_s` seconds while
    nothing comes.

    Raises: httpx.ReadTimeout where it is not.
    """
    loop, gone = asyncio.get_running_loop(), asyncio.Event()
    reading: asyncio.Task[object] | None = None
    heard_at = loop.time()

    async def look() -> None:
        while not gone.is_set():
            await asyncio.sleep(silence_s)
            if loop.time() - heard_at >= silence_s and not await is_there():
                gone.set()
                if reading is not None:
                    reading.cancel()

    looking = loop.create_task(look())
    try:
        while True:
            reading = asyncio.current_task()
            try:
                if gone.is_set():
                    raise httpx.ReadTimeout("the node does not answer any more")
                chunk = await anext(chunks)
            except StopAsyncIteration:
                return
            except asyncio.CancelledError:
                if gone.is_set() and reading is not None and reading.uncancel() == 0:
                    raise httpx.ReadTimeout("the node does not answer any more") from None
                raise
            finally:
                reading = None
            heard_at = loop.time()
            yield chunk
    finally:
        looking.cancel()


async def lines_of(chunks: AsyncIterator[bytes]) -> AsyncGenerator[str, None]:
    """The lines of server-sent events. Other characters that end a line elsewhere, such as U+2028,
    are parts of values."""
    pieces: list[bytes] = []
    async for chunk in chunks:
        *ended, rest = chunk.split(b"\n")
        for line in ended:
            pieces.append(line)
            yield b"".join(pieces).removesuffix(b"\r").decode()
            pieces.clear()
        pieces.append(rest)


def _event(fields: dict[str, str]) -> TableEvent:
    try:
        data = msgspec.json.decode(fields.get("data", "{}"), type=dict[str, Any])
    except msgspec.DecodeError as error:
        raise RemoteProtocolError(f"the node's event is not valid: {error}") from error
    return TableEvent(fields.get("event", ""), fields.get("id", ""), data)


def _bytes(data: dict[str, Any], name: str) -> bytes:
    """Raises: KeyError."""
    if (encoded := data.get(f"{name}_base64")) is not None:
        return base64.b64decode(encoded)
    if name not in data and name == "value":
        return b""
    return str(data[name]).encode()
