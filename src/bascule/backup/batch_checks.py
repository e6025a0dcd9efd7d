"""Whole record batches, back to back: cut them off a buffer, and check every byte of them."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from typing import Final

from bascule.client import _hot
from bascule.errors import CorruptData
from bascule.storage.appended_batches import check_replicated, read_first_header
from bascule.storage.epochs import NO_EPOCHS, LeaderEpochs

_INDEX_INTERVAL_BYTES: Final = 1 << 20
"""The check makes index entries as well, which are not used: few."""


@dataclass
class BatchChecker:
    """Follows a row of batches. Gaps between them are allowed: compaction makes them."""

    origin: str
    """For error texts."""
    offset: int = 0
    """End of the last batch; of none: what the first one must not begin below."""
    epochs: LeaderEpochs = field(default_factory=LeaderEpochs)
    first_offset: int = -1
    """Base offset of the first batch; -1 without any."""

    def check(self, data: memoryview) -> None:
        """Check whole batches that come next.

        Raises: CorruptData; UnexpectedOffset where one begins below `offset`; UnexpectedEpoch.
        """
        if not len(data):
            return
        if self.first_offset < 0:
            self.first_offset = read_first_header(data, self.origin).base_offset
        checked = check_replicated(
            data,
            offset=self.offset,
            epochs=self.epochs,
            told=NO_EPOCHS,
            gaps_allowed=True,
            origin=0,
            timestamp_max=-1,
            next_entry_at=0,
            index_interval_bytes=_INDEX_INTERVAL_BYTES,
            directory=self.origin,
        )
        self.offset, self.epochs = checked.end_offset, checked.epochs


def whole_batches(data: memoryview) -> int:
    """Size of the complete batches at the front of `data`."""
    state = array("q", (0, 0))
    return state[1] if _hot.walk_batches(data, 0, len(data), state) else 0


def split(data: memoryview, size_max: int) -> list[memoryview]:
    """Parts of `size_max` bytes at most, of whole batches; one larger batch is a part alone.

    Raises: CorruptData where `data` does not end with a batch.
    """
    parts = []
    while len(data):
        size = whole_batches(data[:size_max])
        if not size:
            size = read_first_header(data, "a backup").total_bytes
        if size > len(data):
            raise CorruptData("a backup", 0, f"a batch of {size} bytes", f"{len(data)} bytes")
        parts.append(data[:size])
        data = data[size:]
    return parts
