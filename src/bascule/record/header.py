"""The header of a record batch, 61 bytes: read it, stamp offset and epoch, check the CRC."""

from __future__ import annotations

from struct import Struct
from typing import Final, NamedTuple

from crc32c import crc32c

HEADER: Final = Struct(">qiibIhiqqqhii")
HEADER_BYTES: Final = 61
LENGTH_PREFIX_BYTES: Final = 12
"""Base offset and `batch_length` itself. `batch_length` counts the bytes after them."""
CRC_START: Final = 21
MAGIC: Final = 2

COMPRESSION_MASK: Final = 0x07
LOG_APPEND_TIME: Final = 0x08
CONTROL: Final = 0x20
PAYLOAD_LINKS: Final = 0x4000
"""The batch has records whose payloads are files beside the log. Bascule's own bit: Kafka uses the
low seven, and its clients ignore the others."""

_STAMP_OFFSET: Final = Struct(">q")
_STAMP_EPOCH: Final = Struct(">i")


class BatchHeader(NamedTuple):
    """The fields of the header in their order on disk (Kafka's record batch, version 2)."""

    base_offset: int
    batch_length: int
    leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int

    @property
    def total_bytes(self) -> int:
        return self.batch_length + LENGTH_PREFIX_BYTES

    @property
    def end_offset(self) -> int:
        """The first offset after this batch."""
        return self.base_offset + self.last_offset_delta + 1

    @property
    def is_control(self) -> bool:
        return self.attributes & CONTROL != 0

    @property
    def has_payload_links(self) -> bool:
        return self.attributes & PAYLOAD_LINKS != 0

    @property
    def is_log_append_time(self) -> bool:
        return self.attributes & LOG_APPEND_TIME != 0

    @property
    def codec(self) -> int:
        """0 none, 1 gzip, 2 snappy, 3 lz4, 4 zstd."""
        return self.attributes & COMPRESSION_MASK


def read_header(buffer: bytes | bytearray | memoryview, position: int = 0) -> BatchHeader:
    """Read the header at `position`. The caller has checked that 61 bytes are there."""
    return BatchHeader._make(HEADER.unpack_from(buffer, position))


def stamp(buffer: bytearray | memoryview, *, base_offset: int, leader_epoch: int) -> None:
    """Write the base offset and leader epoch of a batch. The CRC does not cover them."""
    _STAMP_OFFSET.pack_into(buffer, 0, base_offset)
    _STAMP_EPOCH.pack_into(buffer, 12, leader_epoch)


def check_crc(batch: bytes | bytearray | memoryview) -> bool:
    """Whether the CRC-32C of a whole batch matches its header."""
    view = memoryview(batch)
    expected = int.from_bytes(view[17:21], "big")
    return bool(crc32c(view[CRC_START:]) == expected)


def batch_crc(batch: bytes | bytearray | memoryview) -> int:
    """Compute the CRC-32C of a whole batch."""
    return int(crc32c(memoryview(batch)[CRC_START:]))


def seal(
    buffer: bytearray | memoryview,
    *,
    record_count: int,
    base_timestamp: int,
    max_timestamp: int,
    attributes: int = LOG_APPEND_TIME,
    base_offset: int = 0,
    leader_epoch: int = 0,
    last_offset_delta: int | None = None,
    keep_codec: bool = False,
) -> None:
    """Write header and CRC to the first 61 bytes of `buffer`, which is exactly one batch.

    With `keep_codec` the codec bits that `compression.compress_batch` wrote are kept. Otherwise the
    former content of the header is ignored.
    """
    last = record_count - 1 if last_offset_delta is None else last_offset_delta
    if keep_codec:
        attributes |= buffer[22] & COMPRESSION_MASK
    HEADER.pack_into(
        buffer, 0, base_offset, len(buffer) - LENGTH_PREFIX_BYTES, leader_epoch, MAGIC, 0,
        attributes, last, base_timestamp, max_timestamp, -1, -1, -1, record_count,
    )  # fmt: skip
    buffer[17:21] = batch_crc(buffer).to_bytes(4, "big")
