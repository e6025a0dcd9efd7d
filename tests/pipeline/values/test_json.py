"""JSON values to columns: the fast way, the exact way and a slow oracle agree on every row."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bascule.pipeline.values import DecodedValues, ValueDecoder, ValueSpec, json_decoder
from pipeline.values.oracle import BAD, decoded

DECIMALS = ValueSpec("json", "m decimal(6,2), a array<decimal(6,2)>, o struct<m:decimal(9,0)>")
DDL = (
    "i int, l bigint, t tinyint, b boolean, f float, d double, s string, "
    "z timestamp, n timestamp_ntz, y date, r binary, a array<int>, o struct<i:int,s:string>, "
    "q array<struct<z:timestamp>>, `x y` string"
)
VALUES = [
    b'{"i":1,"s":"a"}', b"{}", b" { } ", b'{"i":null}', b'{"other":[{"i":"x"}],"i":3}',
    b'{"i":1.0}', b'{"i":1e2}', b'{"i":-0}', b'{"i":2147483648}', b'{"i":"1"}', b'{"i":true}',
    b'{"t":-128}', b'{"t":128}', b'{"l":9223372036854775807}', b'{"l":9223372036854775808}',
    b'{"b":true,"d":1}', b'{"b":1}', b'{"d":1e308}', b'{"d":1e309}', b'{"d":-0.0}', b'{"d":1e-400}',
    b'{"d":60e308}', b'{"d":-0}', b'{"d":[-0]}', b'{"d":%d}' % 10**400, b'{"d":-1e-320}',
    b'{"f":0.1}', b'{"f":1e39}', b'{"f":3.4028235e38}', b'{"d":NaN}', b'{"d":Infinity}',
    b'{"s":1}', b'{"s":"\\u00e9\xc3\xa9\\ud83d\\ude00"}', b'{"s":"\\ud800"}', b'{"s":"\xff"}',
    b'{"other":"\xff"}', b'{"s":"a\nb"}', b'{"s":"a\\nb"}', b'{\n\r\n"s"\n:\n"x"}\n', b'{"s":"\0"}',
    b'{"m":1.25}', b'{"m":"1.25"}', b'{"m":1.255}', b'{"m":1.250}', b'{"m":12345}', b'{"m":1e3}',
    b'{"m":"NaN"}', b'{"m":1e9999999}', b'{"m":1e-999999999}', b'{"m":0e-999999999}',
    b'{"m":-0}', b'{"z":"2013-01-01T10:00:00Z"}',
    b'{"z":"2013-01-01"}', b'{"z":"2013-01-01 10:00"}', b'{"z":"2013-01-01T10:00:00.123456789Z"}',
    b'{"z":"2013-01-01T10:00:00.5+02:30"}', b'{"z":"2013-02-29"}', b'{"z":1357034400}',
    b'{"n":"2013-01-01T10:00:00.123"}', b'{"n":"2013-01-01T10:00:00Z"}', b'{"y":"2013-01-31"}',
    b'{"y":"2013-01-32"}', b'{"y":"2013-01-01T00:00:00Z"}', b'{"r":"aGk="}', b'{"r":"aGk"}',
    b'{"r":""}', b'{"a":[1,null,3]}', b'{"a":[1,"x"]}', b'{"a":[]}', b'{"a":{}}',
    b'{"o":{"i":1,"j":2}}', b'{"o":{"i":"x"}}', b'{"o":[]}', b'{"o":null}',
    b'{"q":[{"z":"2013-01-01T10:00:00Z"},null,{}]}', b'{"q":[{"z":"x"}]}', b'{"x y":"b"}',
    b'{"i":1,"i":2}', b'{"i":"x","i":2}', b'{"\\u0069":7}', b'{"I":7}', b'{"":1}',
]  # fmt: skip
HOSTILE = [
    b"", b" ", b"null", b"0", b"[]", b'"{}"', b"true", b"{}}", b"{} {}", b"{}\n{}", b"{},{}", b"{",
    b"}", b'{"i":', b'{},"i":3', b'{}}\n{"i":3', b'{}, "w": {}', b'{"o":{"i":1}', b'"', b'{"s":"',
    b'{"s":"}\n', b'\xef\xbb\xbf{"i":1}', b'{"i":1}\0', b'{"i":01}', b'{"i":1,}', b"{'i':1}",
    b'{"i":1}//x', b'{"i":/**/1}', b"[" * 3000, b'{"w":' + b"[" * 3000 + b"]" * 3000 + b"}", b"\\",
    b'{"i":+1}', b'{"d":.5}', b'{"d":1.}', b'{"i"}', b'{i:1}', b"nul", b'{"s":"\\x"}',
    b'{"s":"\t"}', b"\n", b"\r", b'{"w":"\\ud800"}', b"\0", b"{}\x0b", b"\xa0{}",
]  # fmt: skip
SPEC = ValueSpec("json", DDL)


@pytest.fixture
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    """Arrow's reader for as few rows as there are."""
    monkeypatch.setattr(json_decoder, "ROWS_MIN", 1)


