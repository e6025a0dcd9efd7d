"""Read a segment in large windows of whole batches, and check each batch's CRC."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from typing import Final, NamedTuple

from bascule.errors import CorruptData
from bascule.record.header import HEADER_BYTES
from bascule.storage import _hot
from bascule.storage.epochs import LeaderEpochs
from bascule.storage.index.trusted_file import Trust
from bascule.storage.scan import check_epoch, check_offset, scan_batches
from bascule.storage.segment import Contents

READ_BYTES: Final = 1 << 20
"""Fits the processor's L2 cache, because every byte is read more than once."""
NO_INTERVAL_ENTRY: Final = 1 << 61
"""A position beyond every file, so that only batches after gaps get an index entry."""


class Window(NamedTuple):
    """Checked whole batches: bytes [0, end) of `data`. `data` begins at `position` of the file."""

    data: memoryview
    position: int
    end: int
    end_offset: int
    """The end offset of its last batch."""


def windows(
    contents: Contents,
    *,
    start: int,
    end: int,
    offset: int,
    end_offset: int,
    epochs: LeaderEpochs,
    trust: Trust,
) -> Iterator[Window]:
    """Read the batches of bytes [start, end) of a segment, with offsets in [offset, end_offset).

    Checks the CRCs and what they do not cover: the order of offsets and the leader epochs. Without
    `trust` in the segment, checks that each batch after a gap has an index entry.

    Raises: CorruptData naming the file and the first damaged byte, OSError.
    """
    file = contents.file
    # Room for an entry per batch, because each batch after a gap gets one.
    entries = array("q", bytes(8 * _hot.ENTRY_FIELDS * (READ_BYTES // HEADER_BYTES + 1)))
    position = start
    while position < end:
        data = memoryview(file.read_at(position, min(READ_BYTES, end - position)))
        state = array("q", (0, offset, -1, 0, NO_INTERVAL_ENTRY))
        epoch, epoch_end = epochs.span(offset)
        _hot.check_batches(
            data, 0, offset, epoch, epoch_end, True, NO_INTERVAL_ENTRY, entries, state
        )
        reached, after, _, count, _ = state
        if reached == 0:
            _, header = next(scan_batches(file, start=position, end=end))
            check_offset(header, file.path, position, offset=offset, gaps_allowed=True)
            check_epoch(header, file.path, position, epoch=epochs.at(header.base_offset))
            data = memoryview(file.read_at(position, header.total_bytes))
            reached, after = len(data), header.end_offset
            count = int(header.base_offset != offset)
            entries[0], entries[1] = header.base_offset, 0
        if not trust.is_whole:  # asked now: this read may have ended it
            _check_gaps(contents, position, entries[: count * _hot.ENTRY_FIELDS])
        if after > end_offset:
            raise CorruptData(file.path, position, f"batches up to offset {end_offset}", str(after))
        offset = after
        yield Window(data, position, reached, offset)
        position += reached


def _check_gaps(contents: Contents, origin: int, entries: array[int]) -> None:
    """Check that each batch after a gap has an index entry with its base offset."""
    for base, at in zip(
        entries[:: _hot.ENTRY_FIELDS], entries[1 :: _hot.ENTRY_FIELDS], strict=True
    ):
        known = contents.offsets.key_of(origin + at)
        if known != base:
            entry = "no batch after a gap" if known is None else f"base offset {known}"
            raise CorruptData(
                contents.file.path, origin + at, f"{entry}, by the index", f"base offset {base}"
            )
