"""What the model of `replicated_logs` has on a disk, and in a process."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias

from bascule.metadata.image import Image

Key: TypeAlias = tuple[bytes, int]
"""Stream id and partition."""
Entry: TypeAlias = tuple[int, int]
"""Leader epoch, and a number that no other record has."""


@dataclass
class Log:
    """The log of one replica on its disk."""

    entries: list[Entry] = field(default_factory=list)
    synced: int = 0

    @property
    def last_epoch(self) -> int:
        return self.entries[-1][0] if self.entries else -1

    def sync(self) -> None:
        self.synced = len(self.entries)

    def cut(self, end: int) -> None:
        del self.entries[end:]
        self.synced = min(self.synced, end)

    def common(self, other: list[Entry]) -> int:
        """How many entries at the beginning are equal."""
        pairs = zip(self.entries, other, strict=False)
        return next(
            (n for n, (mine, theirs) in enumerate(pairs) if mine != theirs),
            min(len(self.entries), len(other)),
        )


@dataclass
class Leading:
    """A partition that a process leads."""

    epoch: int
    version: int
    start: int
    """The end of the log when it began to lead."""
    positions: dict[int, tuple[int, int]] = field(default_factory=dict)
    """Follower -> its node epoch and position."""
    pending: tuple[int, ...] | None = None
    """The ISR that it has asked for."""
    committed: int = 0


@dataclass
class Process:
    """A node's process, and the image that it has seen last."""

    incarnation: int
    seen: Image
    leads: dict[Key, Leading] = field(default_factory=dict)
