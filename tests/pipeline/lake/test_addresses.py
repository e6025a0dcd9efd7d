"""Texts and options that name tables, and fields that partition them."""

from __future__ import annotations

import pyarrow as pa
import pytest

from bascule.errors import ConfigError
from bascule.pipeline.lake import TableAddress, address_of, parse_address
from bascule.pipeline.lake.partitioning import folder_of, parse_partitioning, split

TIMES = pa.timestamp("us", "UTC")
SCHEMA = pa.schema(
    [
        ("offset", pa.int64()),
        ("timestamp", TIMES),
        ("late", pa.bool_()),
        ("value", pa.struct([("carrier", pa.string()), ("day", pa.date32())])),
    ]
)


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("parquet:/lake/x", TableAddress("parquet", "/lake/x")),
        ("parquet:file:///lake/x", TableAddress("parquet", "file:///lake/x")),
        ("delta:s3://bucket/x", TableAddress("delta", "s3://bucket/x")),
        ("iceberg:/lake#db.x", TableAddress("iceberg", "/lake", "db.x")),
        ("iceberg:/lake#a.b.c", TableAddress("iceberg", "/lake", "a.b.c")),
    ],
)
def test_texts(text: str, address: TableAddress) -> None:
    assert parse_address(text) == address
    assert str(address) == text
    assert address_of({"table": text}) == address


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("/lake/x", "does not begin with its format"),
        ("hudi:/lake/x", "one of iceberg:, delta:, parquet:"),
        ("parquet:", "needs a location"),
        ("parquet:s3://bucket/x", "a folder on this machine"),
        ("parquet:/lake#db.x", "named by its location alone"),
        ("iceberg:/lake", "needs a name"),
        ("iceberg:/lake#x", "needs a name"),
        ("iceberg:#db.x", "needs a warehouse"),
    ],
)
def test_texts_that_name_nothing(text: str, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        parse_address(text)


def test_options() -> None:
    options = {"format": "iceberg", "name": "db.x", "catalog.uri": "http://c", "catalog.type": "r"}
    assert address_of(options) == TableAddress(
        "iceberg", name="db.x", catalog={"uri": "http://c", "type": "r"}
    )
    assert address_of({"format": "delta", "location": "/x"}) == TableAddress("delta", "/x")
    with pytest.raises(ConfigError, match="is not one of"):
        address_of({"location": "/x"})
    with pytest.raises(ConfigError, match="2 properties of a catalog"):
        address_of({"table": "delta:/x", "catalog.a": "1", "catalog.b": "2"})


def test_rows_are_split_by_what_the_fields_make_of_them() -> None:
    rows = [
        {"offset": 0, "timestamp": 0, "late": True, "value": {"carrier": "AA", "day": 0}},
        {"offset": 1, "timestamp": -1, "late": None, "value": {"carrier": None, "day": 31}},
        {"offset": 2, "timestamp": 3_600_000_000, "late": False, "value": None},
        {"offset": 3, "timestamp": None, "late": True, "value": {"carrier": "AA", "day": None}},
        {"offset": 4, "timestamp": 1, "late": True, "value": {"carrier": "AA", "day": 1}},
    ]
    batch = pa.RecordBatch.from_pylist(rows, SCHEMA)

    def parts(*fields: str) -> dict[tuple[str | None, ...], list[int]]:
        found: dict[tuple[str | None, ...], list[int]] = {}
        for values, part in split(batch, parse_partitioning(fields, SCHEMA)):
            key = tuple(value for _, value in values)
            found.setdefault(key, []).extend(part.column("offset").to_pylist())
        return found

    assert parts() == {(): [0, 1, 2, 3, 4]}
    assert parts("hour(timestamp)") == {
        ("1970-01-01-00",): [0, 4],
        ("1969-12-31-23",): [1],
        ("1970-01-01-01",): [2],
        (None,): [3],
    }
    assert parts("day(timestamp)").keys() == {("1970-01-01",), ("1969-12-31",), (None,)}
    assert parts("month(value.day)") == {("1970-01",): [0, 4], ("1970-02",): [1], (None,): [2, 3]}
    assert parts("year(timestamp)").keys() == {("1970",), ("1969",), (None,)}
    assert parts("value.carrier", "late") == {
        ("AA", "true"): [0, 3, 4],
        (None, None): [1],
        (None, "false"): [2],
    }


@pytest.mark.parametrize("rows", [1, 5, 1000])
def test_many_interleaved_parts_keep_their_order(rows: int) -> None:
    carriers = [f"c{n * 7 % 13}" for n in range(rows)]
    batch = pa.RecordBatch.from_pydict({"offset": range(rows), "carrier": carriers})
    found = split(batch, parse_partitioning(["carrier"], batch.schema))
    seen: list[int] = []
    for ((name, value),), part in found:
        assert name == "carrier"
        assert set(part.column("carrier").to_pylist()) == {value}
        offsets = part.column("offset").to_pylist()
        assert offsets == sorted(offsets)
        seen += offsets
    assert sorted(seen) == [*range(rows)]
    assert len(found) == len(set(carriers))


def test_folders_are_escaped() -> None:
    values = (("day", "2026-11-21"), ("carrier", "U A/%=é"), ("gate", None))
    assert (
        folder_of(values)
        == "day=2026-11-21/carrier=U A%2F%25%3D%C3%A9/gate=__HIVE_DEFAULT_PARTITION__"
    )
