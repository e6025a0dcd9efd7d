"""Values that other libraries wrote: fastavro, protobuf, pyarrow, msgspec; and damaged ones."""

from __future__ import annotations

import datetime
import io
import json
import struct
from decimal import Decimal
from typing import Any

import fastavro
import msgspec
import pyarrow as pa
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, timestamp_pb2

from bascule.errors import ConfigError
from bascule.pipeline.values import DecodedValues, ValueSpec
from bascule.pipeline.values.avro.decoder import fingerprint_of

NOON = datetime.datetime(2013, 1, 1, 12, 0, 0, 123456, datetime.UTC)
LOCAL = NOON.replace(tzinfo=None, microsecond=123000)


def decode(spec: ValueSpec, *values: bytes | None) -> DecodedValues:
    found = spec.decoder().decode(pa.array(values, pa.binary()))
    assert str(found.values.type) == str(spec.arrow_type())
    found.values.validate(full=True)
    assert found.values.is_null().to_pylist() == [
        value is None or number in found.bad.to_pylist() for number, value in enumerate(values)
    ]
    return found


def only(spec: ValueSpec, value: bytes) -> dict[str, Any]:
    found = decode(spec, value)
    assert found.reasons == []
    row: dict[str, Any] = found.values[0].as_py()
    return row


def reason(spec: ValueSpec, value: bytes) -> str:
    found = decode(spec, value, None)
    assert found.bad.to_pylist() == [0]
    return found.reasons[0]


# MessagePack

PACKED = ValueSpec(
    "msgpack",
    "i int, u bigint, s string, r binary, f float, d double, b boolean, z timestamp, "
    "n timestamp_ntz, y date, m decimal(6,2), a array<int>, o struct<i:int>, t map<bigint,string>",
)


def test_msgpack_maps_become_rows() -> None:
    value: dict[str, Any] = {
        "i": -5, "u": 2**62, "s": "é", "r": b"\xff", "f": 0.5, "d": 3, "b": True, "z": NOON,
        "n": LOCAL, "y": "2013-01-01", "m": "12.5", "a": [1, None], "o": {"i": 1, "x": []},
        "t": {7: "seven", -1: None}, "unknown": [1, {"deep": None}],
    }  # fmt: skip
    row = only(PACKED, msgspec.msgpack.encode(value))
    del value["unknown"]
    assert row == {
        **value, "d": 3.0, "y": datetime.date(2013, 1, 1), "m": Decimal("12.50"), "o": {"i": 1},
        "t": [(7, "seven"), (-1, None)],
    }  # fmt: skip


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ({"i": 1 << 31}, "expected `int` <= 2147483647 - at `$.i`"),
        ({"u": 1 << 63}, "expected `int` <= 9223372036854775807 - at `$.u`"),
        ({"i": 1.0}, "expected `int | null`, got `float` - at `$.i`"),
        ({"r": "text"}, "expected `bytes | null`, got `str` - at `$.r`"),
        ({"s": b"bytes"}, "expected `str | null`, got `bytes` - at `$.s`"),
        ({"f": 1e39}, "a number beyond the range of float"),
        ({"y": "2013-02-29"}, "expected a date such as 2026-01-31 - at `$.y`"),
        ({"z": "noon"}, "invalid RFC3339 encoded datetime - at `$.z`"),
        ({"n": NOON}, "expected `datetime` with no timezone component - at `$.n`"),
        ({"m": "12.345"}, "rescaling Decimal value would cause data loss"),
        ({"m": "1e-999999999"}, "a decimal that is not finite, or beyond 10 to the 200"),
        ({"m": "NaN"}, "a decimal that is not finite, or beyond 10 to the 200"),
        ([1], "expected `object`, got `array`"),
    ],
)
def test_msgpack_of_another_type_is_told(value: object, why: str) -> None:
    assert reason(PACKED, msgspec.msgpack.encode(value)) == why


