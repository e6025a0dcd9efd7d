"""Spark's DDL text to Arrow types and back."""

from __future__ import annotations

import pickle

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bascule.errors import ConfigError
from bascule.pipeline.values.ddl import format_ddl, list_of, map_of, parse_ddl

SIMPLE = {
    "boolean": pa.bool_(),
    "BOOL": pa.bool_(),
    "tinyint": pa.int8(),
    "byte": pa.int8(),
    "smallint": pa.int16(),
    "short": pa.int16(),
    "int": pa.int32(),
    "Integer": pa.int32(),
    "bigint": pa.int64(),
    "long": pa.int64(),
    "float": pa.float32(),
    "real": pa.float32(),
    "double": pa.float64(),
    "decimal": pa.decimal128(10, 0),
    "dec(4)": pa.decimal128(4, 0),
    "numeric( 38 , 38 )": pa.decimal128(38, 38),
    "string": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", "UTC"),
    "timestamp_ltz": pa.timestamp("us", "UTC"),
    "timestamp_ntz": pa.timestamp("us"),
}


@pytest.mark.parametrize("text", SIMPLE)
def test_a_name_of_a_type(text: str) -> None:
    assert parse_ddl(f"a {text}") == pa.struct([("a", SIMPLE[text])])


def test_columns_with_all_that_may_stand_around_them() -> None:
    text = (
        "a int NOT NULL, `b ``c`: STRING comment 'it\\'s ''b''', "
        "_d1 array< map<string,struct<x:int>> >"
    )
    assert parse_ddl(text) == pa.struct(
        [
            pa.field("a", pa.int32(), nullable=False),
            pa.field("b `c", pa.string()),
            pa.field("_d1", list_of(map_of(pa.string(), pa.struct([("x", pa.int32())])))),
        ]
    )
    assert parse_ddl("struct<a int, `d`: date>") == parse_ddl("a int, d date")
    assert parse_ddl("struct int").field("struct").type == pa.int32()


@pytest.mark.parametrize(
    ("text", "position", "expected"),
    [
        ("", 1, "the name of a column"),
        ("a", 2, "a type"),
        ("a int,", 7, "the name of a column"),
        ("a varchar(3)", 3, "known: boolean, tinyint"),
        ("a interval", 3, "known: boolean"),
        ("a int b", 7, "a comma or the end"),
        ("a array<int", 12, "'>'"),
        ("a array int", 9, "'<'"),
        ("a map<int>", 10, "','"),
        ("a-b int", 2, "between backticks"),
        ("é int", 1, "not part of a schema"),
        ("a decimal(39)", 11, "from 1 to 38"),
        ("a decimal(5,6)", 13, "from 0 to 5"),
        ("a decimal(5,+1)", 13, "not part of a schema"),
        ("a int, A int", 8, "this one is taken"),
        ("a struct<>", 10, "the name of a column"),
        ("`` int", 1, "the name of a column"),
        ("a int NOT", 10, "NULL after NOT"),
        ("a int COMMENT b", 15, "single quotes"),
        ("struct<a:int>, b int", 14, "a comma or the end"),
        ("a " + "array<" * 60 + "int" + ">" * 60, 303, "no more than 50"),
    ],
)
def test_what_is_wrong_is_told_with_its_position(text: str, position: int, expected: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_ddl(text)
    assert f"at position {position}" in str(caught.value)
    assert expected in str(caught.value)


def test_a_type_without_a_name_is_refused() -> None:
    with pytest.raises(ConfigError, match="large_string has no name"):
        format_ddl(pa.struct([("a", pa.large_string())]))


names = st.text(min_size=1, max_size=8).filter(lambda name: "\0" not in name)
leaves = st.sampled_from([*SIMPLE.values(), pa.decimal128(5, 5)])


def structs(inner: st.SearchStrategy[pa.DataType]) -> st.SearchStrategy[pa.DataType]:
    field = st.builds(pa.field, names, inner, nullable=st.booleans())
    fields = st.lists(field, min_size=1, max_size=4, unique_by=lambda field: field.name.lower())
    return fields.map(pa.struct)


types = st.recursive(
    leaves,
    lambda inner: inner.map(list_of) | st.builds(map_of, inner, inner) | structs(inner),
    max_leaves=8,
)


@given(structs(types))
def test_a_type_written_and_read_is_the_same(kind: pa.DataType) -> None:
    again = parse_ddl(format_ddl(kind))
    assert again.equals(kind, check_metadata=True)
    assert str(again) == str(kind)
    assert pickle.loads(pickle.dumps(again)) == kind


@given(st.text(alphabet="ab `<>(),:'\\\n0int array map struct decimal not null", max_size=60))
def test_any_text_is_a_schema_or_is_refused(text: str) -> None:
    try:
        kind = parse_ddl(text)
    except ConfigError as error:
        assert "position" in str(error)
    else:
        assert parse_ddl(format_ddl(kind)) == kind


@given(structs(types))
def test_spark_would_have_the_same_in_arrow(kind: pa.DataType) -> None:
    conversion = pytest.importorskip("pyspark.sql.pandas.types")
    theirs = conversion.from_arrow_type(kind)
    again = conversion.to_arrow_type(theirs, timezone="UTC")
    assert again.equals(kind, check_metadata=True)
    assert str(again) == str(kind)


def test_the_text_is_what_spark_calls_the_type() -> None:
    conversion = pytest.importorskip("pyspark.sql.pandas.types")
    columns = [(f"c{number}", inner) for number, inner in enumerate(SIMPLE.values())]
    kind = pa.struct([*columns, ("l", list_of(map_of(pa.string(), pa.struct(columns))))])
    assert format_ddl(kind) == conversion.from_arrow_type(kind).simpleString()
