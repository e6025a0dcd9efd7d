"""The lag of the groups that this node coordinates, for its metrics.

Offsets are those committed now. Ends are looked up when metrics are asked for, at most once a
second: in the replicas of this node that are in sync, and for other partitions at their leaders,
with one request to each. So a lag lacks the records of the last second at most.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, Protocol

from bascule.controller.cluster.groups.partition_ends import Ends, PartitionEnds, Place
from bascule.groups import CommittedOffsetStore
from bascule.groups.administration import SLICE
from bascule.groups.described import RunningGroups
from bascule.wire.error_codes import ErrorCode

ENDS_SECONDS_MAX: Final = 1.0
"""How old the ends that other nodes told may be before they are asked again."""


class CoordinatedGroups(RunningGroups, Protocol):
    """The groups of this node."""

    def error(self) -> ErrorCode:
        """Why this node coordinates no groups now, or NONE."""
        ...


@dataclass(slots=True)
class GroupLagStatistics:
    """For metrics; empty where another node coordinates the groups."""

    size: dict[tuple[str, str], int] = field(default_factory=dict)
    """Group and its state -> members."""
    lag: dict[tuple[str, str, int], int] = field(default_factory=dict)
    """Group, stream and partition -> records up to the end."""
    left_out: int = 0
    """Committed offsets whose lag is not shown."""


class GroupLags:
    """Belongs to the event loop."""

    def __init__(
        self,
        groups: CoordinatedGroups,
        store: CommittedOffsetStore,
        ends: PartitionEnds,
        clock_s: Callable[[], float],
        *,
        series_max: int,
    ) -> None:
        """Shows `series_max` offsets at most; `clock_s` is a monotonic clock."""
        self._groups = groups
        self._store = store
        self._ends = ends
        self._clock_s = clock_s
        self._series_max = series_max
        self._asked: set[Place] = set()
        self._told: dict[Place, Ends] = {}
        """The ends of those of `_asked` that are known."""
        self._told_s: float | None = None

    async def collect(self) -> GroupLagStatistics:
        """The groups as they are now: those with members first, then those that committed first."""
        if self._groups.error():
            return GroupLagStatistics()
        found = GroupLagStatistics()
        running = self._groups.names()
        for number, name in enumerate(running[: self._series_max]):
            if number % SLICE == SLICE - 1:
                await asyncio.sleep(0)
            summary = self._groups.summary(name)
            if summary is not None:
                found.size[name, summary.state] = summary.members
        # There may be a million commits, and many thousands of series: too slow for the loop.
        offsets = await asyncio.to_thread(self._offsets, running)
        ends = await self._find({(stream, partition) for _, stream, partition in offsets})
        for (group, stream, partition), offset in offsets.items():
            end = ends.get((stream, partition))
            if end is not None:
                found.lag[group, stream, partition] = max(0, end.high_watermark - offset)
        found.left_out = max(0, self._store.counts.held - len(found.lag))
        return found

    def _offsets(self, running: list[str]) -> dict[tuple[str, str, int], int]:
        """Group, stream and partition -> offset."""
        found: dict[tuple[str, str, int], int] = {}
        for name in dict.fromkeys((*running, *self._store.consumers())):
            for key in self._store.keys(name):
                if len(found) >= self._series_max:
                    return found
                offset = self._store.committed(*key)
                if offset is not None:
                    found[key] = offset
        return found

    async def _find(self, places: set[Place]) -> dict[Place, Ends]:
        now = self._clock_s()
        is_recent = self._told_s is not None and now - self._told_s < ENDS_SECONDS_MAX
        if not is_recent or not places <= self._asked:
            self._asked = places
            self._told = await self._ends.find(places, from_replicas=True)
            self._told_s = now
        return self._told