def test_msgpack_cut_short_or_with_more_behind_is_told() -> None:
    value = msgspec.msgpack.encode({"i": 1, "s": "abc"})
    good = decode(PACKED, value, value[:-1], b"", value + b"\0", value, None)
    assert good.bad.to_pylist() == [1, 2, 3]
    assert [row and row["i"] for row in good.values.to_pylist()] == [1, None, None, None, 1, None]
    assert reason(PACKED, b"\x81\xa1s\xa1\xff").startswith("'utf-8' codec can't decode")
    assert reason(PACKED, b"\xdf\xff\xff\xff\xff" + b"\xc0" * 20)


# Avro

FLIGHT: dict[str, Any] = {
    "type": "record",
    "name": "Flight",
    "namespace": "org.example",
    "fields": [
        {"name": "i", "type": "int"},
        {"name": "l", "type": ["null", "long"], "default": None},
        {"name": "w", "type": ["int", "long", "null"]},
        {"name": "f", "type": "float"},
        {"name": "d", "type": ["float", "double"]},
        {"name": "s", "type": "string"},
        {"name": "u", "type": {"type": "string", "logicalType": "uuid"}},
        {"name": "r", "type": "bytes"},
        {"name": "x", "type": {"type": "fixed", "name": "Four", "size": 4}},
        {"name": "e", "type": {"type": "enum", "name": "Hub", "symbols": ["EWR", "JFK"]}},
        {"name": "e2", "type": ["null", "Hub"]},
        {"name": "y", "type": {"type": "int", "logicalType": "date"}},
        {"name": "z3", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "z6", "type": ["null", {"type": "long", "logicalType": "timestamp-micros"}]},
        {"name": "n3", "type": {"type": "long", "logicalType": "local-timestamp-millis"}},
        {
            "name": "m",
            "type": {"type": "bytes", "logicalType": "decimal", "precision": 6, "scale": 2},
        },
        {"name": "a", "type": {"type": "array", "items": ["null", "int"]}},
        {
            "name": "t",
            "type": {"type": "map", "values": {"type": "long", "logicalType": "timestamp-millis"}},
        },
        {
            "name": "o",
            "type": {
                "type": "record",
                "name": "Plane",
                "fields": [{"name": "hub", "type": "org.example.Hub"}],
            },
        },
        {"name": "v", "type": {"type": "long", "logicalType": "time-micros"}},
    ],
}  # fmt: skip
AVRO = ValueSpec("avro", json.dumps(FLIGHT))
ROW: dict[str, Any] = {
    "i": -1, "l": None, "w": 1 << 40, "f": 0.5, "d": 0.1, "s": "é",
    "u": "12345678-1234-5678-1234-567812345678", "r": b"\0\xff", "x": b"abcd", "e": "JFK",
    "e2": "EWR", "y": datetime.date(2013, 1, 1), "z3": NOON.replace(microsecond=123000), "z6": NOON,
    "n3": LOCAL, "m": Decimal("12.50"), "a": [1, None, 2], "t": {"k": NOON.replace(microsecond=0)},
    "o": {"hub": "EWR"}, "v": datetime.time(0, 0, 1),
}  # fmt: skip


def avro(row: dict[str, Any], schema: dict[str, Any] = FLIGHT) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(schema), row)
    return out.getvalue()


def test_avro_types_have_names_in_ddl() -> None:
    assert AVRO.ddl() == (
        "struct<i:int,l:bigint,w:bigint,f:float,d:double,s:string,u:string,r:binary,x:binary,"
        "e:string,e2:string,y:date,z3:timestamp,z6:timestamp,n3:timestamp_ntz,m:decimal(6,2),"
        "a:array<int>,t:map<string,timestamp>,o:struct<hub:string>,v:bigint>"
    )


def test_avro_records_become_rows() -> None:
    row = only(AVRO, avro(ROW))
    assert row == {**ROW, "t": list(ROW["t"].items()), "v": 1_000_000}


def test_avro_in_its_wrappings() -> None:
    datum = avro(ROW)
    confluent = ValueSpec("avro", AVRO.schema, avro_confluent=True)
    assert only(confluent, b"\0\0\0\0\x07" + datum) == only(AVRO, datum)
    assert reason(confluent, datum).startswith("expected byte 0 and a schema id of 4 bytes, found")
    assert reason(confluent, b"\0\0\0").endswith("found 00 00 00")
    assert reason(confluent, b"").endswith("found no bytes")
    canonical = fastavro.schema.to_parsing_canonical_form(FLIGHT)
    mark = bytes.fromhex(fastavro.schema.fingerprint(canonical, "CRC-64-AVRO"))
    assert only(AVRO, b"\xc3\x01" + mark + datum) == only(AVRO, datum)


