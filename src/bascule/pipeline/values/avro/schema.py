"""Converts an Avro schema to an Arrow type and to the schema that fastavro reads.

Times and dates are read as integers, which Arrow accepts directly. Decimals are read as bytes,
because fastavro takes minutes for a decimal of a megabyte. So the plain schema has no logical
types:

    {"type": "long", "logicalType": "timestamp-millis"}    declared timestamp[us, UTC]
                                                           read as  timestamp[ms, UTC]
                                                           plain    {"type": "long"}
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final, TypeAlias

import pyarrow as pa

from bascule.errors import ConfigError, MissingExtra
from bascule.pipeline.values.ddl import (
    DEPTH_MAX,
    PRECISION_MAX,
    TIMESTAMP,
    TIMESTAMP_NTZ,
    list_of,
    map_of,
)

Node: TypeAlias = Any
"""A schema as `json.loads` gives it."""

_SIMPLE: Final = {
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "bytes": pa.binary(),
    "string": pa.string(),
}
_LOGICAL: Final = {
    ("int", "date"): (pa.date32(), pa.date32()),
    ("long", "timestamp-millis"): (TIMESTAMP, pa.timestamp("ms", "UTC")),
    ("long", "timestamp-micros"): (TIMESTAMP, TIMESTAMP),
    ("long", "local-timestamp-millis"): (TIMESTAMP_NTZ, pa.timestamp("ms")),
    ("long", "local-timestamp-micros"): (TIMESTAMP_NTZ, TIMESTAMP_NTZ),
}
"""Declared type and read type. Other logical types are ignored, as the Avro specification
requires."""
_WIDER: Final = {
    frozenset(("int", "long")): (pa.int64(), pa.int64()),
    frozenset(("float", "double")): (pa.float64(), pa.float64()),
}


@dataclass(frozen=True, slots=True)
class AvroType:
    """Three representations of one schema."""

    kind: pa.DataType
    """The declared type."""
    read: pa.DataType
    """The Arrow type of fastavro's values."""
    plain: Node
    """The schema for fastavro."""


def arrow_type_of(text: str) -> pa.StructType:
    """The struct of an Avro record schema. Raises: ConfigError, MissingExtra."""
    return avro_type_of(text).kind


@lru_cache(maxsize=16)
def avro_type_of(text: str) -> AvroType:
    """The schema in `text`, a record. Raises: ConfigError, MissingExtra for fastavro."""
    try:
        schema = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise _wrong(f"it is not JSON: {error}") from error
    if not isinstance(schema, dict) or schema.get("type") != "record":
        raise _wrong("expected a record")
    _check(schema)
    return _Walk().node(schema, "", ())


