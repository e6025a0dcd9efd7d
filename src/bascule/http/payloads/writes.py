"""The handlers that take a payload from a request's body."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, Final

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from bascule.http.openapi import ApiOperation
from bascule.http.payloads.ports import PayloadsAdmin
from bascule.http.payloads.schemas import PayloadStored
from bascule.http.requests import NUMBER_MAX, MalformedRequest, partition_number
from bascule.http.responses import json_response
from bascule.http.tables.reads import OCTETS
from bascule.http.tables.requests import bytes_of_query
from bascule.payload_connection.ack import PayloadAck
from bascule.payload_connection.writer import PayloadWriter
from bascule.record.payload_links import ID_BYTES, is_payload_id
from bascule.wire.datastream.messages import OpenPayload

TIMEOUT_SECONDS: Final = 30.0
"""Without progress."""
KEPT_PREFIX: Final = "nats-"
"""Headers of the request that are those of the message."""
_OF_FORMS: Final = ("application/x-www-form-urlencoded", "multipart/form-data", "text/plain")
"""Pages of other sites may send these, and bodies without a type, without being asked about."""


class PayloadWritesApi:
    """A part of `PayloadsApi`."""

    def __init__(self, payloads: PayloadsAdmin) -> None:
        self._payloads = payloads

    async def handle_post_payload(self, request: Request) -> Response:
        content_type = request.headers.get("content-type", "")
        if not content_type or content_type.partition(";")[0].strip().lower() in _OF_FORMS:
            raise HTTPException(
                415,
                f"content type {content_type[:40]!r}: name that of the content, such as {OCTETS}",
            )
        return await self._store(request, os.urandom(ID_BYTES).hex())

    async def handle_put_payload(self, request: Request) -> Response:
        id = request.path_params["id"]
        if not is_payload_id(id):
            raise MalformedRequest(
                f"payload id {id[:40]!r}, expected {2 * ID_BYTES} hexadecimal digits", field="id"
            )
        return await self._store(request, id)

    async def _store(self, request: Request, id: str) -> Response:
        out = PayloadWriter(
            self._payloads.bootstrap, _opening(request, id), timeout=TIMEOUT_SECONDS
        )
        try:
            async with out:
                async for piece in request.stream():
                    await out.write(piece)
        except ClientDisconnect:
            raise HTTPException(400, "the connection was closed within the body") from None
        assert out.ack is not None
        return _stored(out.ack, out.why)


def _opening(request: Request, id: str) -> OpenPayload:
    """What the request asks for. Raises: MalformedRequest."""
    asked = bytes_of_query(request)
    subject = asked.get("subject")
    try:
        text = None if subject is None else subject.decode()
    except UnicodeDecodeError:
        raise MalformedRequest("the subject is not UTF-8", field="subject") from None
    headers = [
        (_capitalized(name), value.encode("latin-1"))
        for name, value in request.headers.items()
        if name.startswith(KEPT_PREFIX) or name == "content-type"
    ]
    partition = request.query_params.get("partition")
    length = int(request.headers.get("content-length", -1))
    if length > NUMBER_MAX:
        raise MalformedRequest(f"the body must have at most {NUMBER_MAX} bytes, got {length}")
    return OpenPayload(
        id,
        request.path_params["name"],
        -1 if partition is None else partition_number(partition),
        text,
        asked.get("key"),
        headers,
        length,
        request.query_params.get("topology", "auto"),
        _quorum(request),
    )


def _quorum(request: Request) -> bool:
    """Raises: MalformedRequest."""
    text = request.query_params.get("quorum", "false")
    if text not in ("true", "false"):
        raise MalformedRequest(f"quorum {text[:40]!r}, expected true or false", field="quorum")
    return text == "true"


def _capitalized(name: str) -> str:
    """As publishers write it; HTTP's names come in lower case."""
    return "-".join("TTL" if part == "ttl" else part.capitalize() for part in name.split("-"))


def _stored(ack: PayloadAck, why: str) -> Response:
    body = PayloadStored(
        stream=ack.stream,
        partition=ack.partition,
        offset=ack.offset,
        seq=ack.seq,
        replicas=ack.replicas,
        synced=ack.synced,
        id=ack.payload_id,
        bytes=ack.payload_bytes,
        crc32c=f"{ack.payload_crc32c:08x}",
        duplicate=ack.duplicate,
        why=why,
    )
    path = f"/v1/streams/{ack.stream}/partitions/{ack.partition}/payloads/{ack.offset}"
    status = 200 if ack.duplicate else 201
    return json_response(body, status, {"location": path, "etag": f'"{ack.payload_id}"'})


_QUERY: Final = (
    ("subject", "The subject of the record; default: the stream's, if it has no wildcard."),
    ("key", "The key of the record."),
    ("partition", "The partition; default: as the subject or the key says."),
    ("topology", "Along which tree the nodes forward: auto (default), chain, star or tree."),
    ("quorum", "true: the body is taken as fast as a majority writes it; default: as all do."),
)
_REST: Final[dict[str, Any]] = {
    "responses": {
        200: ("It was stored before. The ack of that record.", PayloadStored),
        201: ("The ack of the record; `Location` has the payload.", PayloadStored),
    },
    "errors": (
        (400, "malformed_request"),
        (400, "invalid_config"),
        (400, "invalid_name"),
        (400, "message_refused"),
        (403, "read_only"),
        (404, "unknown_stream"),
        (404, "unknown_partition"),
        (409, "payload_damaged"),
        (412, "wrong_sequence"),
        (413, "limit_exceeded"),
        (415, "unsupported_media_type"),
        (429, "rate_exceeded"),
        (503, "unavailable"),
        (503, "not_stored"),
        (503, "paused"),
        (503, "not_enough_replicas"),
        (503, "indeterminate"),
        (507, "disk_full"),
    ),
    "request_media_type": OCTETS,
    "query": _QUERY,
}
WRITE_OPERATIONS: Final[Mapping[str, ApiOperation]] = {
    "post_payload": ApiOperation(
        "POST",
        "/v1/streams/{name}/payloads",
        "Store the body, of any size, as the payload of a new record, on every replica. With a "
        "length or chunked; its `Content-Type` and headers `Nats-` are those of the message",
        example="curl -X POST $SERVER/v1/streams/models/payloads?subject=models.resnet "
        "-H 'Content-Type: application/octet-stream' --data-binary @resnet.bin",
        **_REST,
    ),
    "put_payload": ApiOperation(
        "PUT",
        "/v1/streams/{name}/payloads/{id}",
        "As POST, under an id of the client, 32 hexadecimal digits: a repetition is stored once, "
        "and what the nodes have of it is not sent between them again",
        example="curl -T resnet.bin '$SERVER/v1/streams/models/payloads/"
        "00112233445566778899aabbccddeeff?subject=models.resnet'",
        **_REST,
    ),
}
