"""Decodes Avro values with fastavro."""

from __future__ import annotations

import json
from io import BytesIO
from typing import Any, Final

import fastavro
import pyarrow as pa
from fastavro.schema import fingerprint, to_parsing_canonical_form

from bascule.pipeline.values.avro.schema import avro_type_of
from bascule.pipeline.values.record_decoder import RecordDecoder

CONFLUENT_BYTES: Final = 5
SINGLE_OBJECT: Final = b"\xc3\x01"


class AvroDecoder(RecordDecoder):
    """Decodes records written with exactly the declared schema. It uses no schema registry."""

    def __init__(self, schema: str, kind: pa.StructType, *, confluent: bool) -> None:
        found = avro_type_of(schema)
        super().__init__(kind, found.read, self._confluent if confluent else self._one)
        self._schema = fastavro.parse_schema(found.plain)
        self._single = SINGLE_OBJECT + fingerprint_of(schema)

    def _one(self, value: bytes) -> Any:
        if value.startswith(self._single):
            return self._datum(value, len(self._single))
        return self._datum(value, 0)

    def _confluent(self, value: bytes) -> Any:
        if value[:1] != b"\0" or len(value) < CONFLUENT_BYTES:
            found = value[:CONFLUENT_BYTES].hex(" ") or "no bytes"
            raise ValueError(f"expected byte 0 and a schema id of 4 bytes, found {found}")
        return self._datum(value, CONFLUENT_BYTES)

    def _datum(self, value: bytes, at: int) -> Any:
        stream = BytesIO(value)
        stream.seek(at)
        datum = fastavro.schemaless_reader(stream, self._schema)
        if stream.tell() != len(value):
            raise ValueError(f"the datum ends at byte {stream.tell()} of {len(value)}")
        return datum


def fingerprint_of(schema: str) -> bytes:
    """The fingerprint of a single object: CRC-64-AVRO of the canonical schema, little-endian."""
    canonical = to_parsing_canonical_form(json.loads(schema))
    return bytes.fromhex(fingerprint(canonical, "CRC-64-AVRO"))