def test_the_fingerprint_of_a_single_object_is_little_endian() -> None:
    """The Avro specification's own vector for the schema "int"."""
    assert fingerprint_of('"int"') == (0x7275D51A3F395C8F).to_bytes(8, "little")


def test_avro_cut_short_or_with_more_behind_is_told() -> None:
    datum = avro(ROW)
    assert reason(AVRO, datum + b"\0") == f"the datum ends at byte {len(datum)} of {len(datum) + 1}"
    for end in range(len(datum)):
        assert reason(AVRO, datum[:end])


NUMBERS = {"type": "array", "items": "int"}
SMALL = {"type": "record", "name": "S", "fields": [{"name": "a", "type": NUMBERS}]}


@pytest.mark.parametrize(
    "count", [b"\xfe\xff\xff\xff\xff\xff\xff\xff\xff\x01", b"\x80" * 30, b"\x01"]
)
def test_avro_that_claims_more_than_it_has_is_told(count: bytes) -> None:
    assert reason(ValueSpec("avro", json.dumps(SMALL)), count + b"\x02\x02")


def test_an_avro_decimal_of_a_megabyte_is_told_at_once() -> None:
    decimal = {"type": "bytes", "logicalType": "decimal", "precision": 5, "scale": 2}
    schema = {"type": "record", "name": "S", "fields": [{"name": "m", "type": decimal}]}
    spec = ValueSpec("avro", json.dumps(schema))
    long = avro({"m": b"\x7f" * 1_000_000}, {**schema, "fields": [{"name": "m", "type": "bytes"}]})
    assert reason(spec, long) == "a decimal of 1000000 bytes"
    assert reason(spec, b"\x06\x01\x86\xa0") == "a decimal of more than 5 digits"
    assert only(spec, b"\x06\xfe\x79\x61") == {"m": Decimal("-999.99")}
    assert reason(spec, b"\x00") == "a decimal of 0 bytes"


@pytest.mark.parametrize(
    ("field", "why"),
    [
        ({"type": ["null", "int", "string"]}, "a union of"),
        ({"type": "null"}, "null is a type of its own"),
        ({"type": {"type": "fixed", "name": "F", "size": 0}}, "'F' has no bytes"),
        ({"type": {"type": "record", "name": "R", "fields": []}}, "'R' has no fields"),
        ({"type": ["null", "S"]}, "'S' contains itself"),
        ({"type": "Unknown"}, "Unknown"),
        ({"type": {"type": "bytes", "logicalType": "decimal", "precision": 40}}, "precision"),
        ({"type": 5}, ""),
        ({}, ""),
    ],
)
def test_an_avro_schema_that_no_column_can_hold_is_refused(field: Any, why: str) -> None:
    schema = {"type": "record", "name": "S", "fields": [{"name": "a", **field}]}
    with pytest.raises(ConfigError, match="is not an Avro schema of values") as caught:
        ValueSpec("avro", json.dumps(schema)).arrow_type()
    assert why in str(caught.value)


@pytest.mark.parametrize("text", ["", "{", "[]", '"int"', '{"type":"int"}', "a int", "[" * 99_999])
def test_what_is_not_a_record_schema_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="is not an Avro schema of values"):
        ValueSpec("avro", text).arrow_type()


# Protobuf

T = descriptor_pb2.FieldDescriptorProto


