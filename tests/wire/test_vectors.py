"""Golden vectors: decode and encode the bytes of foreign encoders. See tests/vectors/README.md."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bascule.wire.codec import decode, encode
from bascule.wire.messages.registry import REQUESTS
from bascule.wire.primitives import Piece
from bascule.wire.schema import FieldSpec, Kind, Message, Structure, field_specs

VECTORS = Path(__file__).parents[1] / "vectors" / "messages.jsonl"
KINDS: dict[str, type[Message]] = {
    kind.__name__: kind for request in REQUESTS.values() for kind in (request, request.RESPONSE)
}


def read_vectors() -> list[dict[str, Any]]:
    return [json.loads(line) for line in VECTORS.read_text().splitlines()]


def from_json(kind: type[Structure], values: dict[str, Any]) -> Any:
    return kind(**{s.name: _field(s, values[s.name]) for s in field_specs(kind)})


def _field(spec: FieldSpec, value: Any) -> Any:
    if spec.kind in (Kind.UUID, Kind.BYTES) and value is not None:
        return bytes.fromhex(value)
    if spec.structure is not None and value is not None:
        return from_json(spec.structure, value)
    if spec.item is not None and spec.item.structure is not None and value is not None:
        return [from_json(spec.item.structure, item) for item in value]
    return value


def comparable(value: Any) -> Any:
    """Compare content only: a list equals a tuple, a view equals its bytes."""
    if isinstance(value, Structure):
        return {s.name: comparable(getattr(value, s.name)) for s in field_specs(type(value))}
    if isinstance(value, memoryview):
        return bytes(value)
    return [comparable(v) for v in value] if isinstance(value, (list, tuple)) else value


@pytest.mark.parametrize("name", sorted(KINDS))
def test_foreign_bytes_are_read_and_repeated(name: str) -> None:
    seen = set()
    for vector in read_vectors():
        if vector["message"] != name:
            continue
        kind, version, data = KINDS[name], vector["version"], bytes.fromhex(vector["bytes"])
        expected = from_json(kind, vector["value"])
        assert comparable(decode(kind, version, memoryview(data))) == comparable(expected)
        parts: list[Piece] = []
        encode(expected, version, parts)
        assert b"".join(p for p in parts if isinstance(p, bytes)) == data, (name, version)
        seen.add(version)
    versions = KINDS[name].VERSIONS
    assert seen == set(range(versions.first, versions.last + 1))
