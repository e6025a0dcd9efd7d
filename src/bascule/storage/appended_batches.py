"""Check batches before an append: a leader's batch by its header, a follower's by every byte."""

from __future__ import annotations

from array import array
from struct import Struct
from typing import Final, NamedTuple

from bascule.errors import CorruptData, UnexpectedEpoch, UnexpectedOffset
from bascule.host.api import Buffer, Files
from bascule.record.header import (
    HEADER_BYTES,
    LENGTH_PREFIX_BYTES,
    MAGIC,
    BatchHeader,
    check_crc,
    read_header,
)
from bascule.storage import _hot
from bascule.storage.compaction import clean_offset
from bascule.storage.epochs import OFFSET_END, LeaderEpochs
from bascule.storage.scan import check_header
from bascule.storage.segment import LogConfig

GAPS_FILE_NAME: Final = "gaps"
"""Name of an empty file. If it exists, offsets may be missing anywhere in the log: the follower has
appended batches of a log that its leader had compacted."""
ENTRIES_MAX: Final = 4_096
"""Index entries that one call of compiled code returns at most."""

_STAMPED: Final = Struct(">qiib6xi8xq18x")
"""The header fields that the log needs. Unpacking all fields takes three times as long."""
_LIMITED: Final = Struct(">qi11xi8xq")
"""Base offset, length, last offset delta and largest timestamp of a batch."""
NO_BASE_OFFSET: Final = -1
"""Stands for a missing base offset. No log ends at it, so every log refuses the batch."""


def read_stamped(batch: Buffer, size: int) -> tuple[int, int, int, int]:
    """Base offset, end offset, leader epoch and largest timestamp of exactly one batch.

    The base offset is NO_BASE_OFFSET if the header does not describe `size` bytes.
    """
    if size < HEADER_BYTES:
        return NO_BASE_OFFSET, 0, 0, 0
    base_offset, length, epoch, magic, delta, timestamp = _STAMPED.unpack_from(batch)
    if length + LENGTH_PREFIX_BYTES != size or magic != MAGIC or delta < 0:
        return NO_BASE_OFFSET, 0, 0, 0
    return base_offset, base_offset + delta + 1, epoch, timestamp


def append_error(batch: Buffer, end_offset: int, directory: str) -> CorruptData | UnexpectedOffset:
    """The error for a batch that does not continue a log that ends at `end_offset`."""
    origin, size = f"a batch for {directory}", len(batch)
    if size < HEADER_BYTES:
        return CorruptData(origin, size, f"a batch header of {HEADER_BYTES} bytes", f"{size} bytes")
    header = read_header(batch)
    try:
        check_header(header, origin, 0, size)
    except CorruptData as damage:
        return damage
    if header.total_bytes != size:
        return CorruptData(origin, 8, f"one batch of {size} bytes", f"{header.total_bytes} bytes")
    return UnexpectedOffset(end_offset, header.base_offset)


class CheckedBatches(NamedTuple):
    """The result of a check that found no error."""

    end_offset: int
    timestamp_max: int
    """The largest timestamp of the segment, including these batches."""
    epochs: LeaderEpochs
    """The leader epochs of the log, including these batches."""
    has_gaps: bool
    entries: array[int]
    """Index entries: see `Contents.index_checked_batches`."""
    next_entry_at: int


def split_for_segments(data: memoryview, config: LogConfig) -> list[memoryview]:
    """Parts of batches, back to back, that a segment may hold by the limits of its log.

    A batch that exceeds a limit by itself is a part alone. A leader's response may have what is in
    several of its segments. What is not a whole batch is in the last part.
    """
    parts, start, at, base, since = [], 0, 0, 0, 0
    while len(data) - at >= HEADER_BYTES:
        base_offset, length, delta, timestamp = _LIMITED.unpack_from(data, at)
        stop = at + length + LENGTH_PREFIX_BYTES
        if length < 0 or (stop >= len(data) and not at):
            break
        if at > start and (
            stop - start > config.segment_bytes_max
            or base_offset + delta + 1 - base > config.segment_messages_max
            or timestamp - since >= config.segment_age_ms_max
        ):
            parts.append(data[start:at])
            start = at
        if at == start:
            base, since = base_offset, timestamp
        at = stop
    return [*parts, data[start:]]


