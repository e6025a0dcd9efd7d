"""The checksum of a span does not depend on batches, slices or where the rows came from."""

from __future__ import annotations

import datetime
import random
from collections.abc import Iterator

import pyarrow as pa
import pytest
from crc32c import crc32c

from bascule.pipeline.lake.checksum import SpanChecksum, combine_crcs

HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
VALUE = pa.struct(
    [
        ("carrier", pa.string()),
        ("delay", pa.int16()),
        ("speed", pa.float32()),
        ("day", pa.date32()),
        ("late", pa.bool_()),
        ("fare", pa.decimal128(10, 2)),
        ("legs", pa.list_(pa.struct([("to", pa.string()), ("km", pa.int32())]))),
        ("tags", pa.map_(pa.string(), pa.int64())),
    ]
)
SCHEMA = pa.schema(
    [
        ("key", pa.binary()),
        ("value", VALUE),
        ("subject", pa.string()),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("us", "UTC")),
        ("headers", HEADERS),
    ]
)


def rows(count: int, seed: int = 1) -> pa.RecordBatch:
    dice = random.Random(seed)

    def maybe(value: object) -> object:
        return None if dice.random() < 0.2 else value

    def value(n: int) -> object:
        return {
            "carrier": maybe(dice.choice(["AA", "UA", "Ünited"])),
            "delay": maybe(dice.randrange(-300, 300)),
            "speed": maybe(dice.random()),
            "day": maybe(datetime.date(2026, 1, 1) + datetime.timedelta(n)),
            "late": maybe(dice.random() < 0.5),
            "fare": maybe(round(dice.random() * 100, 2).__format__(".2f")),
            "legs": maybe([maybe({"to": maybe("SFO"), "km": n})] * dice.randrange(3)),
            "tags": maybe([("a", maybe(n))] * dice.randrange(2)),
        }

    import decimal

    made = []
    for n in range(count):
        row = maybe(value(n))
        if isinstance(row, dict) and row["fare"] is not None:
            row["fare"] = decimal.Decimal(str(row["fare"]))
        made.append(
            {
                "key": maybe(dice.randbytes(dice.randrange(20))),
                "value": row,
                "subject": f"flights.{n % 3}",
                "offset": 100 + n,
                "timestamp": datetime.datetime.fromtimestamp(n, datetime.UTC),
                "headers": maybe([{"key": "h", "value": maybe(b"x" * n)}] * dice.randrange(3)),
            }
        )
    return pa.RecordBatch.from_pylist(made, SCHEMA)


def cut(batch: pa.RecordBatch, dice: random.Random) -> Iterator[pa.RecordBatch]:
    first = 0
    while first < batch.num_rows:
        count = dice.randrange(1, 9)
        yield batch.slice(first, count)
        first += count


def checksum(*batches: pa.RecordBatch) -> SpanChecksum:
    made = SpanChecksum()
    for batch in batches:
        made.update(batch)
    return made


@pytest.mark.parametrize("seed", range(20))
def test_it_does_not_depend_on_where_batches_end(seed: int) -> None:
    batch = rows(50, seed)
    whole = checksum(batch)
    dice = random.Random(seed)
    assert checksum(*cut(batch, dice)).value == whole.value
    copied = [pa.RecordBatch.from_pylist(p.to_pylist(), SCHEMA) for p in cut(batch, dice)]
    assert checksum(*copied).value == whole.value


@pytest.mark.parametrize("seed", range(20))
def test_spans_next_to_each_other_combine(seed: int) -> None:
    batch = rows(40, seed)
    at = random.Random(seed).randrange(41)
    left, right = checksum(batch.slice(0, at)), checksum(batch.slice(at))
    left.extend(right)
    assert (left.rows, left.value) == (40, checksum(batch).value)


