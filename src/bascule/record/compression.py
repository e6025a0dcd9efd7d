"""Compress and decompress the records of a batch: gzip, snappy, lz4 and zstd, as Kafka has them.

The 61 bytes of header stay plain; what follows them is one compressed section, and the low three
bits of the attributes say how. What is written here is what every Kafka client reads:

* gzip: one member (RFC 1952), without a time;
* snappy: raw blocks of 32 KiB in the framing of Java's `SnappyOutputStream` (`\\x82SNAPPY\\0`,
  version 1, compatible 1; a 32-bit length before each block). Read is that framing and a bare raw
  block, which librdkafka writes;
* lz4: one frame of independent blocks of at most 64 KiB. Java's client refuses linked blocks;
* zstd: one frame that names its content's size.

What comes back is bounded: no input makes more than `bytes_max` bytes of it, and none more memory
than a small multiple of that. Every codec lets other threads run while it works. The libraries are
loaded when first needed, so that a node without compressed streams stays small.
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
"""Records of one batch, decompressed. NATS carries at most 64 MiB in a message, and a batch holds
1 MiB of records or one larger message."""

XERIAL_MAGIC: Final = b"\x82SNAPPY\x00"
_XERIAL_HEADER: Final = XERIAL_MAGIC + (1).to_bytes(4, "big") + (1).to_bytes(4, "big")
_XERIAL_BLOCK_BYTES: Final = 32 << 10
"""What Java's writer uses; its reader takes any size."""
_PIECE_BYTES: Final = 1 << 20
"""Output asked for at a time where a frame does not say how much there is."""
_ZSTD_LEVEL: Final = 3
_GZIP_WINDOW: Final = 31
"""zlib's way to say: 32 KiB window, gzip header and trailer."""
_LENGTH: Final = Struct(">i")
_ATTRIBUTES_LOW: Final = 22


class _Malformed(Exception):
    """The text says what is wrong."""


def compress_batch(batch: memoryview, codec: Compression) -> bytearray | memoryview:
    """Compress the records of a complete batch whose header is still to be sealed.

    Returns a new batch: the header copied, its codec bits and length set; or `batch` itself, its
    codec bits cleared, where there is no codec or compressing makes it no smaller. Seal either with
    `keep_codec`, so that the codec bits stay.
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
    """Decompress what follows a batch's header; `codec` is the header's number, not 0.

    `origin` and `position` say where `data` came from, for the error. Raises: CorruptData where the
    codec is unknown, the bytes are not its, end early or late, or hold more than `bytes_max`.
    """
    decompress = _DECOMPRESS.get(codec)
    if decompress is None:
        raise CorruptData(origin, position, "a known codec (0 to 4)", f"codec {codec}")
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
    """A complete batch with its records in plain, as if it had never been compressed.

    Length, codec bits and CRC are those of the plain batch; an uncompressed one is returned as it
    is. Raises: CorruptData, as `decompress_records`.
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
    return _whole(out, bytes_max, ended=decompressor.eof, left=len(decompressor.unused_data))


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
        raise _Malformed(f"{end} bytes of a header of {at}")
    while at < end:
        if end - at < _LENGTH.size:
            raise _Malformed(f"{end - at} bytes where a block's length should be")
        (length,) = _LENGTH.unpack_from(data, at)
        at += _LENGTH.size
        if not 0 <= length <= end - at:
            raise _Malformed(f"a block of {length} bytes with {end - at} left")
        out += _snappy_block(data[at : at + length], bytes_max - len(out))
        at += length
    return bytes(out)


def _snappy_block(data: memoryview, bytes_max: int) -> bytes:
    """A raw block; it begins with a varint that says how long its content is."""
    from cramjam import DecompressionError, snappy

    size = shift = 0
    for byte in data[:5]:
        size |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            break
    if size > bytes_max:
        raise _Malformed(f"a block that holds {size} bytes")
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
    return _whole(bytes(out), bytes_max, ended=decompressor.eof, left=left)


def _compress_zstd(data: memoryview) -> Bytes:
    import zstandard

    return zstandard.ZstdCompressor(level=_ZSTD_LEVEL).compress(data)


def _decompress_zstd(data: memoryview, bytes_max: int) -> bytes:
    import zstandard

    try:
        size = zstandard.get_frame_parameters(data).content_size
        if size != zstandard.CONTENTSIZE_UNKNOWN and size > bytes_max:
            raise _Malformed(f"a frame that holds {size} bytes")
        # Where the frame does not say, room for the most is only set aside, not touched.
        return zstandard.ZstdDecompressor().decompress(
            data, max_output_size=bytes_max, allow_extra_data=False
        )
    except zstandard.ZstdError as error:
        raise _Malformed(str(error)) from error


def _whole(out: bytes, bytes_max: int, *, ended: bool, left: int) -> bytes:
    if len(out) > bytes_max:
        raise _Malformed("more")
    if not ended:
        raise _Malformed(f"an end after {len(out)}")
    if left:
        raise _Malformed(f"{left} bytes behind their end")
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
