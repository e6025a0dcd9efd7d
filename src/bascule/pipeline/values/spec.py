"""The declared format of a stream's values, as a frozen, picklable value."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal, TypeAlias, cast, get_args

from bascule.errors import ConfigError

if TYPE_CHECKING:
    import pyarrow as pa

    from bascule.pipeline.values.model import ValueDecoder, ValueEncoder

ValueFormat: TypeAlias = Literal["raw", "json", "msgpack", "avro", "protobuf", "arrow"]
Mode: TypeAlias = Literal["PERMISSIVE", "FAILFAST"]

VALUE_OPTIONS: Final = (
    "valueFormat",
    "valueSchema",
    "valueSchemaFile",
    "valueDescriptorFile",
    "valueMessage",
    "avroConfluent",
    "mode",
)
"""Names of the options that `ValueSpec.from_options` reads."""

FORMATS: Final[tuple[ValueFormat, ...]] = get_args(ValueFormat)
MODES: Final[tuple[Mode, ...]] = get_args(Mode)
_TYPED: Final = FORMATS[1:]
_DECLARED: Final[tuple[ValueFormat, ...]] = ("json", "msgpack", "avro", "arrow")
_FORMATS_WITH: Final[Mapping[str, tuple[ValueFormat, ...]]] = {
    "valueFormat": FORMATS,
    "valueSchema": _DECLARED,
    "valueSchemaFile": _DECLARED,
    "valueDescriptorFile": ("protobuf",),
    "valueMessage": ("protobuf",),
    "avroConfluent": ("avro",),
    "mode": _TYPED,
}
"""The formats to which each option applies."""


@dataclass(frozen=True, slots=True)
class ValueSpec:
    """A format with its schema. It contains the contents of schema files, so executors need no
    files."""

    format: ValueFormat = "raw"
    schema: str = ""
    """DDL text for json, msgpack and arrow; an Avro schema as JSON for avro."""
    descriptors: bytes = b""
    """A serialized FileDescriptorSet, for protobuf."""
    message: str = ""
    """Full name of the message in the descriptors."""
    avro_confluent: bool = False
    """Avro values start with byte 0 and a schema id of four bytes."""
    mode: Mode = "PERMISSIVE"
    """Whether a malformed value becomes null or ends the read."""

    @classmethod
    def from_options(cls, options: Mapping[str, str]) -> ValueSpec:
        """Parse the options of `VALUE_OPTIONS` from `options`, whose names are lower case.

        Other names are ignored. Files are read immediately.

        Raises: ConfigError with the option, its value and what was expected.
        """
        spec = _read(cls, options)
        spec.arrow_type()
        return spec

    @property
    def is_raw(self) -> bool:
        """Values stay bytes."""
        return self.format == "raw"

    def arrow_type(self) -> pa.DataType:
        """The struct type of the values, as from PySpark's `to_arrow_schema`. For raw: binary.

        Raises: ConfigError if the schema is invalid or the format cannot express it.
        """
        return _arrow_type(self)

    def ddl(self) -> str:
        """`arrow_type` in Spark's DDL: `struct<a:int,b:string>`. For raw: `binary`.

        Raises: ConfigError as `arrow_type`.
        """
        from bascule.pipeline.values.ddl import format_ddl

        return format_ddl(self.arrow_type())

    def decoder(self) -> ValueDecoder:
        """Create a decoder. It costs about a millisecond, so use it for several batches.

        Raises: ConfigError as `arrow_type`; MissingExtra if the format's package is missing.
        """
        return _decoder(self)

    def encoder(self) -> ValueEncoder:
        """Create an encoder, for raw, json and msgpack.

        Raises: ConfigError for another format, and as `arrow_type`.
        """
        return _encoder(self)


def _read(cls: type[ValueSpec], options: Mapping[str, str]) -> ValueSpec:
    given = {name: str(options[name.lower()]) for name in VALUE_OPTIONS if name.lower() in options}
    value_format = cast("ValueFormat", _choice("valueFormat", given, FORMATS))
    mode = cast("Mode", _choice("mode", given, MODES))
    _check_names(value_format, given)
    if value_format == "raw":
        return cls()
    if value_format == "protobuf":
        for name, what in (
            ("valueDescriptorFile", "a FileDescriptorSet"),
            ("valueMessage", "the message's full name"),
        ):
            if not given.get(name, "").strip():
                raise ConfigError(f"option {name!r} is missing: valueFormat protobuf needs {what}")
        descriptors = _contents("valueDescriptorFile", given)
        message = given["valueMessage"].strip()
        return cls(value_format, descriptors=descriptors, message=message, mode=mode)
    confluent = _choice("avroConfluent", given, ("false", "true")) == "true"
    return cls(value_format, _schema(value_format, given), avro_confluent=confluent, mode=mode)


def _choice(name: str, given: Mapping[str, str], known: tuple[str, ...]) -> str:
    """Return the given word of `known`, ignoring case; the first one if none is given."""
    text = given.get(name, known[0])
    for word in known:
        if word.lower() == text.strip().lower():
            return word
    raise ConfigError(
        f"option {name!r} is {text!r}: expected {', '.join(known[:-1])} or {known[-1]}"
    )


def _check_names(value_format: ValueFormat, given: Mapping[str, str]) -> None:
    """Raises: ConfigError for an option that does not apply to this format."""
    for name in given:
        if value_format not in _FORMATS_WITH[name]:
            allowed = ", ".join(_FORMATS_WITH[name])
            advice = "" if "valueFormat" in given else "; valueFormat is not given"
            raise ConfigError(
                f"option {name!r} does not apply to valueFormat {value_format}: "
                f"it is for {allowed}{advice}"
            )


def _schema(value_format: ValueFormat, given: Mapping[str, str]) -> str:
    texts = [name for name in ("valueSchema", "valueSchemaFile") if given.get(name, "").strip()]
    if len(texts) == 1:
        if texts[0] == "valueSchema":
            return given["valueSchema"].strip()
        try:
            return _contents("valueSchemaFile", given).decode().strip()
        except UnicodeDecodeError as error:
            raise ConfigError(
                f"option 'valueSchemaFile' is {given['valueSchemaFile']!r}: "
                f"expected text in UTF-8, found another byte at {error.start}"
            ) from None
    shape = "the Avro schema as JSON" if value_format == "avro" else "such as 'a int, b string'"
    if texts:
        raise ConfigError(
            "options 'valueSchema' and 'valueSchemaFile' are both given: give one of them"
        )
    raise ConfigError(
        f"option 'valueSchema' is missing: valueFormat {value_format} needs a schema, {shape}"
    )


def _contents(name: str, given: Mapping[str, str]) -> bytes:
    try:
        return Path(given[name]).read_bytes()
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise ConfigError(
            f"option {name!r} is {given[name]!r}: expected a file that can be read, found: {why}"
        ) from error


@lru_cache(maxsize=64)
def _arrow_type(spec: ValueSpec) -> pa.DataType:
    if spec.format == "raw":
        import pyarrow as pa

        return pa.binary()
    if spec.format == "avro":
        from bascule.pipeline.values.avro.schema import arrow_type_of

        return arrow_type_of(spec.schema)
    if spec.format == "protobuf":
        from bascule.pipeline.values.protobuf.schema import arrow_type_of_message

        return arrow_type_of_message(spec.descriptors, spec.message)
    from bascule.pipeline.values.ddl import parse_ddl
    from bascule.pipeline.values.python_types import check_expressible

    try:
        struct = parse_ddl(spec.schema)
        check_expressible(spec.format, struct)
    except ConfigError as error:
        raise ConfigError(f"option 'valueSchema': {error}") from error
    return struct


def _decoder(spec: ValueSpec) -> ValueDecoder:
    kind = spec.arrow_type()
    if spec.format == "json":
        from bascule.pipeline.values.json_decoder import JsonDecoder

        return JsonDecoder(kind)
    if spec.format == "msgpack":
        from bascule.pipeline.values.msgpack_decoder import MsgpackDecoder

        return MsgpackDecoder(kind)
    if spec.format == "avro":
        from bascule.pipeline.values.avro.decoder import AvroDecoder

        return AvroDecoder(spec.schema, kind, confluent=spec.avro_confluent)
    if spec.format == "protobuf":
        from bascule.pipeline.values.protobuf.decoder import ProtobufDecoder

        return ProtobufDecoder(spec.descriptors, spec.message, kind)
    if spec.format == "arrow":
        from bascule.pipeline.values.arrow_decoder import ArrowDecoder

        return ArrowDecoder(kind)
    from bascule.pipeline.values.raw_codec import RawCodec

    return RawCodec()


def _encoder(spec: ValueSpec) -> ValueEncoder:
    if spec.format == "raw":
        from bascule.pipeline.values.raw_codec import RawCodec

        return RawCodec()
    if spec.format in ("json", "msgpack"):
        from bascule.pipeline.values.row_encoder import RowEncoder

        return RowEncoder(spec.format, spec.arrow_type())
    raise ConfigError(f"values cannot be written as {spec.format}: expected raw, json or msgpack")
