"""Check what is to be appended: the header of a leader's own batch against the log's end."""

from __future__ import annotations

from struct import Struct
from typing import Final

from bascule.errors import CorruptData, UnexpectedOffset
from bascule.host.api import Buffer
from bascule.record.header import HEADER_BYTES, LENGTH_PREFIX_BYTES, MAGIC, read_header
from bascule.storage.scan import check_header

_STAMPED: Final = Struct(">qiib6xi8xq18x")
"""Of a whole header only what the log needs: a third of the time, once a batch."""
NOWHERE: Final = -1
"""No base offset: refused by every log."""


def read_stamped(batch: Buffer, size: int) -> tuple[int, int, int, int]:
    """Base offset, end offset, leader epoch and largest timestamp of exactly one batch.

    The base offset is NOWHERE where the header does not describe `size` bytes: see `refusal`.
    """
    if size < HEADER_BYTES:
        return NOWHERE, 0, 0, 0
    base_offset, length, epoch, magic, delta, timestamp = _STAMPED.unpack_from(batch)
    if length + LENGTH_PREFIX_BYTES != size or magic != MAGIC or delta < 0:
        return NOWHERE, 0, 0, 0
    return base_offset, base_offset + delta + 1, epoch, timestamp


def refusal(batch: Buffer, end_offset: int, directory: str) -> CorruptData | UnexpectedOffset:
    """Why a batch does not continue a log that ends at `end_offset`."""
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
