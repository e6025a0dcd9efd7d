"""Writes the file in which an earlier release kept the metadata of a node alone."""

from __future__ import annotations

from typing import Any

import msgspec

from bascule.metadata.codec import FORMAT, VERSION, checksum
from bascule.metadata.image import Image


def encode_image(image: Image) -> bytes:
    """The bytes of the file; equal images give equal bytes."""
    content: dict[str, Any] = {
        "streams": [
            {
                "name": definition.name,
                "id": definition.id.hex(),
                "created_ms": definition.created_ms,
                "paused": definition.paused,
                "config": msgspec.to_builtins(definition.config),
            }
            for _, definition in sorted(image.streams.items())
        ]
    }
    if image.deletions:
        content["deletions"] = [
            {"id": id.hex(), "name": each.name} for id, each in sorted(image.deletions.items())
        ]
    document = {
        "format": FORMAT,
        "version": VERSION,
        "crc32c": checksum(content),
        "image": content,
    }
    return msgspec.json.format(msgspec.json.encode(document), indent=1) + b"\n"
