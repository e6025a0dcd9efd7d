"""Both twins of the record parser against a simple model, foreign batches and hostile bytes."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from types import ModuleType

import pytest
from aiokafka.record.default_records import (
    DefaultRecordBatch,
    DefaultRecordBatchBuilder,
    _DefaultRecordBatchPy,
)
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from bascule.errors import CorruptData
from bascule.record import columns as columns_module
from bascule.record.batch import Record, RecordBatch, scan_batches
from bascule.record.builder import build_batch
from bascule.record.columns import SCHEMA, decode_batches
from bascule.record.header import HEADER_BYTES, check_crc, read_header, stamp

Load = Callable[[str], ModuleType]

HEADER_NAMES = st.text(st.characters(min_codepoint=33, max_codepoint=0x2FF), min_size=1, max_size=8)
RECORDS = st.lists(
    st.tuples(
        st.none() | st.binary(max_size=20),
        st.none() | st.binary(max_size=300),
        st.lists(st.tuples(HEADER_NAMES, st.none() | st.binary(max_size=70)), max_size=4),
        st.integers(0, 1 << 41),
        st.booleans(),
    ),
    min_size=1,
    max_size=20,
)


def made(drawn: list[tuple[object, ...]], base_offset: int = 0) -> list[Record]:
    records = []
    for number, (key, value, headers, timestamp, has_subject) in enumerate(drawn):
        subject = (("subject", b"a.b"),) if has_subject else ()
        own = (*subject, *headers)  # type: ignore[misc]
        records.append(Record(base_offset + number, timestamp, key, value, own))  # type: ignore[arg-type]
    return records


@pytest.fixture
def on_twin(hot: Load, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    module = hot("record")
    monkeypatch.setattr(columns_module, "_hot", module)
    monkeypatch.setattr("bascule.record.batch._hot", module)
    return module


def test_a_built_batch_is_read_back(hot: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bascule.record.batch._hot", hot("record"))

    @given(RECORDS, st.integers(0, 1 << 40), st.booleans())
    def check(drawn: list[tuple[object, ...]], base: int, append_time: bool) -> None:
        records = made(drawn, base)
        batch = build_batch(records, base_offset=base, log_append_time=append_time)
        assert check_crc(batch)
        found = list(RecordBatch(batch))
        if append_time:
            latest = max(r.timestamp for r in records)
            assert found == [r._replace(timestamp=latest) for r in records]
        else:
            assert found == records

    check()


def test_columns_agree_with_records(hot: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(columns_module, "_hot", hot("record"))

    @given(RECORDS, RECORDS, st.integers(0, 25), st.integers(0, 45), st.none() | st.just("s.é"))
    def check(
        first: list[tuple[object, ...]],
        second: list[tuple[object, ...]],
        low: int,
        high: int,
        implied: str | None,
    ) -> None:
        one = made(first)
        two = made(second, len(one))
        data = build_batch(one, base_offset=0) + build_batch(two, base_offset=len(one))
        batch, following = decode_batches(
            data, partition=3, offset_min=low, offset_end=high, subject=implied
        )
        batch.validate(full=True)
        assert batch.schema == SCHEMA
        wanted = [r for r in [*one, *two] if low <= r.offset < high]
        rows = batch.to_pylist()
        assert [row["offset"] for row in rows] == [r.offset for r in wanted]
        for row, record in zip(rows, wanted, strict=True):
            assert row["partition"] == 3
            assert row["key"] == record.key
            assert row["value"] == record.value
            assert row["timestamp"].timestamp() * 1000 == pytest.approx(record.timestamp)
            headers = list(record.headers)
            subject = implied
            if headers and headers[0][0] == "subject" and headers[0][1] is not None:
                subject = headers.pop(0)[1].decode("utf-8", "replace")  # type: ignore[union-attr]
            assert row["subject"] == subject
            assert [(h["key"], h["value"]) for h in row["headers"]] == headers
        assert following >= low

    check()


def test_columns_grow_for_many_headers(on_twin: ModuleType) -> None:
    many = tuple((f"n{i}", b"v") for i in range(300))
    records = [Record(i, 5, None, b"", many) for i in range(30)]
    batch, following = decode_batches(build_batch(records, base_offset=0))
    assert following == 30
    assert batch.column("headers")[29].as_py()[299] == {"key": "n299", "value": b"v"}


def test_records_without_subject_have_that_of_their_stream(on_twin: ModuleType) -> None:
    own = (("subject", b"s.own"), ("reply", b"r"))
    for headers in ([()] * 3, [(), own, ()], [own] * 3, [(("reply", b"r"), ("subject", b"x"))]):
        records = [Record(i, 5, None, b"", each) for i, each in enumerate(headers)]
        batch, _ = decode_batches(build_batch(records, base_offset=0), subject="s.one")
        batch.validate(full=True)
        wanted = ["s.own" if each is own else "s.one" for each in headers]
        assert batch.column("subject").to_pylist() == wanted
        others = [[h for h in each if each is not own or h[0] == "reply"] for each in headers]
        found = batch.column("headers").to_pylist()
        assert [[(h["key"], h["value"]) for h in row] for row in found] == others
    with_none, _ = decode_batches(build_batch(records, base_offset=0))
    assert with_none.column("subject").null_count == 1


def test_an_aiokafka_batch_is_read(on_twin: ModuleType) -> None:
    builder = DefaultRecordBatchBuilder(2, 0, False, -1, -1, -1, 1 << 20)
    for i in range(50):
        builder.append(i, 1_700_000_000_000 + i, b"k%d" % i, b"v" * i, [("h", b"x"), ("n", None)])
    data = bytes(builder.build())
    (located,) = scan_batches(data)
    assert located.header.record_count == 50
    for record in RecordBatch(data):
        i = record.offset
        assert record == Record(
            i, 1_700_000_000_000 + i, b"k%d" % i, b"v" * i, (("h", b"x"), ("n", None))
        )


def test_aiokafka_reads_our_batch() -> None:
    records = [
        Record(i, 99, b"k" if i % 2 else None, b"v" * i, (("subject", b"s.t"),)) for i in range(40)
    ]
    batch = build_batch(records, base_offset=0, log_append_time=True)
    stamp(batch, base_offset=1000, leader_epoch=7)
    for reader in (DefaultRecordBatch, _DefaultRecordBatchPy):
        foreign = reader(bytes(batch))
        assert foreign.validate_crc()
        found = [(r.offset, r.timestamp, r.key, r.value, list(r.headers)) for r in foreign]
        assert found == [(1000 + r.offset, 99, r.key, r.value, list(r.headers)) for r in records]
    assert read_header(batch).leader_epoch == 7


def test_hostile_bytes_raise_corrupt_data(hot: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    module = hot("record")
    monkeypatch.setattr(columns_module, "_hot", module)
    monkeypatch.setattr("bascule.record.batch._hot", module)

    @given(RECORDS, st.data())
    def check(drawn: list[tuple[object, ...]], data: st.DataObject) -> None:
        batch = build_batch(made(drawn), base_offset=0)
        for _ in range(data.draw(st.integers(1, 3))):
            at = data.draw(st.integers(HEADER_BYTES, len(batch) - 1))
            batch[at] = data.draw(st.integers(0, 255))
        header = read_header(batch)
        positions = array("q", bytes(8 * 8 * header.record_count))
        state = array("q", [0] * 4)
        found = module.index_records(
            batch, HEADER_BYTES, len(batch), header.record_count, positions, state
        )
        assert found in (-1, header.record_count)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("bascule.record.batch.check_crc", lambda _: True)
            try:
                decoded, _ = decode_batches(batch)
            except CorruptData as error:
                at = error.at
            else:
                decoded.validate()
                at = 0
            assert 0 <= at <= len(batch)

    check()


@pytest.mark.parametrize(
    ("change", "at", "expected"),
    [
        (lambda b: b.__setitem__(16, 1), 16, "magic 2"),
        (lambda b: b.__setitem__(slice(8, 12), b"\0\0\0\1"), 8, "batch length"),
        (lambda b: b.__setitem__(80, b[80] ^ 1), 17, "CRC"),
        (lambda b: b.__setitem__(22, 1), 17, "CRC"),
    ],
)
def test_the_error_of_a_damaged_header_names_the_field(
    change: Callable[[bytearray], None], at: int, expected: str
) -> None:
    batch = build_batch([Record(0, 1, None, b"x" * 60)], base_offset=0)
    change(batch)
    with pytest.raises(CorruptData) as caught:
        list(scan_batches(batch, origin="a.log", origin_position=100))
    assert caught.value.at == 100 + at
    assert expected in str(caught.value)
    assert "a.log" in str(caught.value)


def test_control_batches_and_an_incomplete_last_batch_are_skipped() -> None:
    control = build_batch([Record(0, 1, b"\0\0\0\1", b"")], base_offset=0)
    control[22] = 0x20
    crc = crc32c(memoryview(control)[21:])
    control[17:21] = crc.to_bytes(4, "big")
    rest = build_batch([Record(1, 1, None, b"x")], base_offset=1)
    tail = build_batch([Record(2, 1, None, b"y")], base_offset=2)
    batch, following = decode_batches(control + rest + tail[:-1])
    assert batch.column("offset").to_pylist() == [1]
    assert following == 2
