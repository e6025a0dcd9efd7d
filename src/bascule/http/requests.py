"""The request bodies, and the strict decoding of bodies and queries.

The descriptions and limits of stream settings come from the table of configuration keys, which
TOML, the environment and this API share.
"""

from __future__ import annotations

import difflib
import functools
from collections.abc import Sequence
from dataclasses import asdict
from typing import Annotated, Any, Final, TypeVar

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType
from starlette.exceptions import HTTPException
from starlette.requests import Request

from bascule.config import KEYS, StreamDefaults, stream_config
from bascule.errors import BasculeError
from bascule.http.schemas import (
    AckPolicy,
    Cleanup,
    Compression,
    Discard,
    KeyFrom,
    PartitionBy,
    RecordHeader,
    Sync,
)
from bascule.model import StreamConfig

_T = TypeVar("_T")

NUMBER_MAX: Final = (1 << 63) - 1
"""The largest offset, and the largest number of any request."""


class MalformedRequest(BasculeError):
    """A request is not valid; `field` is the path of the invalid part."""

    def __init__(self, message: str, *, field: str | None = None) -> None:
        super().__init__(message)
        self.field = field


class RequestedStreamSettings(Struct, kw_only=True, forbid_unknown_fields=True):
    """Settings of a stream; omitted fields are UNSET."""

    sync: Sync | UnsetType = UNSET
    sync_interval_ms: int | UnsetType = UNSET
    segment_bytes_max: int | UnsetType = UNSET
    segment_age_ms_max: int | UnsetType = UNSET
    message_bytes_max: int | UnsetType = UNSET
    partitions: int | UnsetType = UNSET
    partition_by: PartitionBy | UnsetType = UNSET
    key_from: KeyFrom | UnsetType = UNSET
    compression: Compression | UnsetType = UNSET
    cleanup: list[Cleanup] | UnsetType = UNSET
    retention_ms_max: int | UnsetType = UNSET
    retention_bytes_max: int | UnsetType = UNSET
    retention_messages_max: int | UnsetType = UNSET
    retention_after: str | UnsetType = UNSET
    discard: Discard | UnsetType = UNSET
    tombstone_retention_ms: int | UnsetType = UNSET
    min_compaction_lag_ms: int | UnsetType = UNSET
    max_compaction_lag_ms: int | UnsetType = UNSET
    dirty_percent_min: int | UnsetType = UNSET
    dedupe_window_ms: int | UnsetType = UNSET
    dedupe_messages_max: int | UnsetType = UNSET
    rate_messages_max: int | UnsetType = UNSET
    rate_bytes_max: int | UnsetType = UNSET
    read_only: bool | UnsetType = UNSET
    replicas: int | UnsetType = UNSET
    min_isr: int | UnsetType = UNSET
    unclean_election: bool | UnsetType = UNSET
    acks: bool | UnsetType = UNSET
    ack_policy: AckPolicy | UnsetType = UNSET
    shared: bool | UnsetType = UNSET
    record_headers: list[RecordHeader] | UnsetType = UNSET
    table: bool | UnsetType = UNSET
    table_ttl_ms: int | UnsetType = UNSET

    def chosen(self) -> dict[str, Any]:
        """Field -> value of the fields that the request contains."""
        return {name: value for name, value in msgspec.structs.asdict(self).items()
                if value is not UNSET}  # fmt: skip


class CreateStreamRequest(RequestedStreamSettings, kw_only=True, forbid_unknown_fields=True):
    """A stream to create. Omitted settings get the node's defaults (`[streams]`)."""

    name: Annotated[
        str, Meta(description="1 to 200 of A-Z a-z 0-9 . _ -; the first is a letter or digit.")
    ]
    subject: Annotated[str, Meta(description="NATS subject; wildcards * and > are allowed.")]
    group: Annotated[
        str | None, Meta(description="NATS queue group of the subscription; null: none.")
    ] = None

    def config(self, defaults: StreamDefaults) -> StreamConfig:
        """The requested configuration; omitted settings come from `defaults`."""
        plain = asdict(defaults) | self.chosen()
        for name in ("name", "subject", "group"):
            del plain[name]
        return stream_config(plain, subject=self.subject, group=self.group)


class AlterStreamRequest(RequestedStreamSettings, kw_only=True, forbid_unknown_fields=True):
    """Settings to change; omitted settings stay.

    subject, group, partition_by and key_from cannot change: another value is refused with advice.
    Partitions can only be added.
    """

    subject: Annotated[str | UnsetType, Meta(description="Cannot change.")] = UNSET
    group: Annotated[str | UnsetType | None, Meta(description="Cannot change.")] = UNSET
    partition_by: Annotated[PartitionBy | UnsetType, Meta(description="Cannot change.")] = UNSET
    key_from: Annotated[KeyFrom | UnsetType, Meta(description="Cannot change.")] = UNSET
    partitions: Annotated[int | UnsetType, Meta(description="Can only grow.")] = UNSET


class ScrubRequest(Struct, kw_only=True, forbid_unknown_fields=True):
    """The replicas to read."""

    partition: Annotated[int | None, Meta(description="Only this partition; default: all.")] = None


class AcknowledgeLossRequest(Struct, kw_only=True, forbid_unknown_fields=True):
    """The unclean elections that an operator knows of."""

    partition: Annotated[int | None, Meta(description="Only this partition; default: all.")] = None


