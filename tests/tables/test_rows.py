"""Rows of a table from the batches of its log, on both twins."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bascule.errors import CorruptData
from bascule.model import Cleanup, Compression, KeyFrom, StreamConfig
from bascule.record import _hot as record_hot
from bascule.record.batch import Record
from bascule.record.builder import build_batch
from bascule.record.compression import compress_batch
from bascule.record.header import HEADER_BYTES, batch_crc
from bascule.storage.epochs import Epoch
from bascule.tables.rows import Rows, read_rows
from bascule.wire.tables.keys import TableKeys, escape

BUCKET = TableKeys(
    StreamConfig(subject="$KV.t.>", cleanup=(Cleanup.COMPACT,), key_from=KeyFrom.SUBJECT)
)
PLAIN = TableKeys(StreamConfig(subject="t", cleanup=(Cleanup.COMPACT,)))


def record(offset: int, key: bytes | None, value: bytes | None = b"v") -> Record:
    return Record(offset, 1_000 + offset, key, value, (("subject", b"s"),))


def rows_of(records: list[Record], keys: TableKeys, start: int = 0) -> Rows:
    data = memoryview(build_batch(records, base_offset=records[0].offset))
    return read_rows(data, keys, start=start, origin="log", position=0)


def test_rows_have_key_offset_time_and_value() -> None:
    found = rows_of([record(5, b"a", b"one"), record(6, b"b", None), record(9, b"a", b"")], PLAIN)
    assert found.rows == [
        (b"a", 5, 1_005, b"one", None, None),
        (b"b", 6, 1_006, None, None, None),
        (b"a", 9, 1_009, b"", None, None),
    ]
    assert (found.end, found.skipped) == (10, 0)


def test_records_below_the_start_and_without_a_key_of_the_table_are_left_out() -> None:
    records = [
        record(0, b"$KV.t.old"),
        record(1, None),
        record(2, b"$KV.t."),
        record(3, b"$KV.other.a"),
        record(4, b"$KV.t.a b"),  # not what `escape` writes
        record(5, b"$KV.t.a%20b"),
        record(6, b"$KV.t." + b"k" * 1025),
        record(7, b"$KV.t.x..y"),
        record(8, b"$KV.t.x.y"),
    ]
    found = rows_of(records, BUCKET, start=1)
    assert [(row[0], row[1]) for row in found.rows] == [(b"a b", 5), (b"x.y", 8)]
    assert found.skipped == 6
    assert rows_of([record(0, b"k" * 1025)], PLAIN).skipped == 1


def test_a_compressed_batch_with_one_time_for_all() -> None:
    records = [record(n, b"k%d" % n) for n in range(3)]
    plain = build_batch(records, base_offset=0, log_append_time=True)
    data = bytearray(compress_batch(memoryview(plain), Compression.ZSTD))
    data[17:21] = batch_crc(data).to_bytes(4, "big")
    found = read_rows(memoryview(data), PLAIN, start=0, origin="log", position=0)
    assert [(row[0], row[2]) for row in found.rows] == [(b"k%d" % n, 1_002) for n in range(3)]


def test_damaged_records_are_refused() -> None:
    data = build_batch([record(0, b"a")], base_offset=0)
    data[-1] ^= 1
    with pytest.raises(CorruptData):
        read_rows(memoryview(data), PLAIN, start=0, origin="log", position=0)


@given(st.lists(st.binary(max_size=8) | st.text("ab.%2 ", max_size=6).map(str.encode), max_size=8))
def test_both_twins_find_what_escape_writes(
    hot: Callable[[str], ModuleType], parts: list[bytes]
) -> None:
    records = [record(n, b"p." + part) for n, part in enumerate(parts)]
    data = bytes(build_batch(records, base_offset=0)) if records else b""
    positions = array("q", bytes(8 * record_hot.POSITION_FIELDS * len(records)))
    record_hot.index_records(
        data, HEADER_BYTES, len(data), len(records), positions, array("q", [0] * 4)
    )
    rows: list[tuple[Any, ...]] = []
    escaped: list[int] = []
    skipped = hot("tables").read_rows(
        data, positions, len(records), 0, 1_000, -1, b"p.", 0, rows, escaped
    )
    assert skipped == parts.count(b"")
    assert [row[0] for row in rows] == [part for part in parts if part]
    plain = {n for n, row in enumerate(rows) if escape(row[0]) == row[0]}
    assert set(range(len(rows))) - set(escaped) == plain


def rows_of_twin(hot: Callable[[str], ModuleType], records: list[Record]) -> list[tuple[Any, ...]]:
    data = bytes(build_batch(records, base_offset=0))
    positions = array("q", bytes(8 * record_hot.POSITION_FIELDS * len(records)))
    record_hot.index_records(
        data, HEADER_BYTES, len(data), len(records), positions, array("q", [0] * 4)
    )
    rows: list[tuple[Any, ...]] = []
    hot("tables").read_rows(data, positions, len(records), 0, 0, -1, b"", 0, rows, [])
    return rows


def test_both_twins_keep_the_first_content_type(hot: Callable[[str], ModuleType]) -> None:
    kept: list[tuple[tuple[tuple[str, bytes | None], ...], str | None]] = [
        ((("subject", b"s"), ("Content-Type", b"text/plain")), "text/plain"),
        ((("cOnTeNt-TyPe", b"a/b; c=d"), ("content-type", b"later/one")), "a/b; c=d"),
        ((("content_type", b"no"), ("content-typo", b"no"), ("x", None)), None),
        ((("content-type", b""),), None),
        ((("content-type", None), ("content-type", b"x")), None),
        ((("content-type", b"x" * 255),), "x" * 255),
        ((("content-type", b"x" * 256),), None),
        ((("content-type", b"a\r\nset-cookie: b"),), None),
        ((("content-type", "text/\u00fc".encode()),), None),
        ((), None),
    ]
    records = [Record(n, n, b"k", b"v", headers) for n, (headers, _) in enumerate(kept)]
    assert [row[4] for row in rows_of_twin(hot, records)] == [found for _, found in kept]
    removed = Record(0, 0, b"k", None, (("content-type", b"text/plain"),))
    assert rows_of_twin(hot, [removed]) == [(b"k", 0, 0, None, None, None)]


def test_both_twins_tell_purges_from_other_removals(hot: Callable[[str], ModuleType]) -> None:
    kept: list[tuple[tuple[tuple[str, bytes | None], ...], str | None]] = [
        ((("KV-Operation", b"DEL"),), None),
        ((("subject", b"s"), ("kv-OPERATION", b"PURGE")), "PURGE"),
        ((("KV-Operation", b"purge"),), None),
        ((("KV-Operation", b"PURGES"), ("KV-Operation", None)), None),
        ((("KV-Operation", b"DEL"), ("Nats-Marker-Reason", b"MaxAge")), "PURGE"),
        ((("KV-Operation", b"DEL"), ("Nats-Marker-Reason", b"Purge")), "FORGOTTEN"),
        ((("nats-marker-reason", b"Remove"), ("Nats-Rollup", b"sub")), None),
        ((), None),
    ]
    records = [Record(n, n, b"k", None, headers) for n, (headers, _) in enumerate(kept)]
    assert [row[4] for row in rows_of_twin(hot, records)] == [found for _, found in kept]
    with_value = Record(0, 0, b"k", b"v", (("KV-Operation", b"PURGE"),))
    assert rows_of_twin(hot, [with_value])[0][4] is None


def test_both_twins_keep_the_first_time_to_live(hot: Callable[[str], ModuleType]) -> None:
    kept: list[tuple[tuple[tuple[str, bytes | None], ...], int | None]] = [
        ((("nats-ttl", b"90"),), 90_000),
        ((("subject", b"s"), ("Nats-TTL", b"1m"), ("Nats-TTL", b"2m")), 60_000),
        ((("NATS-ttl", b"never"), ("content-type", b"a/b")), 0),
        ((("Nats-TTL", b"soon"), ("Nats-TTL", b"2m")), None),
        ((("Nats-TTL", None),), None),
        ((("Nats-TTL", b""),), None),
        ((("Nats-TTLs", b"3"), ("Nats-TT", b"3")), None),
        ((), None),
    ]
    records = [Record(n, n, b"k", b"v", headers) for n, (headers, _) in enumerate(kept)]
    assert [row[5] for row in rows_of_twin(hot, records)] == [found for _, found in kept]
    assert rows_of_twin(hot, records)[2][4] == "a/b"


def test_both_twins_find_the_first_deadline(hot: Callable[[str], ModuleType]) -> None:
    first = hot("tables").first_deadline

    def row(timestamp: int, value: bytes | None, ttl: int | None) -> tuple[Any, ...]:
        return (b"k", 0, timestamp, value, None, ttl)

    rows = [row(9_000, b"", None), row(8_000, b"", 5_000), row(1_000, b"", 0), row(0, None, 7_000)]
    assert first(rows, 0) == 13_000
    assert first(rows, 2_000) == 11_000
    assert first(rows[2:], 2_000) == -1
    assert first([], 2_000) == -1


def test_both_twins_check_the_positions(hot: Callable[[str], ModuleType]) -> None:
    with pytest.raises(IndexError):
        hot("tables").read_rows(b"", array("q"), 1, 0, 0, -1, b"", 0, [], [])


def test_rows_have_the_epochs_of_their_batches() -> None:
    data = b"".join(
        build_batch([record(offset, b"k")], base_offset=offset, leader_epoch=epoch)
        for offset, epoch in enumerate((2, 2, 5, 5, 6))
    )
    found = read_rows(memoryview(data), PLAIN, start=0, origin="log", position=0)
    assert found.epochs == (Epoch(2, 0), Epoch(5, 2), Epoch(6, 4))