def _check(schema: Node) -> None:
    """Let fastavro check names, types and symbols, on which the conversion relies."""
    try:
        import fastavro
    except ImportError as error:
        raise MissingExtra("valueFormat avro", "fastavro", "pipelines") from error
    try:
        fastavro.parse_schema(schema)
    except (fastavro.schema.SchemaParseException, fastavro.schema.UnknownType) as error:
        raise _wrong(str(error)) from error
    except (LookupError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise _wrong(f"{type(error).__name__}: {error}") from error


def _wrong(why: str) -> ConfigError:
    return ConfigError(f"option 'valueSchema' is not an Avro schema of values: {why}")


class _Walk:
    """Walks the schema and collects the named types."""

    def __init__(self) -> None:
        self._named: dict[str, AvroType] = {}

    def node(self, schema: Node, space: str, path: tuple[str, ...]) -> AvroType:
        """Convert one node. `space` is the enclosing namespace, `path` the names of the enclosing
        records."""
        if len(path) > DEPTH_MAX:
            raise _wrong(f"more than {DEPTH_MAX} types inside each other")
        if isinstance(schema, list):
            return self._union(schema, space, path)
        if isinstance(schema, str):
            if schema in _SIMPLE:
                return AvroType(_SIMPLE[schema], _SIMPLE[schema], schema)
            return self._reference(schema, space, path)
        name = schema["type"]
        if name == "record":
            return self._record(schema, space, path)
        if name in ("enum", "fixed"):
            full, _ = _full_name(schema, space)
            self._named[full] = found = self._leaf(schema)
            return found
        if name == "array":
            item = self.node(schema["items"], space, (*path, "array"))
            plain = {"type": "array", "items": item.plain}
            return AvroType(list_of(item.kind), list_of(item.read), plain)
        if name == "map":
            item = self.node(schema["values"], space, (*path, "map"))
            plain = {"type": "map", "values": item.plain}
            key = pa.string()
            return AvroType(map_of(key, item.kind), map_of(key, item.read), plain)
        if isinstance(name, str) and (name in _SIMPLE or name == "null"):
            return self._leaf(schema)
        return self.node(name, space, path)

    def _leaf(self, schema: Node) -> AvroType:
        name, logical = schema["type"], schema.get("logicalType")
        if logical == "decimal" and name in ("bytes", "fixed"):
            precision, scale = schema.get("precision"), schema.get("scale", 0)
            if not isinstance(precision, int) or not 0 < precision <= PRECISION_MAX:
                raise _wrong(f"a decimal has precision {precision}, at most {PRECISION_MAX} fits")
            plain = {key: value for key, value in schema.items() if key != "logicalType"}
            return AvroType(pa.decimal128(precision, scale), pa.binary(), plain)
        plain = {key: value for key, value in schema.items() if key != "logicalType"}
        if name == "enum":
            return AvroType(pa.string(), pa.string(), plain)
        if name == "fixed":
            if schema["size"] < 1:
                raise _wrong(f"fixed {schema['name']!r} has no bytes")
            return AvroType(pa.binary(), pa.binary(), plain)
        if name == "null":
            raise _wrong("null is a type of its own; expected it in a union")
        kind, read = _LOGICAL.get((name, logical), (_SIMPLE[name], _SIMPLE[name]))
        return AvroType(kind, read, plain)

    def _reference(self, name: str, space: str, path: tuple[str, ...]) -> AvroType:
        if name == "null":
            return self._leaf({"type": "null"})
        full = name if "." in name or not space else f"{space}.{name}"
        if full not in self._named:
            full = name
        if full in path:
            raise _wrong(f"record {full!r} contains itself, which a column cannot")
        found = self._named[full]
        return AvroType(found.kind, found.read, full)

    def _record(self, schema: Node, space: str, path: tuple[str, ...]) -> AvroType:
        full, space = _full_name(schema, space)
        self._named[full] = AvroType(None, None, full)
        kinds, reads, plains = [], [], []
        names: set[str] = set()
        for field in schema["fields"]:
            name = field["name"]
            if name.lower() in names:
                raise _wrong(f"record {full!r} has {name!r} twice (upper and lower case are alike)")
            names.add(name.lower())
            inner = self.node(field["type"], space, (*path, full))
            kinds.append((name, inner.kind))
            reads.append((name, inner.read))
            plains.append({"name": name, "type": inner.plain})
        if not kinds:
            raise _wrong(f"record {full!r} has no fields")
        plain = {"type": "record", "name": full, "fields": plains}
        self._named[full] = found = AvroType(pa.struct(kinds), pa.struct(reads), plain)
        return found

    def _union(self, schema: list[Node], space: str, path: tuple[str, ...]) -> AvroType:
        branches = [(node if node == "null" else self.node(node, space, path)) for node in schema]
        plain = ["null" if branch == "null" else branch.plain for branch in branches]
        real = [branch for branch in branches if branch != "null"]
        if len(real) == 1:
            return AvroType(real[0].kind, real[0].read, plain)
        wider = _WIDER.get(frozenset(branch.plain for branch in real if branch.plain in _SIMPLE))
        if wider is None or len(real) != 2:
            raise _wrong(
                f"a union of {json.dumps(schema)[:80]}: expected null and one type, int and long, "
                "or float and double"
            )
        return AvroType(*wider, plain)


def _full_name(schema: Node, space: str) -> tuple[str, str]:
    """The full name of a named type, and the namespace inside it."""
    name = schema["name"]
    if "." in name:
        return name, name.rpartition(".")[0]
    space = schema.get("namespace", space)
    return (f"{space}.{name}" if space else name), space