def test_every_value_counts() -> None:
    batch = rows(30, 5)
    whole = checksum(batch).value
    seen = {whole}
    for number, row in enumerate(batch.to_pylist()):
        for name in ("key", "subject", "offset", "timestamp", "headers", "value"):
            changed = dict(row)
            changed[name] = None if row[name] is not None else SAMPLES[name]
            other = pa.RecordBatch.from_pylist([changed], SCHEMA)
            seen.add(checksum(batch.slice(0, number), other, batch.slice(number + 1)).value)
    assert len(seen) == 1 + 30 * 6


SAMPLES = {"key": b"", "headers": [], "value": {"delay": 1}}


def test_order_counts() -> None:
    batch = rows(10, 6)
    swapped = batch.take(pa.array([1, 0, *range(2, 10)]))
    assert checksum(swapped).value != checksum(batch).value


def test_bytes_do_not_move_between_neighbours() -> None:
    def of(*values: bytes) -> int:
        return checksum(pa.RecordBatch.from_arrays([pa.array(values)], names=["value"])).value

    assert of(b"ab", b"c") != of(b"a", b"bc")


def test_what_lies_under_a_null_does_not_count() -> None:
    shown = pa.array([b"a", None, b"c"])
    validity = shown.buffers()[0]
    offsets, data = pa.array([b"a", b"hidden", b"c"]).buffers()[1:]
    hidden = pa.Array.from_buffers(pa.binary(), 3, [validity, offsets, data])
    assert hidden.equals(shown)
    digests = [checksum(pa.RecordBatch.from_arrays([a], names=["value"])) for a in (shown, hidden)]
    assert digests[0].value == digests[1].value


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (pa.array(["a", None, "bc"]), pa.array(["a", None, "bc"], pa.large_string())),
        (pa.array(["a", None, "bc"]), pa.array(["a", None, "bc"]).dictionary_encode()),
        (pa.array(["a", None, "bc"]), pa.array(["a", None, "bc"], pa.string_view())),
        (pa.array([1, None], pa.int16()), pa.array([1, None], pa.int64())),
        (pa.array([0.5, None], pa.float32()), pa.array([0.5, None], pa.float64())),
        (pa.array([1, None], pa.timestamp("ms")), pa.array([1000, None], pa.timestamp("us"))),
        (pa.array([[1], None, []]), pa.array([[1], None, []], pa.large_list(pa.int64()))),
    ],
    ids=lambda array: str(array.type),
)
def test_widths_and_encodings_of_a_type_do_not_count(one: pa.Array, other: pa.Array) -> None:
    digests = [checksum(pa.RecordBatch.from_arrays([a], names=["value"])) for a in (one, other)]
    assert digests[0].value == digests[1].value


def test_the_definition() -> None:
    """The bytes that the module's text describes, laid out by hand."""
    batch = pa.RecordBatch.from_pylist(
        [{"value": b"ab", "offset": 7}, {"value": None, "offset": 9}],
        pa.schema([("value", pa.binary()), ("offset", pa.int64())]),
    )
    streams = [
        b"\x01\x00",
        (2).to_bytes(8, "little") + (0).to_bytes(8, "little"),
        b"ab",
        b"\x01\x01",
        (7).to_bytes(8, "little") + (9).to_bytes(8, "little"),
    ]
    expected = crc32c(b"".join(crc32c(stream).to_bytes(4, "big") for stream in streams))
    assert checksum(batch).value == expected


def test_an_empty_span_is_zero() -> None:
    assert checksum().value == 0
    assert checksum(rows(0)).value == 0


@pytest.mark.parametrize("length", [0, 1, 7, 8, 4096, 100_003])
def test_combining_crcs(length: int) -> None:
    first, second = random.Random(1).randbytes(33), random.Random(2).randbytes(length)
    assert combine_crcs(crc32c(first), crc32c(second), length) == crc32c(first + second)


def test_a_type_that_records_do_not_have() -> None:
    column = pa.array([(1, 2, 3)], pa.month_day_nano_interval())
    with pytest.raises(TypeError, match="no columns of type"):
        checksum(pa.RecordBatch.from_arrays([column], names=["value"]))
