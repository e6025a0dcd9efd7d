"""Watching tables over HTTP, as server-sent events."""

from __future__ import annotations

import base64
import re
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Annotated, Final, NamedTuple, Protocol
from urllib.parse import parse_qsl

import msgspec
from msgspec import Meta, Struct
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response, StreamingResponse

from bascule.errors import BasculeError
from bascule.http.requests import NUMBER_MAX, MalformedRequest
from bascule.tables.rows import TablePosition
from bascule.tables.watching import (
    Begin,
    Caught,
    Change,
    Restarted,
    Start,
    WatchPosition,
    WatchStep,
)
from bascule.wire.tables.patterns import KeyPattern

LAST_EVENT: Final = "last-event-id"
"""The header with which a client that was disconnected goes on."""
STARTS: Final = {each.value: each for each in Begin}


_EVENT_ID: Final = re.compile(
    r"(\d{1,19})-(-?\d{1,10})(?:-([0-9a-f]{32})(?:-(\d{1,19})-(-?\d{1,10}))?)?", re.ASCII
)
"""Offset, epoch, table and what was `seen`, see `WatchPosition`."""
_OFFSET: Final = re.compile(r"\d{1,19}", re.ASCII)


class Watch(Protocol):
    """One watcher."""

    @property
    def table(self) -> bytes:
        """The id of the table."""
        ...

    @property
    def steps(self) -> AsyncGenerator[WatchStep, None]: ...


class AskedStart(NamedTuple):
    """Where a request begins."""

    start: Start
    of: bytes | None
    """The id of the table that a position is of; None: it is not said."""


class Watches(Protocol):
    """Implemented by `controller`."""

    def where(self, table: str) -> str:
        """Raises: UnknownStream, NotATable, PartitionFailed."""
        ...

    def watch(
        self, table: str, pattern: KeyPattern, start: Start, *, of: bytes | None = None
    ) -> Watch:
        """Raises: UnknownStream, NotATable, PartitionFailed."""
        ...


class TableChangeBody(Struct, kw_only=True, omit_defaults=True):
    """The data of an event `set` or `remove`. Exactly one of `key` and `key_base64` is there."""

    key: Annotated[str | None, Meta(description="The key, if it is text (UTF-8).")] = None
    key_base64: Annotated[str | None, Meta(description="The key, if it is not.")] = None
    version: Annotated[int, Meta(description="The offset of the record.")]
    timestamp: Annotated[int, Meta(description="Unix time of the record, milliseconds.")]
    value: Annotated[str | None, Meta(description="The value, if it is text (UTF-8).")] = None
    value_base64: Annotated[str | None, Meta(description="The value, if it is not.")] = None
    content_type: Annotated[str | None, Meta(description="What the value is, if it says so.")] = (
        None
    )


class WatchedTables(Protocol):
    """A part of `TablesAdmin`."""

    @property
    def watches(self) -> Watches: ...


class TableWatchApi:
    """The handler of watches."""

    def __init__(self, tables: WatchedTables) -> None:
        self._watched = tables

    async def handle_table_watch(self, request: Request) -> Response:
        table = request.path_params["name"]
        query = dict(
            parse_qsl(request.scope["query_string"].decode("ascii"), errors="surrogateescape")
        )
        pattern = watched(query.get("pattern"), query.get("key"))
        start, of = watch_start(query.get("start"), request.headers.get(LAST_EVENT))
        watches = self._watched.watches
        if elsewhere := watches.where(table):
            target = request.url.path + (f"?{request.url.query}" if request.url.query else "")
            return RedirectResponse(f"{elsewhere}{target}")
        watch = watches.watch(table, pattern, start, of=of)
        # The first step comes before the head of the response: its errors have a status.
        first = await anext(watch.steps)
        return StreamingResponse(
            _events(first, watch.steps, b"-" + watch.table.hex().encode()),
            media_type="text/event-stream",
            headers={"cache-control": "no-store"},
        )


def watched(pattern: str | None, key: str | None) -> KeyPattern:
    """Raises: InvalidPattern, InvalidKey, MalformedRequest."""
    if key is None:
        return KeyPattern((pattern or ">").encode(errors="surrogateescape"))
    if pattern is not None:
        raise MalformedRequest("give one of pattern and key", field="key")
    return KeyPattern.of_key(key.encode(errors="surrogateescape"))


def watch_start(text: str | None, last_event: str | None) -> AskedStart:
    """Raises: MalformedRequest."""
    text = last_event or text or Begin.NOW.value
    if text in STARTS:
        return AskedStart(STARTS[text], None)
    seen: TablePosition | None = None
    if (found := _EVENT_ID.fullmatch(text)) is not None:
        offset, epoch, table = int(found[1]), int(found[2]), found[3]
        # An id without that of a table may be of any table: it is none of this one.
        of = b"" if table is None else bytes.fromhex(table)
        if found[4] is not None:
            seen = TablePosition(int(found[4]), int(found[5]))
    elif _OFFSET.fullmatch(text) is not None:
        offset, epoch, of = int(text), -1, None
    else:
        offset, epoch, of = NUMBER_MAX + 1, -1, None
    if offset > NUMBER_MAX or (seen is not None and seen.offset > NUMBER_MAX):
        raise MalformedRequest(
            f"start must be now, state, the id of an event or an offset, got {text[:60]!r}",
            field="start",
        )
    return AskedStart(WatchPosition(offset, epoch, seen), of)


async def _events(
    first: WatchStep, steps: AsyncGenerator[WatchStep, None], of: bytes
) -> AsyncGenerator[bytes, None]:
    """`of`: what ends the ids of events, so that they are known to be of this table."""
    async with aclosing(steps):
        yield _encode(first, of)
        try:
            async for step in steps:
                yield _encode(step, of)
        except BasculeError as error:
            data = msgspec.json.encode({"message": str(error)})
            yield b"event: error\ndata: %b\n\n" % data


def _encode(step: WatchStep, of: bytes) -> bytes:
    match step:
        case Restarted():
            # Who loses the connection before all of the state has come begins with it again.
            return b"id: state\nevent: restart\ndata: {}\n\n"
        case Caught():
            return b'id: %b\nevent: position\ndata: {"position":%d}\n\n' % (
                _event_id(step.position, of), step.position.offset,
            )  # fmt: skip
    return b"".join([each.encoded or _encode_change(each, of) for each in step])


def _event_id(position: WatchPosition, of: bytes) -> bytes:
    id = b"%d-%d%b" % (position.offset, position.epoch, of)
    return id if position.seen is None else b"%b-%d-%d" % (id, *position.seen)


def _encode_change(change: Change, of: bytes) -> bytes:
    """The event of one change, which is encoded once for all who watch it."""
    body = TableChangeBody(
        version=change.version,
        timestamp=change.timestamp,
        content_type=None if change.value is None else change.content_type,
    )
    try:
        body.key = change.key.decode()
    except UnicodeDecodeError:
        body.key_base64 = base64.b64encode(change.key).decode()
    if change.value is not None:
        try:
            body.value = change.value.decode()
        except UnicodeDecodeError:
            body.value_base64 = base64.b64encode(change.value).decode()
    # While the state is shown, an event is no place to go on from: its id is that of `position`.
    mark = b""
    if change.is_ordered:
        mark = b"id: %b\n" % _event_id(change.position, of)
    event = b"remove" if change.value is None else b"set"
    change.encoded = b"%bevent: %b\ndata: %b\n\n" % (mark, event, msgspec.json.encode(body))
    return change.encoded
