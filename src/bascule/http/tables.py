"""Tables over HTTP: the latest value of each key of a compacted stream."""

from __future__ import annotations

import asyncio
import base64
from email.utils import formatdate
from typing import Annotated, Final, Protocol
from urllib.parse import parse_qsl, unquote_to_bytes

from msgspec import Meta, Struct
from starlette.requests import Request
from starlette.responses import Response

from bascule.http.requests import NUMBER_MAX, MalformedRequest
from bascule.http.responses import json_response
from bascule.table_results import TableEntry, TableInfo, TablePage

PAGE_KEYS: Final = 1_000
PAGE_KEYS_MAX: Final = 10_000


class TablesAdmin(Protocol):
    """Reads of tables; implemented by `controller`."""

    def names(self) -> list[str]: ...

    async def get(self, table: str, key: bytes, *, at_least: int = 0) -> TableEntry:
        """Raises: UnknownKey, InvalidKey, UnknownStream, NotATable."""
        ...

    async def scan(
        self,
        table: str,
        *,
        prefix: bytes = b"",
        after: bytes | None = None,
        limit: int = ...,
        at_least: int = 0,
    ) -> TablePage:
        """Raises: UnknownStream, NotATable."""
        ...

    async def describe(self, table: str) -> TableInfo:
        """Raises: UnknownStream, NotATable."""
        ...


_Version = Annotated[int, Meta(description="The offset of the key's latest record.")]


class TableBody(Struct, kw_only=True):
    """A table as one of its replicas sees it."""

    name: str
    node: Annotated[int, Meta(description="The node that holds the replica.")]
    keys: int
    position: Annotated[int, Meta(description="The first offset that is not in the table yet.")]
    high_watermark: Annotated[int, Meta(description="End of the committed records there.")]
    skipped: Annotated[
        int, Meta(description="Records without a key of the table, since the node started.")
    ]


class TableList(Struct, kw_only=True):
    """Names of tables, in order."""

    tables: list[str]


class TableKeyBody(Struct, kw_only=True, omit_defaults=True):
    """A key with a value. Exactly one of `key` and `key_base64` is there."""

    key: Annotated[str | None, Meta(description="The key, if it is text (UTF-8).")] = None
    key_base64: Annotated[str | None, Meta(description="The key, if it is not.")] = None
    version: _Version
    timestamp: Annotated[int, Meta(description="Unix time of the record, milliseconds.")]
    value_bytes: Annotated[int, Meta(description="The size of the value.")]


class TableKeyList(Struct, kw_only=True):
    """Keys in the order of their bytes."""

    keys: list[TableKeyBody]
    is_last: Annotated[bool, Meta(description="False: ask again with `after` the last key.")]


class TablesApi:
    """The handlers of tables."""

    def __init__(self, tables: TablesAdmin) -> None:
        self._tables = tables

    async def handle_list_tables(self, request: Request) -> Response:
        return json_response(TableList(tables=self._tables.names()))

    async def handle_table(self, request: Request) -> Response:
        found = await self._tables.describe(request.path_params["name"])
        return json_response(
            TableBody(
                name=found.name,
                node=found.node,
                keys=found.keys,
                position=found.position,
                high_watermark=found.high_watermark,
                skipped=found.skipped,
            )
        )

    async def handle_table_keys(self, request: Request) -> Response:
        query = request.query_params
        given = _bytes_of_query(request)
        page = await self._tables.scan(
            request.path_params["name"],
            prefix=given.get("prefix", b""),
            after=given.get("after"),
            limit=_number(query.get("limit"), "limit", PAGE_KEYS, low=1, high=PAGE_KEYS_MAX),
            at_least=_at_least(request),
        )
        return await asyncio.to_thread(lambda: json_response(_keys_body(page)))

    async def handle_table_value(self, request: Request) -> Response:
        entry = await self._tables.get(
            request.path_params["name"], _key_of(request), at_least=_at_least(request)
        )
        headers = {
            "etag": f'"{entry.version}"',
            "bascule-timestamp": str(entry.timestamp),
            "last-modified": formatdate(entry.timestamp / 1000, usegmt=True),
        }
        if f'"{entry.version}"' in request.headers.get("if-none-match", ""):
            return Response(status_code=304, headers=headers)
        return Response(entry.value, media_type="application/octet-stream", headers=headers)


def _key_of(request: Request) -> bytes:
    """The key in the path, which may be any bytes."""
    path: bytes = request.scope["raw_path"]
    return unquote_to_bytes(path.split(b"?")[0].split(b"/keys/", 1)[1])


def _bytes_of_query(request: Request) -> dict[str, bytes]:
    """The parameters, which may be any bytes."""
    text = request.scope["query_string"].decode("ascii")
    pairs = parse_qsl(text, errors="surrogateescape")
    return {name: value.encode(errors="surrogateescape") for name, value in pairs}


def _at_least(request: Request) -> int:
    return _number(request.query_params.get("at_least"), "at_least", 0)


def _number(
    text: str | None, name: str, default: int, *, low: int = 0, high: int = NUMBER_MAX
) -> int:
    """Raises: MalformedRequest."""
    if text is None:
        return default
    if not (text.isascii() and text.isdecimal() and len(text) <= len(str(NUMBER_MAX))):
        raise MalformedRequest(f"{name} {text[:40]!r} is not a number", field=name)
    if not low <= int(text) <= high:
        raise MalformedRequest(f"{name} must be {low} to {high}, got {text}", field=name)
    return int(text)


def _keys_body(page: TablePage) -> TableKeyList:
    keys = []
    for key, version, timestamp, value in page.entries:
        body = TableKeyBody(version=version, timestamp=timestamp, value_bytes=len(value))
        try:
            body.key = key.decode()
        except UnicodeDecodeError:
            body.key_base64 = base64.b64encode(key).decode()
        keys.append(body)
    return TableKeyList(keys=keys, is_last=page.is_last)
