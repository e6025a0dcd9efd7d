"""`ReadHistory`: what all readers have read, and whether it agrees."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from bascule.sim.cluster.checkers.log_contents import Key, StoredRecord
from bascule.sim.cluster.checkers.losses import AllowedLosses
from bascule.sim.cluster.streams import StreamPlan

UNDONE: Final = "nothing read is undone"
IN_ORDER: Final = "readers get everything in order"
IN_RANGE: Final = "what was read is in range"


class ReadHistory:
    """Used by all readers. After an unclean election a partition is not compared any more."""

    def __init__(
        self,
        plans: Mapping[str, StreamPlan],
        losses: AllowedLosses,
        report: Callable[[str, str], None],
    ) -> None:
        """`report` gets the name of an invariant that is broken, and how."""
        self._plans = plans
        self._losses = losses
        self._report = report
        self.records: dict[Key, dict[int, StoredRecord]] = {}
        """What any reader has read, by offset."""

    def is_lost(self, key: Key) -> bool:
        """Whether records may be undone: an operator has allowed the loss of some."""
        return key[0] in self._losses.allowed

    def on_read(self, who: str, key: Key, position: int, record: StoredRecord) -> None:
        """A reader got a record as the next one at or after its position."""
        if self.is_lost(key):
            return
        found = self.records.setdefault(key, {}).setdefault(record.offset, record)
        if found != record:
            self._report(UNDONE, f"{who} read {record} of {key}, where {found} was read before")
        is_next = record.offset == position
        if record.offset < position or not (is_next or self._plans[key[0]].compacts):
            self._report(IN_ORDER, f"{who} got offset {record.offset} of {key} for {position}")

    def on_out_of_range(self, who: str, key: Key, position: int, start: int) -> None:
        """A reader was told that there is no such offset, up to which it has read, in a log that
        starts at `start`."""
        if not self.is_lost(key) and position >= start:
            self._report(
                IN_RANGE,
                f"{who} has read {key} up to {position}, which is out of range of a log that "
                f"starts at {start}",
            )

    def compare(self, key: Key, records: Mapping[int, StoredRecord], start: int) -> str:
        """In what the records that all replicas have from `start` on differ from what was read;
        empty: in nothing."""
        if self.is_lost(key):
            return ""
        for offset, record in self.records.get(key, {}).items():
            if offset >= start and records.get(offset) != record:
                return f"{key}: {record} was read, now there is {records.get(offset)}"
        return ""
