"""What a watcher of a table sees, and where it begins."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Literal, NamedTuple, TypeAlias

from bascule.tables.rows import TablePosition


class WatchPosition(NamedTuple):
    """Where a watcher stands."""

    offset: int
    """The first offset that it has not seen."""
    epoch: int
    """The leader epoch of the record before; -1 if it is not known."""
    seen: TablePosition | None = None
    """What the table stood at when the watcher was shown a part of what it had: what had changed
    again below that may not be seen yet. None: everything below `offset` was seen."""


class Begin(Enum):
    """Where a watcher begins that has not seen anything."""

    NOW = "now"
    STATE = "state"
    """The present state first: each key with a value."""


Start: TypeAlias = WatchPosition | Literal[Begin.NOW, Begin.STATE]


class Change:
    """The latest record of a key. One object for all watchers of a replica."""

    __slots__ = (
        "content_type",
        "encoded",
        "epoch",
        "frame_end",
        "is_ordered",
        "key",
        "seen",
        "timestamp",
        "value",
        "version",
    )

    def __init__(
        self,
        key: bytes,
        version: int,
        timestamp: int,
        value: bytes | None,
        content_type: str | None,
        epoch: int,
        *,
        is_ordered: bool = True,
        seen: TablePosition | None = None,
    ) -> None:
        self.key = key
        self.version = version
        """The offset of the record."""
        self.timestamp = timestamp
        """Unix time of the record, milliseconds."""
        self.value = value
        """None: the key was removed."""
        self.content_type = content_type
        """Of a removal: see `tables._hot.AppliedRow`."""
        self.epoch = epoch
        """The leader epoch of the record; -1 if it is not known."""
        self.is_ordered = is_ordered
        """False while the state is shown by key: lower versions may follow."""
        self.seen = seen
        """Of the position behind it, see `WatchPosition.seen`."""
        self.encoded: bytes | None = None
        """The event over HTTP, for the other watchers there."""
        self.frame_end: bytes | None = None
        """The end of the message to key-value clients, likewise."""

    @property
    def position(self) -> WatchPosition:
        """Where a watcher stands that has seen it, if it is ordered."""
        return WatchPosition(self.version + 1, self.epoch, self.seen)

    @property
    def size(self) -> int:
        """Bytes, about."""
        return 200 + len(self.key) + (0 if self.value is None else len(self.value))


@dataclass(frozen=True, slots=True)
class Restarted:
    """The state of the table follows, in the order of keys: forget what was seen before.

    Seen first by a watcher that begins with the state, and by one whose position is too old, or is
    of records that the log has lost.
    """


@dataclass(frozen=True, slots=True)
class Caught:
    """Everything below `position` that matches was seen; the first one ends the present state."""

    position: WatchPosition


WatchStep: TypeAlias = list[Change] | Restarted | Caught
