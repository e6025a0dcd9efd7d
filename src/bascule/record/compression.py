"""Compress and decompress the records of a batch: gzip, snappy, lz4 and zstd, as in Kafka.

The header of 61 bytes is not compressed. The bytes after it are one compressed section. The low
three bits of the attributes are its codec. Every Kafka client can read what this module writes:

* gzip: one member (RFC 1952), without a time;
* snappy: raw blocks of 32 KiB in the framing of Java's `SnappyOutputStream` (`\\x82SNAPPY\\0`,
  version 1, compatible 1; a 32-bit length before each block). The decoder also accepts one raw
  block without framing, which librdkafka writes;
* lz4: one frame of independent blocks of at most 64 KiB. Java's client refuses linked blocks;
* zstd: one frame with the size of its content.

Decompression is bounded: the result has at most `bytes_max` bytes, and memory use is a small
multiple of that for any input. All codecs release the interpreter lock. The libraries are loaded at
first use, so that a node without compressed streams uses less memory.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from struct import Struct
from typing import Final, TypeAlias

from bascule.errors import CorruptData
from bascule.model import Compression
from bascule.record.header import (
    COMPRESSION_MASK,
    CRC_START,
    HEADER_BYTES,
    LENGTH_PREFIX_BYTES,
    batch_crc,
)

Bytes: TypeAlias = bytes | bytearray | memoryview

CODECS: Final = {
    Compression.NONE: 0,
    Compression.GZIP: 1,
    Compression.SNAPPY: 2,
    Compression.LZ4: 3,
    Compression.ZSTD: 4,
}
"""The number of each codec in a batch's attributes (Kafka's record batch, version 2)."""

RECORDS_BYTES_MAX: Final = 128 << 20
"""Limit for the decompressed records of one batch. A NATS message has at most 64 MiB, and a batch
has 1 MiB of records or one larger message."""

XERIAL_MAGIC: Final = b"\x82SNAPPY\x00"
_XERIAL_HEADER: Final = XERIAL_MAGIC + (1).to_bytes(4, "big") + (1).to_bytes(4, "big")
_XERIAL_BLOCK_BYTES: Final = 32 << 10
"""The block size of Java's writer. Its reader accepts any size."""
_PIECE_BYTES: Final = 1 << 20
"""Bytes decompressed at a time if the frame does not contain its size."""
_ZSTD_LEVEL: Final = 3
_GZIP_WINDOW: Final = 31
"""zlib's `wbits` for a window of 32 KiB with gzip header and trailer."""
_LENGTH: Final = Struct(">i")
_ATTRIBUTES_LOW: Final = 22


class _Malformed(Exception):
    """The compressed bytes are malformed; the text says how."""


def compress_batch(batch: memoryview, codec: Compression) -> bytearray | memoryview:
    """Compress the records of a complete batch, before its header is sealed.

    Returns a new batch with the codec bits and length set in its header. If there is no codec, or
    if compression does not make the batch smaller, returns `batch` with its codec bits cleared.
    Seal the result with `keep_codec`, which keeps the codec bits.
    """
    number = CODECS[codec]
    if number:
        packed = _COMPRESS[number](batch[HEADER_BYTES:])
        if len(packed) < len(batch) - HEADER_BYTES:
            out = bytearray(batch[:HEADER_BYTES])
            out += packed
            _set_codec(out, number)
            return out
    _set_codec(batch, 0)
    return batch


def decompress_records(
    codec: int,
    data: Bytes,
    *,
    bytes_max: int = RECORDS_BYTES_MAX,
    origin: str = "compressed records",
    position: int = 0,
) -> bytes:
    """Decompress the bytes after a batch's header; `codec` is the number in the header, not 0.

    `origin` and `position` are the source of `data`, for the error. Raises: CorruptData if the
    codec is unknown, or the bytes are malformed, incomplete, followed by other bytes, or decompress
    to more than `bytes_max`.
    """
    decompress = _DECOMPRESS.get(codec)
    if decompress is None:
        raise CorruptData(origin, position, "a codec from 0 to 4", f"codec {codec}")
    try:
        return decompress(memoryview(data), bytes_max)
    except _Malformed as error:
        name = list(CODECS)[codec].value
        raise CorruptData(
            origin, position, f"{name} records of at most {bytes_max} bytes", str(error)
        ) from error


def decompress_batch(
    batch: Bytes, *, bytes_max: int = RECORDS_BYTES_MAX, origin: str = "batch"
) -> Bytes:
    """Decompress a complete batch, with the length, codec bits and CRC of an uncompressed batch.

    Returns an uncompressed batch unchanged. Raises: CorruptData, as `decompress_records`.
    """
    codec = batch[_ATTRIBUTES_LOW] & COMPRESSION_MASK
    if not codec:
        return batch
    view = memoryview(batch)
    out = bytearray(view[:HEADER_BYTES])
    out += decompress_records(
        codec, view[HEADER_BYTES:], bytes_max=bytes_max, origin=origin, position=HEADER_BYTES
    )
    _set_codec(out, 0)
    out[17:CRC_START] = batch_crc(out).to_bytes(4, "big")
    return out


