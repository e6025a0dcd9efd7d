"""The handler that sends a payload, and the rows of the route table."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import Final

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.types import Receive, Scope, Send

from bascule.datastream.ports import FoundFile
from bascule.errors import PayloadDamaged, PayloadMissing
from bascule.http.openapi import ApiOperation
from bascule.http.payloads.ports import PayloadsAdmin
from bascule.http.payloads.ranges import has_tag, range_of
from bascule.http.payloads.sendfile import SENDFILE, SendFile
from bascule.http.payloads.writes import WRITE_OPERATIONS, PayloadWritesApi
from bascule.http.requests import MalformedRequest, partition_number
from bascule.http.tables.reads import INERT, OCTETS
from bascule.payload_connection.reader import PayloadReader
from bascule.record.payload_links import CRC_HEADER, ID_HEADER
from bascule.storage.payloads.verified_file import VerifiedFile
from bascule.wire.datastream.messages import FetchPayload

OFFSET_DIGITS_MAX: Final = 18
OTHER_SECONDS_MAX: Final = 10.0
"""Without progress of another replica, where the file of this node is damaged."""


class PayloadsApi(PayloadWritesApi):
    """A part of `AdminApi`."""

    async def handle_payload(self, request: Request) -> Response:
        given = request.path_params
        offset = given["offset"]
        if not (offset.isascii() and offset.isdecimal() and len(offset) <= OFFSET_DIGITS_MAX):
            raise MalformedRequest(f"offset {offset[:40]!r}, expected a number", field="offset")
        partition = partition_number(given["partition"])
        found = await self._payloads.find_file(given["name"], partition, int(offset))
        if found.payload is None:
            return RedirectResponse(f"{found.elsewhere}{request.url.path}")
        payload, tag = found.payload, f'"{found.payload.id}"'
        headers = INERT | {
            "etag": tag,
            "accept-ranges": "bytes",
            "content-type": OCTETS,
            ID_HEADER.lower(): payload.id,
            CRC_HEADER.lower(): f"{payload.crc:08x}",
        }
        asked = request.headers
        if "if-match" in asked and not has_tag(asked["if-match"], tag, weak=False):
            return Response(status_code=412, headers=headers)
        if has_tag(asked.get("if-none-match", ""), tag, weak=True):
            return Response(status_code=304, headers=headers)
        try:
            # RFC 9110, 14.2: a range is defined for GET alone.
            part = range_of(asked, tag, payload.size) if request.method == "GET" else None
        except ValueError:
            headers["content-range"] = f"bytes */{payload.size}"
            return Response(status_code=416, headers=headers)
        start, end = part or (0, payload.size)
        if part is not None:
            headers["content-range"] = f"bytes {start}-{end - 1}/{payload.size}"
        headers["content-length"] = str(end - start)
        if request.method == "HEAD":
            return Response(headers=headers)
        fetch = FetchPayload(given["name"], partition, payload.id, int(offset), start, end)
        pieces = _Pieces(self._payloads, found, fetch)
        await pieces.begin()
        return _PayloadResponse(pieces, 206 if part else 200, headers)


class _Pieces:
    """The bytes of a payload, from the file of this node as long as they are right, and then from
    another replica."""

    def __init__(self, payloads: PayloadsAdmin, found: FoundFile, fetch: FetchPayload) -> None:
        self._payloads = payloads
        self._found = found
        self._fetch = fetch
        self._position = fetch.start
        self._checked = 0
        """Bytes from `_position` on that were compared."""
        self._source: VerifiedFile | None = None
        self._reader: PayloadReader | None = None
        """Of another replica."""
        self._read = b""
        """What it has given already."""

    async def begin(self) -> None:
        """Compare the first piece, while an error can still be answered. Raises: PayloadDamaged,
        PayloadMissing, OSError if no other replica is alive; what `PayloadReader` raises if none
        has it."""
        opened = self._found.open
        assert opened is not None
        try:
            self._source = await opened(self._fetch.start, self._fetch.end)
            await self._check()
        except (PayloadDamaged, PayloadMissing, OSError) as error:
            self._on_damage(error)
            if not self._found.elsewhere:
                raise
            await self._begin_elsewhere()

    async def _begin_elsewhere(self) -> None:
        """Have the first bytes of another replica."""
        self._reader = reader = self._other_reader()
        try:
            async with aclosing(reader.chunks()) as chunks:
                self._read = await anext(chunks, b"")
        except BaseException:
            self.close()
            raise

    def _other_reader(self) -> PayloadReader:
        """Of the payload whose size and checksum are in the headers of the answer."""
        return PayloadReader(
            self._payloads.bootstrap, self._fetch,
            timeout=OTHER_SECONDS_MAX, expected=self._found.payload,
        )  # fmt: skip

    def _on_damage(self, error: Exception) -> None:
        self._found.on_damage(error)
        self._source, self._checked = None, 0

    async def _check(self) -> None:
        """Compare the next piece, and with the last one the whole. Raises: PayloadDamaged,
        OSError."""
        source, end = self._source, self._fetch.end
        assert source is not None
        length = source.piece_length(self._position, end)
        if length:
            await asyncio.to_thread(source.check, self._position, length)
        if self._position + length == end:
            await asyncio.to_thread(source.end)
        self._checked = length

    async def send(self, sendfile: SendFile | None, send: Send) -> None:
        """Raises: PayloadDamaged, Broken if no replica has the rest; OSError."""
        while self._source is not None and self._position < self._fetch.end:
            if sendfile is not None:
                await sendfile(self._source.file, self._position, self._checked)
            else:
                data = await asyncio.to_thread(
                    self._source.file.read_at, self._position, self._checked
                )
                await send({"type": "http.response.body", "body": data, "more_body": True})
            self._position += self._checked
            if self._position == self._fetch.end:
                break
            is_compared = self._source.is_compared
            try:
                await self._check()
            except (PayloadDamaged, OSError) as error:
                self._on_damage(error)
                if not is_compared:
                    raise  # what is sent may be damaged, too
        async with aclosing(self._rest()) as rest:
            async for chunk in rest:
                await send({"type": "http.response.body", "body": chunk, "more_body": True})

    async def _rest(self) -> AsyncGenerator[bytes, None]:
        """What is left, from another replica."""
        if self._position >= self._fetch.end:
            return
        if self._reader is None:
            self._fetch.start = self._position
            self._reader = self._other_reader()
        if self._read:
            yield self._read
        async for chunk in self._reader:
            yield chunk

    def close(self) -> None:
        """Nothing is sent any more."""
        if self._reader is not None:
            self._reader.close()


class _PayloadResponse(Response):
    """By sendfile, where the listener has it."""

    def __init__(self, pieces: _Pieces, status: int, headers: Mapping[str, str]) -> None:
        super().__init__(None, status)
        self.init_headers(headers)
        self._pieces = pieces

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await send(
                {
                    "type": "http.response.start",
                    "status": self.status_code,
                    "headers": self.raw_headers,
                }
            )
            await self._pieces.send(scope.get("extensions", {}).get(SENDFILE), send)
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        finally:
            self._pieces.close()


PAYLOAD_OPERATIONS: Final[Mapping[str, ApiOperation]] = {
    "payload": ApiOperation(
        "GET",
        "/v1/streams/{name}/partitions/{partition}/payloads/{offset}",
        "The payload of the record at an offset; its id is the ETag. `Range` and `If-Range` ask "
        "for a part of it. A node without it redirects to one that has it",
        {
            200: ("The bytes.", None),
            206: ("The bytes of `Range`.", None),
            304: ("`If-None-Match` has the id, or is `*`.", None),
            307: ("Another node has it.", None),
            412: ("`If-Match` does not have the id.", None),
            416: ("No byte of `Range` is there.", None),
        },
        errors=(
            (400, "malformed_request"),
            (404, "unknown_stream"),
            (404, "unknown_partition"),
            (404, "unknown_payload"),
            (409, "payload_damaged"),
            (500, "partition_failed"),
            (503, "unavailable"),
        ),
        example="curl -L $SERVER/v1/streams/models/partitions/0/payloads/0 -H 'Range: bytes=0-99'",
        media_type=OCTETS,
    ),
    **WRITE_OPERATIONS,
}