class PurgeRequest(Struct, kw_only=True, forbid_unknown_fields=True):
    """Records to remove: those before an offset, those before a time, or all committed ones."""

    to_offset: Annotated[
        int | None,
        Meta(description="First offset to keep; with several partitions `partition` is needed."),
    ] = None
    before_ms: Annotated[
        int | None, Meta(description="Unix time in milliseconds; older records are removed.")
    ] = None
    partition: Annotated[int | None, Meta(description="Only this partition; default: all.")] = None

    def __post_init__(self) -> None:
        if self.to_offset is not None and self.before_ms is not None:
            raise ValueError("at most one of to_offset and before_ms may be given")
        for name in ("to_offset", "before_ms", "partition"):
            if (value := getattr(self, name)) is not None and value < 0:
                raise ValueError(f"{name} must be at least 0, got {value}")

    def check(self, *, partitions: int) -> None:
        """Raises: MalformedRequest for `to_offset` without `partition` on several partitions."""
        if self.to_offset is not None and self.partition is None and partitions > 1:
            raise MalformedRequest(
                f"the stream has {partitions} partitions, each with its own offsets: "
                "give `partition` with `to_offset`",
                field="partition",
            )


class RepairRequest(Struct, kw_only=True, forbid_unknown_fields=True):
    """Open failed partitions again, with or without giving up their records."""

    partition: Annotated[int | None, Meta(description="Only this partition; default: all.")] = None
    accept_loss: Annotated[
        bool,
        Meta(
            description="Give up the records of failed partitions that are missing, and those "
            "from the first damage on. Offsets from there on are given to new records, in a new "
            "leader epoch. Where nothing can be kept, the files are moved to `aside` in the data "
            "directory, and an empty log begins at the largest committed offset."
        ),
    ] = False


class EmptyRequest(Struct, kw_only=True, forbid_unknown_fields=True):
    """An empty object."""


def check_query(request: Request, known: Sequence[str]) -> None:
    """Return if the query has only `known` parameters, each at most once and with a value.

    Raises: MalformedRequest that names the nearest known parameter for an unknown one.
    """
    seen = set()
    for name, value in request.query_params.multi_items():
        if name not in known:
            raise MalformedRequest(
                f"unknown parameter {name!r}; {_known_hint(name, known, what='parameter')}",
                field=name,
            )
        if name in seen:
            raise MalformedRequest(f"parameter {name!r} is given twice", field=name)
        if not value:
            raise MalformedRequest(f"parameter {name!r} is empty", field=name)
        seen.add(name)


def flag_of(request: Request, name: str) -> bool:
    """A parameter that is `true` or `false`, by default `false`. Raises: MalformedRequest."""
    text = request.query_params.get(name, "false")
    if text not in ("true", "false"):
        raise MalformedRequest(f"{name} must be true or false, got {text!r}", field=name)
    return text == "true"


def partition_number(text: str) -> int:
    """The number of a partition in a query. Raises: MalformedRequest."""
    if not (text.isascii() and text.isdecimal()):
        raise MalformedRequest(f"partition {text!r} is not a number", field="partition")
    if len(text) > len(str(NUMBER_MAX)) or int(text) > NUMBER_MAX:
        raise MalformedRequest(f"partition must be at most {NUMBER_MAX}", field="partition")
    return int(text)


def check_no_body(request: Request) -> None:
    """Return if the request announces no body. Raises: MalformedRequest."""
    headers = request.headers
    if headers.get("content-length", "0") != "0" or "transfer-encoding" in headers:
        raise MalformedRequest(f"{request.method} {request.url.path} takes no body")


def check_origin(request: Request) -> None:
    """Return unless a page of another site sends a POST without a body, about which browsers do not
    ask before. Raises: HTTPException."""
    origin = request.headers.get("origin")
    if request.method != "POST" or origin is None:
        return
    if origin.partition("://")[2].lower() != request.headers.get("host", "").lower():
        raise HTTPException(403, f"origin {origin[:100]!r} is not this node")


def _known_hint(name: str, known: Sequence[str], *, what: str) -> str:
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    if near:
        return f"did you mean {near[0]!r}?"
    return f"known are {', '.join(known)}" if known else f"there is no {what} here"


@functools.cache
def _known_fields(type_: type[Any]) -> tuple[str, ...]:
    """The fields of a request; msgspec evaluates the annotations of the class each time."""
    return tuple(field.encode_name for field in msgspec.structs.fields(type_))


def _check_numbers(name: str, value: Any) -> None:
    """Other nodes, and files, are told no number of more than 64 bits. Raises: MalformedRequest."""
    for each in value if isinstance(value, list) else (value,):
        if isinstance(each, int) and not -NUMBER_MAX <= each <= NUMBER_MAX:
            limit = f"at least {-NUMBER_MAX}" if each < 0 else f"at most {NUMBER_MAX}"
            raise MalformedRequest(f"{name} must be {limit}, got {each}", field=name)


def decode_body(data: bytes, type_: type[_T]) -> _T:
    """Decode a request body as `type_`, without unknown fields and type conversions.

    Raises: MalformedRequest that names the field, and the nearest known field for an unknown one.
    """
    try:
        raw = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise MalformedRequest(f"the body is not valid JSON: {error}") from error
    if not isinstance(raw, dict):
        raise MalformedRequest(f"the body must be a JSON object, got {type(raw).__name__}")
    known = _known_fields(type_)  # type: ignore[arg-type]
    for name in raw:
        if name not in known:
            hint = _known_hint(name, known, what="field")
            raise MalformedRequest(f"unknown field {name!r}; {hint}", field=name)
        _check_numbers(name, raw[name])
    try:
        return msgspec.convert(raw, type_, strict=True)
    except msgspec.ValidationError as error:
        message, _, path = str(error).partition(" - at ")
        field = path.strip("`").removeprefix("$.") or None
        if message.startswith("Invalid enum value"):
            key = KEYS.get(f"streams.{(field or '').partition('[')[0]}")
            message += f"; expected one of {', '.join(key.choices)}" if key else ""
        where = f"{field}: " if field else ""
        raise MalformedRequest(where + message.replace("`", "'"), field=field) from error
