"""Answers of JetStream's API, and messages to key-value clients. Source: NATS ADR-1, 8 and 31."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final

import msgspec

from bascule.errors import BasculeError
from bascule.tables._hot import PURGED

RESPONSE: Final = "io.nats.jetstream.api.v1."
KV_OPERATION: Final = "KV-Operation"
REMOVED: Final = "DEL"

BAD_REQUEST: Final = 10003
MESSAGE_NOT_FOUND: Final = 10037
STREAM_NOT_FOUND: Final = 10059
STREAM_NAME_IN_USE: Final = 10058
CONSUMER_NOT_FOUND: Final = 10014
NOT_SERVED: Final = 20010
"""Bascule's own: a part of JetStream that tables do not have."""
UNAVAILABLE: Final = 10008
LARGER_THAN_NATS: Final = 20020
"""Bascule's own: the answer is larger than `max_payload` of the NATS server."""
VALUE_BYTES: Final = "Nats-Msg-Size"
"""The size of a value that is not in the message."""


class ApiError(BasculeError):
    """A request is refused: HTTP-like `code`, JetStream's `err_code`, and why."""

    def __init__(self, code: int, err_code: int, description: str) -> None:
        super().__init__(description)
        self.code = code
        self.err_code = err_code
        self.description = description


def not_served(what: str) -> ApiError:
    return ApiError(
        501, NOT_SERVED, f"Bascule serves key-value buckets, not all of JetStream: {what}"
    )


def larger_than_nats(found: int, limit: int) -> ApiError:
    """An answer of `found` bytes cannot be sent."""
    return ApiError(
        413,
        LARGER_THAN_NATS,
        f"the answer has {found} bytes, and max_payload of the NATS server is {limit}: read the "
        "value over HTTP, with bascule table get or the Python client",
    )


def payload_bytes(operation: bytes) -> int:
    """The bytes of an operation that count against `max_payload`: headers and payload."""
    return len(operation) - operation.index(b"\r\n") - 4


def answer(kind: str, body: Mapping[str, Any]) -> bytes:
    return msgspec.json.encode({"type": f"{RESPONSE}{kind}", **body})


def error_answer(kind: str, error: ApiError) -> bytes:
    detail = {
        "code": error.code,
        "err_code": error.err_code,
        "description": error.description,
    }
    return answer(kind, {"error": detail})


def publish(subject: str, reply: str, payload: bytes) -> bytes:
    """A PUB operation; `reply` may be empty."""
    return b"PUB %b %d\r\n%b\r\n" % (_both(subject, reply), len(payload), payload)


def publish_with_headers(
    subject: str, reply: str, headers: Mapping[str, str], payload: bytes, *, status: str = ""
) -> bytes:
    """An HPUB operation. `status` is the rest of the headers' first line."""
    return _with_headers(b"HPUB", _both(subject, reply), headers, payload, status)


def deliver(subject: str, reply: str, payload: bytes) -> bytes:
    """A message of a leafnode."""
    return b"LMSG %b %d\r\n%b\r\n" % (_both(subject, reply), len(payload), payload)


def deliver_with_headers(
    subject: str, reply: str, headers: Mapping[str, str], payload: bytes, *, status: str = ""
) -> bytes:
    """A message of a leafnode, with headers."""
    return _with_headers(b"HMSG", _both(subject, reply), headers, payload, status)


def _with_headers(
    word: bytes, both: bytes, headers: Mapping[str, str], payload: bytes, status: str
) -> bytes:
    lines = [f"NATS/1.0{' ' if status else ''}{status}"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    head = ("\r\n".join(lines) + "\r\n\r\n").encode()
    size = len(head) + len(payload)
    return b"%b %b %d %d\r\n%b%b\r\n" % (word, both, len(head), size, head, payload)


def _both(subject: str, reply: str) -> bytes:
    return (f"{subject} {reply}" if reply else subject).encode()


def operation_of(content_type: str | None) -> str:
    """How a key was removed; `content_type` is that of its row."""
    return PURGED if content_type == PURGED else REMOVED


def time_text(ms: int) -> str:
    """RFC 3339, as Go writes it."""
    found = datetime.fromtimestamp(ms / 1000, UTC)
    return found.strftime("%Y-%m-%dT%H:%M:%S.") + f"{ms % 1000:03d}Z"
