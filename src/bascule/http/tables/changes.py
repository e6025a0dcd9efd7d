"""The handler of pages of changes, for copies of tables outside the cluster."""

from __future__ import annotations

import asyncio
import re
from typing import Final

from starlette.datastructures import QueryParams
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from bascule.http.requests import MalformedRequest
from bascule.http.tables.ports import TablesAdmin
from bascule.http.tables.requests import bytes_of_query, number
from bascule.table_results import PageAsked
from bascule.wire.tables.sync_pages import (
    CRC_HEADER,
    MEDIA_TYPE,
    TABLE_ID_BYTES,
    SyncPage,
    checksum,
    encode_page,
)

ROWS: Final = 10_000
BYTES: Final = 1 << 20
BYTES_MAX: Final = 4 << 20
WAIT_MS_MAX: Final = 30_000
EPOCH_MAX: Final = (1 << 31) - 1
FOLLOWER_CHARACTERS_MAX: Final = 128
NO_EPOCH: Final = "-1"
_TABLE: Final = re.compile(f"[0-9a-f]{{{2 * TABLE_ID_BYTES}}}")


class TableChangesApi:
    """A part of `TablesApi`."""

    def __init__(self, tables: TablesAdmin) -> None:
        self._tables = tables

    async def handle_table_changes(self, request: Request) -> Response:
        table = request.path_params["name"]
        asked = page_asked(request)
        if elsewhere := self._tables.followers.where(table):
            target = request.url.path + (f"?{request.url.query}" if request.url.query else "")
            return RedirectResponse(f"{elsewhere}{target}")
        page = await self._tables.followers.page(table, asked)
        return await asyncio.to_thread(_response, page)


def _response(page: SyncPage) -> Response:
    body = encode_page(page)
    headers = {CRC_HEADER: checksum(body), "cache-control": "no-store"}
    return Response(body, media_type=MEDIA_TYPE, headers=headers)


def page_asked(request: Request) -> PageAsked:
    """Raises: MalformedRequest."""
    given = request.query_params
    table = given.get("id")
    if table is not None and not _TABLE.fullmatch(table):
        raise MalformedRequest(
            f"id has {2 * TABLE_ID_BYTES} hexadecimal digits, got {table[:40]!r}", field="id"
        )
    follower = given.get("follower", "")
    if len(follower) > FOLLOWER_CHARACTERS_MAX or not follower.isprintable():
        raise MalformedRequest(
            f"follower has at most {FOLLOWER_CHARACTERS_MAX} printable characters",
            field="follower",
        )
    return PageAsked(
        table=None if table is None else bytes.fromhex(table),
        since=number(given.get("since"), "since", 0),
        epoch=_epoch(given, "epoch"),
        after=bytes_of_query(request).get("after"),
        rows_max=number(given.get("rows"), "rows", ROWS, low=1, high=ROWS),
        bytes_max=number(given.get("bytes"), "bytes", BYTES, low=1, high=BYTES_MAX),
        wait=number(given.get("wait_ms"), "wait_ms", 0, high=WAIT_MS_MAX) / 1000,
        follower=follower or (request.client.host if request.client else ""),
        applied=number(given.get("applied"), "applied", 0),
        seen=number(given.get("seen"), "seen", 0),
        seen_epoch=_epoch(given, "seen_epoch"),
    )


def _epoch(given: QueryParams, name: str) -> int:
    """Raises: MalformedRequest."""
    epoch = given.get(name, NO_EPOCH)
    return -1 if epoch == NO_EPOCH else number(epoch, name, 0, high=EPOCH_MAX)
