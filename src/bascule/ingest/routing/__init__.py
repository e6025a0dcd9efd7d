"""Which partition a message belongs to.

A route maps a subscription id (sid) to one or more *partition slots*. A slot is a small number that
identifies a partition in compiled code. Where a route has several slots, a hash of the message's
subject or key selects one. The hash is Kafka's murmur2, so the records that Kafka producers and
NATS publishers write with one key are in one partition.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeAlias

from bascule.ingest.routing import _hot
from bascule.publish.unstamped_batch import Replica

BY_SUBJECT: Final = _hot.BY_SUBJECT
BY_KEY: Final = _hot.BY_KEY


@dataclass(frozen=True, slots=True)
class PartitionSlot:
    """What the sequencer needs to know of a partition."""

    replica: Replica
    message_bytes_max: int
    key_from_subject: bool = False
    implied_subject: bytes = b""
    """The subject whose records have no header `subject`; empty: all records have it."""
    keeps_reply: bool = False
    """Whether records have a header `reply`."""
    acks: bool = True


@dataclass(frozen=True, slots=True)
class SubjectListener:
    """In the place of a partition: messages that the node itself takes, one by one."""

    on_message: Callable[[bytes], None]
    """Gets each payload, in the reading thread. It may not wait or raise."""
    bytes_max: int
    """A longer payload is cut after one byte more."""


Slot: TypeAlias = PartitionSlot | SubjectListener


class Routes:
    """Sid -> slots, as arrays for compiled code. One thread at a time writes, another one reads.

    The arrays have room: a new route is written into it, which costs the same however many there
    are. A route in force is never changed in place, because its three numbers belong together; it
    gets new arrays, so a chunk is routed with those it started with.
    """

    def __init__(self) -> None:
        self.slots: list[Slot | None] = []
        """By number; None where a slot is not in use. The reader takes it after `arrays`: it has
        all slots that they name."""
        self.arrays: tuple[array[int], array[int]] = (array("i"), array("i"))
        """Three numbers for each sid (start of its slots, their count, BY_...), and the slots."""
        self._table_used = 0

    def set_slot(self, number: int, slot: Slot | None) -> None:
        slots = self.slots
        if number >= len(slots):
            slots = slots + [None] * _more_room(number + 1 - len(slots), len(slots))
        slots[number] = slot
        self.slots = slots

    def set_route(self, sid: int, slots: tuple[int, ...], *, by: int = BY_SUBJECT) -> None:
        """Route messages of `sid` to one of `slots` from now on; without slots they are dropped."""
        numbers, table = self.arrays
        at, start = 3 * sid, self._table_used
        missing = at + 3 - len(numbers)
        if missing > 0:
            numbers = numbers + array("i", bytes(4 * _more_room(missing, len(numbers))))
        elif not slots:
            numbers[at + 1] = 0
            return
        elif numbers[at + 1]:
            numbers = numbers[:]
        missing = start + len(slots) - len(table)
        if missing > 0:
            table = table + array("i", bytes(4 * _more_room(missing, len(table))))
        # The slots of the older route stay in the table: routes seldom change.
        table[start : start + len(slots)] = array("i", slots)
        self._table_used = start + len(slots)
        numbers[at], numbers[at + 2] = start, by
        numbers[at + 1] = len(slots)
        self.arrays = numbers, table


def _more_room(missing: int, present: int) -> int:
    """How much to add: at least what is missing, and as much as there is."""
    return max(missing, present)


def partition_of(key: bytes, count: int) -> int:
    """The partition of `count` that Kafka's Java client picks for `key`."""
    return (_hot.murmur2(key) & 0x7FFFFFFF) % count
