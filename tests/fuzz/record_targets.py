"""Record batches, as they come from a disk or a server."""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

from crc32c import crc32c

from bascule.errors import CorruptData
from bascule.model import Compression
from bascule.record import batch as batch_module
from bascule.record import columns as columns_module
from bascule.record.batch import Record, RecordBatch, scan_batches
from bascule.record.builder import build_batch
from bascule.record.compression import compress_batch, decompress_records
from bascule.record.header import HEADER_BYTES
from fuzz.target import Target, agree, twins

OFFSET_END = (1 << 63) - 1


@contextmanager
def decoding_with(hot: ModuleType) -> Iterator[None]:
    before = batch_module._hot, columns_module._hot
    batch_module._hot = columns_module._hot = hot
    try:
        yield
    finally:
        batch_module._hot, columns_module._hot = before


def repaired(data: bytes) -> bytes:
    """With the length and CRC of one batch that fills the bytes, so that its records are read."""
    if len(data) < HEADER_BYTES:
        return data
    fixed = bytearray(data)
    struct.pack_into(">i", fixed, 8, len(fixed) - 12)
    fixed[16] = 2
    struct.pack_into(">I", fixed, 17, crc32c(memoryview(fixed)[21:]))
    return bytes(fixed)


def run_batches(data: bytes) -> None:
    """Records come out alike as objects and as columns, on both twins, or CorruptData."""
    if data[:1] == b"\1":
        data = repaired(data[1:])
    else:
        data = data[1:]
    results: list[object] = []
    for hot in twins("record"):
        with decoding_with(hot):
            results.append((_objects(data), _columns(data)))
    agree("records", results)
    objects, columns = results[0]  # type: ignore[misc]
    if isinstance(objects, list) and isinstance(columns, list):
        assert [row[:3] for row in objects if 0 <= row[0] < OFFSET_END] == columns
    walked: list[object] = []
    for hot in twins("client"):
        state = array("q", bytes(16))
        walked.append((hot.walk_batches(data, 0, len(data), state), list(state)))
    agree("walk_batches", walked)


def _objects(data: bytes) -> object:
    rows: list[Any] = []
    try:
        for header, start, end in scan_batches(data):
            if header.is_control:
                return "control"
            for record in RecordBatch(memoryview(data)[start:end]):
                rows.append((record.offset, record.key, record.value, record.headers))
    except CorruptData as error:
        assert error.at >= 0, "of a compressed batch it is a byte of the plain one"
        return ("corrupt", error.at)
    return rows


def _columns(data: bytes) -> object:
    try:
        batch, _ = columns_module.decode_batches(data)
    except CorruptData as error:
        assert 0 <= error.at <= len(data)
        return ("corrupt", error.at)
    batch.validate(full=True)
    columns = [batch.column(name).to_pylist() for name in ("offset", "key", "value")]
    return list(zip(*columns, strict=True))


def _seeds() -> list[bytes]:
    plain = [
        Record(n, 1_000 + n, b"k%d" % n if n % 2 else None, b"v" * n if n % 3 else None, headers)
        for n, headers in enumerate(
            [(), (("subject", b"a.b"),), (("subject", b"a"), ("x", None), ("y", b"z" * 70))] * 3
        )
    ]
    one = bytes(build_batch(plain[:1], base_offset=0, log_append_time=True))
    many = bytes(build_batch(plain, base_offset=0))
    stamped = bytes(build_batch(plain, base_offset=0, log_append_time=True))
    packed = [bytes(_sealed(memoryview(bytearray(many)), codec)) for codec in Compression]
    return [
        bytes([fixed]) + data
        for fixed in (0, 1)
        for data in (one, many, stamped, many + stamped, *packed)
    ]


def _sealed(batch: memoryview, codec: Compression) -> bytes:
    packed = bytearray(compress_batch(batch, codec))
    return repaired(bytes(packed))


RECORDS_BYTES_MAX = 100_000


def run_compression(data: bytes) -> None:
    """Whatever claims to be compressed becomes no more than was allowed, or is refused."""
    codec, data = (data[0] % 8, data[1:]) if data else (1, b"")
    try:
        plain = decompress_records(codec, data, bytes_max=RECORDS_BYTES_MAX)
    except CorruptData as error:
        assert error.at <= len(data)
        return
    assert len(plain) <= RECORDS_BYTES_MAX


def _compression_seeds() -> list[bytes]:
    seeds = []
    for codec in Compression:
        for size in (300, RECORDS_BYTES_MAX, 2_000_000):
            batch = memoryview(bytearray(HEADER_BYTES) + b"all the same " * (size // 13))
            packed = bytes(compress_batch(batch, codec))
            if (number := packed[22] & 7) != 0:
                seeds.append(bytes([number]) + packed[HEADER_BYTES:])
    return seeds


TARGETS = [
    Target("record-batches", _seeds, run_batches),
    Target("compression", _compression_seeds, run_compression),
]
