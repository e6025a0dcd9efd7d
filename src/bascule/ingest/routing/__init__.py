"""Which partition a message belongs to.

A subscription (its sid) leads to one or more *partition slots*. A slot is a small number that
stands for a partition in compiled code. With several slots, a hash of the message's subject or key
picks one. The hash is Kafka's murmur2, so that a Kafka producer's and a NATS publisher's records of
one key are in one partition.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from typing import Final

from bascule.ingest.routing import _hot
from bascule.publish.unstamped_batch import Replica

BY_SUBJECT: Final = _hot.BY_SUBJECT
BY_KEY: Final = _hot.BY_KEY


@dataclass(frozen=True, slots=True)
class PartitionSlot:
    """What the sequencer has to know of a partition."""

    replica: Replica
    message_bytes_max: int
    key_from_subject: bool = False


class Routes:
    """Sid -> slots, as arrays for compiled code. Written by one thread at a time, read by another.

    Every change makes new arrays: a chunk being routed goes on with those it began with.
    """

    def __init__(self) -> None:
        self._slots: tuple[PartitionSlot | None, ...] = ()
        self.arrays: tuple[array[int], array[int]] = (array("i"), array("i"))
        """Per sid three numbers: where its slots start, how many, by what; and the slots."""

    @property
    def slots(self) -> tuple[PartitionSlot | None, ...]:
        """By number; None where a slot is not in use."""
        return self._slots

    def set_slot(self, number: int, slot: PartitionSlot | None) -> None:
        slots = list(self._slots)
        slots += [None] * (number + 1 - len(slots))
        slots[number] = slot
        self._slots = tuple(slots)

    def set_route(self, sid: int, slots: tuple[int, ...], *, by: int = BY_SUBJECT) -> None:
        """Messages of subscription `sid` go to one of `slots` from now on; none: nowhere."""
        numbers, table = self.arrays
        numbers = numbers[:]
        if len(numbers) < 3 * (sid + 1):
            numbers.frombytes(bytes(4 * (3 * (sid + 1) - len(numbers))))
        # What an older route had stays behind in the table: routes seldom change.
        numbers[3 * sid : 3 * sid + 3] = array("i", (len(table), len(slots), by))
        self.arrays = numbers, table + array("i", slots)


def partition_of(key: bytes, count: int) -> int:
    """The partition of `count` that Kafka's Java client picks for `key`."""
    return (_hot.murmur2(key) & 0x7FFFFFFF) % count
