"""A segment read in large pieces that end with a whole batch, each batch's CRC checked."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from typing import Final, NamedTuple

from bascule.errors import CorruptData
from bascule.record.header import HEADER_BYTES
from bascule.storage import _hot
from bascule.storage.epochs import LeaderEpochs
from bascule.storage.scan import check_epoch, check_offset, scan_batches
from bascule.storage.segment import Contents

READ_BYTES: Final = 1 << 20
"""What the processor's second cache holds: every byte is looked at more than once."""
FAR: Final = 1 << 61
"""Beyond every file: the only entries wanted are those behind gaps."""


class Window(NamedTuple):
    """Whole batches, checked: bytes [0, end) of `data`, from byte `position` of the file on."""

    data: memoryview
    position: int
    end: int
    end_offset: int
    """Where its last batch ends."""


def windows(
    contents: Contents,
    *,
    start: int,
    end: int,
    offset: int,
    end_offset: int,
    epochs: LeaderEpochs,
    vouched: bool,
) -> Iterator[Window]:
    """Read the batches of bytes [start, end) of a segment, which lie in [offset, end_offset).

    Checks what the CRCs leave out, too: the order of their offsets, and their leader epochs; and,
    unless the segment was `vouched` for, that the index knows each batch behind a gap.

    Raises: CorruptData at the first byte that is not what was written, OSError.
    """
    file = contents.file
    # Room for an entry per batch: each one behind a gap takes one.
    entries = array("q", bytes(8 * _hot.ENTRY_FIELDS * (READ_BYTES // HEADER_BYTES + 1)))
    position = start
    while position < end:
        data = memoryview(file.read_at(position, min(READ_BYTES, end - position)))
        state = array("q", (0, offset, -1, 0, FAR))
        epoch, epoch_end = epochs.span(offset)
        _hot.check_batches(data, 0, offset, epoch, epoch_end, True, FAR, entries, state)
        reached, after, _, count, _ = state
        if reached == 0:
            _, header = next(scan_batches(file, start=position, end=end))
            check_offset(header, file.path, position, offset=offset, gaps_allowed=True)
            check_epoch(header, file.path, position, epoch=epochs.at(header.base_offset))
            data = memoryview(file.read_at(position, header.total_bytes))
            reached, after = len(data), header.end_offset
            count = int(header.base_offset != offset)
            entries[0], entries[1] = header.base_offset, 0
        if not vouched:
            _check_gaps(contents, position, entries[: count * _hot.ENTRY_FIELDS])
        if after > end_offset:
            raise CorruptData(file.path, position, f"batches up to offset {end_offset}", str(after))
        offset = after
        yield Window(data, position, reached, offset)
        position += reached


def _check_gaps(contents: Contents, origin: int, entries: array[int]) -> None:
    """Check that batches whose offset does not continue are where they were written."""
    for base, at in zip(
        entries[:: _hot.ENTRY_FIELDS], entries[1 :: _hot.ENTRY_FIELDS], strict=True
    ):
        known = contents.offsets.key_of(origin + at)
        if known != base:
            entry = "no gap" if known is None else f"base offset {known}"
            raise CorruptData(
                contents.file.path, origin + at, f"{entry}, as the index says", str(base)
            )