def read_first_header(data: memoryview, directory: str) -> BatchHeader:
    """The header at the beginning of `data`. Raises: CorruptData."""
    origin = f"batches for {directory}"
    if len(data) < HEADER_BYTES:
        raise CorruptData(
            origin, len(data), f"a batch header of {HEADER_BYTES} bytes", f"{len(data)} bytes"
        )
    header = read_header(data)
    check_header(header, origin, 0, len(data))
    return header


def check_replicated(
    data: memoryview,
    *,
    offset: int,
    epochs: LeaderEpochs,
    told: LeaderEpochs,
    gaps_allowed: bool,
    origin: int,
    timestamp_max: int,
    next_entry_at: int,
    index_interval_bytes: int,
    directory: str,
) -> CheckedBatches:
    """Check whole batches, back to back, that continue a log which ends at `offset`.

    Each batch must have a valid CRC. Its base offset must be the end of the batch before it, or may
    be above it with `gaps_allowed`, and its leader epoch must not be below that batch's epoch.
    `told` are the epochs of the log that has sent them, as far as it has told: see
    `LeaderEpochs.with_told`. The batches will be written at byte `origin` of a segment.
    `timestamp_max`, `next_entry_at` and `index_interval_bytes` describe that segment's indexes.

    Raises: CorruptData, UnexpectedOffset, UnexpectedEpoch.
    """
    at, has_gaps = 0, False
    room_entries = min(len(data) // index_interval_bytes + 2, ENTRIES_MAX)
    room = array("q", bytes(8 * _hot.ENTRY_FIELDS * room_entries))
    entries = array("q")
    while at < len(data):
        rest, offset_before = data[at:], offset
        if len(rest) < HEADER_BYTES:
            raise _replicated_error(data, at, offset, epochs.latest, directory)
        header, count = read_header(rest), 0
        if header.leader_epoch >= max(epochs.latest, 0):
            state = array("q", (0, offset, timestamp_max, 0, next_entry_at))
            count = _hot.check_batches(
                rest, origin + at, offset, header.leader_epoch, OFFSET_END, has_gaps,
                index_interval_bytes, room, state,
            )  # fmt: skip
        if count == 0:
            if has_gaps or header.base_offset <= offset:
                raise _replicated_error(data, at, offset, epochs.latest, directory)
            if not gaps_allowed:
                # No CRC covers the base offset.
                found = str(header.base_offset)
                raise CorruptData(f"batches for {directory}", at, f"base offset {offset}", found)
            has_gaps = True
            continue
        epoch = header.leader_epoch
        if epoch > epochs.latest:
            epochs = epochs.with_told(told, epoch, offset_before, header.base_offset)
        reached, offset, timestamp_max, entry_count, next_entry_at = state
        entries += room[: entry_count * _hot.ENTRY_FIELDS]
        at += reached
    return CheckedBatches(offset, timestamp_max, epochs, has_gaps, entries, next_entry_at)


def _replicated_error(
    data: memoryview, at: int, offset: int, latest: int, directory: str
) -> CorruptData | UnexpectedOffset | UnexpectedEpoch:
    """The error for the batch at byte `at`, which does not continue a log that ends at `offset`."""
    origin, left = f"batches for {directory}", len(data) - at
    if left < HEADER_BYTES:
        return CorruptData(origin, at, f"a batch header of {HEADER_BYTES} bytes", f"{left} bytes")
    header = read_header(data, at)
    try:
        check_header(header, origin, at, len(data))
    except CorruptData as damage:
        return damage
    if header.base_offset < offset:
        return UnexpectedOffset(offset, header.base_offset)
    if not check_crc(data[at : at + header.total_bytes]):
        return CorruptData(origin, at + 17, "the CRC of the batch", f"{header.crc:#010x}")
    if header.leader_epoch < max(latest, 0):
        return UnexpectedEpoch(max(latest, 0), header.leader_epoch)
    return CorruptData(
        origin, at, "an end offset of less than 2^63", f"base offset {header.base_offset}"
    )


def has_gaps(files: Files, directory: str) -> bool:
    """Whether offsets may be missing between the batches of a log. Raises: OSError."""
    names = (GAPS_FILE_NAME, clean_offset.FILE_NAME)
    return any(files.exists(f"{directory}/{name}") for name in names)


def mark_gaps(files: Files, directory: str) -> None:
    """Create the file `gaps` and sync it, before the first batch after a gap is appended.

    Raises: OSError.
    """
    path = f"{directory}/{GAPS_FILE_NAME}"
    if not files.exists(path):
        files.open(path, create=True)
    files.sync_dir(directory)
