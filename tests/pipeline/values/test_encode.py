"""What is encoded is read back as it was, by us and by other readers."""

from __future__ import annotations

import datetime
import json
from decimal import Decimal
from typing import Any, Literal

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bascule.pipeline.values import ValueSpec

DDL = (
    "i int, l bigint, b boolean, f float, d double, s string, m decimal(20,4), z timestamp, "
    "n timestamp_ntz, y date, r binary, a array<timestamp>, o struct<i:int,z:timestamp>, "
    "t map<string,array<struct<y:date>>>"
)
SPECS = {"json": ValueSpec("json", DDL), "msgpack": ValueSpec("msgpack", DDL)}
ENCODERS = {name: spec.encoder() for name, spec in SPECS.items()}
DECODERS = {name: spec.decoder() for name, spec in SPECS.items()}
KIND = SPECS["json"].arrow_type()

times = st.datetimes(timezones=st.just(datetime.UTC))
MEMBERS: dict[str, st.SearchStrategy[Any]] = {
    "i": st.integers(-(1 << 31), (1 << 31) - 1),
    "l": st.integers(-(1 << 63), (1 << 63) - 1),
    "b": st.booleans(),
    "f": st.floats(width=32, allow_nan=False, allow_infinity=False),
    "d": st.floats(allow_nan=False, allow_infinity=False),
    "s": st.text(max_size=5),
    "m": st.decimals(-(10**15), 10**15, places=4, allow_nan=False),
    "z": times,
    "n": st.datetimes(),
    "y": st.dates(),
    "r": st.binary(max_size=5),
    "a": st.lists(times | st.none(), max_size=3),
    "o": st.fixed_dictionaries({"i": st.none() | st.integers(0, 9), "z": times | st.none()}),
    "t": st.dictionaries(
        st.text(max_size=2), st.lists(st.fixed_dictionaries({"y": st.dates()}), max_size=2)
    ).map(lambda found: list(found.items())),
}
rows = st.fixed_dictionaries({name: st.none() | member for name, member in MEMBERS.items()})


@pytest.mark.parametrize("name", SPECS)
@given(batch=st.lists(rows | st.none(), max_size=4))
def test_rows_come_back_as_they_were(
    name: Literal["json", "msgpack"], batch: list[dict[str, Any] | None]
) -> None:
    column = pa.array(batch, KIND)
    for start in (0, 1):
        piece = column.slice(start)
        values = ENCODERS[name].encode(piece)
        assert values.type == pa.binary()
        back = DECODERS[name].decode(values)
        assert back.reasons == []
        assert back.values.to_pylist() == piece.to_pylist()


def test_other_readers_read_it() -> None:
    row = {
        "i": 1, "m": Decimal("1.5"), "z": datetime.datetime(2013, 1, 1, 10, tzinfo=datetime.UTC),
        "y": datetime.date(2013, 1, 1), "r": b"hi", "t": [("k", [])],
    }  # fmt: skip
    column = pa.array([row, None], KIND)
    text, nothing = SPECS["json"].encoder().encode(column).to_pylist()
    assert nothing is None
    assert {k: v for k, v in json.loads(text).items() if v is not None} == {
        "i": 1, "m": 1.5, "z": "2013-01-01T10:00:00.000000Z", "y": "2013-01-01", "r": "aGk=",
        "t": {"k": []},
    }  # fmt: skip
    packed = SPECS["msgpack"].encoder().encode(column).to_pylist()[0]
    assert {k: v for k, v in msgspec.msgpack.decode(packed).items() if v is not None} == {
        "i": 1, "m": "1.5000", "z": "2013-01-01T10:00:00.000000Z", "y": "2013-01-01", "r": b"hi",
        "t": {"k": []},
    }  # fmt: skip


def test_what_a_format_has_no_words_for_is_refused() -> None:
    column = pa.array(
        [{"a": [1.0, float("nan")]}],
        pa.struct([("a", pa.list_(pa.field("element", pa.float64())))]),
    )
    with pytest.raises(ValueError, match="NaN and infinity cannot be written as json"):
        ValueSpec("json", "a array<double>").encoder().encode(column)
    packed = ValueSpec("msgpack", "a array<double>")
    back = packed.decoder().decode(packed.encoder().encode(column))
    assert repr(back.values.to_pylist()) == repr(column.to_pylist())
    late = pa.array([253_402_300_800_000_000], pa.timestamp("us", "UTC"))
    column = pa.StructArray.from_arrays([late], ["z"])
    for name in ("json", "msgpack"):
        with pytest.raises(ValueError, match="outside of the years 1 to 9999"):
            ValueSpec(name, "z timestamp").encoder().encode(column)


def test_a_key_twice_in_a_map_is_refused() -> None:
    column = pa.array(
        [{"t": [("k", 1), ("k", 2)]}], pa.struct([("t", pa.map_(pa.string(), pa.int32()))])
    )
    with pytest.raises((ValueError, KeyError)):
        ValueSpec("json", "t map<string,int>").encoder().encode(column)
