"""Iterate over the batches of one segment file: headers only, or every byte with its CRC."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from bascule.errors import CorruptData
from bascule.host.api import File
from bascule.record.batch import RecordBatch
from bascule.record.header import (
    HEADER_BYTES,
    LENGTH_PREFIX_BYTES,
    MAGIC,
    BatchHeader,
    check_crc,
    read_header,
)

SCAN_BYTES: Final = 1 << 20
"""Size of a read if every byte is needed."""
WALK_BYTES: Final = 4096 + HEADER_BYTES
"""Size of a read if only headers are needed. The batch of an offset starts less than an index
interval after the index entry, so one read contains its header."""
BATCH_LENGTH_MIN: Final = HEADER_BYTES - LENGTH_PREFIX_BYTES
MAGIC_POSITION: Final = 16


def read_headers(file: File, position: int, length: int, nowait: bool) -> bytes | None:
    """Read `length` bytes from `position` on, where a batch starts; fewer at the end of the file.

    None if `nowait` is set and the read would wait for the disk.

    Raises: CorruptData if fewer bytes than a header are left, OSError.
    """
    data = (file.read_at_nowait if nowait else file.read_at)(position, length)
    if data is not None:
        _check_header_present(file.path, position, len(data))
    return data


def check_header(header: BatchHeader, path: str, position: int, limit: int) -> None:
    """Check the fields of a header; `limit` is the end of the batches in the file.

    Raises: CorruptData at the byte of the first invalid field.
    """
    if header.magic != MAGIC:
        raise CorruptData(path, position + MAGIC_POSITION, f"magic {MAGIC}", str(header.magic))
    if header.batch_length < BATCH_LENGTH_MIN:
        raise CorruptData(
            path, position + 8, f"a batch length of at least {BATCH_LENGTH_MIN} bytes",
            str(header.batch_length),
        )  # fmt: skip
    if position + header.total_bytes > limit:
        raise CorruptData(
            path, position, f"a batch of {header.total_bytes} bytes",
            f"{limit - position} bytes up to the end",
        )  # fmt: skip
    if header.last_offset_delta < 0:
        raise CorruptData(
            path, position + 23, "a last offset delta of at least 0", str(header.last_offset_delta)
        )


def check_offset(
    header: BatchHeader, path: str, position: int, *, offset: int, gaps_allowed: bool
) -> None:
    """Check that a batch begins at `offset`, or above it if gaps are allowed.

    Raises: CorruptData.
    """
    found = header.base_offset
    if found == offset or (gaps_allowed and found > offset):
        return
    least = "at least " if gaps_allowed else ""
    raise CorruptData(path, position, f"{least}base offset {offset}", str(found))


def check_epoch(header: BatchHeader, path: str, position: int, *, epoch: int) -> None:
    """Check that a batch's leader epoch is the one that wrote its offset.

    Raises: CorruptData.
    """
    if header.leader_epoch != epoch:
        raise CorruptData(path, position + 12, f"leader epoch {epoch}", str(header.leader_epoch))


def scan_batches(file: File, *, start: int, end: int) -> Iterator[tuple[int, BatchHeader]]:
    """Yield (position, header) of every batch in bytes [start, end), after checking its CRC.

    `start` is a batch boundary. The CRC does not cover base offset and leader epoch. The caller
    must check them.

    Raises: CorruptData at the first batch that is incomplete or damaged, OSError.
    """
    path = file.path
    window, window_at = memoryview(b""), start
    position = start
    while position < end:
        at = position - window_at
        if len(window) - at < HEADER_BYTES:
            window = memoryview(file.read_at(position, min(SCAN_BYTES, end - position)))
            window_at, at = position, 0
            _check_header_present(path, position, len(window))
        header = read_header(window, at)
        check_header(header, path, position, end)
        total = header.total_bytes
        if len(window) - at < total:
            window = memoryview(file.read_at(position, max(SCAN_BYTES, total)))
            window_at, at = position, 0
        if not check_crc(window[at : at + total]):
            raise CorruptData(path, position + 17, "the CRC of the batch", f"{header.crc:#010x}")
        yield position, header
        position += total


def walk_headers(file: File, *, start: int, end: int) -> Iterator[tuple[int, BatchHeader]]:
    """Yield (position, header) of the batches in bytes [start, end) without reading their records.

    Raises: CorruptData if a header is invalid, OSError.
    """
    window, window_at = b"", start
    position = start
    while position < end:
        if position + HEADER_BYTES > window_at + len(window):
            window, window_at = file.read_at(position, WALK_BYTES), position
            _check_header_present(file.path, position, len(window))
        header = read_header(window, position - window_at)
        check_header(header, file.path, position, end)
        yield position, header
        position += header.total_bytes


def whole_batch(file: File, position: int, limit: int, length: int, nowait: bool) -> int | None:
    """`length`, or the size of the batch at `position` if that is larger.

    None if `nowait` is set and the read would wait for the disk.

    Raises: CorruptData, OSError.
    """
    data = read_headers(file, position, HEADER_BYTES, nowait)
    if data is None:
        return None
    header = read_header(data)
    check_header(header, file.path, position, limit)
    return max(length, header.total_bytes)


def first_record(
    file: File, position: int, header: BatchHeader, timestamp: int, start_offset: int
) -> tuple[int, int] | None:
    """(offset, timestamp) of the first record at or above `start_offset` and `timestamp`, or None.

    `header.max_timestamp` is at least `timestamp`.

    Raises: CorruptData, OSError.
    """
    is_whole = header.record_count > header.last_offset_delta
    if is_whole and (header.is_log_append_time or header.codec):
        # All records have one timestamp. A whole compressed batch is not decompressed here, so its
        # first offset stands for all of its records.
        return max(header.base_offset, start_offset), header.max_timestamp
    # Compaction may have removed the first records, and all from `start_offset` on.
    data = file.read_at(position, header.total_bytes)
    if len(data) < header.total_bytes or not check_crc(data):
        raise CorruptData(file.path, position + 17, "the CRC of the batch", f"{header.crc:#010x}")
    for record in RecordBatch(data, origin=file.path):
        if record.timestamp >= timestamp and record.offset >= start_offset:
            return record.offset, record.timestamp
    return None


def find_batch(
    file: File, *, start: int, end: int, offset: int, offset_max: int
) -> tuple[int, BatchHeader] | None:
    """Find a complete valid batch in bytes [start, end); it may start at any byte.

    Its base offset must be in [offset, offset_max].
    """
    start_of_batch = _pattern(offset, offset_max)
    position = start
    while end - position >= HEADER_BYTES:
        data = file.read_at(position, min(SCAN_BYTES + HEADER_BYTES, end - position))
        match = start_of_batch.search(data)
        while match is not None and len(data) - match.start() >= HEADER_BYTES:
            at = match.start()
            header = read_header(data, at)
            if _continues(header, end - position - at, offset, offset_max):
                batch = file.read_at(position + at, header.total_bytes)
                if check_crc(batch):
                    return position + at, header
            match = start_of_batch.search(data, at + 1)
        if len(data) <= SCAN_BYTES:
            return None
        position += SCAN_BYTES
    return None


def _check_header_present(path: str, position: int, length: int) -> None:
    """Raises: CorruptData if fewer bytes than a header are left."""
    if length < HEADER_BYTES:
        raise CorruptData(
            path, position, f"a batch header of {HEADER_BYTES} bytes", f"{length} bytes"
        )


def _pattern(offset: int, offset_max: int) -> re.Pattern[bytes]:
    """A pattern for headers with base offsets in [offset, offset_max].

    It has the common first bytes of these offsets, and the magic. The regular expression engine
    searches hundreds of MiB in seconds.
    """
    first, last = offset.to_bytes(8, "big"), offset_max.to_bytes(8, "big")
    shared = next((n for n in range(8) if first[n] != last[n]), 8)
    between = b"[\\x00-\\xff]{%d}" % (MAGIC_POSITION - shared)
    return re.compile(re.escape(first[:shared]) + between + bytes([MAGIC]))


def _continues(header: BatchHeader, room: int, offset: int, offset_max: int) -> bool:
    return (
        header.batch_length >= BATCH_LENGTH_MIN
        and header.total_bytes <= room
        and offset <= header.base_offset <= offset_max
        and header.last_offset_delta >= 0
    )
