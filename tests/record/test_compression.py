"""Codecs against the encoders and decoders of Kafka's clients, and with hostile bytes."""

from __future__ import annotations

import gzip
import tracemalloc
import warnings
import zlib
from collections.abc import Callable
from types import ModuleType

import aiokafka.record.default_records as aiokafka_records
import lz4.frame
import pyarrow as pa
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from bascule.errors import CorruptData
from bascule.model import Compression
from bascule.record import columns as columns_module
from bascule.record.batch import Record, RecordBatch, scan_batches
from bascule.record.builder import build_batch
from bascule.record.columns import decode_batches
from bascule.record.compression import (
    CODECS,
    XERIAL_MAGIC,
    compress_batch,
    decompress_batch,
    decompress_records,
)
from bascule.record.header import HEADER_BYTES, LOG_APPEND_TIME, check_crc, read_header, seal

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import kafka.record.default_records as kafka_python_records

Load = Callable[[str], ModuleType]

PACKED = [codec for codec in Compression if codec is not Compression.NONE]
STAMP = 1_700_000_000_000
TEXT = b"".join(b'{"flight": %d, "carrier": "UA", "origin": "EWR"}' % i for i in range(4000))
RECORDS = [
    Record(7 + i, STAMP, None if i % 5 == 0 else b"k%d" % i, b"value %d " % i * 9, (("h", b"x"),))
    for i in range(300)
]


def packed_batch(records: list[Record], codec: Compression, base_offset: int = 7) -> memoryview:
    """A sealed batch as in ingest: compressed before its header is written."""
    plain = build_batch(records, base_offset=base_offset, log_append_time=True)
    header = read_header(plain)
    # Ingest's buffers have arbitrary bytes in place of the header.
    plain[:HEADER_BYTES] = b"\xff" * HEADER_BYTES
    batch = compress_batch(memoryview(plain), codec)
    seal(
        batch,
        record_count=header.record_count,
        base_timestamp=header.base_timestamp,
        max_timestamp=header.max_timestamp,
        base_offset=base_offset,
        last_offset_delta=header.last_offset_delta,
        keep_codec=True,
    )
    return memoryview(batch)


@pytest.mark.parametrize("codec", PACKED)
def test_a_compressed_batch_is_smaller_and_decompresses(codec: Compression) -> None:
    plain = build_batch(RECORDS, base_offset=7, log_append_time=True)
    batch = packed_batch(RECORDS, codec)
    assert len(batch) < len(plain)
    (located,) = scan_batches(batch)
    assert located.header.codec == CODECS[codec]
    assert located.header.attributes == LOG_APPEND_TIME | CODECS[codec]
    assert located.end == len(batch)
    assert list(RecordBatch(batch)) == RECORDS
    assert decompress_batch(batch) == plain
    assert check_crc(decompress_batch(batch))


@pytest.mark.parametrize("codec", Compression)
def test_incompressible_batches_stay_uncompressed(codec: Compression) -> None:
    records = [Record(7, STAMP, b"k", b"v")]
    batch = packed_batch(records, codec)
    assert read_header(batch).codec == 0
    assert list(RecordBatch(batch)) == records
    assert decompress_batch(batch) is batch


@pytest.mark.parametrize("codec", PACKED)
@pytest.mark.parametrize("module", [aiokafka_records, kafka_python_records])
def test_foreign_decoders_read_ours(module: ModuleType, codec: Compression) -> None:
    reader = getattr(module, "_DefaultRecordBatchPy", None) or module.DefaultRecordBatch
    batch = reader(bytearray(packed_batch(RECORDS, codec)))
    assert batch.validate_crc()
    found = [Record(r.offset, r.timestamp, r.key, r.value, tuple(r.headers)) for r in batch]
    assert found == RECORDS


@pytest.mark.parametrize("codec", PACKED)
@pytest.mark.parametrize("module", [aiokafka_records, kafka_python_records])
def test_foreign_encoders_are_read(module: ModuleType, codec: Compression) -> None:
    builder = module.DefaultRecordBatchBuilder(2, CODECS[codec], False, -1, -1, -1, 1 << 20)
    for record in RECORDS:
        builder.append(
            record.offset - 7, record.timestamp, record.key, record.value, list(record.headers)
        )
    data = bytes(builder.build())
    assert read_header(data).codec == CODECS[codec]
    assert [r._replace(offset=r.offset + 7) for r in RecordBatch(data)] == RECORDS


@pytest.mark.parametrize("codec", PACKED)
def test_another_library_decompresses_the_section(codec: Compression) -> None:
    plain = bytearray(HEADER_BYTES) + TEXT
    packed = bytes(compress_batch(memoryview(plain), codec)[HEADER_BYTES:])
    if codec is Compression.SNAPPY:
        found, at = b"", 16
        assert packed.startswith(XERIAL_MAGIC)
        while at < len(packed):
            size = int.from_bytes(packed[at : at + 4], "big")
            left = len(TEXT) - len(found)
            block = packed[at + 4 : at + 4 + size]
            found += pa.Codec("snappy").decompress(block, min(left, 32 << 10), asbytes=True)
            at += 4 + size
    elif codec is Compression.GZIP:
        found = gzip.decompress(packed)
    else:
        found = pa.Codec(codec.value).decompress(packed, len(TEXT), asbytes=True)
    assert found == TEXT


def test_lz4_blocks_are_independent_as_java_requires() -> None:
    packed = compress_batch(memoryview(bytearray(HEADER_BYTES) + TEXT), Compression.LZ4)
    info = lz4.frame.get_frame_info(bytes(packed[HEADER_BYTES:]))
    assert not info["block_linked"]
    assert not info["content_checksum"]
    assert not info["block_checksum"]
    assert info["block_size"] == 64 << 10


