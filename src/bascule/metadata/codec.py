"""The image file of an earlier release or of a restored backup; the file with the cluster id."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import fields
from typing import Any, Final

import msgspec
from crc32c import crc32c

from bascule.config import stream_config
from bascule.errors import BasculeError, CorruptData, UnsupportedFormat
from bascule.metadata.controller import (
    RECORD_HEADERS_BEFORE,
    STREAM_ID_BYTES,
    check_stored_config,
    check_stream_name,
)
from bascule.metadata.image import Deletion, Image
from bascule.model import StreamConfig, StreamDefinition

FORMAT: Final = "bascule-metadata"
VERSION: Final = 1


def decode_image(data: bytes, path: str) -> Image:
    """The image in the bytes of a file; `path` is for error texts.

    Raises: CorruptData if the bytes differ from what was written; UnsupportedFormat if a newer
    program wrote them.
    """
    try:
        document = json.loads(data)
    except RecursionError:
        raise CorruptData(path, 0, "JSON", "brackets nested too deeply") from None
    except ValueError as error:
        at = error.pos if isinstance(error, json.JSONDecodeError) else 0
        raise CorruptData(path, at, "JSON", _shown(data[at:])) from error
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise CorruptData(path, 0, f'a JSON object of format "{FORMAT}"', _shown(data))
    version = document.get("version")
    if not isinstance(version, int) or version < 1:
        raise CorruptData(path, 0, "a version number", repr(version))
    if version > VERSION:
        raise UnsupportedFormat(path, version, VERSION)
    content: Any = document.get("image")
    found_crc = checksum(content)
    if document.get("crc32c") != found_crc:
        raise CorruptData(path, 0, f"crc32c {document.get('crc32c')!r}", f"{found_crc!r}")
    try:
        definitions = [decode_definition(item) for item in content["streams"]]
        deletions = dict(map(_deletion, content.get("deletions", ())))
    except (AttributeError, KeyError, TypeError, ValueError, BasculeError) as error:
        raise CorruptData(path, 0, "stream definitions", str(error)) from error
    streams = {definition.name: definition for definition in definitions}
    return Image.of(streams=streams, deletions=deletions)


def encode_image(streams: Iterable[StreamDefinition]) -> bytes:
    """The bytes of an image file with these streams, for a node that is to take them over."""
    content = {"streams": [encode_definition(each) for each in streams]}
    document = {"format": FORMAT, "version": VERSION, "crc32c": checksum(content)}
    return msgspec.json.encode({**document, "image": content}) + b"\n"


def encode_definition(definition: StreamDefinition) -> dict[str, Any]:
    """A stream's definition as values of JSON."""
    config = msgspec.json.decode(msgspec.json.encode(definition.config))
    return {
        "name": definition.name,
        "id": definition.id.hex(),
        "created_ms": definition.created_ms,
        "config": {name: value for name, value in config.items() if value is not None}
        | {"subject": definition.config.subject, "group": definition.config.group},
        "paused": definition.paused,
    }


def encode_cluster_id(cluster_id: str) -> bytes:
    """The bytes of the file with the cluster id of a data directory."""
    content = {"cluster_id": cluster_id}
    return json.dumps({**content, "crc32c": checksum(content)}).encode() + b"\n"


def decode_cluster_id(data: bytes, path: str) -> str:
    """The cluster id. Raises: CorruptData if the bytes differ from what was written."""
    try:
        content: Any = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise CorruptData(path, 0, "JSON", str(error)) from None
    if not isinstance(content, dict) or content.keys() != {"cluster_id", "crc32c"}:
        raise CorruptData(path, 0, "cluster_id and crc32c", _shown(data))
    found = content.pop("crc32c")
    if found != checksum(content):
        raise CorruptData(path, 0, f"crc32c {checksum(content)!r}", repr(found))
    return str(content["cluster_id"])


def _deletion(item: Mapping[str, Any]) -> tuple[bytes, Deletion]:
    name, id = item["name"], bytes.fromhex(item["id"])
    check_stream_name(name, internal=True)
    if len(id) != STREAM_ID_BYTES:
        raise ValueError(f"an id of {len(id)} bytes, expected {STREAM_ID_BYTES}")
    return id, Deletion(name, ())


def decode_definition(item: Mapping[str, Any]) -> StreamDefinition:
    """The definition in values of JSON.

    Raises: AttributeError, KeyError, TypeError, ValueError, or an error of Bascule, for others.
    """
    known = {field.name for field in fields(StreamConfig)}
    config: dict[str, Any] = dict(item["config"])
    if unknown := config.keys() - known:
        raise ValueError(f"unknown configuration {sorted(unknown)}")
    config.setdefault("record_headers", RECORD_HEADERS_BEFORE)
    definition = StreamDefinition(
        name=item["name"],
        id=bytes.fromhex(item["id"]),
        created_ms=item["created_ms"],
        config=stream_config(config, subject=config.pop("subject"), group=config.pop("group")),
        paused=item.get("paused", False),
    )
    check_stream_name(definition.name, internal=True)
    check_stored_config(definition.config)
    if len(definition.id) != STREAM_ID_BYTES:
        raise ValueError(f"an id of {len(definition.id)} bytes, expected {STREAM_ID_BYTES}")
    return definition


def checksum(content: object) -> str:
    """Of a document in canonical form, as eight hexadecimal digits."""
    canonical = msgspec.json.encode(content, order="sorted")
    return f"{crc32c(canonical):08x}"


def _shown(data: bytes) -> str:
    return repr(data[:24]) if data else "the end of the file"
