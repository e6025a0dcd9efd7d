"""A segment read in large pieces that end with a whole batch, each batch's CRC checked."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from typing import Final, NamedTuple

from bascule.host.api import File
from bascule.storage import _hot
from bascule.storage.epochs import LeaderEpochs
from bascule.storage.scan import check_epoch, check_offset, scan_batches

READ_BYTES: Final = 1 << 20
"""What the processor's second cache holds: every byte is looked at more than once."""
NO_ENTRIES: Final = 1 << 62


class Window(NamedTuple):
    """Whole batches, checked: bytes [0, end) of `data`, from byte `position` of the file on."""

    data: memoryview
    position: int
    end: int
    end_offset: int
    """Where its last batch ends."""


def windows(
    file: File, *, start: int, end: int, offset: int, epochs: LeaderEpochs
) -> Iterator[Window]:
    """Read the batches of bytes [start, end), none of which begins below `offset`.

    Checks what the CRCs leave out, too: the order of their offsets, and their leader epochs.

    Raises: CorruptData at the first byte that is not what was written, OSError.
    """
    entries = array("q", bytes(8 * _hot.ENTRY_FIELDS))
    position = start
    while position < end:
        data = memoryview(file.read_at(position, min(READ_BYTES, end - position)))
        state = array("q", (0, offset, -1, 0, NO_ENTRIES))
        epoch, epoch_end = epochs.span(offset)
        _hot.check_batches(data, 0, offset, epoch, epoch_end, True, 1, entries, state)
        reached = state[0]
        if reached > 0:
            offset = state[1]
        else:
            _, header = next(scan_batches(file, start=position, end=end))
            check_offset(header, file.path, position, offset=offset, gaps_allowed=True)
            check_epoch(header, file.path, position, epoch=epochs.at(header.base_offset))
            data = memoryview(file.read_at(position, header.total_bytes))
            reached, offset = len(data), header.end_offset
        yield Window(data, position, reached, offset)
        position += reached