def flight_file() -> descriptor_pb2.FileDescriptorProto:
    file = descriptor_pb2.FileDescriptorProto(
        name="flight.proto",
        package="example",
        syntax="proto3",
        dependency=["google/protobuf/timestamp.proto"],
    )
    hub = file.enum_type.add(name="Hub")
    hub.value.add(name="EWR", number=0)
    hub.value.add(name="JFK", number=5)
    plane = file.message_type.add(name="Plane")
    plane.field.add(name="tail", number=1, type=T.TYPE_STRING, label=T.LABEL_OPTIONAL)
    file.message_type.add(name="Nothing")
    loop = file.message_type.add(name="Loop")
    loop.field.add(name="next", number=1, type=T.TYPE_MESSAGE, label=1, type_name=".example.Loop")
    flight = file.message_type.add(name="Flight")
    simple = {
        "i": T.TYPE_INT32, "l": T.TYPE_SINT64, "u": T.TYPE_UINT32, "ul": T.TYPE_FIXED64,
        "f": T.TYPE_FLOAT, "d": T.TYPE_DOUBLE, "b": T.TYPE_BOOL, "s": T.TYPE_STRING,
        "r": T.TYPE_BYTES,
    }  # fmt: skip
    for number, (name, kind) in enumerate(simple.items(), 1):
        flight.field.add(name=name, number=number, type=kind, label=T.LABEL_OPTIONAL)
    typed = [
        ("e", 20, T.TYPE_ENUM, 1, ".example.Hub"),
        ("o", 21, T.TYPE_MESSAGE, 1, ".example.Plane"),
        ("q", 22, T.TYPE_MESSAGE, 3, ".example.Plane"),
        ("z", 23, T.TYPE_MESSAGE, 1, ".google.protobuf.Timestamp"),
        ("t", 24, T.TYPE_MESSAGE, 3, ".example.Flight.TEntry"),
        ("nothing", 25, T.TYPE_MESSAGE, 1, ".example.Nothing"),
        ("e3", 26, T.TYPE_ENUM, 3, ".example.Hub"),
    ]
    for name, number, kind, label, type_name in typed:
        flight.field.add(name=name, number=number, type=kind, label=label, type_name=type_name)
    flight.field.add(name="a", number=30, type=T.TYPE_INT32, label=T.LABEL_REPEATED)
    flight.oneof_decl.add(name="_opt")
    flight.field.add(
        name="opt", number=31, type=T.TYPE_INT32, label=1, oneof_index=0, proto3_optional=True
    )
    entry = flight.nested_type.add(name="TEntry")
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, type=T.TYPE_STRING, label=T.LABEL_OPTIONAL)
    entry.field.add(
        name="value", number=2, type=T.TYPE_MESSAGE, label=1, type_name=".example.Plane"
    )
    return file


TIME_FILE = descriptor_pb2.FileDescriptorProto()
timestamp_pb2.DESCRIPTOR.CopyToProto(TIME_FILE)
FILES = descriptor_pb2.FileDescriptorSet(file=[TIME_FILE, flight_file()])
PROTOBUF = ValueSpec("protobuf", descriptors=FILES.SerializeToString(), message="example.Flight")


def flight_class() -> Any:
    pool = descriptor_pool.DescriptorPool()
    for file in FILES.file:
        pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("example.Flight"))


def test_protobuf_messages_become_rows() -> None:
    assert PROTOBUF.ddl() == (
        "struct<i:int,l:bigint,u:bigint,ul:decimal(20,0),f:float,d:double,b:boolean,s:string,"
        "r:binary,e:string,o:struct<tail:string>,q:array<struct<tail:string>>,z:timestamp,"
        "t:map<string,struct<tail:string>>,e3:array<string>,a:array<int>,opt:int>"
    )
    flight = flight_class()(
        i=-1, l=-(1 << 62), u=(1 << 32) - 1, ul=(1 << 64) - 1, f=0.5, d=0.1, b=True, s="é",
        r=b"\xff", e=5, o={"tail": "N1"}, q=[{"tail": "N2"}, {}], a=[1, 2], opt=0,
        t={"k": {"tail": "N3"}}, nothing={}, e3=[0, 5, 9],
    )  # fmt: skip
    flight.z.FromDatetime(NOON)
    assert only(PROTOBUF, flight.SerializeToString()) == {
        "i": -1, "l": -(1 << 62), "u": (1 << 32) - 1, "ul": Decimal((1 << 64) - 1), "f": 0.5,
        "d": 0.1, "b": True, "s": "é", "r": b"\xff", "e": "JFK", "o": {"tail": "N1"},
        "q": [{"tail": "N2"}, {"tail": ""}], "z": NOON, "t": [("k", {"tail": "N3"})],
        "e3": ["EWR", "JFK", "9"], "a": [1, 2], "opt": 0,
    }  # fmt: skip


