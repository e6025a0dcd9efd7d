"""JSON responses of the HTTP API, and the one table from errors to statuses."""

from __future__ import annotations

import logging
from typing import Any, Final

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Match, Route

from bascule.errors import (
    BasculeError,
    Broken,
    CannotAlter,
    CannotCancel,
    CannotDrain,
    CannotLead,
    CannotRemoveNode,
    CannotReplicate,
    Closed,
    ConfigError,
    DiskFull,
    GroupHasMembers,
    Indeterminate,
    InternalStream,
    InvalidKey,
    InvalidName,
    InvalidPattern,
    InvalidRoute,
    LaggingIndex,
    LimitExceeded,
    NeedsClusterVersion,
    NotANumber,
    NotATable,
    NotEnoughNodes,
    NotLeader,
    NotSupported,
    OffsetOutOfRange,
    PartitionFailed,
    PayloadDamaged,
    PayloadMissing,
    PublishRejected,
    RequestExpired,
    StreamConflict,
    UnknownGroup,
    UnknownKey,
    UnknownNode,
    UnknownPartition,
    UnknownPayload,
    UnknownStream,
    WrongVersion,
)
from bascule.http.requests import MalformedRequest
from bascule.http.schemas import ErrorBody, ErrorDetail
from bascule.wire import ack_codes

log = logging.getLogger("bascule.http")

ERROR_STATUSES: Final[tuple[tuple[type[BasculeError], int, str], ...]] = (
    (MalformedRequest, 400, "malformed_request"),
    (InvalidName, 400, "invalid_name"),
    (ConfigError, 400, "invalid_config"),
    (OffsetOutOfRange, 400, "offset_out_of_range"),
    (UnknownStream, 404, "unknown_stream"),
    (UnknownPartition, 404, "unknown_partition"),
    (UnknownNode, 404, "unknown_node"),
    (UnknownGroup, 404, "unknown_group"),
    (UnknownKey, 404, "unknown_key"),
    (UnknownPayload, 404, "unknown_payload"),
    (PayloadDamaged, 409, "payload_damaged"),
    (PayloadMissing, 503, "unavailable"),
    (InvalidRoute, 400, "invalid_config"),
    (WrongVersion, 412, "wrong_version"),
    (NotANumber, 409, "not_a_number"),
    (InvalidKey, 400, "invalid_key"),
    (InvalidPattern, 400, "invalid_pattern"),
    (NotATable, 409, "not_a_table"),
    (StreamConflict, 409, "stream_conflict"),
    (CannotAlter, 409, "cannot_alter"),
    (CannotRemoveNode, 409, "cannot_remove_node"),
    (CannotDrain, 409, "cannot_drain"),
    (NeedsClusterVersion, 409, "needs_cluster_version"),
    (CannotLead, 409, "cannot_lead"),
    (CannotCancel, 409, "cannot_cancel"),
    (InternalStream, 409, "internal_stream"),
    (GroupHasMembers, 409, "group_has_members"),
    (LimitExceeded, 413, "limit_exceeded"),
    (PartitionFailed, 500, "partition_failed"),
    (DiskFull, 507, "disk_full"),
    (NotSupported, 501, "not_supported"),
    (PublishRejected, 503, "not_stored"),
    (NotLeader, 503, "not_leader"),
    (CannotReplicate, 503, "cannot_replicate"),
    (LaggingIndex, 503, "cannot_replicate"),
    (NotEnoughNodes, 503, "not_enough_nodes"),
    (RequestExpired, 409, "request_expired"),
    (Indeterminate, 503, "indeterminate"),
    (Closed, 503, "closing"),
    (Broken, 503, "unavailable"),
    (BasculeError, 500, "internal"),
)
"""Error class, HTTP status, error code; the first class that matches counts. The only such table.
"""