def test_frames_without_a_size_and_linked_blocks_are_read() -> None:
    stream = zstandard.ZstdCompressor().compressobj()
    assert decompress_records(4, stream.compress(TEXT) + stream.flush()) == TEXT
    linked = lz4.frame.compress(TEXT, block_linked=True, content_checksum=True)
    assert decompress_records(3, linked) == TEXT
    assert decompress_records(2, pa.Codec("snappy").compress(TEXT, asbytes=True)) == TEXT


def test_columns_of_mixed_batches(hot: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(columns_module, "_hot", hot("record"))
    parts = [
        packed_batch([r._replace(offset=r.offset + 300 * i) for r in RECORDS], codec, 7 + 300 * i)
        for i, codec in enumerate(Compression)
    ]
    data = b"".join(parts)
    batch, following = decode_batches(data, offset_min=100, offset_end=1400)
    batch.validate(full=True)
    assert following == 1400
    assert batch.column("offset").to_pylist() == list(range(100, 1400))
    expected = [RECORDS[(offset - 7) % 300].value for offset in range(100, 1400)]
    assert batch.column("value").to_pylist() == expected
    last = packed_batch(RECORDS, Compression.ZSTD)
    cut, following = decode_batches(data + bytes(last[:-1]), offset_min=0)
    assert (cut.num_rows, following) == (1500, 1507)


def test_decoding_stops_at_the_limit_of_decoded_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(columns_module, "DECODED_BYTES_MAX", 1)
    data = b"".join(
        packed_batch([r._replace(offset=r.offset + 300 * i) for r in RECORDS], codec, 7 + 300 * i)
        for i, codec in enumerate(PACKED)
    )
    found, at = [], 0
    while at < 1207:
        batch, following = decode_batches(data, offset_min=at)
        assert batch.num_rows == 300
        found += batch.column("offset").to_pylist()
        assert following > at
        at = following
    assert found == list(range(7, 1207))


def test_the_error_of_a_malformed_record_names_its_batch() -> None:
    good = packed_batch(RECORDS, Compression.LZ4, 0)
    plain = build_batch(RECORDS, base_offset=0, log_append_time=True)
    plain[HEADER_BYTES] = 0x01
    batch = compress_batch(memoryview(plain), Compression.LZ4)
    seal(batch, record_count=300, base_timestamp=0, max_timestamp=0, keep_codec=True)
    with pytest.raises(CorruptData, match="of the decompressed records") as caught:
        decode_batches(bytes(good) + bytes(batch), origin="somewhere")
    assert (caught.value.file, caught.value.at) == ("somewhere", len(good) + HEADER_BYTES)


BOMBS = {
    "gzip": (1, zlib.compress(bytes(64 << 20), 9, 31)),
    "lz4": (3, lz4.frame.compress(bytes(64 << 20))),
    "zstd": (4, zstandard.ZstdCompressor().compress(bytes(64 << 20))),
    "snappy": (2, pa.Codec("snappy").compress(bytes(64 << 20), asbytes=True)),
    "snappy that lies": (2, b"\xff\xff\xff\xff\x0f" + b"x" * 20),
    "zstd without a size": (
        4,
        (lambda z: z.compress(bytes(64 << 20)) + z.flush())(
            zstandard.ZstdCompressor().compressobj()
        ),
    ),
    "snappy in many blocks": (
        2,
        XERIAL_MAGIC
        + bytes(8)
        + 64
        * (lambda block: len(block).to_bytes(4, "big") + block)(
            pa.Codec("snappy").compress(bytes(1 << 20), asbytes=True)
        ),
    ),
}


@pytest.mark.parametrize("name", BOMBS)
def test_a_decompression_bomb_is_refused(name: str) -> None:
    codec, data = BOMBS[name]
    tracemalloc.start()
    try:
        with pytest.raises(CorruptData):
            decompress_records(codec, data, bytes_max=1 << 20)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 8 << 20


@pytest.mark.parametrize("codec", range(1, 8))
def test_hostile_bytes_are_refused_or_read(codec: int) -> None:
    @given(st.binary(max_size=300), st.integers(0, 1 << 16))
    def check(data: bytes, bytes_max: int) -> None:
        try:
            assert len(decompress_records(codec, data, bytes_max=bytes_max)) <= bytes_max
        except CorruptData as error:
            assert error.file == "compressed records"

    check()


@pytest.mark.parametrize("codec", PACKED)
def test_a_truncated_or_extended_section_is_refused(codec: Compression) -> None:
    number = CODECS[codec]
    section = bytes(packed_batch(RECORDS, codec)[HEADER_BYTES:])
    plain = decompress_records(number, section)
    for cut in range(len(section)):
        if codec is Compression.SNAPPY and cut == 16:
            continue
        with pytest.raises(CorruptData):
            decompress_records(number, section[:cut])
    with pytest.raises(CorruptData):
        decompress_records(number, section + b"x")
    assert decompress_records(number, section, bytes_max=len(plain)) == plain
    with pytest.raises(CorruptData, match=f"at most {len(plain) - 1} bytes"):
        decompress_records(number, section, bytes_max=len(plain) - 1)


@pytest.mark.parametrize("codec", PACKED)
def test_any_flipped_byte_is_refused_or_bounded(codec: Compression) -> None:
    section = bytearray(packed_batch(RECORDS, codec)[HEADER_BYTES:])
    for at in range(0, len(section), 7):
        section[at] ^= 0x41
        try:
            decompress_records(CODECS[codec], section, bytes_max=1 << 16)
        except CorruptData:
            pass
        section[at] ^= 0x41