def _set_codec(batch: bytearray | memoryview, number: int) -> None:
    batch[_ATTRIBUTES_LOW] = batch[_ATTRIBUTES_LOW] & ~COMPRESSION_MASK & 0xFF | number
    _LENGTH.pack_into(batch, 8, len(batch) - LENGTH_PREFIX_BYTES)


def _compress_gzip(data: memoryview) -> Bytes:
    return zlib.compress(data, zlib.Z_DEFAULT_COMPRESSION, _GZIP_WINDOW)


def _decompress_gzip(data: memoryview, bytes_max: int) -> bytes:
    decompressor = zlib.decompressobj(_GZIP_WINDOW)
    try:
        out = decompressor.decompress(data, bytes_max + 1)
    except zlib.error as error:
        raise _Malformed(str(error)) from error
    return _check_complete(
        out, bytes_max, ended=decompressor.eof, left=len(decompressor.unused_data)
    )


def _compress_snappy(data: memoryview) -> Bytes:
    from cramjam import snappy

    out = bytearray(_XERIAL_HEADER)
    for at in range(0, len(data), _XERIAL_BLOCK_BYTES):
        block = snappy.compress_raw(data[at : at + _XERIAL_BLOCK_BYTES])
        out += _LENGTH.pack(len(block))
        out += memoryview(block)
    return out


def _decompress_snappy(data: memoryview, bytes_max: int) -> bytes:
    if bytes(data[: len(XERIAL_MAGIC)]) != XERIAL_MAGIC:
        return _snappy_block(data, bytes_max)
    out = bytearray()
    at, end = len(_XERIAL_HEADER), len(data)
    if at > end:
        raise _Malformed(f"a header of {end} bytes, expected {at}")
    while at < end:
        if end - at < _LENGTH.size:
            raise _Malformed(f"a block length of {end - at} bytes, expected {_LENGTH.size}")
        (length,) = _LENGTH.unpack_from(data, at)
        at += _LENGTH.size
        if not 0 <= length <= end - at:
            raise _Malformed(f"a block of {length} bytes, but {end - at} bytes are left")
        out += _snappy_block(data[at : at + length], bytes_max - len(out))
        at += length
    return bytes(out)


def _snappy_block(data: memoryview, bytes_max: int) -> bytes:
    """Decompress a raw block. It begins with its decompressed size, a varint."""
    from cramjam import DecompressionError, snappy

    size = shift = 0
    for byte in data[:5]:
        size |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            break
    if size > bytes_max:
        raise _Malformed(f"a block of {size} bytes")
    try:
        return bytes(snappy.decompress_raw(data))
    except DecompressionError as error:
        raise _Malformed(str(error)) from error


def _compress_lz4(data: memoryview) -> Bytes:
    from lz4 import frame

    packed: bytes = frame.compress(
        data, block_size=frame.BLOCKSIZE_MAX64KB, block_linked=False, store_size=False
    )
    return packed


def _decompress_lz4(data: memoryview, bytes_max: int) -> bytes:
    from lz4 import frame

    decompressor = frame.LZ4FrameDecompressor()
    out = bytearray()
    piece: Bytes = data
    try:
        while not decompressor.eof and len(out) <= bytes_max:
            more = decompressor.decompress(piece, min(_PIECE_BYTES, bytes_max + 1 - len(out)))
            if not more and not decompressor.eof:
                break
            out += more
            piece = b""
    except RuntimeError as error:
        raise _Malformed(str(error)) from error
    left = len(decompressor.unused_data or b"")
    return _check_complete(bytes(out), bytes_max, ended=decompressor.eof, left=left)


def _compress_zstd(data: memoryview) -> Bytes:
    import zstandard

    return zstandard.ZstdCompressor(level=_ZSTD_LEVEL).compress(data)


def _decompress_zstd(data: memoryview, bytes_max: int) -> bytes:
    import zstandard

    try:
        size = zstandard.get_frame_parameters(data).content_size
        if size != zstandard.CONTENTSIZE_UNKNOWN and size > bytes_max:
            raise _Malformed(f"a frame of {size} bytes")
        # If the size is unknown, the maximum is allocated, but unused pages take no memory.
        return zstandard.ZstdDecompressor().decompress(
            data, max_output_size=bytes_max, allow_extra_data=False
        )
    except zstandard.ZstdError as error:
        raise _Malformed(str(error)) from error


def _check_complete(out: bytes, bytes_max: int, *, ended: bool, left: int) -> bytes:
    if len(out) > bytes_max:
        raise _Malformed("more")
    if not ended:
        raise _Malformed(f"an incomplete section after {len(out)} bytes")
    if left:
        raise _Malformed(f"{left} bytes after the end")
    return out


_COMPRESS: Final[dict[int, Callable[[memoryview], Bytes]]] = {
    1: _compress_gzip,
    2: _compress_snappy,
    3: _compress_lz4,
    4: _compress_zstd,
}
_DECOMPRESS: Final[dict[int, Callable[[memoryview, int], bytes]]] = {
    1: _decompress_gzip,
    2: _decompress_snappy,
    3: _decompress_lz4,
    4: _decompress_zstd,
}