PUBLISH_STATUSES: Final = {
    ack_codes.TOO_LARGE: (413, "limit_exceeded"),
    ack_codes.WRONG_LAST_SEQUENCE: (412, "wrong_sequence"),
    ack_codes.WRONG_LAST_ID: (412, "wrong_sequence"),
    ack_codes.READ_ONLY: (403, "read_only"),
    ack_codes.RATE_EXCEEDED: (429, "rate_exceeded"),
    ack_codes.PAUSED: (503, "paused"),
    ack_codes.NOT_ENOUGH_REPLICAS: (503, "not_enough_replicas"),
}
"""`err_code` of a message that was refused -> status and code, where they are not `not_stored` or,
of a `code` below 500, `REFUSED`."""
REFUSED: Final = (400, "message_refused")
"""The same message would be refused again."""

HTTP_STATUS_CODES: Final = {
    400: "malformed_request",
    403: "forbidden_host",
    404: "unknown_path",
    405: "method_not_allowed",
    415: "unsupported_media_type",
    503: "busy",
}


INVALID_NAME_FIELDS: Final = {"stream name": "name", "subject": "subject", "queue group": "group"}
"""`InvalidName.what` -> the field of the request."""


def json_response(body: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return Response(
        msgspec.json.encode(body) + b"\n", status, headers=headers, media_type="application/json"
    )


def error_response(error: BasculeError) -> Response:
    """The response for `error`, from `ERROR_STATUSES`."""
    status, code = next(
        (status, code) for cls, status, code in ERROR_STATUSES if isinstance(error, cls)
    )
    detail = ErrorDetail(code=code, message=str(error), retriable=error.retriable)
    headers = None
    if isinstance(error, StreamConflict):
        detail.differences = {key: list(pair) for key, pair in error.differences.items()}
    elif isinstance(error, OffsetOutOfRange):
        detail.held = [error.requested, error.start, error.end]
    elif isinstance(error, UnknownPartition):
        detail.held = [error.partition, error.partition_count]
    elif isinstance(error, CannotAlter):
        detail.field, detail.present = error.field, error.present
    elif isinstance(error, MalformedRequest | ConfigError):
        detail.field = error.field
    elif isinstance(error, InvalidName):
        detail.field = INVALID_NAME_FIELDS.get(error.what)
    elif isinstance(error, WrongVersion):
        detail.expected, detail.found = error.expected, error.found
    elif isinstance(error, UnknownKey):
        headers = {"bascule-position": str(error.position)}
    elif isinstance(error, PublishRejected):
        default = REFUSED if error.code < 500 else (status, code)
        status, detail.code = PUBLISH_STATUSES.get(error.err_code, default)
        detail.err_code, detail.retriable = error.err_code, status in (429, 503)
    return json_response(ErrorBody(error=detail), status, headers)


async def on_bascule_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, BasculeError)
    return error_response(error)


async def on_http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    message = error.detail
    if error.status_code == 404:
        message = f"unknown path {request.url.path}; see /docs for the API"
    elif error.status_code == 405:
        allowed = ", ".join(allowed_methods(request))
        message = f"method {request.method} is not allowed at {request.url.path}; use {allowed}"
    code = HTTP_STATUS_CODES.get(error.status_code, "malformed_request")
    body = ErrorBody(error=ErrorDetail(code=code, message=message))
    headers = {name.lower(): value for name, value in (error.headers or {}).items()}
    if error.status_code == 405:
        headers["allow"] = ", ".join(allowed_methods(request))
    return json_response(body, error.status_code, headers)


def allowed_methods(request: Request) -> list[str]:
    """The methods of all routes to the path of a request: Starlette names those of one route."""
    methods = set()
    for route in request.app.routes:
        if isinstance(route, Route) and route.matches(request.scope)[0] is not Match.NONE:
            methods |= route.methods or set()
    return sorted(methods)


async def on_unexpected_error(request: Request, error: Exception) -> Response:
    """A bug or an I/O error: the log gets the exception, the client only its class."""
    log.error(
        "request failed", exc_info=error, extra={"method": request.method, "path": request.url.path}
    )
    message = f"internal error: {type(error).__name__}; see the node's log"
    return json_response(ErrorBody(error=ErrorDetail(code="internal", message=message)), 500)