def test_protobuf_fields_that_are_not_set() -> None:
    assert only(PROTOBUF, b"") == {
        "i": 0, "l": 0, "u": 0, "ul": Decimal(0), "f": 0.0, "d": 0.0, "b": False, "s": "", "r": b"",
        "e": "EWR", "o": None, "q": [], "z": None, "t": [], "e3": [], "a": [], "opt": None,
    }  # fmt: skip


def test_damaged_protobuf_is_told() -> None:
    assert reason(PROTOBUF, b"\x08")
    assert reason(PROTOBUF, b"\x42\x01\xff")
    assert reason(PROTOBUF, b"\xff" * 40)
    time = flight_class()()
    time.z.seconds = 1 << 60
    assert reason(PROTOBUF, time.SerializeToString())


@pytest.mark.parametrize(
    ("descriptors", "message", "why"),
    [
        (b"", "example.Flight", "expected one of no message"),
        (FILES.SerializeToString(), "Flight", "example.Plane, example.Nothing"),
        (FILES.SerializeToString(), "example.Loop", "contains itself"),
        (FILES.SerializeToString(), "example.Nothing", "no fields"),
        (b"\xff" * 9, "example.Flight", "is not a complete FileDescriptorSet"),
        (descriptor_pb2.FileDescriptorSet(file=[flight_file()]).SerializeToString(), "a",
         "--include_imports"),
    ],
)  # fmt: skip
def test_descriptors_that_make_no_columns_are_refused(
    descriptors: bytes, message: str, why: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        ValueSpec("protobuf", descriptors=descriptors, message=message).arrow_type()
    assert why in str(caught.value)


# Arrow

ARROW = ValueSpec("arrow", "i int NOT NULL, s string, a array<int>, z timestamp")


def stream(rows: list[dict[str, Any]], schema: pa.Schema | None = None, **options: Any) -> bytes:
    out = io.BytesIO()
    kind = schema or pa.schema(
        [
            ("i", pa.int32()),
            ("s", pa.string()),
            ("a", pa.list_(pa.int32())),
            ("z", pa.timestamp("us", "UTC")),
        ]
    )
    with pa.ipc.new_stream(out, kind, options=pa.ipc.IpcWriteOptions(**options)) as writer:
        writer.write_batch(pa.RecordBatch.from_pylist(rows, kind))
    return out.getvalue()


def test_arrow_streams_of_one_row_become_rows() -> None:
    row = {"i": 1, "s": "é", "a": [1, None], "z": NOON}
    assert only(ARROW, stream([row])) == row
    many = decode(ARROW, *[stream([{**row, "i": n}]) for n in range(50)])
    assert many.values.field("i").to_pylist() == list(range(50))


def test_other_arrow_streams_are_told() -> None:
    row = {"i": 1}
    value = stream([row])
    assert reason(ARROW, stream([row, row])) == "expected one row, found 2"
    assert reason(ARROW, stream([])) == "expected one row, found 0"
    assert reason(ARROW, stream([{"i": None}])) == "column 'i' is null"
    other = stream([row], pa.schema([("i", pa.int64())]))
    assert reason(ARROW, other).startswith("columns are i int64, declared i int32, s string")
    assert reason(ARROW, stream([row], compression="zstd")).startswith("expected no compression")
    assert reason(ARROW, b"") == (
        "expected an Arrow stream of schema, record batch, found no message"
    )
    end = pa.ipc.MessageReader.open_stream(value).read_next_message().serialize()
    assert reason(ARROW, end.to_pybytes()).endswith(" found schema")
    for end in (4, len(value) // 2, len(value) - 9):
        assert reason(ARROW, value[:end])
    liar = value.replace(struct.pack("<q", 1), struct.pack("<q", 1 << 50))
    assert decode(ARROW, liar).bad.to_pylist() == [0]
