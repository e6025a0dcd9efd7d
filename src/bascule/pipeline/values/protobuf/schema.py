"""Converts a Protobuf message type to an Arrow type and to a reader of its fields."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, Final, TypeAlias

import pyarrow as pa

from bascule.errors import ConfigError, MissingExtra
from bascule.pipeline.values.ddl import DEPTH_MAX, TIMESTAMP, list_of, map_of

Descriptor: TypeAlias = Any
"""google.protobuf's Descriptor or FieldDescriptor."""
Read: TypeAlias = Callable[[Any], Any]
"""Converts a value of protobuf to one for Arrow."""

TIME_NAME: Final = "google.protobuf.Timestamp"
_UINT64: Final = pa.decimal128(20, 0)

_KINDS: Final = {
    1: pa.float64(),
    2: pa.float32(),
    3: pa.int64(),
    4: _UINT64,
    5: pa.int32(),
    6: _UINT64,
    7: pa.int64(),
    8: pa.bool_(),
    9: pa.string(),
    12: pa.binary(),
    13: pa.int64(),
    14: pa.string(),
    15: pa.int32(),
    16: pa.int64(),
    17: pa.int32(),
    18: pa.int64(),
}
"""Arrow type by FieldDescriptorProto.Type: double, float, int64, uint64, int32, fixed64, fixed32,
bool, string, (10 group, 11 message), bytes, uint32, enum, sfixed32, sfixed64, sint32, sint64.
Unsigned types map to a type that holds all their values."""


def arrow_type_of_message(descriptors: bytes, message: str) -> pa.StructType:
    """The Arrow struct of a message. Raises: ConfigError, MissingExtra for protobuf."""
    return _struct(find_message(descriptors, message), ())


@lru_cache(maxsize=16)
def find_message(descriptors: bytes, message: str) -> Descriptor:
    """Find the descriptor of `message` in a FileDescriptorSet, in a new pool.

    Raises: ConfigError, MissingExtra for protobuf.
    """
    try:
        from google.protobuf.descriptor_pb2 import FileDescriptorSet
        from google.protobuf.descriptor_pool import DescriptorPool
        from google.protobuf.message import DecodeError
    except ImportError as error:
        raise MissingExtra("valueFormat protobuf", "protobuf", "pipelines") from error
    try:
        files = FileDescriptorSet.FromString(descriptors).file
        pool = DescriptorPool()
        for file in files:
            pool.Add(file)
    except (DecodeError, TypeError, ValueError) as error:
        raise ConfigError(
            f"option 'valueDescriptorFile' is not a complete FileDescriptorSet: {error}; "
            "expected what protoc --include_imports --descriptor_set_out writes"
        ) from error
    try:
        return pool.FindMessageTypeByName(message)
    except KeyError:
        known = ", ".join(
            f"{file.package}.{found.name}".lstrip(".")
            for file in files
            for found in file.message_type
        )
        raise ConfigError(
            f"option 'valueMessage' is {message!r}: expected one of {known or 'no message'}"
        ) from None


def _struct(message: Descriptor, path: tuple[str, ...]) -> pa.StructType:
    if message.full_name in path:
        raise ConfigError(f"message {message.full_name!r} contains itself, which a column cannot")
    if len(path) == DEPTH_MAX:
        raise ConfigError(f"message {path[0]!r} nests more than {DEPTH_MAX} messages")
    fields = []
    names: set[str] = set()
    for field in columns_of(message):
        if field.name.lower() in names:
            raise ConfigError(
                f"message {message.full_name!r} has {field.name!r} twice "
                "(upper and lower case are alike)"
            )
        names.add(field.name.lower())
        fields.append((field.name, _field_type(field, (*path, message.full_name))))
    if not fields:
        raise ConfigError(f"message {message.full_name!r} has no fields for a column")
    return pa.struct(fields)


def columns_of(message: Descriptor) -> list[Descriptor]:
    """The fields that become columns: all except messages without fields."""
    return [
        field for field in message.fields if field.message_type is None or field.message_type.fields
    ]


def _field_type(field: Descriptor, path: tuple[str, ...]) -> pa.DataType:
    inner = field.message_type
    if inner is not None and inner.GetOptions().map_entry:
        key, value = inner.fields_by_name["key"], inner.fields_by_name["value"]
        return map_of(_value_type(key, path), _value_type(value, path))
    kind = _value_type(field, path)
    return list_of(kind) if field.is_repeated else kind


def _value_type(field: Descriptor, path: tuple[str, ...]) -> pa.DataType:
    if field.message_type is None:
        return _KINDS[field.type]
    if field.message_type.full_name == TIME_NAME:
        return TIMESTAMP
    return _struct(field.message_type, path)


def message_reader(message: Descriptor) -> Read:
    """Return a function from a message to a dictionary with the names of
    `arrow_type_of_message`."""
    always: list[tuple[str, Read | None]] = []
    where_present: list[tuple[str, Read | None]] = []
    for field in columns_of(message):
        group = where_present if field.has_presence else always
        group.append((field.name, _field_reader(field)))

    def read(found: Any) -> dict[str, Any]:
        row = {}
        for name, convert in always:
            value = getattr(found, name)
            row[name] = value if convert is None else convert(value)
        for name, convert in where_present:
            if found.HasField(name):
                value = getattr(found, name)
                row[name] = value if convert is None else convert(value)
        return row

    return read


def _field_reader(field: Descriptor) -> Read | None:
    """The reader of a field; None if its value needs no conversion."""
    inner = field.message_type
    if inner is not None and inner.GetOptions().map_entry:
        return _map_reader(_value_reader(inner.fields_by_name["value"]))
    convert = _value_reader(field)
    if not field.is_repeated:
        return convert
    return _list_reader(convert)


def _map_reader(convert: Read | None) -> Read:
    if convert is None:
        return lambda entries: list(entries.items())
    return lambda entries: [(key, convert(entries[key])) for key in entries]


def _list_reader(convert: Read | None) -> Read:
    if convert is None:
        return list
    return lambda values: [convert(value) for value in values]


def _value_reader(field: Descriptor) -> Read | None:
    if field.message_type is not None:
        if field.message_type.full_name == TIME_NAME:
            return lambda time: time.seconds * 1_000_000 + time.nanos // 1_000
        return message_reader(field.message_type)
    if field.enum_type is not None:
        names = {number: value.name for number, value in field.enum_type.values_by_number.items()}
        return lambda number: names.get(number) or str(number)
    return None
