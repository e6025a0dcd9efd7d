"""What requests about tables ask for. Keys may be any bytes."""

from __future__ import annotations

import base64
import math
from typing import Annotated, Any, Final
from urllib.parse import parse_qsl, unquote_to_bytes

from msgspec import Meta, Struct
from starlette.requests import Request

from bascule.http.requests import NUMBER_MAX, MalformedRequest
from bascule.record._hot_ttl import read_ttl
from bascule.table_results import KeyChoice
from bascule.wire.tables.conditions import TTL_HEADER
from bascule.wire.tables.counters import NUMBER_MIN

PAGE_KEYS: Final = 1_000
PAGE_KEYS_MAX: Final = 10_000
CONSISTENCIES: Final = ("eventual", "linearizable")
MESSAGE_ID_CHARACTERS_MAX: Final = 256
FORM: Final = "application/x-www-form-urlencoded"
"""What curl says of all data without another type."""
_TABLES: Final = b"/v1/tables/"
_INCREMENT: Final = b"/increment"


class GetRequest(Struct, kw_only=True, forbid_unknown_fields=True):
    """Keys to read, at most 10,000 together."""

    keys: Annotated[list[str], Meta(description="Keys that are text.")] = []
    keys_base64: Annotated[list[str], Meta(description="Other keys.")] = []

    def all_keys(self) -> list[bytes]:
        """Raises: MalformedRequest."""
        try:
            others = [base64.b64decode(text, validate=True) for text in self.keys_base64]
        except ValueError:
            raise MalformedRequest("keys_base64 is not base64", field="keys_base64") from None
        return [*(text.encode() for text in self.keys), *others]


def key_of(request: Request) -> bytes:
    """The key in the path. The name of a table has no slash; it may be `keys`."""
    raw: bytes = request.scope["raw_path"]
    path = unquote_to_bytes(raw.split(b"?")[0])
    key = path.removeprefix(_TABLES).split(b"/keys/", 1)[1]
    return key.removesuffix(_INCREMENT) if request.method == "POST" else key


def choice_of(request: Request) -> KeyChoice:
    """Which keys the query asks for. Raises: MalformedRequest."""
    given = bytes_of_query(request)
    names = ("prefix", "pattern", "first", "end", "after")
    found: dict[str, Any] = {name: given[name] for name in names if name in given}
    limit = request.query_params.get("limit")
    found["limit"] = number(limit, "limit", PAGE_KEYS, low=1, high=PAGE_KEYS_MAX)
    return KeyChoice(**found)


def consistency_of(request: Request) -> dict[str, Any]:
    """`at_least` and `linearizable`, as the query has them. Raises: MalformedRequest."""
    chosen = request.query_params.get("consistency", CONSISTENCIES[0])
    if chosen not in CONSISTENCIES:
        raise MalformedRequest(
            f"consistency is {' or '.join(CONSISTENCIES)}, got {chosen[:40]!r}", field="consistency"
        )
    return {
        "at_least": number(request.query_params.get("at_least"), "at_least", 0),
        "linearizable": chosen == "linearizable",
    }


def message_id_of(request: Request) -> str | None:
    """Raises: MalformedRequest."""
    text = request.headers.get("nats-msg-id")
    if text is None:
        return None
    is_short = 0 < len(text) <= MESSAGE_ID_CHARACTERS_MAX
    if not (is_short and text.isascii() and text.isprintable() and " " not in text):
        raise MalformedRequest(
            f"Nats-Msg-Id has 1 to {MESSAGE_ID_CHARACTERS_MAX} printable ASCII characters without "
            "spaces",
            field="Nats-Msg-Id",
        )
    return text


def content_type_of(request: Request) -> str | None:
    """What the body is, unless the client has not thought about it."""
    found = request.headers.get("content-type")
    return None if found == FORM else found


def ttl_of(request: Request) -> float | None:
    """Seconds, infinite for ever; None: as the table has it. Raises: MalformedRequest."""
    text = request.headers.get(TTL_HEADER.lower())
    if text is None:
        return None
    data = text.encode()
    ms = read_ttl(data, 0, len(data))
    if ms < 0:
        raise MalformedRequest(
            "Nats-TTL is whole seconds, a duration such as 1h30m, or never, from 1 s to 100 "
            f"years; got {text[:40]!r}",
            field="Nats-TTL",
        )
    return ms / 1000 if ms else math.inf


def increment_of(request: Request) -> int:
    """Raises: MalformedRequest."""
    text = request.query_params.get("by", "1")
    digits = text.removeprefix("-")
    value = number(digits, "by", 1, high=-NUMBER_MIN)
    return -value if text != digits else value


def number(
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


def bytes_of_query(request: Request) -> dict[str, bytes]:
    """The parameters, which may be any bytes."""
    text = request.scope["query_string"].decode("ascii")
    pairs = parse_qsl(text, errors="surrogateescape")
    return {name: value.encode(errors="surrogateescape") for name, value in pairs}
