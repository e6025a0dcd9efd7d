"""Bounds the memory of all groups that a node coordinates."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from bascule.groups.committed_offsets import CommittedOffsetStore
from bascule.groups.running import Records, RunningGroup

log = logging.getLogger("bascule.groups")

GROUP_BYTES: Final = 2_000
"""Of a group without members in memory, beyond its name; measured: 770, and 400 in its deadline."""
LOGGED_EVERY_MS: Final = 60_000
"""Refusals are logged so often; all are counted."""


class GroupMemory:
    """Running sums over the groups: no request looks at all of them, or at all members of one.

    A group counts with what it has in memory and with its stored state, of which this node keeps a
    copy: with what it will be, or with what it still is where that is more. What is being stored
    counts on top.
    """

    def __init__(self, offsets: CommittedOffsetStore, bytes_max: int) -> None:
        self._offsets = offsets
        self._bytes_max = bytes_max
        self._groups_bytes = 0
        self._storing_bytes = 0
        self.refusals = 0
        """Requests that were refused because of the bound."""
        self._logged_ms: int | None = None

    @property
    def size_bytes(self) -> int:
        """What all groups take now, about."""
        return self._groups_bytes + self._storing_bytes

    def count(self, running: RunningGroup) -> None:
        """Count a group with what it takes now."""
        stored = self._offsets.state_bytes(running.name)
        size = GROUP_BYTES + 2 * len(running.name) + max(running.group.kept_bytes, stored)
        self._groups_bytes += size - running.size_bytes
        running.size_bytes = size

    def forget(self, running: RunningGroup) -> None:
        """A group is gone."""
        self._groups_bytes -= running.size_bytes
        running.size_bytes = 0

    @contextmanager
    def storing(self, records: Records) -> Iterator[None]:
        """Count records that are on their way to the stream."""
        size = sum(len(value) for _, value in records if value is not None)
        self._storing_bytes += size
        try:
            yield
        finally:
            self._storing_bytes -= size

    def has_room(
        self,
        running: RunningGroup | None,
        growth: int,
        needed: int | None = None,
        *,
        name: str,
        now_ms: int,
    ) -> bool:
        """Whether a group may grow. False is counted, and logged.

        `running` is None for a new group. `needed` bytes are taken until the group has grown by
        `growth`; None: as many. What lets no group grow is never refused: those that are there go
        on, and may take `needed` bytes for a moment.
        """
        if running is None:
            growth += GROUP_BYTES + 2 * len(name)
        more = growth if needed is None else needed
        if growth <= 0 or self.size_bytes + more <= self._bytes_max:
            return True
        self.refusals += 1
        if self._logged_ms is None or now_ms - self._logged_ms >= LOGGED_EVERY_MS:
            self._logged_ms = now_ms
            log.warning(
                "group refused: the groups take too much memory",
                extra={
                    "group": name,
                    "bytes_asked": more,
                    "size_bytes": self.size_bytes,
                    "bytes_max": self._bytes_max,
                    "refusals": self.refusals,
                },
            )
        return False