@cache
def decoder(spec: ValueSpec) -> ValueDecoder:
    return spec.decoder()


def decode(values: list[bytes | None], spec: ValueSpec = SPEC) -> DecodedValues:
    found = decoder(spec).decode(pa.array(values, pa.binary()))
    assert str(found.values.type) == str(spec.arrow_type())
    found.values.validate(full=True)
    assert len(found.values) == len(values)
    assert found.bad.type == pa.int64()
    assert len(found.bad) == len(found.reasons)
    assert all(0 < len(reason) <= 200 and "\n" not in reason for reason in found.reasons)
    return found


def rows_of(found: DecodedValues) -> list[Any]:
    """Each row, or BAD."""
    rows = found.values.to_pylist()
    for number in found.bad.to_pylist():
        assert rows[number] is None
        rows[number] = BAD
    return rows


def check(values: list[bytes | None], spec: ValueSpec = SPEC) -> None:
    expected = [decoded(value, spec.arrow_type()) for value in values]
    for value, row, wanted in zip(values, rows_of(decode(values, spec)), expected, strict=True):
        assert repr(row) == repr(wanted), value


@pytest.mark.parametrize("value", [*VALUES, *HOSTILE], ids=repr)
def test_a_value_alone_is_what_the_oracle_makes_of_it(value: bytes) -> None:
    check([value])


@pytest.mark.usefixtures("fast")
@pytest.mark.parametrize("value", [*VALUES, *HOSTILE], ids=repr)
def test_a_value_disturbs_no_neighbour(value: bytes) -> None:
    check([b'{"i":1}', value, None, b'{"i":2}', b'{"i":3}', value])
    check([value])


@pytest.mark.usefixtures("fast")
def test_all_values_at_once() -> None:
    check([*VALUES, *HOSTILE, *VALUES, None] * 2)


def test_good_values_go_the_fast_way(monkeypatch: pytest.MonkeyPatch) -> None:
    slow = {b'{"i":1,"i":2}', b'{"other":"\xff"}', b'{"d":-0}', b'{"d":-0.0}', b'{"d":-1e-320}'}
    good = [v for v in VALUES if decoded(v, SPEC.arrow_type()) is not BAD and v not in slow]
    good = [v for v in good if b"e9999999" not in v]

    def refuse(*_: object) -> None:
        raise AssertionError("the exact way was gone")

    monkeypatch.setattr(json_decoder.JsonDecoder, "decode_into", refuse)
    for value in good:
        found = decode([value] * 600)
        assert found.bad.to_pylist() == []
        assert found.values.to_pylist() == [decoded(value, SPEC.arrow_type())] * 600, value


scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(1 << 70), 1 << 70)
    | st.integers(-200, 200)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=5)
    | st.sampled_from(
        ["2020-02-29T12:30:00Z", "2021-02-29", "1999-12-31", "aGVsbG8=", "1.5", "7e2"]
    )
)
documents = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from("iltbfdsmznyraoq") | st.text(max_size=2), inner, max_size=4
        )
    ),
    max_leaves=8,
)
texts = documents.map(lambda found: json.dumps(found).encode())
objects = st.dictionaries(
    st.sampled_from(list("iltbfdsmznyraoq")), documents, min_size=1, max_size=3
).map(lambda found: json.dumps(found, ensure_ascii=False).encode("utf-8", "surrogatepass"))
pieces = st.lists(
    st.sampled_from(
        [b"{", b"}", b"[", b"]", b",", b":", b'"i"', b'"o"', b"1", b"null", b'"', b"\n", b" ",
         b"{}", b'{"i":1}', b'"i":2', b"\\", b"\xff"]
    ),
    max_size=6,
).map(b"".join)  # fmt: skip
values = texts | objects | pieces | st.sampled_from(VALUES) | st.sampled_from(HOSTILE)


