"""The handlers that write tables."""

from __future__ import annotations

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from bascule.errors import LimitExceeded
from bascule.http.requests import EmptyRequest, decode_body
from bascule.http.responses import json_response
from bascule.http.tables.bodies import TableIncremented, TableWritten
from bascule.http.tables.ports import TablesAdmin
from bascule.http.tables.requests import (
    condition_of,
    content_type_of,
    increment_of,
    key_of,
    message_id_of,
    ttl_of,
)


class TableWritesApi:
    """A part of `TablesApi`."""

    def __init__(self, tables: TablesAdmin) -> None:
        self._tables = tables

    async def _body(self, request: Request) -> bytes:
        raise NotImplementedError

    async def handle_set_table_value(self, request: Request) -> Response:
        table = request.path_params["name"]
        condition = condition_of(request)
        version = await self._tables.writes.set(
            table,
            key_of(request),
            await _value(request, bytes_max=self._tables.writes.message_bytes_max(table)),
            content_type=content_type_of(request),
            ttl=ttl_of(request),
            message_id=message_id_of(request),
            **condition,
        )
        return _written(version, 201 if "if_absent" in condition else 200)

    async def handle_remove_table_value(self, request: Request) -> Response:
        version = await self._tables.writes.set(
            request.path_params["name"],
            key_of(request),
            None,
            message_id=message_id_of(request),
            **condition_of(request),
        )
        return _written(version, 200)

    async def handle_increment_table_value(self, request: Request) -> Response:
        # The body is empty, but its required content type keeps other sites out; see `_body`.
        decode_body(await self._body(request) or b"{}", EmptyRequest)
        version, number = await self._tables.writes.increment(
            request.path_params["name"], key_of(request), increment_of(request)
        )
        body = TableIncremented(version=version, value=str(number))
        return json_response(body, headers={"etag": f'"{version}"'})


def _written(version: int, status: int) -> Response:
    return json_response(TableWritten(version=version), status, {"etag": f'"{version}"'})


async def _value(request: Request, *, bytes_max: int) -> bytes:
    """The body. Raises: LimitExceeded."""
    value = bytearray()
    try:
        async for chunk in request.stream():
            value += chunk
            if (size := len(value)) > bytes_max:
                raise LimitExceeded("the table's message_bytes_max", bytes_max, size)
    except ClientDisconnect:
        raise HTTPException(400, "the connection was closed within the body") from None
    return bytes(value)
