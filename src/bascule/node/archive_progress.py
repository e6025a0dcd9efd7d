"""How far archives have come, for retention that waits for them.

A node that holds a replica of `_offsets` knows it. Another one asks its leader for the consumers
for which retention waits, every few seconds.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Final

from bascule.controller.cluster.groups import ClusterGroups
from bascule.errors import BasculeError
from bascule.groups import CommittedOffsetStore
from bascule.host.api import Clock
from bascule.replica.partitions import Partitions
from bascule.wire.offsets import OFFSETS_STREAM

log = logging.getLogger("bascule.node")

REFRESH_SECONDS: Final = 5.0
ASKED_NS_MAX: Final = 600_000_000_000
"""Retention looks at each partition again within this time, also among 100,000 of them."""


class ArchiveProgress:
    """Belongs to the event loop, but for `committed`."""

    def __init__(
        self,
        partitions: Partitions,
        store: CommittedOffsetStore,
        cluster: ClusterGroups,
        clock: Clock,
    ) -> None:
        self._partitions = partitions
        self._store = store
        self._cluster = cluster
        self._clock = clock
        self._asked: dict[tuple[str, str], int] = {}
        """Consumer and stream of what retention waits for -> when it asked last."""
        self._told: Mapping[tuple[str, str], Mapping[int, int]] = {}
        """Consumer and stream -> partition -> offset, as the leader of `_offsets` has said."""

    def committed(self, consumer: str, stream: str, partition: int) -> int | None:
        """The offset that a consumer has committed; None: nothing is known. Any thread may call it.

        It may be some seconds old.
        """
        if self._is_held_here():
            return self._store.committed(consumer, stream, partition)
        self._asked[consumer, stream] = self._clock.monotonic_ns()
        return self._told.get((consumer, stream), {}).get(partition)

    def _is_held_here(self) -> bool:
        held = self._partitions.stream(OFFSETS_STREAM)
        return held is not None and held[0].log is not None

    async def run(self) -> None:
        """Run until cancelled."""
        while True:
            await asyncio.sleep(REFRESH_SECONDS)
            await self.refresh()

    async def refresh(self) -> None:
        """Ask for what retention waits for. What the leader does not say is not known any more."""
        told = {}
        for (consumer, stream), asked in tuple(self._asked.items()):
            if self._clock.monotonic_ns() - asked > ASKED_NS_MAX:
                self._asked.pop((consumer, stream), None)
                continue
            try:
                found = await self._cluster.find(consumer=consumer, stream=stream)
            except BasculeError as error:
                extra = {"stream": stream, "consumer": consumer, "error": str(error)}
                log.debug("progress of an archive not known", extra=extra)
                continue
            told[consumer, stream] = {each.partition: each.offset for each in found}
        self._told = told
