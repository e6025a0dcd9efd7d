"""The handlers that read tables."""

from __future__ import annotations

import asyncio
from email.utils import formatdate
from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from bascule.http.requests import decode_body
from bascule.http.responses import json_response
from bascule.http.tables.bodies import (
    TableBody,
    TableList,
    entries_body,
    keys_body,
    values_body,
)
from bascule.http.tables.conditions import conditions_of
from bascule.http.tables.ports import TablesAdmin
from bascule.http.tables.requests import GetRequest, choice_of, consistency_of, key_of

OCTETS: Final = "application/octet-stream"
INERT: Final = {
    "content-security-policy": "sandbox; default-src 'none'",
    "x-content-type-options": "nosniff",
}
"""A value is a stranger's, of a type that the stranger has chosen. No script in it may run,
where the API is of the same origin."""


class TableReadsApi:
    """A part of `TablesApi`."""

    def __init__(self, tables: TablesAdmin) -> None:
        self._tables = tables

    async def _body(self, request: Request) -> bytes:
        raise NotImplementedError

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
        page = await self._tables.keys(
            request.path_params["name"], choice_of(request), **consistency_of(request)
        )
        return await asyncio.to_thread(lambda: json_response(keys_body(page)))

    async def handle_table_entries(self, request: Request) -> Response:
        page = await self._tables.entries(
            request.path_params["name"], choice_of(request), **consistency_of(request)
        )
        return await asyncio.to_thread(lambda: json_response(entries_body(page)))

    async def handle_table_values(self, request: Request) -> Response:
        asked = decode_body(await self._body(request), GetRequest)
        found = await self._tables.get_many(
            request.path_params["name"], asked.all_keys(), **consistency_of(request)
        )
        return await asyncio.to_thread(lambda: json_response(values_body(found)))

    async def handle_table_value(self, request: Request) -> Response:
        table, key = request.path_params["name"], key_of(request)
        conditions = conditions_of(request)
        position, entry = await self._tables.get(table, key, **consistency_of(request))
        if not conditions.is_matched(entry.version):
            refusal = conditions.refusal(table, key, entry.version)
            assert refusal is not None
            raise refusal
        headers = {
            "etag": f'"{entry.version}"',
            "bascule-position": str(position),
            "bascule-timestamp": str(entry.timestamp),
            "last-modified": formatdate(entry.timestamp / 1000, usegmt=True),
        }
        if not conditions.is_other(entry.version):
            return Response(status_code=304, headers=headers)
        headers |= INERT | {"content-type": entry.content_type or OCTETS}
        return Response(entry.value, headers=headers)
