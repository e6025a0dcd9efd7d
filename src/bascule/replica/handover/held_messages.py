"""The messages that a node receives for a partition before it leads it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from bascule.publish.unstamped_batch import UnstampedBatch

HELD_BYTES_MAX: Final = 64 << 20
"""Of all partitions of a node: what a node takes in half a second at full load."""


@dataclass(slots=True)
class HoldingMemory:
    """Bounds the bytes that are held for all partitions of a node."""

    bytes_max: int = HELD_BYTES_MAX
    used: int = 0


@dataclass(slots=True)
class HeldMessages:
    """Batches in the order of their arrival, until the node leads or does not."""

    memory: HoldingMemory
    tail_start: int | None
    """Records of the log from this offset on may be of messages that are held. None: no record is,
    since each message goes to one member of a queue group."""
    batches: list[UnstampedBatch] = field(default_factory=list)
    used: int = 0

    def add(self, batch: UnstampedBatch) -> bool:
        """Copy a batch, whose memory belongs to the caller. False if there is no room for it."""
        size = len(batch.data) + len(batch.ack_entries) + len(batch.refused_entries)
        if self.memory.used + size > self.memory.bytes_max:
            return False
        self.memory.used += size
        self.used += size
        self.batches.append(
            UnstampedBatch(
                data=memoryview(bytearray(batch.data)),
                record_count=batch.record_count,
                ack_entries=batch.ack_entries,
                refused_entries=batch.refused_entries,
                refused_count=batch.refused_count,
                headers=batch.headers,
                ack_policies=batch.ack_policies,
            )
        )
        return True

    def on_truncated(self, offset: int) -> None:
        """The log ends at `offset` now; what comes behind it may be of messages that are held."""
        if self.tail_start is not None:
            self.tail_start = min(self.tail_start, offset)

    def end(self) -> None:
        """Give the memory back."""
        self.memory.used -= self.used
        self.batches, self.used = [], 0
