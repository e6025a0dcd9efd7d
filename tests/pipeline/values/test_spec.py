"""Options to a spec, and what a spec is good for."""

from __future__ import annotations

import pickle
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest

from bascule.errors import ConfigError
from bascule.pipeline.values import VALUE_OPTIONS, ValueSpec
from pipeline.values import test_foreign as foreign


def spec(**options: str) -> ValueSpec:
    return ValueSpec.from_options({name.lower(): value for name, value in options.items()})


def test_without_options_values_stay_bytes() -> None:
    raw = ValueSpec.from_options({"server": "x", "stream": "flights"})
    assert raw == ValueSpec()
    assert raw.is_raw
    assert raw.ddl() == "binary"
    assert raw.arrow_type() == pa.binary()
    values = pa.array([b"a", None])
    assert raw.decoder().decode(values).values is values
    assert raw.encoder().encode(values) is values


def test_a_spec_of_each_format(tmp_path: Path) -> None:
    (tmp_path / "s.ddl").write_text(" a int \n")
    (tmp_path / "s.avsc").write_text(foreign.AVRO.schema)
    (tmp_path / "s.desc").write_bytes(foreign.PROTOBUF.descriptors)
    made = [
        spec(valueFormat="json", valueSchema="a int", mode="failfast"),
        spec(valueFormat=" MsgPack ", valueSchemaFile=str(tmp_path / "s.ddl")),
        spec(valueFormat="avro", valueSchemaFile=str(tmp_path / "s.avsc"), avroConfluent="True"),
        spec(
            valueFormat="protobuf",
            valueDescriptorFile=str(tmp_path / "s.desc"),
            valueMessage="example.Flight",
        ),
        spec(valueFormat="arrow", valueSchema="struct<a:int NOT NULL>", mode="PERMISSIVE"),
    ]
    assert made == [
        ValueSpec("json", "a int", mode="FAILFAST"),
        ValueSpec("msgpack", "a int"),
        ValueSpec("avro", foreign.AVRO.schema, avro_confluent=True),
        foreign.PROTOBUF,
        ValueSpec("arrow", "struct<a:int NOT NULL>"),
    ]
    for one in made:
        again = pickle.loads(pickle.dumps(one))
        assert again == one
        assert hash(again) == hash(one)
        assert again.decoder().decode(pa.nulls(2, pa.binary())).values.null_count == 2
        assert ValueSpec("arrow", one.ddl()).arrow_type() == one.arrow_type()


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (
            {"valueFormat": "xml"},
            "option 'valueFormat' is 'xml': expected raw, json, msgpack, avro, protobuf or arrow",
        ),
        (
            {"valueFormat": "json"},
            "option 'valueSchema' is missing: valueFormat json needs a schema",
        ),
        ({"valueFormat": "json", "valueSchema": " "}, "option 'valueSchema' is missing"),
        (
            {"valueFormat": "json", "valueSchema": "a imt"},
            "option 'valueSchema': schema has 'imt' at position 3: expected a type",
        ),
        (
            {"valueFormat": "json", "valueSchema": "a map<int,int>"},
            "option 'valueSchema': keys of a map are string in json, found int32",
        ),
        (
            {"valueFormat": "msgpack", "valueSchema": "a array<struct<b:map<double,int>>>"},
            "keys of a map are string or an integer in msgpack, found double",
        ),
        ({"valueFormat": "avro", "valueSchema": "a int"}, "'valueSchema' is not an Avro schema"),
        (
            {"valueFormat": "json", "valueSchema": "a int", "valueSchemaFile": "x"},
            "options 'valueSchema' and 'valueSchemaFile' are both given",
        ),
        (
            {"valueFormat": "json", "valueSchemaFile": "/no/file"},
            "option 'valueSchemaFile' is '/no/file': expected a file that can be read, found: ",
        ),
        ({"valueFormat": "json", "valueSchemaFile": "a\0b"}, "expected a file that can be read"),
        (
            {"valueFormat": "json", "valueSchemaFile": sys.executable},
            "expected text in UTF-8, found another byte at",
        ),
        ({"valueFormat": "protobuf"}, "option 'valueDescriptorFile' is missing"),
        (
            {"valueFormat": "protobuf", "valueDescriptorFile": "x"},
            "option 'valueMessage' is missing",
        ),
        (
            {"valueFormat": "protobuf", "valueSchema": "a int"},
            "option 'valueSchema' does not apply to valueFormat protobuf: it is for json, msgpack",
        ),
        (
            {"valueSchema": "a int"},
            "option 'valueSchema' does not apply to valueFormat raw: "
            "it is for json, msgpack, avro, arrow; valueFormat is not given",
        ),
        ({"mode": "FAILFAST"}, "option 'mode' does not apply to valueFormat raw"),
        (
            {"valueFormat": "json", "valueSchema": "a int", "mode": "DROPMALFORMED"},
            "option 'mode' is 'DROPMALFORMED': expected PERMISSIVE or FAILFAST",
        ),
        (
            {"valueFormat": "json", "valueSchema": "a int", "avroConfluent": "true"},
            "option 'avroConfluent' does not apply to valueFormat json: it is for avro",
        ),
        (
            {"valueFormat": "avro", "valueSchema": "{}", "avroConfluent": "yes"},
            "option 'avroConfluent' is 'yes': expected false or true",
        ),
    ],
)
def test_what_is_wrong_with_an_option_is_told(options: dict[str, str], text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        spec(**options)
    assert text in str(caught.value)


def test_a_spec_that_was_not_read_from_options_is_checked_too() -> None:
    with pytest.raises(ConfigError, match="position 3"):
        ValueSpec("json", "a imt").decoder()
    with pytest.raises(ConfigError, match="values cannot be written as avro"):
        foreign.AVRO.encoder()


def test_every_option_has_its_place_in_the_names() -> None:
    assert len({name.lower() for name in VALUE_OPTIONS}) == len(VALUE_OPTIONS) == 7


def test_nothing_heavy_is_imported_before_it_is_needed() -> None:
    code = """
import sys
from bascule.pipeline.values import ValueSpec
spec = ValueSpec("json", "a int")
print(*sorted({"pyarrow", "fastavro", "google", "pyspark", "numpy"} & sys.modules.keys()))
spec.decoder()
print(*sorted({"fastavro", "google", "pyspark"} & sys.modules.keys()))
"""
    run = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert run.stdout.split() == []
