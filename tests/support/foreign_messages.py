"""Messages through foreign codecs: kafka-python's, and kio's as a second opinion.

Field names agree because both sides take them from the protocol's schema files; the few that
kafka-python renames, or takes as sets of bits, are listed.
"""

from __future__ import annotations

import uuid
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import MISSING, fields
from importlib import import_module
from io import BytesIO
from typing import Any

from hypothesis import strategies as st
from kio.schema.index import api_key_map
from kio.serial import entity_reader, entity_writer

from bascule.wire.codec import encode
from bascule.wire.messages.registry import REQUESTS
from bascule.wire.primitives import Piece
from bascule.wire.schema import FieldSpec, ItemSpec, Kind, Message, Structure, field_specs

with warnings.catch_warnings():
    # kafka-python reads its schema files with an API that Python 3.11 deprecates.
    warnings.simplefilter("ignore", DeprecationWarning)
    from kafka.protocol import admin, consumer, metadata, producer
    from kafka.protocol.api_message import ApiMessage

RENAMED = {
    "authorized_operations": "authorized_operations",
    "topic_authorized_operations": "authorized_operations",
    "cluster_authorized_operations": "authorized_operations",
}
NOT_REPEATED = frozenset({"DeleteTopicsRequest"})
"""Messages that kafka-python encodes for a client only, and not again once decoded."""
MESSAGES: tuple[type[Message], ...] = tuple(
    kind for request in REQUESTS.values() for kind in (request, request.RESPONSE)
)


def versions(message: type[Message]) -> range:
    return range(message.VERSIONS.first, message.VERSIONS.last + 1)


def cases() -> Iterator[tuple[type[Message], int]]:
    """Every message in every version."""
    for message in MESSAGES:
        for version in versions(message):
            yield message, version


def our_bytes(message: Message, version: int) -> bytes:
    parts: list[Piece] = []
    encode(message, version, parts)
    return b"".join(part for part in parts if isinstance(part, (bytes, memoryview, bytearray)))


def kafka_python_class(message: type[Message]) -> type[ApiMessage]:
    for module in (consumer, metadata, producer, admin):
        if found := getattr(module, message.__name__, None):
            return found  # type: ignore[no-any-return]
    raise LookupError(message.__name__)


def is_known_to_kafka_python(message: type[Message]) -> bool:
    if message.__name__ in NOT_REPEATED:
        return False
    try:
        kafka_python_class(message)
    except LookupError:
        return False
    return True


def kafka_python_bytes(message: Message, version: int) -> bytes:
    """`message` encoded by kafka-python."""
    kind = kafka_python_class(type(message))
    foreign = kind(version=version, **_foreign_fields(message, kind._struct, version))
    return bytes(foreign.encode(version=version))


def kafka_python_again(message: type[Message], version: int, data: bytes) -> bytes:
    """`data` decoded and encoded by kafka-python."""
    decoded = kafka_python_class(message).decode(data, version=version)
    return bytes(decoded.encode())


def kio_again(message: type[Message], version: int, data: bytes) -> bytes | None:
    """`data` decoded and encoded by kio; None for a version it does not have."""
    kind = "request" if message in REQUESTS.values() else "response"
    try:
        module = import_module(f"kio.schema.{api_key_map[message.API_KEY]}.v{version}.{kind}")
    except ImportError:
        return None
    entity = getattr(module, message.__name__)
    decoded, size = entity_reader(entity)(data, 0)
    assert size == len(data)
    out = BytesIO()
    entity_writer(entity)(out, decoded)
    return out.getvalue()


def _foreign_fields(ours: Structure, struct: Any, version: int) -> dict[str, Any]:
    values = {}
    for spec in field_specs(type(ours)):
        value = getattr(ours, spec.name)
        if version not in spec.versions or (spec.tag is not None and not _is_sent(spec, value)):
            continue
        name = RENAMED.get(spec.name, "")
        if name in struct.fields:
            values[name] = None if value == spec.default else value
            continue
        values[spec.name] = _foreign_value(spec, value, struct.fields[spec.name], version)
    return values


def _is_sent(spec: FieldSpec, value: Any) -> bool:
    return bool(value) if spec.kind is Kind.ARRAY else bool(value != spec.default)


def _foreign_value(spec: FieldSpec, value: Any, field: Any, version: int) -> Any:
    if value is None:
        return None
    if spec.kind is Kind.UUID:
        return uuid.UUID(bytes=value)
    if spec.kind is Kind.BYTES:
        return bytes(value)
    if spec.structure is not None:
        return field.data_class(version=version, **_foreign_fields(value, field, version))
    if spec.item is not None and spec.item.structure is not None:
        return [
            field.data_class(version=version, **_foreign_fields(item, field, version))
            for item in value
        ]
    return list(value) if isinstance(value, Sequence) and not isinstance(value, str) else value


# -- samples ------------------------------------------------------------------------------------

_BITS = {Kind.INT8: 8, Kind.INT16: 16, Kind.INT32: 32, Kind.INT64: 64}
_TEXT = st.text(st.characters(codec="utf-8"), max_size=200)


def _scalar(kind: Kind) -> st.SearchStrategy[Any]:
    if kind in _BITS:
        half = 2 ** (_BITS[kind] - 1)
        return st.integers(-half, half - 1)
    if kind is Kind.BOOL:
        return st.booleans()
    if kind is Kind.UUID:
        return st.binary(min_size=16, max_size=16)
    return st.binary(max_size=300) if kind is Kind.BYTES else _TEXT


def _item(kind: Kind, structure: type[Structure] | None, version: int) -> st.SearchStrategy[Any]:
    return _scalar(kind) if structure is None else structures(structure, version)


def _array(item: ItemSpec, version: int) -> st.SearchStrategy[Any]:
    return st.lists(_item(item.kind, item.structure, version), max_size=3)


def _value(spec: FieldSpec, version: int) -> st.SearchStrategy[Any]:
    if version not in spec.versions or spec.name in RENAMED:
        return st.just(spec.default)
    if spec.tag is not None and spec.structure is not None:
        return st.none() | structures(spec.structure, version)
    value = (
        _array(spec.item, version)
        if spec.item is not None
        else _item(spec.kind, spec.structure, version)
    )
    return st.none() | value if version in spec.nullable else value


def structures(kind: type[Structure], version: int) -> st.SearchStrategy[Any]:
    """Any value of `kind`; fields that `version` does not have get their defaults."""
    return st.builds(kind, **{s.name: _value(s, version) for s in field_specs(kind)})


def plain(value: Any) -> Any:
    """The value with lists for tuples and bytes for views, at all depths, so that `==` compares
    contents."""
    if isinstance(value, Structure):
        assert all(
            f.default is not MISSING or f.default_factory is not MISSING
            for f in fields(value)  # type: ignore[arg-type]
        )
        return {s.name: plain(getattr(value, s.name)) for s in field_specs(type(value))}
    if isinstance(value, memoryview):
        return bytes(value)
    return [plain(v) for v in value] if isinstance(value, (list, tuple)) else value
