"""The handler that sends a payload, and the rows of the route table."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from starlette.requests import Request
from starlette.responses import FileResponse, RedirectResponse, Response

from bascule.http.openapi import ApiOperation
from bascule.http.payloads.writes import WRITE_OPERATIONS, PayloadWritesApi
from bascule.http.requests import MalformedRequest, partition_number
from bascule.http.tables.reads import INERT, OCTETS
from bascule.record.payload_links import CRC_HEADER, ID_HEADER

CHUNK_BYTES: Final = 1 << 20
OFFSET_DIGITS_MAX: Final = 18


class _PayloadResponse(FileResponse):
    chunk_size = CHUNK_BYTES


class PayloadsApi(PayloadWritesApi):
    """A part of `AdminApi`."""

    async def handle_payload(self, request: Request) -> Response:
        given = request.path_params
        offset = given["offset"]
        if not (offset.isascii() and offset.isdecimal() and len(offset) <= OFFSET_DIGITS_MAX):
            raise MalformedRequest(f"offset {offset[:40]!r}, expected a number", field="offset")
        partition = partition_number(given["partition"])
        found = self._payloads.find_file(given["name"], partition, int(offset))
        if found.payload is None:
            return RedirectResponse(f"{found.elsewhere}{request.url.path}")
        payload = found.payload
        headers = INERT | {
            "etag": f'"{payload.id}"',
            ID_HEADER.lower(): payload.id,
            CRC_HEADER.lower(): f"{payload.crc:08x}",
        }
        if headers["etag"] in request.headers.get("if-none-match", ""):
            return Response(status_code=304, headers=headers)
        stat = await asyncio.to_thread(Path(found.path).stat)
        return _PayloadResponse(found.path, headers=headers, media_type=OCTETS, stat_result=stat)


PAYLOAD_OPERATIONS: Final[Mapping[str, ApiOperation]] = {
    "payload": ApiOperation(
        "GET",
        "/v1/streams/{name}/partitions/{partition}/payloads/{offset}",
        "The payload of the record at an offset; its id is the ETag. `Range` and `If-Range` ask "
        "for a part of it. A node without it redirects to one that has it",
        {
            200: ("The bytes.", None),
            206: ("The bytes of `Range`.", None),
            304: ("`If-None-Match` has the id.", None),
            307: ("Another node has it.", None),
        },
        errors=(
            (400, "malformed_request"),
            (404, "unknown_stream"),
            (404, "unknown_partition"),
            (404, "unknown_payload"),
            (500, "partition_failed"),
        ),
        example="curl -L $SERVER/v1/streams/models/partitions/0/payloads/0 -H 'Range: bytes=0-99'",
        media_type=OCTETS,
    ),
    **WRITE_OPERATIONS,
}
