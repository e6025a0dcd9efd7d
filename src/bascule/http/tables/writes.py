"""The handlers that write tables."""

from __future__ import annotations

from typing import Any, Final

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from bascule.errors import UnknownKey, WrongVersion
from bascule.http.requests import EmptyRequest, MalformedRequest, decode_body
from bascule.http.responses import json_response
from bascule.http.tables.bodies import TableIncremented, TableWritten
from bascule.http.tables.conditions import Conditions, conditions_of
from bascule.http.tables.ports import TablesAdmin
from bascule.http.tables.requests import (
    content_type_of,
    increment_of,
    key_of,
    message_id_of,
    ttl_of,
)
from bascule.publish.acks import too_large
from bascule.wire.ack_codes import publish_error
from bascule.wire.tables.conditions import TTL_HEADER, VERSION_MAX

ATTEMPTS_MAX: Final = 10
"""Of a write under a condition that is compared here, while others write the key."""


class TableWritesApi:
    """A part of `TablesApi`."""

    def __init__(self, tables: TablesAdmin) -> None:
        self._tables = tables

    async def _body(self, request: Request) -> bytes:
        raise NotImplementedError

    async def handle_set_table_value(self, request: Request) -> Response:
        table = request.path_params["name"]
        conditions = conditions_of(request)
        value = await _value(request, bytes_max=self._tables.writes.message_bytes_max(table))
        version, is_new = await self._write(
            request,
            conditions,
            value,
            content_type=content_type_of(request),
            ttl=ttl_of(request),
        )
        return _written(version, 201 if is_new else 200)

    async def handle_remove_table_value(self, request: Request) -> Response:
        version, _ = await self._write(request, conditions_of(request), None)
        return _written(version, 200)

    async def _write(
        self, request: Request, conditions: Conditions, value: bytes | None, **more: Any
    ) -> tuple[int, bool]:
        """The version, and whether it was a condition that the key had no value.

        Conditions that the leader cannot compare by itself are compared with what it has, and it
        compares that it still has it. A repetition with the message id of a write that is stored
        gets its version, although the key has another one since: so it is sent, with a condition
        that holds of nothing.
        """
        table, key, id = request.path_params["name"], key_of(request), message_id_of(request)

        async def write(**condition: Any) -> int:
            return await self._tables.writes.set(
                table, key, value, message_id=id, **condition, **more
            )

        if (condition := conditions.at_leader()) is not None:
            return await write(**condition), "if_absent" in condition
        for attempt in range(1, ATTEMPTS_MAX + 1):
            version = await self._version(table, key)
            refusal = conditions.refusal(table, key, version)
            if refusal is not None and id is None:
                raise refusal
            if refusal is not None:
                condition = {"if_version": VERSION_MAX}
            else:
                condition = {"if_absent": True} if version is None else {"if_version": version}
            try:
                return await write(**condition), version is None
            except WrongVersion:
                if refusal is not None:
                    raise refusal from None
                if attempt == ATTEMPTS_MAX:
                    raise
        raise AssertionError("the last attempt returns or raises")

    async def _version(self, table: str, key: bytes) -> int | None:
        """The version of a value as the leader has it; None: there is none."""
        try:
            return (await self._tables.get(table, key, linearizable=True))[1].version
        except UnknownKey:
            return None

    async def handle_increment_table_value(self, request: Request) -> Response:
        if conditions_of(request) != Conditions(None, None):
            raise MalformedRequest(
                "an increment has no conditions: set the value with If-Match", field="If-Match"
            )
        if ttl_of(request) is not None:
            raise MalformedRequest(
                "the time to live of an increment is that of the table: set the value with "
                "Nats-TTL",
                field=TTL_HEADER,
            )
        # The body is empty, but its required content type keeps other sites out; see `_body`.
        decode_body(await self._body(request) or b"{}", EmptyRequest)
        version, number = await self._tables.writes.increment(
            request.path_params["name"],
            key_of(request),
            increment_of(request),
            message_id=message_id_of(request),
        )
        value = None if number is None else str(number)
        body = TableIncremented(version=version, value=value)
        return json_response(body, headers={"etag": f'"{version}"'})


def _written(version: int, status: int) -> Response:
    return json_response(TableWritten(version=version), status, {"etag": f'"{version}"'})


async def _value(request: Request, *, bytes_max: int) -> bytes:
    """The body. Raises: PublishRejected for a larger one, as the table's leader does."""
    said = request.headers.get("content-length", "")
    value = bytearray()
    try:
        async for chunk in request.stream():
            value += chunk
            if len(value) > bytes_max:
                error = too_large(bytes_max, int(said) if said.isdecimal() else None)
                raise publish_error(error.code, error.err_code, error.description)
    except ClientDisconnect:
        raise HTTPException(400, "the connection was closed within the body") from None
    return bytes(value)
