"""How a node without committed offsets learns how far archives have come."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

from bascule.errors import NotLeader
from bascule.node.archive_progress import ArchiveProgress
from bascule.sim.disk import SimClock


class Offsets:
    """The committed offsets of the cluster, and those that this node knows."""

    def __init__(self) -> None:
        self.local: int | None = None
        self.told: int | None = 7
        self.asked = 0

    def committed(self, consumer: str, stream: str, partition: int) -> int | None:
        return self.local

    async def find(self, *, consumer: str, stream: str) -> list[Any]:
        self.asked += 1
        if self.told is None:
            raise NotLeader(None, 0)
        return [SimpleNamespace(partition=2, offset=self.told)]


def test_the_leader_is_asked_where_this_node_holds_no_commits() -> None:
    offsets, held = Offsets(), SimpleNamespace(log=None)
    partitions = SimpleNamespace(stream=lambda name: (held,))
    clock = SimClock(1_000)
    progress = ArchiveProgress(cast(Any, partitions), cast(Any, offsets), cast(Any, offsets), clock)

    def refresh() -> int | None:
        asyncio.run(progress.refresh())
        return progress.committed("lake", "s", 2)

    assert progress.committed("lake", "s", 2) is None
    assert offsets.asked == 0, "retention does not wait"
    assert refresh() == 7
    assert progress.committed("lake", "s", 1) is None
    offsets.told = 9
    assert refresh() == 9
    offsets.told = None
    assert refresh() is None, "what may be wrong by now is not known"
    offsets.told, before = 9, offsets.asked
    assert refresh() == 9
    asyncio.run(progress.refresh())
    assert offsets.asked == before + 2, "retention has not looked since, but will"
    clock.ms += 700_000
    asyncio.run(progress.refresh())
    assert offsets.asked == before + 2, "nobody asks any more"
    held.log, offsets.local = object(), 3
    assert progress.committed("lake", "s", 2) == 3
