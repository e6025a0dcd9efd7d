"""Find the batches in a buffer, and decode the records of a batch lazily."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from typing import NamedTuple

from bascule.errors import CorruptData
from bascule.record import _hot
from bascule.record._hot_varint import read_varint
from bascule.record.compression import decompress_batch
from bascule.record.header import HEADER_BYTES, MAGIC, BatchHeader, check_crc, read_header


class Record(NamedTuple):
    """One record; `timestamp` is Unix time in milliseconds."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()


class LocatedBatch(NamedTuple):
    """A complete batch in a buffer: its header, start and end."""

    header: BatchHeader
    start: int
    end: int


def scan_batches(
    data: bytes | bytearray | memoryview, *, origin: str = "buffer", origin_position: int = 0
) -> Iterator[LocatedBatch]:
    """Yield every complete batch of `data` after checking its CRC; ignore an incomplete last one.

    `origin` and `origin_position` are the source of the bytes, for the error.

    Raises: CorruptData if a batch has another magic, an invalid length or offset delta, or a wrong
    CRC.
    """
    view = memoryview(data)
    at = 0
    while len(view) - at >= HEADER_BYTES:
        header = read_header(view, at)
        if header.magic != MAGIC:
            raise CorruptData(origin, origin_position + at + 16, "magic 2", str(header.magic))
        if header.total_bytes < HEADER_BYTES:
            raise CorruptData(
                origin, origin_position + at + 8, "a batch length of at least 49",
                str(header.batch_length),
            )  # fmt: skip
        if header.last_offset_delta < 0:
            raise CorruptData(
                origin, origin_position + at + 23, "a last offset delta of at least 0",
                str(header.last_offset_delta),
            )  # fmt: skip
        end = at + header.total_bytes
        if end > len(view):
            return
        if not check_crc(view[at:end]):
            raise CorruptData(
                origin, origin_position + at + 17, "the CRC of the batch's bytes",
                f"{header.crc:#010x}",
            )  # fmt: skip
        yield LocatedBatch(header, at, end)
        at = end


class RecordBatch:
    """One complete batch. Iterating yields its records, and decompresses them if necessary.

    The caller has checked the CRC, as `scan_batches` does. Iterating raises CorruptData if the
    records do not fill the batch exactly. The byte in that error counts from the beginning of the
    decompressed batch.
    """

    def __init__(self, data: bytes | bytearray | memoryview, *, origin: str = "buffer") -> None:
        view = memoryview(data)
        self.header = read_header(view)
        self._view = view[: self.header.total_bytes]
        self._origin = origin

    def __len__(self) -> int:
        return self.header.record_count

    def __iter__(self) -> Iterator[Record]:
        self._view = view = memoryview(decompress_batch(self._view, origin=self._origin))
        header = self.header
        count = header.record_count
        # A record takes at least 7 bytes. Check the count before allocating memory for it.
        if count < 0 or count * 7 > len(view):
            raise CorruptData(self._origin, 57, "a record count that fits the batch", str(count))
        positions = array("q", bytes(8 * _hot.POSITION_FIELDS * count))
        state = array("q", [0] * 4)
        found = _hot.index_records(view, HEADER_BYTES, len(view), count, positions, state)
        if found < 0:
            raise CorruptData(self._origin, state[0], "a well-formed record", "other bytes")
        append_time = header.max_timestamp if header.is_log_append_time else None
        fields = _hot.POSITION_FIELDS
        for row in range(count):
            (
                delta,
                timestamp_delta,
                key_at,
                key_len,
                value_at,
                value_len,
                headers_at,
                header_count,
            ) = positions[row * fields : (row + 1) * fields]
            yield Record(
                header.base_offset + delta,
                header.base_timestamp + timestamp_delta if append_time is None else append_time,
                None if key_len < 0 else bytes(view[key_at : key_at + key_len]),
                None if value_len < 0 else bytes(view[value_at : value_at + value_len]),
                tuple(self._headers(headers_at, header_count)),
            )

    def _headers(self, at: int, count: int) -> Iterator[tuple[str, bytes | None]]:
        for _ in range(count):
            name, at = self._read_sized(at)
            content, at = self._read_sized(at)
            yield (name or b"").decode("utf-8", "replace"), content

    def _read_sized(self, at: int) -> tuple[bytes | None, int]:
        """Read a varint length and that many bytes. `index_records` has checked the ranges."""
        length, at = read_varint(self._view, at, len(self._view))
        if length < 0:
            return None, at
        return bytes(self._view[at : at + length]), at + length
