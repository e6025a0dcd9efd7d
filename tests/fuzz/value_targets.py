"""Values of records, which publishers choose freely, decoded into columns."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache

import msgspec
import pyarrow as pa

from bascule.errors import ConfigError
from bascule.pipeline.values import DecodedValues, ValueSpec, json_decoder
from bascule.pipeline.values.ddl import format_ddl, parse_ddl
from fuzz.target import Target
from pipeline.values import test_foreign as foreign
from pipeline.values.oracle import BAD, decoded
from pipeline.values.test_json import DDL, HOSTILE, VALUES

BETWEEN = b"\x1e"
"""Parts the values of a batch; RS is no byte of JSON, and rare in the others."""


@cache
def decode(spec: ValueSpec) -> Callable[[pa.Array], DecodedValues]:
    return spec.decoder().decode


def run_json(data: bytes) -> None:
    """Every row is what a slow oracle makes of its value, the fast way and the exact way."""
    spec = ValueSpec("json", DDL)
    values = data.split(BETWEEN)
    column = pa.array(values, pa.binary())
    expected = [decoded(value, spec.arrow_type()) for value in values]
    before = json_decoder.ROWS_MIN
    for rows_min in (before, 1):
        json_decoder.ROWS_MIN = rows_min  # type: ignore[misc]
        try:
            found = decode(spec)(column)
        finally:
            json_decoder.ROWS_MIN = before  # type: ignore[misc]
        check(found, values)
        bad = set(found.bad.to_pylist())
        for number, row in enumerate(found.values.to_pylist()):
            shown = BAD if number in bad else row
            assert repr(shown) == repr(expected[number]), values[number]


def check(found: DecodedValues, values: list[bytes]) -> None:
    found.values.validate(full=True)
    assert len(found.values) == len(values)
    assert len(found.bad) == len(found.reasons)
    assert (
        found.values.is_null().to_pylist()
        == pa.array(
            [number in set(found.bad.to_pylist()) for number in range(len(values))]
        ).to_pylist()
    )
    assert all(reason.strip() for reason in found.reasons)


def neighbours(spec: ValueSpec) -> Callable[[bytes], None]:
    """Rows are valid columns or told to be bad, and do not depend on the rows around them."""

    def run(data: bytes) -> None:
        values = data.split(BETWEEN)
        together = decode(spec)(pa.array(values, pa.binary()))
        check(together, values)
        for number, value in enumerate(values):
            alone = decode(spec)(pa.array([value], pa.binary()))
            assert alone.values.equals(together.values.slice(number, 1)) or has_nan(alone.values)
            assert (number in together.bad.to_pylist()) == (len(alone.bad) == 1)

    return run


def has_nan(rows: pa.Array) -> bool:
    return "nan" in str(rows)


def run_ddl(data: bytes) -> None:
    """Text is a schema that is written again alike, or is refused with a position."""
    try:
        kind = parse_ddl(data.decode("utf-8", "replace"))
    except ConfigError as error:
        assert "position" in str(error)
        return
    assert parse_ddl(format_ddl(kind)) == kind


def _json_seeds() -> list[bytes]:
    plain = json.dumps({"i": 1, "o": {"i": 2, "s": "x"}, "a": [1, None], "z": "2013-01-01T10:00Z"})
    return [
        *VALUES,
        *HOSTILE[:30],
        BETWEEN.join(VALUES),
        BETWEEN.join(HOSTILE[:28]),
        plain.encode(),
    ]


def _msgpack_seeds() -> list[bytes]:
    pack = msgspec.msgpack.encode
    values = [
        pack({"i": 1, "s": "abc", "d": 0.5}), pack({"a": [1, None, 2], "o": {"i": 1}, "x": [[]]}),
        pack({"z": foreign.NOON, "n": foreign.LOCAL, "m": "1.5", "y": "2013-01-01"}),
        pack({"r": b"bytes", "t": {1: "x"}, "u": 1 << 40}),
    ]  # fmt: skip
    return [*values, BETWEEN.join(values)]


def _avro_seeds() -> list[bytes]:
    datum = foreign.avro(foreign.ROW)
    return [datum, datum + BETWEEN + datum]


def _protobuf_seeds() -> list[bytes]:
    flight = foreign.flight_class()(
        i=-1, ul=1 << 63, d=0.1, s="abc", r=b"xyz", e=5, o={"tail": "N1"}, q=[{}], a=[1, 2],
        t={"k": {"tail": "N3"}}, opt=0,
    )  # fmt: skip
    flight.z.FromDatetime(foreign.NOON)
    value = flight.SerializeToString()
    return [value, value + BETWEEN + value]


def _arrow_seeds() -> list[bytes]:
    row = {"i": 1, "s": "abc", "a": [1, None], "z": foreign.NOON}
    return [foreign.stream([row]), foreign.stream([{"i": 2}]), foreign.stream([row, row])]


TARGETS = [
    Target("values-json", _json_seeds, run_json),
    Target("values-msgpack", _msgpack_seeds, neighbours(foreign.PACKED)),
    Target("values-avro", _avro_seeds, neighbours(foreign.AVRO)),
    Target("values-protobuf", _protobuf_seeds, neighbours(foreign.PROTOBUF)),
    Target("values-arrow", _arrow_seeds, neighbours(foreign.ARROW)),
    Target("values-ddl", lambda: [DDL.encode(), b"struct<`a b`:map<int,array<date>>>"], run_ddl),
]