@given(st.lists(values | st.none(), max_size=12))
def test_any_batch_is_what_the_oracle_makes_of_each_value(batch: list[bytes | None]) -> None:
    check(batch)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_decoder, "ROWS_MIN", 1)
        check(batch)


MAPS = ValueSpec("json", "m map<string,int>, o struct<m:map<string,array<timestamp>>>")


@given(
    st.lists(values | st.sampled_from([b'{"m":{"a":1,"b":null}}', b'{"m":{"a":"x"}}']), max_size=6)
)
def test_maps_are_objects_with_any_names(batch: list[bytes]) -> None:
    check([*batch, b'{"m":{"a":1,"\\u00e9":null},"o":{"m":{"t":["2020-01-01",null]}}}'], MAPS)


REQUIRED = ValueSpec("json", "i int NOT NULL, s string")
DEEP = ValueSpec("json", "o struct<i:int NOT NULL>, a array<struct<s:string NOT NULL>>")


@pytest.mark.usefixtures("fast")
def test_a_required_field_must_be_there_and_not_null() -> None:
    batch: list[bytes | None] = [b'{"i":1}', b'{"i":null}', b'{"s":"x"}', None, b'{"i":4,"s":"y"}']
    check(batch, REQUIRED)
    found = decode(batch, REQUIRED)
    assert found.reasons == [
        "expected `int`, got `null` - at `$.i`", "object missing required field `i`",
    ]  # fmt: skip
    check([b'{"o":{"i":1}}', b'{"o":{}}', b'{"o":null}', b'{"a":[{"s":"x"},{}]}', b"{}"], DEEP)


def test_reasons_name_the_field_and_what_was_found() -> None:
    found = decode(
        [
            b'{"i":1.5}',
            b'{"t":300}',
            b'{"z":"noon"}',
            b'{"r":"?"}',
            b'{"m":1.555}',
            b"[]",
            b"{",
            b"",
        ]
    )
    assert found.reasons == [
        "expected `int | null`, got `float` - at `$.i`",
        "expected `int` <= 127 - at `$.t`",
        "expected a time such as 2026-01-31T23:59:59.5Z - at `$.z`",
        "expected bytes in base64 - at `$.r`",
        "expected `object`, got another value",
        "input data was truncated",
        "input data was truncated",
    ]


@pytest.mark.usefixtures("fast")
def test_a_slice_is_decoded_like_a_whole_column() -> None:
    column = pa.array([b"{", b'{"i":1}', b'{"i":\n2}', None, b'{"i":"x"}', b'{"i":4}'], pa.binary())
    whole = rows_of(SPEC.decoder().decode(column))
    for start in range(len(column)):
        for end in range(start, len(column) + 1):
            piece = SPEC.decoder().decode(column.slice(start, end - start))
            assert repr(rows_of(piece)) == repr(whole[start:end])


@pytest.mark.usefixtures("fast")
def test_a_value_longer_than_a_block_of_the_reader(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_decoder, "BLOCK_BYTES_MIN", 64)
    long = json.dumps({"s": "x" * 10_000, "i": 1}).encode()
    check([b'{"i":1}', long, b'{"i":2}'] * 3)


@pytest.mark.parametrize("value", [v for v in VALUES if b'"m"' in v], ids=repr)
def test_decimals_at_any_depth(value: bytes) -> None:
    number = value[5:-1]
    batch = [value, b'{"a":[null,%b]}' % number, b'{"o":{"m":%b}}' % number, b'{"m":1.5}']
    check(batch, DECIMALS)


def test_an_empty_column() -> None:
    check([])
    check([None, None])
